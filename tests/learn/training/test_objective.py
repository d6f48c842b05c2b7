"""Classification as an objective, against pytorch-metric-learning; the spread of old classes against a plain loop."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from pytorch_metric_learning.losses import ArcFaceLoss

from ray_backfill.images.datasets import landmarks, open_images
from ray_backfill.images.source import Pixels
from ray_backfill.learn.models.backbones import BackboneInfo, class_logits, pixels_to_float
from ray_backfill.learn.training.batches import PixelFeed
from ray_backfill.learn.training.objective import (
    Classification,
    ClassSpread,
    PlainImages,
    class_spread,
    classification_losses,
    fit_width,
)
from ray_backfill.learn.training.settings import BackboneSettings, ObjectiveSettings
from tests.learn.training._workers import on_two_workers

ARCFACE = ObjectiveSettings(classification="arcface")


def test_arcface_is_that_of_pytorch_metric_learning() -> None:
    """Also where angle + margin exceeds pi: the first embedding points away from its class."""
    torch.manual_seed(0)
    embedding, target = torch.randn(12, 6, dtype=torch.float64), torch.arange(12) % 5
    weight = torch.randn(5, 6, dtype=torch.float64)
    embedding[0] = -weight[0] + 0.01 * torch.randn(6, dtype=torch.float64)
    # It takes degrees, and sums up by the mean.
    oracle = ArcFaceLoss(5, 6, margin=math.degrees(0.5), scale=64).double()
    oracle.W.data = weight.T.clone()
    mine, theirs = embedding.clone().requires_grad_(), embedding.clone().requires_grad_()
    losses = classification_losses(class_logits(mine, weight, None, 64.0), target, ARCFACE, 64.0)
    expected = oracle(theirs, target)
    torch.testing.assert_close(losses.mean(), expected, rtol=1e-6, atol=1e-9)
    losses.mean().backward()
    expected.backward()
    torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-5, atol=1e-8)


def test_an_embedding_on_its_class_has_a_gradient() -> None:
    """acos is infinitely steep there."""
    weight = torch.eye(3)
    embedding = weight.clone().requires_grad_()
    losses = classification_losses(class_logits(embedding, weight, None, 64.0), torch.arange(3), ARCFACE, 64.0)
    losses.sum().backward()
    assert embedding.grad is not None
    assert embedding.grad.isfinite().all()


def test_softmax_is_smoothed_cross_entropy_by_hand() -> None:
    torch.manual_seed(0)
    logits, target = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, -1, 1])
    losses = classification_losses(logits, target, ObjectiveSettings(label_smoothing=0.2), None)
    for i in range(6):
        log_p = logits[i] - logits[i].exp().sum().log()
        expected = 0.0 if target[i] < 0 else -(0.8 * log_p[target[i]] + 0.2 * log_p.mean())
        assert losses[i].item() == pytest.approx(float(expected), abs=1e-6)


@pytest.mark.parametrize(
    "settings", [ObjectiveSettings(), ObjectiveSettings("arcface", arcface_scale=4.0)], ids=["softmax", "arcface"]
)
def test_unreadable_images_cost_nothing(settings: ObjectiveSettings) -> None:
    info = BackboneInfo(BackboneSettings(dim=6, width=2), 1, 8, [0, 1, 2], cosine_scale=settings.cosine_scale)
    losses, right = Classification(info.build().eval(), info, settings, None)(
        [torch.rand(4, 1, 8, 8)], torch.tensor([0, -1, 2, -1])
    )
    assert (losses > 0).tolist() == [True, False, True, False]
    assert not right[[1, 3]].any()


def test_widths_are_cut_or_filled_up() -> None:
    vectors = torch.arange(6.0).view(2, 3)
    assert fit_width(vectors, 2).tolist() == [[0, 1], [3, 4]]
    assert fit_width(vectors, 3).tolist() == vectors.tolist()
    assert fit_width(vectors, 5).tolist() == [[0, 1, 2, 0, 0], [3, 4, 5, 0, 0]]


SOURCE = open_images(landmarks.Settings(image_size=16, landmarks=4, train_images=61, gallery_images=16, queries=4))
LABELS = SOURCE.items("train").labels_N
# Rows of three of the four classes, and their positions; the others are -1, to be noticed if they were used.
ROWS = np.flatnonzero(np.isin(LABELS, [0, 1, 3]))
TARGETS = np.where(np.isin(LABELS, [0, 1, 3]), np.searchsorted([0, 1, 3], LABELS), -1)
BROKEN = int(ROWS[7])


def embed(pixels_BCSS: torch.Tensor) -> torch.Tensor:
    """Some fixed map to 5 dimensions."""
    torch.manual_seed(0)
    return pixels_BCSS.flatten(1) @ torch.randn(16 * 16 * 3, 5)


class OneBroken:
    """The source with an unreadable image."""

    channels, image_size, splits = SOURCE.channels, SOURCE.image_size, SOURCE.splits

    def read(self, split: str, rows: np.ndarray) -> Pixels:
        found = SOURCE.read(split, rows)
        return Pixels(found.pixels_BSSC, {int(i): "broken" for i in np.flatnonzero(rows == BROKEN)})

    def __getattr__(self, name: str) -> object:
        return getattr(SOURCE, name)


def measured() -> ClassSpread:
    feed = PixelFeed(OneBroken(), ROWS)  # type: ignore[arg-type]
    return class_spread(embed, (3, 5), PlainImages(feed, ROWS, TARGETS, torch.device("cpu")))


def test_centres_and_distances_are_those_of_a_plain_loop() -> None:
    spread, units = measured(), {}
    for row in ROWS.tolist():
        vector = embed(pixels_to_float(torch.from_numpy(SOURCE.read("train", np.array([row])).pixels_BSSC)))[0]
        units[row] = vector / vector.norm()
    del units[BROKEN]
    by_class = {t: [u for row, u in units.items() if TARGETS[row] == t] for t in range(3)}
    for t, members in by_class.items():
        torch.testing.assert_close(spread.centre_Cd[t], torch.stack(members).mean(0), rtol=1e-4, atol=1e-5)
    assert spread.target_N.tolist() == [TARGETS[row] for row in units]
    expected = [(u - spread.centre_Cd[TARGETS[row]]).norm() for row, u in units.items()]
    torch.testing.assert_close(spread.distance_N, torch.stack(expected), rtol=1e-4, atol=1e-5)
    ordered = dict(spread.sorted_by_class())
    assert list(ordered) == [0, 1, 2]
    for t, found in ordered.items():
        np.testing.assert_array_equal(found, np.sort(spread.distance_N[spread.target_N == t].double().numpy()))


def _measure(rank: int = 0) -> tuple[torch.Tensor, ...]:
    spread = measured()
    return spread.centre_Cd, spread.target_N, spread.distance_N


def test_two_workers_find_what_one_finds(tmp_path: Path) -> None:
    for found in on_two_workers(_measure, tmp_path):
        for mine, expected in zip(found, _measure(), strict=True):
            torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-6)
