"""Training on real Ray workers: two DDP workers, a crash and its resume, heads as one process trains them."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from ray_backfill.cluster import backbones
from ray_backfill.cluster.backbones import train_backbone_stage
from ray_backfill.cluster.heads import train_heads_stage
from ray_backfill.cluster.train import Workers, run_ddp
from ray_backfill.datasets import landmarks
from ray_backfill.errors import InputError
from ray_backfill.files import read_json
from ray_backfill.methods import HeadLoss, find_methods
from ray_backfill.models.backbones import BackboneSettings
from ray_backfill.models.checkpoints import load_backbone, load_heads
from ray_backfill.store import read_table, vector_column, write_parquet
from ray_backfill.training.backbone_loop import BackboneTraining
from ray_backfill.training.head_loop import HeadTraining, TrainSet, train_heads

IMAGES = landmarks.Settings(image_size=16, landmarks=4, train_images=96, gallery_images=16, queries=4)
BACKBONE = BackboneSettings(dim=8, width=4)
TRAINING = BackboneTraining(epochs=3, batch=16, lr=0.1, warmup_epochs=1)


def _die_once_after_epoch_2(config: dict[str, Any]) -> Any:
    """The worker's own function, on a machine that fails right after the second checkpoint is safe."""
    import ray.train
    from ray.train import CheckpointConsistencyMode

    report: Callable[..., None] = ray.train.report
    scene = Path(config["folder"]) / ".crashed"

    def report_and_die(metrics: dict[str, Any], **more: Any) -> None:
        report(metrics, **more)
        if metrics["epoch"] == 2 and not scene.exists() and ray.train.get_context().get_world_rank() == 0:
            ray.train.get_all_reported_checkpoints(consistency_mode=CheckpointConsistencyMode.COMMITTED)
            scene.touch()
            os._exit(1)

    ray.train.report = report_and_die
    try:
        return backbones._worker(config)
    finally:
        ray.train.report = report


@pytest.mark.usefixtures("ray_session")
def test_a_crashed_worker_resumes_from_the_last_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(function: object, *rest: Any) -> Any:
        return run_ddp(_die_once_after_epoch_2, *rest)

    monkeypatch.setattr(backbones, "run_ddp", crash)
    folder = train_backbone_stage(tmp_path / "old", "old", IMAGES, [0, 1, 3], BACKBONE, TRAINING, Workers(number=2))
    assert (folder / ".crashed").exists()
    manifest = read_json(folder / "manifest.json")
    assert [row["epoch"] for row in manifest["history"]] == [1, 2, 3]
    _, info = load_backbone(folder)
    assert info.classes == [0, 1, 3]
    assert {p.name for p in folder.iterdir()} == {"manifest.json", "backbone.json", "model.safetensors", ".crashed"}
    monkeypatch.setattr(backbones, "run_ddp", None)  # a finished stage starts nothing
    again = train_backbone_stage(folder, "old", IMAGES, [0, 1, 3], BACKBONE, TRAINING, Workers(number=2))
    assert again == folder


def _train_split(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    label = np.arange(48) % 6
    old = (rng.normal(size=(48, 4)) + label[:, None]).astype(np.float32)
    new = (rng.normal(size=(48, 5)) + label[:, None]).astype(np.float32)
    columns = {"id": np.arange(48), "old": vector_column(old), "new": vector_column(new), "label": label}
    write_parquet(tmp_path / "train.parquet", pa.table(columns))
    return tmp_path / "train.parquet"


@pytest.mark.usefixtures("ray_session")
def test_two_workers_train_the_heads_that_one_process_trains(tmp_path: Path) -> None:
    table = read_table(_train_split(tmp_path))
    training = HeadTraining(epochs=3, classes=4, items=4)
    methods = find_methods(("rm_naive", "rqt", "rm"))
    folders = train_heads_stage(tmp_path / "heads", table, "data", methods, training, Workers(number=2))
    assert set(folders) == {"rqt", "rm"}
    assert table.label is not None
    data = TrainSet(table.old, table.new, table.label)
    for name, head in [("rqt", HeadLoss("rqt")), ("rm", HeadLoss("mcl", learn_new=True))]:
        alone, trained = train_heads(data, head, training)[0], load_heads(folders[name])
        torch.testing.assert_close(
            trained.state_dict()["psi.3.weight"], alone.state_dict()["psi.3.weight"], rtol=1e-4, atol=1e-5
        )
        assert read_json(folders[name] / "manifest.json")["finished"]


@pytest.mark.usefixtures("ray_session")
def test_what_cannot_be_trained_fails_before_any_worker_starts(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least 2 classes"):
        train_backbone_stage(tmp_path / "b", "old", IMAGES, [3], BACKBONE, TRAINING, Workers())
    table = read_table(_train_split(tmp_path))
    with pytest.raises(InputError, match="cannot be shared by 3 workers"):
        train_heads_stage(
            tmp_path / "h", table, "data", find_methods(("rm",)), HeadTraining(classes=4, items=4), Workers(number=3)
        )
    assert not (tmp_path / "b").exists()
