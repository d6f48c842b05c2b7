"""Each kind of model against its library's own result, with models that are built here."""

import importlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ray_backfill.core.errors import InputError
from ray_backfill.core.schema import footers
from ray_backfill.core.stages import read_json
from ray_backfill.core.store_path import path_of
from ray_backfill.data.folder import StoredSplit
from ray_backfill.drill.jobs import FromItems
from ray_backfill.drill.parts import read_part, write_part
from ray_backfill.drill.plan import Operation
from ray_backfill.drill.ray.embedding import _from_items
from ray_backfill.encode.bill import bill, estimate
from ray_backfill.encode.encoder import IMAGE, TEXT, Device, same_model
from ray_backfill.encode.items import ItemSettings, ItemSources, write_items
from ray_backfill.encode.kinds import load_model, parse_spec
from ray_backfill.encode.models import openai
from ray_backfill.encode.part import EncodeRequest
from ray_backfill.encode.stage import embed_items
from ray_backfill.workers.settings import EmbedActors
from tests.encode.endpoint import Endpoint, serving

TEXTS = ["a cat", "the black cat sat on the mat", "dogs", "a", "mat sat"]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "the", "black", "cat", "sat", "on", "mat", "dogs", "find", ":"]


def load(name: str, modality: str = TEXT) -> Any:
    return load_model(parse_spec(name), modality, Device())


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT, saved as a folder."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("bert")
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join(WORDS), encoding="utf-8")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16,
    )  # fmt: skip
    BertModel(config).eval().save_pretrained(folder)
    BertTokenizerFast(vocab=str(vocabulary), model_max_length=16).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", ["hf", "sentence-transformers"])
def test_a_model_in_a_store_is_the_same_model(kind: str, bert: Path, store: str) -> None:
    folder = path_of(store) / "models" / bert.name
    for file in bert.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    there, here = (load(f"{kind}:{place}") for place in (folder, bert))
    assert there.identity() == here.identity()
    assert there.spec.recorded_name() == here.spec.recorded_name() == f"{kind}:{bert.name}"
    assert same_model(there.probes(), here.probes())
    with pytest.raises(InputError, match=f"there is no {folder}s; give a file or folder"):
        load(f"{kind}:{folder}s")


def states(folder: Path, text: str) -> Any:
    """(n, d) vectors of the tokens of one text, without any padding."""
    from transformers import AutoModel, AutoTokenizer

    inputs = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
    with torch.inference_mode():
        return AutoModel.from_pretrained(folder)(**inputs).last_hidden_state[0].numpy()


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_a_text_model_of_transformers_is_pooled_as_asked(bert: Path, pooling: str) -> None:
    found = load(f"hf:{bert}#pooling={pooling}&batch=3").embed(TEXTS, "query")
    pools = {"mean": lambda x: x.mean(0), "cls": lambda x: x[0], "last": lambda x: x[-1]}
    np.testing.assert_allclose(found, [pools[pooling](states(bert, text)) for text in TEXTS], atol=1e-5)
    unit = load(f"hf:{bert}#pooling={pooling}&normalise=yes&dims=8").embed(TEXTS, "query")
    assert unit.shape == (5, 8)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-6)


def test_roberta_reads_two_tokens_less_than_it_has_positions(bert: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer, RobertaConfig, RobertaModel

    config = RobertaConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=18, pad_token_id=1,
    )  # fmt: skip
    RobertaModel(config).eval().save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(bert)
    tokenizer.model_max_length = 10**30  # many models on the hub record none
    tokenizer.save_pretrained(tmp_path)
    model = load(f"hf:{tmp_path}")
    assert model.identity()["length"] == 16
    assert load(f"hf:{tmp_path}#tokens=9").identity()["length"] == 9
    long, cut = model.embed(["cat " * 50, "cat " * 14], "query")  # with [CLS] and [SEP]
    np.testing.assert_allclose(long, cut, atol=1e-6)


def test_sentence_transformers_embed_as_their_own_encode(bert: Path, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, Pooling, Transformer

    made = SentenceTransformer(
        modules=[Transformer(str(bert)), Pooling(16, "cls"), Normalize()],
        prompts={"query": "find : "}, device="cpu",
    )  # fmt: skip
    made.save(str(tmp_path / "st"))
    model = load(f"sentence-transformers:{tmp_path / 'st'}")
    np.testing.assert_allclose(model.embed(TEXTS, "document"), made.encode(TEXTS), atol=1e-5)
    np.testing.assert_allclose(model.embed(TEXTS, "query"), made.encode(TEXTS, prompt_name="query"), atol=1e-5)
    # The folder's own pooling and length are known to hf:, too.
    np.testing.assert_allclose(load(f"hf:{tmp_path / 'st'}").embed(TEXTS, "query"), made.encode(TEXTS), atol=1e-5)
    again, other = load(f"sentence-transformers:{tmp_path / 'st'}"), load(f"hf:{bert}#pooling=mean")
    assert again.identity() == model.identity()
    assert same_model(again.probes(), model.probes().tolist())
    assert not same_model(other.probes(), model.probes().tolist())


@pytest.mark.parametrize("change", ["pooling", "lower case", "heads"])
def test_what_has_no_weights_is_part_of_the_identity(bert: Path, tmp_path: Path, change: str) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer

    found = []
    for number in range(2):
        source, folder = tmp_path / f"bert{number}", tmp_path / f"st{number}"
        shutil.copytree(bert, source)
        if number and change == "lower case":
            file = source / "tokenizer_config.json"
            file.write_text(file.read_text().replace('"do_lower_case": true', '"do_lower_case": false'))
        if number and change == "heads":
            file = source / "config.json"
            file.write_text(file.read_text().replace('"num_attention_heads": 2', '"num_attention_heads": 4'))
        pooling = Pooling(16, "cls" if number and change == "pooling" else "mean")
        SentenceTransformer(modules=[Transformer(str(source)), pooling], device="cpu").save(str(folder))
        found.append([load(f"{kind}:{folder}").identity() for kind in ("sentence-transformers", "hf")])
    for one, other in zip(*found, strict=True):
        assert one != other


def test_another_weight_is_another_model(bert: Path, tmp_path: Path) -> None:
    from transformers import AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(bert)
    model.embeddings.word_embeddings.weight.data[4, 0] += 1e-4
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(bert).save_pretrained(tmp_path)
    assert load(f"hf:{tmp_path}").identity() != load(f"hf:{bert}").identity()


def test_a_vision_model_of_transformers(tmp_path: Path) -> None:
    from PIL import Image
    from transformers import ViTConfig, ViTImageProcessor, ViTModel

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=32, patch_size=16
    )
    model = ViTModel(config).eval()
    model.save_pretrained(tmp_path)
    processor = ViTImageProcessor(size={"height": 32, "width": 32})
    processor.save_pretrained(tmp_path)
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)) for _ in range(3)]
    with torch.inference_mode():
        output = model(**processor(images=images, return_tensors="pt"))
    np.testing.assert_allclose(load(f"hf:{tmp_path}", IMAGE).embed(images, "query"), output.pooler_output, atol=1e-5)
    found = load(f"hf:{tmp_path}#pooling=cls", IMAGE).embed(images, "query")
    np.testing.assert_allclose(found, output.last_hidden_state[:, 0], atol=1e-5)


@pytest.mark.heavy
def test_compiled_models_embed_the_same(bert: Path) -> None:
    plain = load(f"hf:{bert}").embed(TEXTS, "query")
    compiled = load(f"hf:{bert}#compile=yes&batch=2")
    np.testing.assert_allclose(compiled.embed(TEXTS, "query"), plain, atol=1e-5)
    assert compiled.encoder._model._compiled_call_impl is not None
    assert compiled.identity()["weights"] == load(f"hf:{bert}").identity()["weights"]


def test_the_layout_of_memory_changes_nothing(tmp_path: Path) -> None:
    from PIL import Image
    from transformers import ResNetConfig, ResNetModel, ViTImageProcessor

    torch.manual_seed(0)
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    ResNetModel(config).eval().save_pretrained(tmp_path)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(tmp_path)
    images = [Image.new("RGB", (40, 50), (shade, 10, 200)) for shade in (0, 90, 250)]
    plain = load(f"hf:{tmp_path}", IMAGE)
    other = load(f"hf:{tmp_path}#channels_last=yes", IMAGE)
    weights = [each for each in other.encoder._model.parameters() if each.ndim == 4]
    assert any(each.is_contiguous(memory_format=torch.channels_last) and min(each.shape[1:]) > 1 for each in weights)
    np.testing.assert_allclose(other.embed(images, "query"), plain.embed(images, "query"), atol=1e-5)
    assert other.identity() == plain.identity()


@pytest.mark.parametrize(("dtype", "inside"), [("fp32", "ieee"), ("tf32", "tf32"), ("bf16", "ieee")])
def test_products_of_gpus_are_full_unless_tf32_is_asked_for(bert: Path, dtype: str, inside: str) -> None:
    """Convolutions use TF32 by default, and a GPU's embeddings are then others than a CPU's."""
    backends: Any = torch.backends
    places = backends.cuda.matmul, backends.cudnn.conv
    before, seen = [place.fp32_precision for place in places], list[str]()
    model = load(f"hf:{bert}#dtype={dtype}")
    model.encoder._model.register_forward_hook(lambda *_: seen.extend(place.fp32_precision for place in places))
    model.embed(["a cat"], "query")
    assert seen == [inside, inside]
    assert [place.fp32_precision for place in places] == before


def test_onnx_runtime_pools_the_vectors_of_tokens(bert: Path, tmp_path: Path) -> None:
    helper, numpy_helper = (importlib.import_module(f"onnx.{name}") for name in ("helper", "numpy_helper"))
    kinds: Any = importlib.import_module("onnx").TensorProto
    table = np.random.default_rng(0).normal(size=(len(WORDS), 6)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "input_ids"], ["states"])], "g",
        [helper.make_tensor_value_info("input_ids", kinds.INT64, ["b", "n"])],
        [helper.make_tensor_value_info("states", kinds.FLOAT, ["b", "n", 6])],
        [numpy_helper.from_array(table, "table")],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 10
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    with pytest.raises(InputError, match=r"has no tokenizer\.json beside it"):
        load(f"onnx:{tmp_path / 'm.onnx'}")
    (tmp_path / "tokenizer.json").write_bytes((bert / "tokenizer.json").read_bytes())
    ids = [[2, 4, 7, 3], [2, 5, 6, 7, 8, 9, 5, 10, 3], [2, 11, 3], [2, 4, 3], [2, 10, 8, 3]]
    pools: dict[str, Callable[[Any], Any]] = {
        "mean": lambda x: x.mean(0),
        "cls": lambda x: x[0],
        "last": lambda x: x[-1],
    }
    for pooling, pool in pools.items():
        found = load(f"onnx:{tmp_path / 'm.onnx'}#pooling={pooling}").embed(TEXTS, "query")
        np.testing.assert_allclose(found, [pool(table[own]) for own in ids], atol=1e-6)
    (tmp_path / "m.onnx").write_bytes(b"nothing")
    with pytest.raises(InputError, match="cannot be loaded by ONNX Runtime"):
        load(f"onnx:{tmp_path / 'm.onnx'}")


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Endpoint]]:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-to-be-shown")
    monkeypatch.setattr(openai, "_FIRST_WAIT_S", 0.001)
    Endpoint.plan, Endpoint.asked = [], []
    with serving(Endpoint) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        yield Endpoint


def test_an_endpoint_of_openais_protocol_is_asked_again_while_it_is_busy(endpoint: type[Endpoint]) -> None:
    endpoint.plan = [503, 429, "half", 200]
    found = load("openai:small#batch=3").embed(TEXTS, "query")
    np.testing.assert_array_equal(found, [[len(text), 1] for text in TEXTS])
    path, key, body = endpoint.asked[-1]
    assert (path, key, body["model"]) == ("/v1/embeddings", "Bearer sk-not-to-be-shown", "small")
    assert len(endpoint.asked) == 5, "two batches, and three that failed"
    assert load("openai:small#dims=1").embed(TEXTS, "query").shape == (5, 1)
    assert endpoint.asked[-1][2]["dimensions"] == 1
    endpoint.plan = ["long", "long", 200]
    found = load("openai:small").embed(["x" * 200, "y" * 1000], "query")
    np.testing.assert_array_equal(found, [[100, 1], [1000, 1]])  # halves of the batch, then of the text
    load("openai:small").embed(["x" * 10_000_000], "query")
    assert len(endpoint.asked[-1][2]["input"][0]) == 24_000


def test_limits_per_minute_are_shared_by_all_processes(
    endpoint: type[Endpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    now, waits = [100.0], list[float]()

    def sleep(seconds: float) -> None:
        waits.append(round(seconds, 6))
        now[0] += seconds

    clock = SimpleNamespace(sleep=sleep, monotonic=lambda: now[0])
    monkeypatch.setattr(openai, "time", clock)
    three = Device(processes=3)
    load_model(parse_spec("openai:small#batch=2&rpm=60"), TEXT, three).embed(TEXTS, "query")
    assert waits == [0, 3, 3], "three processes, a request a second together"
    waits.clear()
    model = load_model(parse_spec("openai:small#batch=1&tpm=60"), TEXT, three)
    model.embed(["one two", "one two three four"], "query")
    assert waits == [0, 6], "two tokens, of which three processes read one a second"
    assert model.tokens == 6


def test_what_a_service_charges_is_said_before_and_after(
    endpoint: type[Endpoint], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f"{row},one two three {row}\n" for row in range(100))
    (tmp_path / "a.csv").write_text("id,text\n" + rows, encoding="utf-8")
    settings = ItemSettings(part_rows=40, draw_train=0)
    items = write_items(tmp_path / "items", ItemSources("text", str(tmp_path / "a.csv")), settings)
    spec = parse_spec("openai:small#price=500000&prompt=query:find ")
    request = EncodeRequest(items, TEXT, {"old": parse_spec("python:tests.encode._models:old"), "new": spec})
    endpoint.plan = [200, 200, 200, 200, 200, 400]  # the probes of both sides, three parts, and the queries
    for _ in range(2):
        here = {name: load_model(each, TEXT, Device()) for name, each in request.models.items()}
        with suppress(InputError):
            embed_items(tmp_path / "out", request, EmbedActors(), here=here)
    said = capsys.readouterr().err
    characters = sum(len(f"one two three {row}") for row in range(100)) + 10 * len("find ")
    about = -(-characters // 4)
    assert f"openai:small#price=500000.0&prompt=query:find  will read 100 texts, about {about} tokens" in said
    assert f"about ${about / 2:.2f} at $500000 a million" in said
    assert "will read 10 texts" in said, "what the stopped run had left"
    assert "has read 410 tokens, $205.00 at" in said, "of both runs, as the service counts: four words, five in a query"
    assert read_json(tmp_path / "out" / "manifest.json")["tokens"] == {"new": 410}


def test_a_drill_adds_up_what_its_service_has_read(
    endpoint: type[Endpoint], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [{"id": str(row), "text": f"one two three {row}"} for row in range(30)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts), encoding="utf-8")
    items = write_items(tmp_path / "items", ItemSources(TEXT, str(tmp_path / "t.jsonl")), ItemSettings(draw_queries=10))
    specs = {"new": parse_spec("openai:small#price=1e6")}
    probes = {"new": load_model(specs["new"], TEXT, Device()).probes().tolist()}
    embed = _from_items(
        FromItems(items, TEXT, specs, StoredSplit(items / "gallery.parquet"), Device(), probes), lambda _: None
    )
    for number, positions in enumerate((np.arange(7), np.arange(7, 20))):
        operation = Operation(number, "backfill", positions)
        write_part(tmp_path, operation, embed(positions, ("new",)))
        assert read_part(tmp_path, operation).vectors["new"].shape == (len(positions), 2)
    assert bill(footers(sorted(tmp_path.glob("parts/*.parquet"))), specs) == {"new": 80}, (
        "without the probes, which it asks again"
    )
    assert "has read 80 tokens, $80.00 at $1e+06 a million" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [
        (400, {"object": "error", "message": "This model's maximum context length is 512 tokens"}),
        (413, {"message": "batch size 128 > maximum allowed batch size 32", "type": "Validation"}),
        (500, {"error": {"message": "input (992 tokens) is too large to process"}}),
        (422, {"detail": "Input is too long"}),
    ],
)
def test_what_is_too_much_for_other_servers_is_halved(endpoint: type[Endpoint], error: tuple[int, Any]) -> None:
    endpoint.plan = [error]
    found = load("openai:small").embed(TEXTS, "query")
    np.testing.assert_array_equal(found, [[len(text), 1] for text in TEXTS])
    assert [len(body["input"]) for *_, body in endpoint.asked] == [5, 3, 2]


def test_an_error_with_status_200_is_asked_again(endpoint: type[Endpoint]) -> None:
    endpoint.plan = [(200, {"error": {"message": "Rate limit exceeded"}})]
    model = load("openai:small")
    assert model.embed(TEXTS, "query").shape == (5, 2)
    assert model.tokens == sum(len(text.split()) for text in TEXTS), "those of the answer that came"
    endpoint.plan = [(200, {"error": "Rate limit exceeded"})] * 8
    with pytest.raises(InputError, match=r"in 8 tries \(200 without vectors \(Rate limit exceeded\)\)"):
        load("openai:small").embed(TEXTS, "query")


def test_an_address_without_a_scheme_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "localhost:8000/v1")
    with pytest.raises(InputError, match="must begin with http"):
        load("openai:small")


def test_the_estimate_counts_what_is_sent(
    endpoint: type[Endpoint], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f"{row},{'x' * 10_000}\n" for row in range(20))
    (tmp_path / "a.csv").write_text("id,text\n" + rows, encoding="utf-8")
    sources = ItemSources("text", str(tmp_path / "a.csv"))
    items = write_items(tmp_path / "items", sources, ItemSettings(draw_queries=2, draw_train=0))
    request = EncodeRequest(items, TEXT, {"new": parse_spec("openai:small#tokens=20")})
    estimate(request, request.parts(), 1)
    assert f"will read 20 texts, about {20 * 60 // 4} tokens" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "actors", "takes"),
    [
        ("", 1, "in about 3 requests, hours unknown without rpm= or tpm="),
        ("&rpm=1", 1, "in about 3 requests, about 3 min 0 s or longer"),
        ("&batch=5&rpm=1", 1, "in about 10 requests, about 10 min 0 s or longer"),
        # Each of two actors has half of the limit, and one of them has a part of 6 requests; so has one of three.
        ("&batch=5&rpm=1", 2, "in about 10 requests, about 12 min 0 s or longer"),
        ("&batch=5&rpm=1", 9, "in about 10 requests, about 18 min 0 s or longer"),
        ("&tpm=1", 1, "in about 3 requests, about 12 h 30 min or longer"),
        ("&rpm=1000&tpm=1", 1, "in about 3 requests, about 12 h 30 min or longer"),
    ],
)
def test_requests_and_hours_are_said_beforehand(
    endpoint: type[Endpoint], tmp_path: Path, capsys: pytest.CaptureFixture[str], options: str, actors: int, takes: str
) -> None:
    """50 texts of 15 tokens: two parts of the gallery of 30 and of 10, and ten queries."""
    for name, rows in (("a", 40), ("q", 10)):
        text = "".join(f"{name}{row},{'x' * 60}\n" for row in range(rows))
        (tmp_path / f"{name}.csv").write_text("id,text\n" + text, encoding="utf-8")
    sources = ItemSources("text", str(tmp_path / "a.csv"), str(tmp_path / "q.csv"))
    items = write_items(tmp_path / "items", sources, ItemSettings(draw_train=0, part_rows=30))
    spec = parse_spec(f"openai:small#tokens=20{options}")
    estimate(EncodeRequest(items, TEXT, {"new": spec}), EncodeRequest(items, TEXT, {"new": spec}).parts(), actors)
    assert capsys.readouterr().err.endswith(f"will read 50 texts, about 750 tokens, {takes}\n")


def test_the_cost_is_said_before_the_first_request(
    endpoint: type[Endpoint], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.csv").write_text("id,text\n" + "".join(f"{row},a text\n" for row in range(20)), encoding="utf-8")
    settings = ItemSettings(draw_queries=2, draw_train=0)
    items = write_items(tmp_path / "items", ItemSources("text", str(tmp_path / "a.csv")), settings)
    endpoint.plan = [400]
    with pytest.raises(InputError, match="400 Bad Request"):
        embed_items(tmp_path / "out", EncodeRequest(items, TEXT, {"new": parse_spec("openai:small")}), EmbedActors())
    assert "will read 20 texts, about 30 tokens, in about 2 requests" in capsys.readouterr().err
    assert len(endpoint.asked) == 1
    assert not (tmp_path / "out").exists()


def test_no_endpoint_and_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(InputError, match="needs a key: export OPENAI_API_KEY"):
        load("openai:small")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setattr(openai, "_FIRST_WAIT_S", 0.001)
    with pytest.raises(InputError, match="did not answer in 8 tries"):
        load("openai:small").embed(["a"], "query")
