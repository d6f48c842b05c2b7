"""``--json`` follows its published schema, and ``--exit-code`` ends with the decision."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import ray_backfill as rb
from tests.command import Command
from tests.test_structure import ROOT

CLASSES = 40


def folder(path: Path, old: float, new: float, queries: int = 120) -> Path:
    """Embeddings of two models. old and new: their noise."""
    rng, centre = np.random.default_rng(5), np.random.default_rng(6).normal(size=(CLASSES, 16))

    def columns(rows: int) -> dict[str, Any]:
        label = np.arange(rows) % CLASSES
        noisy = {name: centre[label] + noise * rng.normal(size=(rows, 16)) for name, noise in vars_of.items()}
        return noisy | {"label": label}

    vars_of = {"old": old, "new": new}
    return rb.write_folder(path, columns(800), columns(queries))


def checked(name: str, printed: str) -> dict[str, Any]:
    """The document, which must follow the schema of the command."""
    document = json.loads(printed, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    jsonschema.validate(document, json.loads((ROOT / "docs" / "schema" / f"{name}.json").read_text()))
    assert isinstance(document, dict)
    return document


@pytest.mark.parametrize(
    ("old", "new", "truth", "code", "decision"),
    [
        (1.6, 0.8, [], 0, "go ahead"),
        (0.8, 1.6, [], 11, "do not upgrade"),
        (1.0, 1.0, [], 10, "undecided"),
        (1.6, 0.8, ["--truth", "new-top1"], 10, "undecided"),
    ],
)
def test_simulate(
    old: float, new: float, truth: list[str], code: int, decision: str, tmp_path: Path, command: Command
) -> None:
    data = folder(tmp_path / "data", old, new)
    words = ["simulate", "--data", data, "--out", tmp_path / "out", "--methods", "rm_naive", *truth]
    ended, printed, _ = command(*words, "--json", "--exit-code")
    document = checked("simulate", printed)
    assert (ended, document["decision"]) == (code, decision)
    assert document["verdict"] == rb.read_results(tmp_path / "out").verdict
    rows = {(row["method"], row["metric"]): row for row in document["results"]}
    summary = rb.read_results(tmp_path / "out").summary.set_index(["method", "metric"])
    assert {key: row["average"] for key, row in rows.items()} == summary.auc.to_dict()
    ended, printed, _ = command(*words)
    assert ended == 0, "only --exit-code sets the code"
    assert printed.lstrip().startswith(document["verdict"][:40])


@pytest.mark.parametrize(("old", "new", "code"), [(1.6, 0.8, 0), (0.8, 1.6, 11)])
def test_forecast(old: float, new: float, code: int, tmp_path: Path, command: Command) -> None:
    data = folder(tmp_path / "data", old, new)
    rb.sample(data, 300)
    words = ["forecast", data, "--out", tmp_path / "out", "--methods", "rm_naive", "--metrics", "mAP"]
    ended, printed, _ = command(*words, "--json", "--exit-code")
    document = checked("forecast", printed)
    assert ended == code
    assert document["known"] == 300
    assert command(*words).code == 0


def test_doctor(tmp_path: Path, command: Command) -> None:
    sound = folder(tmp_path / "sound", 1.6, 0.8)
    ended, printed, _ = command("doctor", sound, "--json", "--exit-code")
    assert (ended, checked("doctor", printed)["is_sound"]) == (0, True)
    same = np.repeat(np.random.default_rng(0).normal(size=(1, 8)), 90, 0)
    equal = rb.write_folder(tmp_path / "equal", {"old": same, "new": same})
    ended, printed, _ = command("doctor", equal, "--json", "--exit-code")
    assert (ended, checked("doctor", printed)["is_sound"]) == (10, False)
    assert command("doctor", equal).code == 0
