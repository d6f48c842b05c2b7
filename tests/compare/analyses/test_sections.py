"""A report recomputes nothing: sections are made from the stored tables alone, and each from its own."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ray_backfill.compare import analyses
from ray_backfill.compare.analyses import Analysis, all_analyses, all_tables, sections
from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.report import html, read_data
from ray_backfill.compare.run import evaluate_folder
from ray_backfill.core.schema import columns
from ray_backfill.learn.training.settings import FitSettings, HeadTraining
from ray_backfill.workers.settings import Context
from tests.compare.folder import write_split

EVERYTHING = Evaluation(
    methods=("rm_naive", "offline", "least_squares_gallery", "mcl", "cascade@5"), orders=("random",), merges=("raw",),
    metrics=("mAP",), points=3, slices=("tenant",), permutations=2, cutoffs=(0.5,),
)  # fmt: skip


# What only a run behind a service has.
BEHIND = {"attribution", "plain_advice"}


def finished(path: Path, evaluation: Evaluation) -> Path:
    """Results after data and maps are gone."""
    write_split(path / "data" / "gallery.parquet", 60, 0)
    write_split(
        path / "data" / "queries.parquet", 33, 1000, label=[*np.arange(32) % 10, 99], tenant=["a", "b", "c"] * 11
    )
    write_split(path / "data" / "train.parquet", 1200, 2000)
    out = evaluate_folder(path / "data", evaluation, FitSettings(HeadTraining(epochs=1)), Context(path / "out"))
    shutil.move(out, path / "results")
    shutil.rmtree(path / "data")
    shutil.rmtree(path / "out")
    return path / "results"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results with something for every analysis that needs no service."""
    return finished(tmp_path_factory.mktemp("run"), EVERYTHING)


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("behind")
    (path / "service.yaml").write_text("retrieve: 9")
    few = replace(EVERYTHING, methods=("rm_naive",), metrics=("nDCG@9",), slices=(), cutoffs=())
    return finished(path, replace(few, service=path / "service.yaml"))


def test_the_page_is_made_from_the_tables_alone(stored: Path, behind: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = [{path.stem for path in folder.glob("*.parquet")} for folder in (stored, behind)]
    assert written[0] | BEHIND == set(all_tables()), "every table has something to show"
    assert written[1] & BEHIND == BEHIND
    assert not written[0] & BEHIND

    def refuse(*_: object) -> None:
        raise AssertionError("a report must not compute")

    lazy = tuple(replace(each, compute=refuse) for each in all_analyses())
    monkeypatch.setattr(analyses, "all_analyses", lambda: lazy)
    for folder in (stored, behind):
        assert html.render(read_data(folder)) == (folder / "report.html").read_text(encoding="utf-8")


SHOWN = [each for each in all_analyses() if each.section and each.row and each.is_read]


@pytest.mark.parametrize("analysis", SHOWN, ids=[each.name for each in SHOWN])
def test_each_section_is_that_of_its_tables(analysis: Analysis, stored: Path, behind: Path, tmp_path: Path) -> None:
    assert analysis.section is not None
    run = behind if analysis.name in BEHIND else stored
    found = analysis.section(read_data(run))
    assert found is not None
    folder = Path(shutil.copytree(run, tmp_path / "results"))
    for name in analysis.tables:
        (folder / f"{name}.parquet").unlink()
    without = read_data(folder)
    assert analysis.section(without) is None
    assert [each.title for each in sections(without)] == [
        each.title for each in sections(read_data(run)) if each.title != found.title
    ]


def test_each_analysis_is_computed_after_those_that_it_needs() -> None:
    names = [each.name for each in all_analyses()]
    for each in all_analyses():
        assert all(names.index(name) < names.index(each.name) for name in each.needs)


@pytest.mark.parametrize("run", ["stored", "behind"])
def test_rows_are_kept_for_some_methods(run: str, request: pytest.FixtureRequest) -> None:
    results = read_data(request.getfixturevalue(run))
    few = results.only("rm_naive")
    for name, rows in few.tables.items():
        if "method" in columns(all_tables()[name]):
            assert {row.method for row in rows} <= {"old", "new", "rm_naive"}
        else:
            assert rows == results.table_of(name)
    assert few.table_of("no such table") == ()
