"""A small gallery of two models of different quality, for forecasts."""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ray_backfill.engine.distances import ProductForm
from ray_backfill.engine.merges import RAW, Merge
from ray_backfill.engine.replay import Curve, replay
from ray_backfill.engine.systems import GroundTruth, RetrievalSystem, UpgradePair
from ray_backfill.forecast.models import KnownItems
from ray_backfill.forecast.sample import Sample, closest_stand_ins, draw_sample
from ray_backfill.learn.models.apply import fit_stand_in

POINTS = 5
METRICS = ("mAP", "mAP@100", "recall@100")
Floats32 = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Gallery:
    """Embeddings of both models, labels as right answers, and a random order."""

    old: RetrievalSystem
    new: RetrievalSystem
    truth: GroundTruth
    order: NDArray[np.int64]

    @property
    def pair(self) -> UpgradePair:
        return UpgradePair(self.old, self.new)

    @cache  # noqa: B019 (galleries live as long as the process)
    def exact(self, merge: Merge = RAW) -> Curve:
        return replay(self.pair, self.truth, self.order, points=POINTS, metrics=METRICS, merge=merge)

    def sample(self, budget: int, seed: int = 0) -> Sample:
        first = fit_stand_in(self.old.query, self.new.query, "cosine")(self.old.gallery)
        form = ProductForm.of(RetrievalSystem(self.new.query, first), "cosine")
        return draw_sample(self.truth, budget, closest_stand_ins(form, self.truth), seed)


@cache
def gallery(items: int = 4000, queries: int = 120, classes: int = 400, seed: int = 0) -> Gallery:
    """Classes are normal; the old model sees half of the dimensions, with more noise."""
    rng = np.random.default_rng(seed)
    dims = 24
    centres = rng.standard_normal((classes, dims))
    of_item, of_query = rng.integers(0, classes, items), rng.integers(0, classes, queries)
    view = {"gallery": 0.5 * rng.standard_normal((items, dims)), "queries": 0.5 * rng.standard_normal((queries, dims))}
    latent = {"gallery": centres[of_item] + view["gallery"], "queries": centres[of_query] + view["queries"]}

    def seen(side: str, dims_seen: int, noise: float) -> Floats32:
        z = latent[side][:, :dims_seen]
        return (z + noise * rng.standard_normal(z.shape)).astype(np.float32)

    old = RetrievalSystem(seen("queries", 12, 0.3), seen("gallery", 12, 0.3))
    new = RetrievalSystem(seen("queries", dims, 0.1), seen("gallery", dims, 0.1))
    truth = GroundTruth.from_labels(of_query, of_item)
    return Gallery(old, new, truth, rng.permutation(items))


def known_of(sample: Sample) -> KnownItems:
    of_queries = sample.queries, sample.group, sample.n_groups
    return KnownItems(sample.position, sample.weight, sample.reason == 0, *of_queries, np.zeros(len(sample), np.bool_))
