"""Maps fitted side by side: the same as one by one, in one thread each; failures, deaths of processes, and resuming."""

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
import torch
from ray.actor import ActorHandle
from threadpoolctl import threadpool_info

from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.fits import Trial, fit_stage, tune_stage
from ray_backfill.compare.fitted import MapJob
from ray_backfill.compare.ray import fits
from ray_backfill.core.errors import InputError
from ray_backfill.core.runkey import RunKey
from ray_backfill.core.stages import begin_stage, is_finished, read_json
from ray_backfill.data.folder import EmbeddingFolder, read_folder
from ray_backfill.data.write import write_parquet
from ray_backfill.learn.methods import find_methods
from ray_backfill.learn.training.fit import Fit, fit_into, trials_of, with_values
from ray_backfill.workers.settings import Workers, has_more_than_cpus
from tests.cluster.test_train import FITS, _folder

_run_alone = fits._run_alone
METHODS = ("rqt", "rm", "fct", "residual_mlp_query", "procrustes_query")


@pytest.fixture
def folder(tmp_path: Path) -> EmbeddingFolder:
    return _folder(tmp_path / "data")


@pytest.fixture
def two_threads() -> Iterator[None]:
    """This process computes in two threads, as outside tests."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def fit(out: Path, folder: EmbeddingFolder, *names: str, max_failures: int = 3) -> dict[str, Path]:
    return fit_stage(out, folder, find_methods(names), FITS, "cosine", Workers(max_failures=max_failures))


def _note_threads(job: MapJob, board: ActorHandle) -> None:
    """The task's own function in a process that would compute in two threads."""

    def noted(folder: Path, *rest: Any) -> None:
        (folder / ".threads").write_text(str(torch.get_num_threads()))
        fit_into(folder, *rest)

    torch.set_num_threads(2)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("ray_backfill.learn.training.fit.fit_into", noted)
        _run_alone(job, board)


@pytest.mark.usefixtures("ray_session", "two_threads")
def test_side_by_side_is_bit_for_bit_one_by_one(
    tmp_path: Path, folder: EmbeddingFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fits, "_run_alone", _note_threads)
    together = fit(tmp_path / "together", folder, *METHODS)
    assert together.keys() == set(METHODS)
    trained = METHODS[:-1]
    assert [(together[name] / ".threads").read_text() for name in trained] == ["1"] * len(trained)
    for name in METHODS:
        alone = fit(tmp_path / "alone", folder, name)[name]
        for file in ("model.safetensors", "network.json", "manifest.json"):
            assert (alone / file).read_bytes() == (together[name] / file).read_bytes(), (name, file)


def _fail_at_rm(job: MapJob, board: ActorHandle) -> None:
    """rqt is fitted, then rm fails while fct still runs."""
    if job.method == "rqt":
        _run_alone(job, board)
        return
    while not is_finished(job.out.parent / "rqt"):
        time.sleep(0.05)
    if job.method == "rm":
        raise InputError("it is a bad day; come again")
    time.sleep(120)


@pytest.mark.usefixtures("ray_session")
def test_a_failure_ends_the_others_and_keeps_what_is_finished(
    tmp_path: Path, folder: EmbeddingFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = time.monotonic()
    with monkeypatch.context() as patched:
        patched.setattr(fits, "_run_alone", _fail_at_rm)
        with pytest.raises(InputError, match=r"^full RM: it is a bad day; come again$"):
            fit(tmp_path, folder, "rqt", "rm", "fct")
    while ray.available_resources().get("CPU") != ray.cluster_resources()["CPU"]:
        assert time.monotonic() - started < 60, "another fit goes on"
        time.sleep(0.1)
    assert [is_finished(tmp_path / name) for name in ("rqt", "rm", "fct")] == [True, False, False]
    kept = (tmp_path / "rqt" / "model.safetensors").stat()
    assert fit(tmp_path, folder, "rqt", "rm", "fct").keys() == {"rqt", "rm", "fct"}
    assert (tmp_path / "rqt" / "model.safetensors").stat() == kept


def _die_once(job: MapJob, board: ActorHandle) -> None:
    scene = job.out / ".died"
    if job.method == "rm" and not scene.exists():
        scene.touch()
        os._exit(1)
    _run_alone(job, board)


@pytest.mark.usefixtures("ray_session")
def test_a_task_whose_process_dies_starts_again(
    tmp_path: Path, folder: EmbeddingFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fits, "_run_alone", _die_once)
    with pytest.raises(InputError, match=r"^full RM: the process that fitted its map died.*; the same command"):
        fit(tmp_path / "never", folder, "rqt", "rm", max_failures=0)
    assert fit(tmp_path / "once", folder, "rqt", "rm", max_failures=1).keys() == {"rqt", "rm"}


def test_a_single_map_needs_no_ray(
    tmp_path: Path, folder: EmbeddingFolder, monkeypatch: pytest.MonkeyPatch, two_threads: None
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray.init", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    threads: list[int] = []

    def noted(folder: Path, title: str, of_method: Fit, *rest: Any) -> None:
        of_blas = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
        threads.extend([*of_blas, *([torch.get_num_threads()] if of_method.is_trained else [])])
        fit_into(folder, title, of_method, *rest)

    monkeypatch.setattr("ray_backfill.learn.training.fit.fit_into", noted)
    found = fit(tmp_path, folder, "rm", "procrustes_query")
    assert read_json(found["rm"] / "manifest.json")["workers"] == 1
    assert set(threads) == {1}
    assert torch.get_num_threads() == 2, "the process has its threads again"


def test_a_single_map_goes_to_a_gpu_or_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not has_more_than_cpus()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert has_more_than_cpus()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", "there:6379")
    assert has_more_than_cpus()


@pytest.mark.usefixtures("ray_session")
def test_trials_side_by_side_score_as_one_by_one(folder: EmbeddingFolder, tmp_path: Path) -> None:
    items = pq.read_table(folder.gallery.path)
    items = pa.concat_tables([items, items]).set_column(0, "id", pa.array(range(2 * len(items))))
    write_parquet(folder.path / "validation.parquet", items)
    methods, fits, how = find_methods(("mcl", "ridge_query")), replace(FITS, tune=3), Evaluation(metrics=("mAP",))
    tuned = tune_stage(tmp_path / "tasks", read_folder(folder.path), methods, fits, how, Workers())
    assert [each.trials for each in tuned] == [3, 3]
    for method in methods:
        assert method.fit is not None
        for number, values in enumerate(trials_of(method.fit.space, fits, 3)):
            out = tmp_path / "here" / method.name / str(number)
            begin_stage(out, RunKey("trial", {}))
            Trial(method.name, with_values(fits, values), "cosine", folder.path, out, "mAP").run()
            there = tmp_path / "tasks" / method.name / str(number)
            assert read_json(there / "manifest.json")["score"] == read_json(out / "manifest.json")["score"]
