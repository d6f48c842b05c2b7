"""Training on real Ray workers: two DDP workers, a crash and its resume, heads as one process trains them."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from ray_backfill.compare.fits import fit_stage
from ray_backfill.compare.ray.fits import for_maps
from ray_backfill.core.errors import InputError
from ray_backfill.core.runkey import RunKey
from ray_backfill.core.stages import begin_stage, finish_stage, read_json
from ray_backfill.data.folder import EmbeddingFolder, read_folder
from ray_backfill.data.write import vector_column, write_parquet
from ray_backfill.images.datasets import landmarks
from ray_backfill.learn.methods import find_methods
from ray_backfill.learn.models.apply import load_network
from ray_backfill.learn.models.backbones import BackboneInfo, load_backbone, save_backbone
from ray_backfill.learn.training.fit import TrainSet
from ray_backfill.learn.training.settings import (
    BackboneSettings,
    BackboneTraining,
    FitSettings,
    HeadTraining,
    TransformTraining,
)
from ray_backfill.recipes.run import backbones
from ray_backfill.recipes.run.backbones import BackboneJob, train_backbone_stage
from ray_backfill.workers.settings import Workers
from ray_backfill.workers.train import run_ddp
from tests.cluster.test_trackers import in_tensorboard

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
    old = _old_backbone(tmp_path / "old")

    def train(kind: str, old: Path) -> Path:
        job = BackboneJob("BCT", IMAGES, [0, 1, 3], BACKBONE, TRAINING, kind, old)
        return train_backbone_stage(tmp_path / "backbones" / "bct", job, Workers(number=2, log_to="tensorboard"))

    folder = train("bct", old)
    assert (folder / ".crashed").exists()
    manifest = read_json(folder / "manifest.json")
    assert [row["epoch"] for row in manifest["history"]] == [1, 2, 3]
    assert manifest["training_flops"] > 3 * 2 * manifest["images"] * manifest["macs"]
    assert manifest["parameters"] == sum(p.numel() for p in load_backbone(folder)[0].parameters()) - 3 * 8 - 3
    _, info = load_backbone(folder)
    assert info.classes == [0, 1, 3]
    assert {p.name for p in folder.iterdir()} == {
        "manifest.json",
        ".key.json",
        "backbone.json",
        "model.safetensors",
        ".crashed",
    }
    epochs = in_tensorboard(tmp_path)["backbones/bct"]
    assert dict(epochs["loss"]) == {row["epoch"]: pytest.approx(row["loss"], rel=1e-6) for row in manifest["history"]}
    assert [epoch for epoch, _ in epochs["accuracy"]] == [1, 2, 3], "the tracker goes on where the worker died"
    monkeypatch.setattr(backbones, "run_ddp", None)  # a finished stage starts nothing
    assert train("bct", old) == folder
    with pytest.raises(InputError, match=r"kind: 'bct' there, 'ract' requested"):
        train("ract", old)
    with pytest.raises(InputError, match=r"old\.weights: "):
        train("bct", _old_backbone(tmp_path / "other", seed=1))


def _old_backbone(folder: Path, seed: int = 0) -> Path:
    """An untrained network, saved as a finished stage."""
    torch.manual_seed(seed)
    info = BackboneInfo(BACKBONE, 3, 16, classes=[0, 1])
    begin_stage(folder, RunKey("backbone"))
    save_backbone(folder, info.build(), info)
    finish_stage(folder)
    return folder


FITS = FitSettings(
    heads=HeadTraining(epochs=3, classes=4, items=4), transforms=TransformTraining(epochs=3, batch=16, hidden=8)
)


def _folder(path: Path) -> EmbeddingFolder:
    rng = np.random.default_rng(0)
    label = np.arange(48) % 6
    old = (rng.normal(size=(48, 4)) + label[:, None]).astype(np.float32)
    new = (rng.normal(size=(48, 5)) + label[:, None]).astype(np.float32)
    columns = {"id": np.arange(48), "old": vector_column(old), "new": vector_column(new), "label": label}
    for split in ("gallery", "train"):
        write_parquet(path / f"{split}.parquet", pa.table(columns))
    return read_folder(path)


@pytest.mark.heavy
@pytest.mark.usefixtures("ray_session")
def test_two_workers_fit_what_one_process_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As where there are GPUs and one map; several, and those on CPUs, are tasks (test_side_by_side.py).
    monkeypatch.setattr("ray_backfill.compare.ray.fits.has_gpus", lambda: True)
    folder = _folder(tmp_path / "data")
    methods = find_methods(("rm_naive", "rqt", "rm", "fct", "procrustes_query"))
    monkeypatch.setattr("ray_backfill.compare.fits.has_more_than_cpus", lambda: True)
    found: dict[str, Path] = {}
    for method in methods:
        found |= fit_stage(tmp_path / "maps", folder, [method], FITS, "cosine", Workers(number=2))
    assert set(found) == {"rqt", "rm", "fct", "procrustes_query"}
    assert folder.train is not None
    data = TrainSet(folder.train.vectors, folder.train.label)
    last_weight = {"rqt": "psi.3.weight", "rm": "psi.3.weight", "fct": "mixer.6.weight"}
    for method in methods[1:]:
        assert method.fit is not None
        alone, trained = method.fit.fit(data, FITS, "cosine").network, load_network(found[method.name])
        if method.is_trained:
            ours, theirs = (network.state_dict()[last_weight[method.name]] for network in (trained, alone))
        else:
            ours, theirs = (network.weights["linear.weight"] for network in (trained, alone))
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
        assert read_json(found[method.name] / "manifest.json")["finished"]
    assert read_json(found["rm"] / "manifest.json")["workers"] == 2
    with pytest.raises(InputError, match="need 9 CPUs"):
        for_maps(Workers(number=9))


@pytest.mark.usefixtures("ray_session")
def test_what_cannot_be_trained_fails_before_any_worker_starts(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least 2 classes"):
        train_backbone_stage(tmp_path / "b", BackboneJob("old", IMAGES, [3], BACKBONE, TRAINING), Workers())
    folder = _folder(tmp_path / "data")
    rm = find_methods(("rm",))[0].fit
    assert rm is not None
    with pytest.raises(InputError, match="cannot be divided among 3 workers"):
        rm.check(TrainSet(folder.gallery.vectors, folder.gallery.label), FITS, 3)
    assert for_maps(Workers(number=9)) == Workers(number=1, cpus=1), "on CPUs a map has one worker"
    assert not (tmp_path / "b").exists()
