"""Epochs in TensorBoard, MLflow and W&B, read back from what these libraries wrote here."""

import os
import struct
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import ray_backfill as rb
from ray_backfill.core.errors import InputError
from ray_backfill.core.job import TrainedEpoch, report
from ray_backfill.workers import trackers
from ray_backfill.workers.settings import Workers
from ray_backfill.workers.trackers import tracked
from tests.command import Command

# Training -> metric -> (epoch, value), in the order in which they were written.
Epochs = dict[str, dict[str, list[tuple[int, float]]]]
MAPS = ("maps/rm", "maps/mcl")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    label = np.arange(800) % 10
    old = np.eye(10)[label] + 0.3 * rng.normal(size=(800, 10))
    items = {"old": old, "new": old + 0.1 * rng.normal(size=(800, 10)), "label": label}
    return rb.write_folder(tmp_path / "data", items, train=items)


def in_tensorboard(out: Path) -> Epochs:
    """Reads TFRecords: 8 bytes of length, 4 of its checksum, the event, 4 of its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    epochs: Epochs = defaultdict(lambda: defaultdict(list))
    for file in sorted((out / "tensorboard").rglob("events.out.tfevents.*")):
        data = file.read_bytes()
        while data:
            (size,) = struct.unpack("<Q", data[:8])
            event, data = Event.FromString(data[12 : 12 + size]), data[16 + size :]
            for value in event.summary.value:
                name = str(file.parent.relative_to(out / "tensorboard"))
                epochs[name][value.tag].append((event.step, value.simple_value))
    return epochs


def in_mlflow(out: Path) -> Epochs:
    client = import_module("mlflow").MlflowClient(f"sqlite:///{out / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("ray_backfill").experiment_id
    epochs: Epochs = {}
    for run in client.search_runs([experiment]):
        assert run.info.status == "FINISHED"
        history = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
        by_step = {name: sorted((one.step, one.value) for one in values) for name, values in history.items()}
        epochs[run.info.run_name.removeprefix(f"{out.name}/")] = by_step
    return epochs


def in_wandb(out: Path) -> Epochs:
    """Reads LevelDB's log: 7 bytes, then records: 4 bytes of checksum, 2 of length, 1 that says it is whole."""
    records = import_module("wandb.proto.wandb_internal_pb2").Record
    epochs: Epochs = defaultdict(lambda: defaultdict(list))
    for file in (out / "wandb").rglob("run-*.wandb"):
        data, name = file.read_bytes()[7:], ""
        while data:
            size, kind = struct.unpack("<4xHB", data[:7])
            assert kind == 1
            record, data = records.FromString(data[7 : 7 + size]), data[7 + size :]
            name = record.run.display_name.removeprefix(f"{out.name}/") or name
            for item in record.history.item:
                if not (metric := (item.key or item.nested_key[0])).startswith("_"):
                    epochs[name][metric].append((record.history.step.num, float(item.value_json)))
    return epochs


READERS: dict[str, Callable[[Path], Epochs]] = {"tensorboard": in_tensorboard, "mlflow": in_mlflow, "wandb": in_wandb}


@pytest.fixture(params=READERS)
def tracker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One that is installed, without settings of the user."""
    name = str(request.param)
    if find_spec("tensorboardX" if name == "tensorboard" else name) is None:
        pytest.skip(f"needs {name}")
    for variable in [variable for variable in os.environ if variable.startswith(("MLFLOW", "WANDB"))]:
        monkeypatch.delenv(variable)
    return name


def test_every_epoch_of_every_training_is_there(
    tracker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["ray-backfill", "fit", "--data", "postgresql://me:tiger-of-siberia@host/db"])
    out = tmp_path / "demo"
    out.mkdir()
    with tracked(out, tracker):  # type: ignore[arg-type]
        for epoch in (1, 2, 3):
            for number, name in enumerate(MAPS):
                report(TrainedEpoch(out / name, epoch, {"loss": number + 1 / epoch, "items_per_s": 100.0 * epoch}))
    assert " goes on without it" not in capsys.readouterr().err
    wanted: Epochs = {
        name: {"loss": [(e, number + 1 / e) for e in (1, 2, 3)], "items_per_s": [(e, 100 * e) for e in (1, 2, 3)]}
        for number, name in enumerate(MAPS)
    }
    deadline = time.monotonic() + 20  # W&B's service writes the end of the last run after it has answered
    while len((there := READERS[tracker](out)).get(MAPS[0], {})) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert {name: sorted(metrics) for name, metrics in there.items()} == {n: sorted(m) for n, m in wanted.items()}
    for name, metrics in wanted.items():
        for metric, values in metrics.items():
            np.testing.assert_allclose(there[name][metric], values, rtol=1e-6)
    assert not [p for p in out.rglob("*") if p.is_file() and b"tiger-of-siberia" in p.read_bytes()]
    report(TrainedEpoch(out / MAPS[0], 4, {"loss": 0.0}))  # to nobody


def test_a_tracker_that_fails_is_said_once_and_ends_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tensorboard").write_text("a file where its folder should be")
    done = []
    with tracked(tmp_path, "tensorboard"):
        for epoch in range(1, 4):
            report(TrainedEpoch(tmp_path / "maps" / "rm", epoch, {"loss": 1.0}))
            time.sleep(0.1)
            done.append(epoch)
    assert done == [1, 2, 3]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("--workers.log-to tensorboard: ")
    assert "Not a directory" in line


def test_a_tracker_that_hangs_is_not_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "_PATIENCE_S", 0.2)
    monkeypatch.setitem(trackers._TRACKERS, "mlflow", lambda out, name: time.sleep(30))
    began = time.monotonic()
    with tracked(tmp_path, "mlflow"):
        report(TrainedEpoch(tmp_path / "maps" / "rm", 1, {"loss": 1.0}))
    assert time.monotonic() - began < 5
    assert "0.2 s" in capsys.readouterr().err


def test_what_fails_inside_fails_outside(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), tracked(tmp_path, "tensorboard"):
        raise ZeroDivisionError


def test_a_library_that_is_missing_is_named_before_any_work(
    command: Command, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray_backfill.workers.settings.find_spec", lambda name: None)
    for log_to, package in (("tensorboard", "tensorboardX"), ("mlflow", "mlflow"), ("wandb", "wandb")):
        with pytest.raises(InputError, match=rf"--workers.log-to {log_to} .*pip install {package}$"):
            Workers(log_to=log_to)  # type: ignore[arg-type]
    ended = command("fit", "--data", data, "--out", tmp_path / "out", "--workers.log-to", "mlflow")
    assert ended.code == 2
    assert ended.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.heavy
@pytest.mark.cluster
def test_a_command_logs_its_maps_and_no_trial(data: Path, tmp_path: Path) -> None:
    words = ["--methods", "rm", "--heads.epochs", "3", "--tune", "2", "--workers.log-to", "tensorboard"]
    command = [sys.executable, "-m", "ray_backfill", "fit", "--data", data, "--out", tmp_path / "out", *words]
    subprocess.run(list(map(str, command)), check=True)
    there = in_tensorboard(tmp_path / "out")
    assert set(there) == {"maps/rm"}
    assert [epoch for epoch, _ in there["maps/rm"]["loss"]] == [1, 2, 3]
    assert all(rate > 0 for _, rate in there["maps/rm"]["items_per_s"])
