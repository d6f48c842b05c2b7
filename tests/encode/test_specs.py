"""The words that name a model, and what each wrong word says."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.encode.encoder import TEXT, Device
from ray_backfill.encode.kinds import all_kinds, load_model, parse_spec
from ray_backfill.encode.models.python import model_of

HERE = "python:tests.encode._models:"
TEXTS = ["a cat", "the black cat sat on the mat", "dogs", "a"]


def test_a_spec_is_read_and_written_again() -> None:
    text = "hf:org/model#dims=256&pooling=cls&batch=64&dtype=bf16&prompt=query:find: &prompt=document:text: "
    spec = parse_spec(text)
    assert (spec.kind, spec.name, spec.dims, spec.pooling, spec.batch, spec.dtype) == (
        "hf", "org/model", 256, "cls", 64, "bf16",
    )  # fmt: skip
    assert spec.prompt == {"query": "find: ", "document": "text: "}
    assert parse_spec(str(spec)) == spec
    assert str(parse_spec("onnx:a/b.onnx")) == "onnx:a/b.onnx"


def test_a_recorded_name_has_no_folders_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "minilm").mkdir()
    assert parse_spec(f"hf:{tmp_path}/minilm#dims=64&batch=8").recorded_name() == "hf:minilm#dims=64"
    assert parse_spec(f"cached:{tmp_path}/minilm").recorded_name() == f"cached:{tmp_path.name}/minilm"
    assert parse_spec("hf:org/model").recorded_name() == "hf:org/model"
    assert parse_spec("openai:small#price=0.02&rpm=9").recorded_name() == "openai:small"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("all-MiniLM", "--new 'all-MiniLM' names no model; write one of sentence-transformers:NAME_OR_FOLDER"),
        ("./folder:x", "names no model"),
        ("hg:name", "unknown --new kind 'hg'"),
        ("hf:", "lacks a name, as in hf:NAME_OR_FOLDER"),
        ("hf:a#dim=3", "unknown option 'dim'; did you mean dims"),
        ("hf:a#dims=many", "dims must be a number, not 'many'"),
        ("hf:a#dims=-3", "dims must be a number from 0 on"),
        ("hf:a#pooling=max", "unknown pooling 'max'; known: mean, cls, last"),
        ("hf:a#dtype=int8", "unknown dtype 'int8'"),
        ("hf:a#prompt=hello", "prompt=query:TEXT"),
        ("hf:a#dims", "options are written as dims=256&batch=64"),
        ("colbert:x", r"a model with several vectors for each item \(ColBERT\) cannot be replayed"),
        ("splade:x", "a model of sparse vectors"),
    ],
)
def test_what_is_wrong_is_said(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as error:
        parse_spec(text, "--new")
    assert "\n" not in str(error.value)


def load(name: str, modality: str = TEXT) -> Any:
    return load_model(parse_spec(name), modality, Device())


def test_a_function_and_a_class_embed() -> None:
    from tests.encode import _models

    for name, expected in (("old", _models.old(TEXTS)), ("New", _models.New()(TEXTS, "query"))):
        model = load(HERE + name)
        np.testing.assert_array_equal(model.embed(TEXTS, "query"), expected)
        assert model.embed([], "query").shape == (0, expected.shape[1])
    assert load(HERE + "New").encoder.batch == 7
    half = load(HERE + "old#dims=8&batch=3")
    np.testing.assert_array_equal(half.embed(TEXTS, "query"), _models.old(TEXTS)[:, :8])
    unit = load(HERE + "old#dims=8&normalise=yes").embed(TEXTS, "query")
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-6)
    assert parse_spec("hf:a#prompt=query:C++ 100%25: ").prompt == {"query": "C++ 100%: "}
    prompted = load(HERE + "old#prompt=query:find ")
    np.testing.assert_array_equal(prompted.embed(["cat"], "query"), _models.old(["find cat"]))
    np.testing.assert_array_equal(prompted.embed(["cat"], "document"), _models.old(["cat"]))


def test_a_method_of_a_library_is_not_told_the_side() -> None:
    """The second argument of SentenceTransformer.encode is the name of a prompt."""

    class Library:
        def encode(self, sentences: list[str], prompt_name: str | None = None) -> Any:
            assert prompt_name is None
            return np.ones((len(sentences), 3))

    assert model_of(Library().encode, TEXT).embed(TEXTS, "query").shape == (4, 3)


def test_the_identity_is_that_of_the_code_and_the_options() -> None:
    plain = load(HERE + "old").identity()
    assert load(HERE + "old#batch=3").identity() == plain, "the batch changes nothing"
    assert load(HERE + "old#dims=8").identity() != plain
    assert load(HERE + "old").probes().shape == (10, 16)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("python:nosuchmodule:x", "there is no module nosuchmodule"),
        ("python:json", "must name a module and an object in it, as in python:mymodels:old"),
        (HERE + "nothing", "the module tests.encode._models has no nothing"),
        (HERE + "number", "number is int; it must take a list of texts"),
        (HERE + "NeedsArguments", r"NeedsArguments\(\) failed: TypeError"),
        (HERE + "wrong_number", r"returned an array of shape \(5, 4\) for 4 texts; one vector for each item"),
        (HERE + "tokens", "such as ColBERT, cannot be replayed"),
        (HERE + "one_number", r"returned an array of shape \(4,\), not \(4, d\)"),
        (HERE + "not_finite", "returned a vector that is not finite for text 1 of 4; fix the model"),
        (HERE + "fails", r"failed on 4 texts: ValueError: out of order \(_models.py, line \d+\)"),
        (HERE + "ragged", "failed on 4 texts: ValueError: setting an array element with a sequence"),
        ("mymodels:old", "unknown model kind .mymodels.; .*; a function of yours: python:mymodels:old"),
        (HERE + "old#dims=99", "has only 16 dimensions; lower dims"),
        (HERE + "grows#batch=1", "returned vectors of 4 and of 7 dimensions"),
        ("onnx:/nowhere/model.onnx", "there is no /nowhere/model.onnx; give a file or folder"),
        ("onnx:nowhere.onnx", "there is no file nowhere.onnx"),
        ("onnx:model.onnx#dtype=bf16", "onnx: models have no option dtype=bf16"),
        ("hf:/nowhere/model", "there is no /nowhere/model"),
        ("hf:nobody/nothing", "cannot be loaded"),
        ("sentence-transformers:x#pooling=cls", "sentence-transformers: models have no option pooling=cls"),
        (HERE + "old#normalise=no", "python: models have no option normalise=no"),
        (HERE + "no_dimensions", "returned vectors of 0 dimensions"),
        (HERE + "imaginary", "returned values of type complex128; return real numbers"),
        (HERE + "objects", "returned values of type object"),
        (HERE + "words", "returned values of type <U3"),
        (HERE + "returns_none", "returned values of type object"),
        (HERE + "days", "returned values of type datetime64"),
        (HERE + "exits", r"exits failed on 4 texts: SystemExit: 7 \(_models.py, line \d+\)"),
        (HERE + "hungry", r"MemoryError: Unable to allocate 8 EiB \(.*\); lower batch or --actors.number"),
        (HERE + "overflows", "a vector that is not finite for text 1 of 4"),
        (HERE + "NoBatch", r"failed while it was loaded: RuntimeError: no batch"),
        (HERE + "HungryAtStart", r"HungryAtStart\(\) failed: MemoryError"),
    ],
)
def test_a_model_that_cannot_serve_is_refused_in_one_line(
    name: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not by the environment, which is read once, when the library is imported.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=says) as error:
        load(name).embed(TEXTS, "query")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("NoIdentity", r"NoIdentity failed in identity\(\): RuntimeError: nobody knows \(_models.py"),
        ("ExitsForIdentity", r"failed in identity\(\): SystemExit: "),
        ("OddIdentity", r"failed in identity\(\): TypeError: .*set is not JSON"),
    ],
)
def test_an_identity_that_cannot_be_known_is_one_line(name: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as error:
        load(HERE + name).identity()
    assert "\n" not in str(error.value)


def test_an_exit_that_ray_asks_for_is_no_failure_of_the_model() -> None:
    """A node that is shut down politely ends its actors by SIGTERM, and others take their work."""

    def stopped(texts: list[str]) -> Any:
        importlib.import_module("ray._raylet").raise_sys_exit_with_custom_error_message(
            "The process receives a SIGTERM.", exit_code=1
        )

    with pytest.raises(SystemExit):
        model_of(stopped, TEXT).embed(TEXTS, "query")


def test_words_can_be_read_again() -> None:
    given = HERE + "old#prompt=query:R %26 D 100 %25: &dims=8"
    spec = parse_spec(given)
    assert spec.prompt == {"query": "R & D 100 %: "}
    assert parse_spec(str(spec)) == spec
    with pytest.raises(InputError, match="an & or % in a value as %26 or %25"):
        parse_spec(HERE + "old#prompt=query:R & D")


def test_prompts_and_tokens_are_of_texts() -> None:
    for option in ("prompt=query:x", "tokens=9"):
        with pytest.raises(InputError, match="prompts and tokens are of texts; leave them out for images"):
            load(f"hf:nobody/nothing#{option}", "image")


def test_a_model_of_texts_embeds_no_images() -> None:
    with pytest.raises(InputError, match="openai:m embeds texts, not images"):
        load("openai:m", "image")


def test_a_library_that_is_missing_is_named_with_the_line_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sentence_transformers", None)
    with pytest.raises(InputError, match=r"needs sentence_transformers.*: python -m pip install sentence-transformers"):
        load("sentence-transformers:x")


def test_every_kind_explains_itself() -> None:
    assert next(iter(all_kinds())) == "sentence-transformers"
    for kind in all_kinds().values():
        assert kind.example.startswith(f"{kind.name}:")
        assert kind.explains.endswith(".")
        assert kind.modalities
