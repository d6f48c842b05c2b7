"""Backbone training in one process: it learns, resumes exactly, and leaves broken images out."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.multiprocessing.spawn import spawn

from ray_backfill.datasets import ImageSource, Pixels, landmarks, open_source
from ray_backfill.errors import InputError
from ray_backfill.models.backbones import BackboneSettings
from ray_backfill.models.checkpoints import BackboneInfo
from ray_backfill.training import backbone_loop
from ray_backfill.training import pixels as pixel_feed
from ray_backfill.training.augment import Augmentation, augment
from ray_backfill.training.backbone_loop import (
    BackboneTraining,
    Epoch,
    images_per_worker,
    train_backbone,
    training_rows,
)
from ray_backfill.training.pixels import PixelFeed
from ray_backfill.training.schedule import warmup_cosine
from tests.training._workers import leave_together

SOURCE = open_source(landmarks.Settings(image_size=16, landmarks=4, train_images=96, gallery_images=16, queries=4))
INFO = BackboneInfo(BackboneSettings(dim=8, width=4), channels=3, image_size=16, classes=[0, 1, 3])
ROWS = training_rows(SOURCE.items("train").labels_N, INFO.classes)
TRAINING = BackboneTraining(epochs=3, batch=16, lr=0.1, warmup_epochs=1)


def test_rows_are_those_of_the_classes() -> None:
    assert set(SOURCE.items("train").labels_N[ROWS].tolist()) == {0, 1, 3}


def test_training_learns() -> None:
    epochs: list[Epoch] = []
    train_backbone(SOURCE, ROWS, INFO, replace(TRAINING, epochs=12), on_epoch=epochs.append)
    assert [e.epoch for e in epochs] == list(range(1, 13))
    assert epochs[-1].loss < 0.8 * epochs[0].loss
    assert epochs[-1].accuracy > 0.6  # one class in three by chance


def test_a_resumed_training_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    def save(epoch: Epoch) -> None:
        if epoch.epoch == 2:
            epoch.save(tmp_path)

    whole, _ = train_backbone(SOURCE, ROWS, INFO, TRAINING, on_epoch=save)
    later: list[int] = []
    resumed, _ = train_backbone(
        SOURCE, ROWS, INFO, TRAINING, resume_from=tmp_path, on_epoch=lambda e: later.append(e.epoch)
    )
    assert later == [3]
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(resumed.state_dict()[name], value, rtol=0, atol=0)


class BrokenImages:
    """A source whose rows divisible by five cannot be decoded."""

    splits, image_size, channels = SOURCE.splits, SOURCE.image_size, SOURCE.channels
    items = staticmethod(SOURCE.items)
    fingerprint = staticmethod(SOURCE.fingerprint)

    @staticmethod
    def read(split: str, rows: NDArray[np.int64]) -> Pixels:
        broken = {i: "truncated" for i, row in enumerate(rows) if row % 5 == 0}
        pixels = SOURCE.read(split, rows).pixels_BSSC.copy()
        pixels[list(broken)] = 0
        return Pixels(pixels, broken)


@pytest.mark.parametrize("cache_bytes", [0, 1 << 30])
def test_broken_images_cost_no_other_row(cache_bytes: int) -> None:
    source: ImageSource = BrokenImages()
    feed = PixelFeed(source, ROWS, cache_bytes=cache_bytes)
    batches = [ROWS[:20], ROWS[20:33], ROWS[33:]]
    for asked, (pixels, readable) in zip(batches, feed.batches(batches), strict=True):
        np.testing.assert_array_equal(readable, asked % 5 != 0)
        np.testing.assert_array_equal(pixels[readable].numpy(), SOURCE.read("train", asked[readable]).pixels_BSSC)
        assert not pixels[~readable].any()
    assert set(feed.broken) == {int(row) for row in ROWS if row % 5 == 0}
    for batch in (16, 2):  # with 2 images a batch some batches are broken as a whole
        network, broken = train_backbone(source, ROWS, INFO, replace(TRAINING, epochs=1, batch=batch))
        assert set(broken.values()) == {"truncated"}
        assert all(value.isfinite().all() for value in network.state_dict().values())


class Recorder:
    """A source that notes which rows were read after the first full read (that of the cache)."""

    splits, image_size, channels = SOURCE.splits, SOURCE.image_size, SOURCE.channels
    items = staticmethod(SOURCE.items)
    fingerprint = staticmethod(SOURCE.fingerprint)

    def __init__(self) -> None:
        self.rows: list[int] = []

    def read(self, split: str, rows: NDArray[np.int64]) -> Pixels:
        self.rows += rows.tolist()
        return SOURCE.read(split, rows)


def _train_on_two(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    pixel_feed.CACHE_BYTES = 0  # decode what is used, when it is used
    source = Recorder()
    epochs: list[Epoch] = []
    network, _ = train_backbone(source, ROWS, INFO, replace(TRAINING, epochs=1), on_epoch=epochs.append)
    torch.save((network.state_dict(), source.rows, epochs[0].loss), Path(folder) / f"{rank}.pt")
    leave_together(rank, folder)


def test_two_workers_share_the_images_and_keep_one_network(tmp_path: Path) -> None:
    spawn(_train_on_two, (str(tmp_path),), nprocs=2)
    (first, first_rows, first_loss), (second, second_rows, second_loss) = (
        torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1)
    )
    for name, value in first.items():
        if "running" not in name:  # statistics of BatchNorm stay each worker's own
            torch.testing.assert_close(second[name], value, rtol=0, atol=0)
    assert first_loss == second_loss
    assert not set(first_rows) & set(second_rows)
    steps = len(ROWS) // TRAINING.batch
    assert len(first_rows) == len(second_rows) == steps * TRAINING.batch // 2


def test_training_follows_the_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a factor of 0 nothing is learned."""
    monkeypatch.setattr(backbone_loop, "warmup_cosine", lambda step, steps, warmup: 0.0)
    torch.manual_seed(TRAINING.seed)
    start = INFO.build().state_dict()["classifier.weight"].clone()
    network, _ = train_backbone(SOURCE, ROWS, INFO, replace(TRAINING, epochs=1))
    torch.testing.assert_close(network.state_dict()["classifier.weight"], start, rtol=0, atol=0)


def test_what_cannot_be_trained_is_refused() -> None:
    with pytest.raises(InputError, match="at least 2 classes, got 1"):
        images_per_worker(100, [4], TRAINING, 1)
    with pytest.raises(InputError, match=r"3 images .* too few for 2 workers"):
        images_per_worker(3, [4, 5], TRAINING, 2)


def test_the_learning_rate_rises_and_falls() -> None:
    factors = [warmup_cosine(step, 100, 10) for step in range(101)]
    assert factors[:3] == pytest.approx([1 / 11, 2 / 11, 3 / 11])
    assert factors[10] == max(factors) == 1.0
    assert factors[55] == pytest.approx(0.5)
    assert factors[100] == pytest.approx(0.0)


def test_augmentation_moves_zooms_and_mirrors() -> None:
    pixels = torch.rand(64, 1, 9, 9)
    still = Augmentation(rotate_deg=0, shift=0, zoom=0)
    torch.testing.assert_close(augment(pixels, still), pixels, atol=1e-5, rtol=0)
    mirrored = augment(pixels, replace(still, flip=True))
    same = (mirrored - pixels).abs().amax((1, 2, 3)) < 1e-4
    turned = (mirrored - pixels.flip(3)).abs().amax((1, 2, 3)) < 1e-4
    assert (same | turned).all()
    assert 10 < same.sum() < 54
    assert not torch.allclose(augment(pixels, Augmentation()), pixels, atol=0.1)
