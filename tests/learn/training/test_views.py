"""Views of train items: each use draws one of all, and the item stays the same."""

import numpy as np
import torch

from ray_backfill.learn.training.fit import TrainSet
from ray_backfill.learn.training.map_loop import all_views, draw_views, for_all_views

N, V = 50, 3
CPU = torch.device("cpu")


def made() -> TrainSet:
    """Item i has the value i in its plain view and i + 100 v in view v."""
    plain = np.arange(N, dtype=np.float32)[:, None]
    views = np.stack([plain + 100 * (v + 1) for v in range(V)])
    return TrainSet({"old": plain, "new": plain}, np.arange(N), views={"old": views, "new": views})


def test_all_views_of_an_item_are_drawn_equally_often() -> None:
    data = made()
    values_KN, items_KN = all_views(data, "old", CPU)[:, 0], for_all_views(data, np.arange(N), CPU)
    draw, rows = draw_views(data, seed=1), np.tile(np.arange(N), 400)
    drawn = draw(rows)
    assert (items_KN[drawn].numpy() == rows).all(), "a view of the same item"
    view = (values_KN[drawn].numpy() - rows) / 100
    counts = np.bincount(view.astype(int), minlength=V + 1)
    assert len(counts) == V + 1
    # 20,000 draws: the standard deviation of each count is 61.
    assert np.abs(counts - len(rows) / (V + 1)).max() < 6 * 61


def test_the_only_view_of_an_item_is_itself() -> None:
    data = TrainSet(made().vectors, None)
    rows = np.arange(N)
    assert (draw_views(data, seed=1)(rows) == rows).all()
