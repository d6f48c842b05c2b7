"""The examples that embed, and the gate of pull requests with two models."""

import runpy
from pathlib import Path

import pytest
import ray

from docs.examples import beir, prepared, run
from tests.jobs.conftest import TINY
from tests.test_examples import check_said, gate
from tests.test_structure import ROOT

pytestmark = pytest.mark.usefixtures("ray_session")


@pytest.fixture
def shared_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that a test starts use its Ray."""
    monkeypatch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)


@pytest.mark.parametrize("name", ["beir", pytest.param("photographs", marks=pytest.mark.heavy)])
def test_scripts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with prepared(name, tmp_path) as (script, _):
        runpy.run_path(str(script), run_name="__main__")
    check_said(name, tmp_path, capsys.readouterr().out)


@pytest.mark.heavy
def test_an_endpoint_and_its_price(tmp_path: Path) -> None:
    """1,500 texts of ten words; the service counts words. Actors have the environment of their Ray: it has its own."""
    said = run("endpoint", tmp_path, OLD="'openai:small#price=1000'", NEW="'openai:large#price=2000'")
    check_said("endpoint", tmp_path, said)
    assert "openai:large#price=2000.0 will read 1,500 texts, about 25,875 tokens, about $51.75 at" in said
    assert "openai:large#price=2000.0 has read 15,000 tokens, $30.00 at" in said


@pytest.mark.usefixtures("shared_ray")
@pytest.mark.parametrize(
    ("old", "new", "code", "says"),
    [
        ("old", "wide", 0, "## Go ahead"),
        pytest.param("wide", "old", 1, "::error title=Model upgrade::Do not upgrade", marks=pytest.mark.heavy),
    ],
)
def test_the_gate_with_two_models(old: str, new: str, code: int, says: str, tmp_path: Path) -> None:
    names = [f"embedding_model: tests.encode._models:{name}\n" for name in (old, new)]
    with beir(tmp_path):
        ended = gate(tmp_path, *names, KIND="python", TEXTS="beir", PYTHONPATH=str(ROOT))
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert says in ended.stdout
    assert "INFO" not in ended.stderr, "lines of Ray Data"
    assert (tmp_path / "runs" / "upgrade" / "results" / "report.html").exists()


@pytest.mark.heavy
@pytest.mark.usefixtures("shared_ray")
def test_the_papers_experiment(tmp_path: Path) -> None:
    small = TINY[: TINY.index("--methods")]
    said = run(
        "papers", tmp_path, RECIPE=f"({' '.join(['--recipe', 'landmarks', *small])})", METHODS="(rm_naive fct rm)"
    )
    assert "Plan; nothing was computed" in said
    check_said("papers", tmp_path, said)
