"""Every example runs from start to end, in an empty folder, with nothing but its marked places filled in."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import ray_backfill as rb
from docs.examples import EXAMPLES, run, vectors
from tests.test_structure import ROOT

FOLDER = ROOT / "examples"
WORKFLOW = FOLDER / "ci" / "model-upgrade.yml"


def check_said(name: str, folder: Path, said: str) -> rb.Results:
    """What to do, and where the report is."""
    results = rb.read_results(folder / "runs" / name)
    assert results.verdict.split(". ")[0] in " ".join(said.split())
    report = f"runs/{name}/results/report.html"
    assert f"report: {report}" in said
    assert (folder / report).exists()
    return results


def test_examples_are_short_and_say_what_to_change() -> None:
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    assert len(page.split()) <= 500
    for name in EXAMPLES:
        (example,) = FOLDER.glob(f"{name}.*")
        lines = example.read_text().splitlines()
        assert len(lines) <= 40
        assert 2 <= sum("# CHANGE" in line for line in lines) <= 3
        assert f"examples/{example.name}" in page
        assert f"img/example-{name}.png" in page
        assert (ROOT / "docs" / "img" / f"example-{name}.png").stat().st_size < 60_000


@pytest.mark.full
def test_arrays(tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER / "numpy_to_decision.py")]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    for words in ("mAP@100 while the gallery is backfilled", "of the upgrade’s improvement", "95 % interval"):
        assert words in result.stdout


@pytest.mark.full
def test_pgvector(tmp_path: Path) -> None:
    assert check_said("pgvector", tmp_path, run("pgvector", tmp_path)).manifest.data["queries"] == 400


@pytest.mark.full
def test_qdrant(tmp_path: Path) -> None:
    """The share of items whose first neighbour has their category, beside one that is computed here."""
    results = check_said("qdrant", tmp_path, run("qdrant", tmp_path))
    of = vectors(1500, 1)
    for model in ("old", "new"):
        unit = getattr(of, model) / np.linalg.norm(getattr(of, model), axis=1, keepdims=True)
        similar = unit @ unit.T
        np.fill_diagonal(similar, -np.inf)
        right = np.mean(of.label[similar.argmax(1)] == of.label)
        (row,) = (row for row in results.rows if (row.method, row.metric) == (model, "CMC@1"))
        assert row.auc == pytest.approx(right, abs=1e-9)


def gate(folder: Path, before: str, after: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the step of the workflow as GitHub does, in a repository whose last commit changes the file of the model."""
    job = yaml.safe_load(WORKFLOW.read_text())["jobs"]["model-upgrade"]
    (step,) = (step for step in job["steps"] if step.get("name") == "Compare")
    assert step["shell"] == "bash"
    (config := folder / job["env"]["CONFIG"]).parent.mkdir(parents=True, exist_ok=True)
    git = ["git", "-c", "user.name=me", "-c", "user.email=me@localhost"]
    subprocess.run([*git, "init", "--quiet"], cwd=folder, check=True)
    for text in (before, after):
        config.write_text(text)
        for command in (["add", str(config)], ["commit", "--quiet", "--allow-empty", "--message", "config"]):
            subprocess.run([*git, *command], cwd=folder, check=True)
    (folder / "step.sh").write_text(step["run"])
    path = os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])
    own = {"GITHUB_STEP_SUMMARY": str(folder / "summary.md"), "PATH": path}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "step.sh"]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **own, **job["env"], **environment}, capture_output=True, text=True
    )


def stand_in(folder: Path, code: int) -> None:
    """A ray-backfill that only ends with this code."""
    (folder / "ray-backfill").write_text(f'#!/bin/sh\necho "$@" | tee called\nexit {code}\n')
    (folder / "ray-backfill").chmod(0o755)


@pytest.mark.parametrize(
    ("code", "more", "says", "passes"),
    [
        (0, {}, "## Go ahead: the new model is better.", True),
        (10, {}, "::warning title=Model upgrade::Undecided: ", True),
        (10, {"UNDECIDED": "fail"}, "::error title=Model upgrade::Undecided: ", False),
        (11, {}, "::error title=Model upgrade::Do not upgrade: the new model is worse.", False),
        (2, {}, "Nothing was decided: the comparison failed (exit code 2)", False),
    ],
)
def test_each_exit_code_has_its_reaction(
    code: int, more: dict[str, str], says: str, passes: bool, tmp_path: Path
) -> None:
    stand_in(tmp_path, code)
    ended = gate(tmp_path, "embedding_model: a/one\n", "embedding_model: b/two\n", **more)
    assert says in ended.stdout, ended.stderr
    assert (ended.returncode == 0) == passes
    assert re.search(r"`a/one` → `b/two`\n```\nsimulate .*\n```", (tmp_path / "summary.md").read_text())


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("x: 1\nembedding_model: one\n", "x: 2\nembedding_model: one # the same\n", "nothing was compared"),
        ("x: 1\n", "embedding_model: one\n", "nothing was compared"),
        ("embedding_model: one\n", "model: two\n", "::error::config/search.yml has no line embedding_model: NAME"),
        (
            "x:\n  embedding_model: 'one'\n",
            'x:\n  embedding_model: "b/2.5" # new\n',
            "--old hf:one --new hf:b/2.5 --texts ",
        ),
    ],
)
def test_the_models_are_those_of_both_branches(before: str, after: str, says: str, tmp_path: Path) -> None:
    stand_in(tmp_path, 0)
    ended = gate(tmp_path, before, after, KIND="hf")
    assert (ended.returncode, says in ended.stdout) == (0 if "embedding_model" in after else 1, True), ended.stderr
    assert (tmp_path / "called").exists() == ("--old" in says)


def test_the_workflow_is_one() -> None:
    workflow: dict[Any, Any] = yaml.safe_load(WORKFLOW.read_text())
    job = workflow["jobs"]["model-upgrade"]
    assert workflow[True]["pull_request"]["paths"] == [job["env"]["CONFIG"]], "YAML 1.1 reads the key on as a truth"
    assert job["steps"][0]["with"]["fetch-depth"] == 2, "HEAD^1 is there"
    assert all(("uses" in step) != ("run" in step) for step in job["steps"])
    assert not re.search(r"\$\{\{", str(job["steps"])), "no text of a pull request becomes part of a script"
