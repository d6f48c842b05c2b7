"""Centres of classes and distances to them, against a plain loop; unreadable images; two workers against one."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from ray_backfill.images.datasets import landmarks, open_images
from ray_backfill.images.source import Pixels
from ray_backfill.learn.models.backbones import pixels_to_float
from ray_backfill.learn.training.batches import PixelFeed
from ray_backfill.learn.training.objective import ClassSpread, class_spread
from tests.learn.training._workers import leave_together

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
    return class_spread(embed, (3, 5), feed, ROWS, TARGETS, torch.device("cpu"))


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


def _two_workers(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    found = measured()
    torch.save((found.centre_Cd, found.target_N, found.distance_N), Path(folder) / f"{rank}.pt")
    leave_together(rank, folder)


@pytest.mark.slow
def test_two_workers_find_what_one_finds(tmp_path: Path) -> None:
    spawn(_two_workers, (str(tmp_path),), nprocs=2)
    alone = measured()
    for rank in (0, 1):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for mine, expected in zip(found, (alone.centre_Cd, alone.target_N, alone.distance_N), strict=True):
            torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-6)
