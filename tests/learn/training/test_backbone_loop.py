"""Backbone training in one process: it learns, resumes exactly, and leaves broken images out."""

import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import State, Task
from ray_backfill.images.datasets import landmarks, open_images
from ray_backfill.images.source import ImageSource, Pixels
from ray_backfill.learn.methods import all_backbones
from ray_backfill.learn.models.backbones import BackboneInfo, embed_macs, embed_parameters, pixels_to_float
from ray_backfill.learn.training import backbone_loop
from ray_backfill.learn.training import batches as pixel_feed
from ray_backfill.learn.training.backbone_loop import Epoch, images_per_worker, train_backbone, training_rows
from ray_backfill.learn.training.batches import PixelFeed, augment
from ray_backfill.learn.training.map_loop import warmup_cosine
from ray_backfill.learn.training.objective import Classification, OldModel, PlainImages, freeze_old
from ray_backfill.learn.training.settings import Augmentation, BackboneSettings, BackboneTraining
from tests.learn.training._workers import on_two_workers

SOURCE = open_images(landmarks.Settings(image_size=16, landmarks=4, train_images=96, gallery_images=16, queries=4))
INFO = BackboneInfo(BackboneSettings(dim=8, width=4), channels=3, image_size=16, classes=[0, 1, 3])
LABELS = SOURCE.items("train").labels_N
ROWS = training_rows(LABELS, INFO.classes)
TRAINING = BackboneTraining(epochs=3, batch=16, lr=0.1, warmup_epochs=1)
KINDS = all_backbones()


def old_model(classes: list[int]) -> OldModel:
    """An untrained backbone of fewer dimensions, in train mode, as if somebody had forgotten to freeze it."""
    torch.manual_seed(7)
    info = replace(INFO, classes=classes, backbone=replace(INFO.backbone, dim=6))
    return OldModel(info.build(), info)


def test_training_learns() -> None:
    epochs: list[Epoch] = []
    train_backbone(SOURCE, ROWS, INFO, replace(TRAINING, epochs=12), on_epoch=epochs.append)
    assert [e.epoch for e in epochs] == list(range(1, 13))
    assert epochs[-1].loss < 0.8 * epochs[0].loss
    assert epochs[-1].accuracy > 0.6  # one class in three by chance


def test_the_steps_of_all_epochs_are_counted_also_after_a_resume(tmp_path: Path) -> None:
    counted: list[tuple[int, int | None]] = []

    def save(epoch: Epoch) -> None:
        counted.append((shown.done, shown.total))
        if epoch.epoch == 2:
            epoch.save(tmp_path)

    shown = Task(State("task", "train"))
    train_backbone(SOURCE, ROWS, INFO, TRAINING, on_epoch=save, shown=shown)
    steps = len(ROWS) // TRAINING.batch
    assert counted == [(epoch * steps, 3 * steps) for epoch in (1, 2, 3)]
    shown = Task(State("task", "train"))
    train_backbone(SOURCE, ROWS, INFO, TRAINING, resume_from=tmp_path, on_epoch=save, shown=shown)
    assert counted[3:] == [(3 * steps, 3 * steps)]


class Stub:
    """The source, but for how it is read."""

    splits, image_size, channels = SOURCE.splits, SOURCE.image_size, SOURCE.channels
    items = staticmethod(SOURCE.items)
    names = staticmethod(SOURCE.names)
    fingerprint = staticmethod(SOURCE.fingerprint)


class BrokenImages(Stub):
    """A source whose rows divisible by five cannot be decoded."""

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
        done = train_backbone(source, ROWS, INFO, replace(TRAINING, epochs=1, batch=batch))
        assert set(done.broken.values()) == {"truncated"}
        assert all(value.isfinite().all() for value in done.network.state_dict().values())


def test_pixels_that_do_not_fit_in_memory_are_decoded_by_as_many_threads_as_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pixel_feed, "CACHE_BYTES", 0)
    epochs: list[Epoch] = []
    once = replace(TRAINING, epochs=2, batch=32)
    source = Slow()
    slow = train_backbone(source, ROWS, INFO, once, on_epoch=epochs.append, threads=3)
    assert len(source.threads) == 3, "a batch of 32 images is shared by all of them"
    assert slow.work.images == 2 * (len(ROWS) // 32) * 32
    assert slow.work.wait_s > 0.9 * 0.05, "of the first batch nothing is there yet"
    assert slow.work.decode_s > slow.work.decode_cpu_s + 0.9 * 0.05 * 2 * (len(ROWS) // 32), (
        "it sleeps, a core does not"
    )
    assert 0 < epochs[-1].waited < 1
    monkeypatch.undo()
    assert train_backbone(SOURCE, ROWS, INFO, once, on_epoch=epochs.append).work.decode_s == 0, "all are in memory"
    assert epochs[-1].waited == 0


class Slow(Stub):
    """A source whose files come late. threads: that have read."""

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def read(self, split: str, rows: NDArray[np.int64]) -> Pixels:
        self.threads.add(threading.get_ident())
        time.sleep(0.05)
        return SOURCE.read(split, rows)


class Recorder(Stub):
    """A source that notes which rows were read after the first full read (that of the cache)."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def read(self, split: str, rows: NDArray[np.int64]) -> Pixels:
        self.rows += rows.tolist()
        return SOURCE.read(split, rows)


def _train(rank: int) -> Any:
    """The networks' states, which images were read, and the loss and the operations."""
    pixel_feed.CACHE_BYTES = 0  # decode what is used, when it is used
    source = Recorder()
    epochs: list[Epoch] = []
    network = train_backbone(source, ROWS, INFO, replace(TRAINING, epochs=1), on_epoch=epochs.append).network
    others = [
        train_backbone(
            SOURCE, ROWS, INFO, replace(TRAINING, epochs=1), make_objective=KINDS[name].objective, old=old_model([2, 9])
        )
        for name in ("bct", "ract_hard", "side", "advbct", "mixbct")
    ]
    states = [network.state_dict(), *(other.network.state_dict() for other in others)]
    return states, source.rows, epochs[0].loss, [other.flops for other in others]


@pytest.mark.full
def test_two_workers_share_the_images_and_keep_one_network(tmp_path: Path) -> None:
    found = on_two_workers(_train, tmp_path)
    (first, first_rows, first_loss, flops), (second, second_rows, second_loss, _) = found
    for mine, other in zip(first, second, strict=True):  # of plain classification, and of every kind
        for name, value in mine.items():
            if "running" not in name:  # statistics of BatchNorm stay each worker's own
                torch.testing.assert_close(other[name], value, rtol=0, atol=0)
    alone = train_backbone(
        SOURCE, ROWS, INFO, replace(TRAINING, epochs=1), make_objective=KINDS["bct"].objective, old=old_model([2, 9])
    )
    assert flops[0] == alone.flops  # of both workers together: half a batch each
    assert first_loss == second_loss
    assert not set(first_rows) & set(second_rows)
    steps = len(ROWS) // TRAINING.batch
    assert len(first_rows) == len(second_rows) == steps * TRAINING.batch // 2


def test_training_follows_the_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a factor of 0 nothing is learned."""
    monkeypatch.setattr(backbone_loop, "warmup_cosine", lambda step, steps, warmup: 0.0)
    torch.manual_seed(TRAINING.seed)
    start = INFO.build().state_dict()["classifier.weight"].clone()
    network = train_backbone(SOURCE, ROWS, INFO, replace(TRAINING, epochs=1)).network
    torch.testing.assert_close(network.state_dict()["classifier.weight"], start, rtol=0, atol=0)


@pytest.mark.parametrize("nesterov", [True, False])
def test_momentum_is_of_the_kind_asked_for_and_weights_of_batchnorm_decay(
    nesterov: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``torch.optim.SGD`` does it, with one group of all parameters."""
    made: list[torch.optim.SGD] = []

    class Spied(torch.optim.SGD):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(self)

    monkeypatch.setattr(torch.optim, "SGD", Spied)
    trained = train_backbone(SOURCE, ROWS, INFO, replace(TRAINING, epochs=1, nesterov=nesterov)).network
    (group,) = made[0].param_groups
    assert (group["nesterov"], group["momentum"]) == (nesterov, TRAINING.momentum)
    assert group["weight_decay"] == TRAINING.weight_decay > 0
    assert {id(p) for p in group["params"]} == {id(p) for p in trained.parameters()}


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


@pytest.mark.parametrize(
    ("name", "old_classes"),
    [
        *(("", []), ("bct", [1, 3]), ("bct", [2, 9]), ("ract", [1, 3]), ("ract_hard", [1, 3]), ("side", [])),
        *(("advbct", [1, 3]), ("advbct", [2, 9]), ("mixbct", [1, 3])),
    ],
)
def test_every_kind_resumes_and_leaves_the_old_model_as_it_was(
    name: str, old_classes: list[int], tmp_path: Path
) -> None:
    old = old_model(old_classes) if old_classes else None
    before = {key: value.clone() for key, value in old.network.state_dict().items()} if old else {}
    objective, later = KINDS[name].objective if name else Classification, list[int]()
    train = partial(train_backbone, SOURCE, ROWS, INFO, TRAINING, make_objective=objective, old=old)
    whole = train(on_epoch=lambda epoch: epoch.save(tmp_path) if epoch.epoch == 2 else None)
    resumed = train(resume_from=tmp_path, on_epoch=lambda epoch: later.append(epoch.epoch))
    assert later == [3]
    for key, value in whole.network.state_dict().items():
        torch.testing.assert_close(resumed.network.state_dict()[key], value, rtol=0, atol=0)
    assert resumed.flops == whole.flops
    assert whole.network.state_dict().keys() == INFO.build().state_dict().keys()
    for key, value in before.items():
        assert old is not None
        torch.testing.assert_close(old.network.state_dict()[key], value, rtol=0, atol=0)


def test_influence_pulls_towards_the_old_classifier() -> None:
    """The old classifier recognises the new embedding only if it was trained to be compatible."""
    old = OldModel(train_backbone(SOURCE, ROWS, INFO, replace(TRAINING, epochs=12, seed=5)).network, INFO)
    right = {}
    for name, objective in (("plain", Classification), ("bct", KINDS["bct"].objective)):
        done = train_backbone(SOURCE, ROWS, INFO, replace(TRAINING, epochs=12), make_objective=objective, old=old)
        with torch.no_grad():
            embedding = done.network.embed(pixels_to_float(torch.from_numpy(SOURCE.read("train", ROWS).pixels_BSSC)))
            answers = old.network.classifier(embedding).argmax(1).numpy()
        right[name] = float((np.asarray(INFO.classes)[answers] == LABELS[ROWS]).mean())
    assert right["bct"] > 0.6
    assert right["bct"] > right["plain"] + 0.2


def test_class_means_are_those_of_readable_images_as_they_are() -> None:
    source: ImageSource = BrokenImages()
    old = old_model([2, 9])
    targets = np.searchsorted(INFO.classes, LABELS)
    images = PlainImages(PixelFeed(source, ROWS), ROWS, targets, torch.device("cpu"))
    means = freeze_old(old, INFO, images).class_means_Cd
    assert means is not None
    asked = freeze_old(old_model(list(INFO.classes)), INFO, images, with_means=True)
    assert asked.class_means_Cd is not None
    assert asked.class_means_Cd.shape == means.shape
    for c, label in enumerate(INFO.classes):
        rows = np.flatnonzero((label == LABELS) & (np.arange(len(LABELS)) % 5 != 0))
        pixels = pixels_to_float(torch.from_numpy(SOURCE.read("train", rows).pixels_BSSC))
        with torch.no_grad():
            torch.testing.assert_close(means[c], old.network.eval().embed(pixels).mean(0), rtol=1e-4, atol=1e-5)


def test_arcface_learns() -> None:
    epochs: list[Epoch] = []
    settings = replace(TRAINING, classification="arcface", epochs=20, lr=0.003, arcface_margin=0.2, arcface_scale=8.0)
    info = replace(INFO, cosine_scale=settings.cosine_scale)
    train_backbone(SOURCE, ROWS, info, settings, on_epoch=epochs.append)
    assert epochs[-1].accuracy > 0.6


def test_views_of_a_pair_differ_as_its_own_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[Augmentation] = []

    def spy(pixels: torch.Tensor, how: Augmentation) -> torch.Tensor:
        used.append(how)
        return augment(pixels, how)

    monkeypatch.setattr(backbone_loop, "augment", spy)
    once = replace(TRAINING, epochs=1, batch=len(ROWS))
    train_backbone(SOURCE, ROWS, INFO, once)
    train_backbone(SOURCE, ROWS, INFO, once, make_objective=KINDS["side"].objective)
    assert used == [once.augmentation, once.pair_augmentation, once.pair_augmentation]


def test_colours_change_within_their_limit() -> None:
    pixels = torch.rand(64, 3, 9, 9) * 0.5 + 0.2
    still = Augmentation(rotate_deg=0, shift=0, zoom=0)
    views = augment(pixels, replace(still, colour=0.2))
    flat = torch.full((64, 3, 9, 9), 0.5)
    brightness = augment(flat, replace(still, colour=0.2)) / flat  # nothing to contrast with
    assert 0.8 - 1e-5 <= brightness.min() < 0.85
    assert 1.15 < brightness.max() <= 1.2 + 1e-5
    assert brightness.std((2, 3)).max() < 1e-5
    contrast = (views.std((2, 3)) / views.mean((2, 3))) / (pixels.std((2, 3)) / pixels.mean((2, 3)))
    assert 0.8 - 1e-3 <= contrast.min() < 0.85
    assert 1.15 < contrast.max() <= 1.2 + 1e-3


def test_arithmetic_of_a_convnet_training_is_counted_by_hand() -> None:
    """16 px, 3 channels, width 4, 8 dimensions, 3 classes; gradients cost the same again for weights and for inputs.

    Nobody needs the gradient of the images.
    """
    convolutions = [3 * 4 * 9 * 16**2, 4 * 8 * 9 * 8**2, 8 * 16 * 9 * 4**2, 16 * 16 * 9 * 2**2]
    embed = sum(convolutions) + 16 * 8
    step = 16 * 2 * (3 * (embed + 8 * 3) - convolutions[0])
    steps = len(ROWS) // 16
    done = train_backbone(SOURCE, ROWS, INFO, TRAINING)
    assert embed_macs(done.network, 3, 16) == embed
    assert done.flops == 3 * steps * step
    ract = train_backbone(SOURCE, ROWS, INFO, TRAINING, make_objective=KINDS["ract"].objective, old=old_model([1, 3]))
    similarities = 16 * 2 * (16 * 6 + 16 * 8)  # to old ones and to new ones
    backward = 16 * 2 * (16 * 6 + 2 * 16 * 8)  # old ones have no gradient
    old_step = 16 * 2 * (sum(convolutions) + 16 * 6)
    assert ract.flops == 3 * steps * (step + old_step + similarities + backward)


@pytest.mark.parametrize(("arch", "giga_macs"), [("resnet18", 1.814), ("resnet50", 4.089), ("vit_b_32", 4.409)])
def test_arithmetic_of_known_networks_is_what_torchvision_publishes(arch: str, giga_macs: float) -> None:
    """Theirs include a classifier of 1000 classes."""
    network = BackboneInfo(BackboneSettings(arch, dim=1000), 3, 224, classes=[0, 1]).build()
    assert embed_macs(network, 3, 224) / 1e9 == pytest.approx(giga_macs, rel=0.01)
    published = {"resnet18": 11_689_512, "resnet50": 25_557_032, "vit_b_32": 88_224_232}
    assert embed_parameters(network) == pytest.approx(published[arch], rel=0.01)
