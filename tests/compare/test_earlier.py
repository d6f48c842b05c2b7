"""A further run on the folder of an earlier one: shown again, mended, extended, refused, or overwritten."""

import errno
import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import ray_backfill as rb
from ray_backfill.cli.main import main
from ray_backfill.compare import write as writing
from ray_backfill.compare.analyses import all_tables
from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.run import evaluate_folder
from ray_backfill.compare.tables import FORMAT
from ray_backfill.compare.write import joined
from ray_backfill.core.runkey import RunKey
from ray_backfill.core.stages import read_json, replaced_whole, settle, write_json
from ray_backfill.learn.training.settings import AdapterSettings, FitSettings
from ray_backfill.workers.settings import Context
from tests.compare.folder import labelled

EVALUATION = Evaluation(methods=("rm_naive", "least_squares_gallery"), orders=("random",), points=3)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    splits = (labelled(60, seed=seed) for seed in range(3))
    return rb.write_folder(tmp_path_factory.mktemp("data") / "mine", *splits)


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "out"
    evaluate_folder(data, EVALUATION, FitSettings.of_folder(), Context(out))
    return out


@pytest.fixture
def out(finished: Path, tmp_path: Path) -> Path:
    """A finished run of its own for each test."""
    return Path(shutil.copytree(finished, tmp_path / "out"))


def run(data: Path, out: Path, overwrite: bool = False, fits: FitSettings | None = None, **changed: Any) -> Path:
    return evaluate_folder(
        data, replace(EVALUATION, **changed), fits or FitSettings.of_folder(), Context(out, overwrite=overwrite)
    )


def no_replay(*_: Any) -> None:
    raise AssertionError("nothing is computed again")


def times(out: Path) -> dict[str, int]:
    return {str(path.relative_to(out)): path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}


def test_the_same_run_computes_and_writes_nothing(data: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = times(out)
    monkeypatch.setattr(writing, "tabulate", no_replay)
    run(data, out)
    run(data, out, methods=("rm_naive",))  # part of what is there
    run(data, out, overwrite=True)
    assert times(out) == before


@pytest.mark.parametrize("name", ["report.html", "curves.png"])
def test_a_missing_report_is_written_from_the_tables(
    data: Path, out: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    before = times(out)
    (out / "results" / name).unlink()
    monkeypatch.setattr(writing, "tabulate", no_replay)
    run(data, out)
    assert times(out).keys() == before.keys()


@pytest.mark.parametrize("name", ["curves", "summary", "differences", "costs"])
def test_a_missing_table_is_computed_again(data: Path, out: Path, name: str) -> None:
    table = out / "results" / f"{name}.parquet"
    before = pd.read_parquet(table)
    table.unlink()
    pd.testing.assert_frame_equal(pd.read_parquet(run(data, out) / f"{name}.parquet"), before)


def test_an_analysis_that_was_not_computed_is_added(data: Path, out: Path) -> None:
    manifest, table = out / "results" / "manifest.json", out / "results" / "costs.parquet"
    before = read_json(manifest)
    write_json(manifest, before | {"analyses": {n: of for n, of in before["analyses"].items() if n != "costs"}})
    table.unlink()
    run(data, out)
    assert table.exists()
    assert read_json(manifest)["analyses"] == before["analyses"]


def test_further_methods_and_orders_extend_the_results(
    data: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (out / "results" / "notes.txt").write_text("mine")
    maps = {name: time for name, time in times(out).items() if name.startswith("maps/")}
    before = rb.read_results(out)
    results = rb.read_results(run(data, out, methods=("offline",), orders=("class_mean_distance",)))
    assert f"{out / 'results'} also has rm_naive, least_squares_gallery, random: kept\n" in capsys.readouterr().err
    assert results.methods == ("old", "new", "rm_naive", "least_squares_gallery", "offline")
    assert results.evaluation["methods"] == [*results.methods]
    assert {row.order for row in results.rows} == {"random", "class_mean_distance"}
    kept = {(row.method, row.variant, row.metric): row.auc for row in results.rows}
    for row in before.rows:
        assert kept[row.method, row.variant, row.metric] == row.auc
    after = times(out)
    assert {name: after[name] for name in maps} == maps
    assert (out / "results" / "notes.txt").read_text() == "mine"
    assert sorted(path.name for path in out.iterdir()) == ["maps", "results"]


def test_what_dies_while_it_extends_leaves_the_old_results(
    data: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = times(out / "results")

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(writing, "finish_stage", die)
        with pytest.raises(KeyboardInterrupt):
            run(data, out, methods=("offline",))
    assert times(out / "results") == before
    assert "offline" in rb.read_results(run(data, out, methods=("offline",))).methods


@pytest.mark.parametrize("renames", [1, 2])
def test_what_is_killed_while_it_replaces_leaves_old_or_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    folder = tmp_path / "results"
    with replaced_whole(folder, ()) as new:
        (new / "table").write_text("old")
    done: list[Path] = []
    rename = Path.rename

    def dying(path: Path, to: Path | None = None) -> None:
        if len(done) == renames or to is None:
            raise SystemExit
        done.append(path)
        rename(path, to)

    def replace_it(patch: pytest.MonkeyPatch) -> None:
        with replaced_whole(folder, ()) as new:
            (new / "table").write_text("new")
            (new / "second").write_text("new")
            patch.setattr(Path, "rename", dying)
            patch.setattr("ray_backfill.core.stages.shutil.rmtree", dying)

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        replace_it(patch)
    settle(folder, ("table",))
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"table": "new", "second": "new"}
    assert list(tmp_path.iterdir()) == [folder]


def test_other_settings_are_refused_before_anything_is_computed_and_overwritten_on_request(
    data: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = times(out)
    other = rb.write_folder(tmp_path / "other", *(labelled(60, seed=seed) for seed in range(5, 8)))
    fits = replace(FitSettings.of_folder(), adapters=AdapterSettings(ridge=0.5))
    with monkeypatch.context() as patch:
        patch.setattr("ray_backfill.compare.fits.fit_stage", no_replay)
        for arguments, difference in [
            ({"points": 5}, "evaluation.points: 3 there, 5 requested"),
            ({"distance": "l2"}, "evaluation.distance: 'cosine' there, 'l2' requested"),
            ({"metrics": ("mAP",)}, "evaluation.metrics: ['mAP', 'CMC@1'] there"),
            ({"fits": fits}, "fits.adapters.ridge: None there, 0.5 requested"),
        ]:
            with pytest.raises(rb.InputError) as error:
                run(data, out, **arguments)  # type: ignore[arg-type]
            assert difference in str(error.value)
            assert "give --overwrite" in str(error.value)
        with pytest.raises(rb.InputError, match=r"different from the earlier run: "):
            run(other, out)
    assert times(out) == before
    run(other, out, overwrite=True, methods=("least_squares_gallery", "ridge_gallery"), fits=fits)
    results = rb.read_results(out)
    assert results.methods == ("old", "new", "least_squares_gallery", "ridge_gallery"), "only what was requested"
    again = run(other, tmp_path / "fresh", methods=("least_squares_gallery", "ridge_gallery"), fits=fits)
    for name in all_tables():
        if (again / f"{name}.parquet").exists():
            pd.testing.assert_frame_equal(
                pd.read_parquet(out / "results" / f"{name}.parquet"), pd.read_parquet(again / f"{name}.parquet")
            )


def test_a_finished_run_on_a_read_only_disk_is_shown_again(
    data: Path, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path, *_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    really_open = os.open
    monkeypatch.setattr(
        os, "open", lambda path, flags, *more: refuse(path) if flags & os.O_CREAT else really_open(path, flags, *more)
    )
    for name in ("write_text", "write_bytes", "replace", "mkdir", "unlink"):
        monkeypatch.setattr(Path, name, refuse)
    methods = ["--methods", *EVALUATION.methods, "--orders", "random", "--merges", "raw", "--points", "3"]
    methods += ["--metrics", *EVALUATION.metrics]
    monkeypatch.setattr("sys.argv", ["ray-backfill", "simulate", "--data", str(data), "--out", str(out), *methods])
    with monkeypatch.context() as made:
        made.setattr(Path, "mkdir", lambda *_, **__: None)  # of a folder that is there
        main()
    said = capsys.readouterr()
    assert "RM naive" in said.out
    assert "error" not in said.err
    monkeypatch.setattr("sys.argv", ["ray-backfill", "report", str(out)])
    main()
    said = capsys.readouterr()
    assert "RM naive" in said.out
    assert "the report was not written again: cannot write " in said.out


def test_a_run_whose_truth_has_a_password_is_extended(tmp_path: Path) -> None:
    """Manifests hold no passwords."""
    truth = ("clicks", "postgresql://me:hunter2@host/shop#clicks")
    before = replace(EVALUATION, truth=truth)
    evaluation = {"evaluation": asdict(before) | {"methods": ["old", "new", *before.methods]}}
    write_json(
        tmp_path / "manifest.json", RunKey("simulation", evaluation, format=FORMAT).recorded() | {"finished": True}
    )
    assert "hunter2" not in (tmp_path / "manifest.json").read_text()
    both = joined(replace(before, methods=("offline",)).named, tmp_path).evaluation
    assert both.methods == ("old", "new", *before.methods, "offline")
    assert both.truth == truth
