"""What each stage of a service adds or loses: from the old model's plain ranking to what users see.

Every figure is a sum and difference of means over the same queries and the same bootstrap draws. So it is paired, and
those of a ladder add up to the whole.

Shapes: T points, DRAWS bootstrap draws of queries.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_backfill.engine import statistics as stats
from ray_backfill.engine.replay import Curve
from ray_backfill.pipeline.lists import Stages

# Variations of a service's stages: the vectors' whole ranking; lists without fusion and re-ranker; one of them alone.
PLAIN, LISTS, FUSED, UNFUSED = "plain", "lists", "fused", "unfused"
WHOLE = "whole"

# Stages, in the order in which they change a result. The old model is where a ladder begins.
OLD_MODEL, MODEL, MERGE, CUT, FUSION, RERANKER = "old model", "model", "merge", "cut", "fusion", "re-ranker"
# Sums of stages: cut, fusion and re-ranker together; the model and these.
STAGES, SERVICE = "stages", "service"

# What a figure says of a stage.
LADDER, WITHOUT, UPGRADE = "ladder", "without", "upgrade"

Samples = NDArray[np.float64]
"""(1 + DRAWS, T + 1) means over queries, then those of each draw; at each point, and on average over the backfill."""


class Change(NamedTuple):
    """What a stage changes.

    kind: ladder: when it is added to all stages before it. without: what the whole service loses if this stage alone is
    left out. upgrade: what it adds to new minus old.
    """

    kind: str
    stage: str
    samples: Samples


def variations_of(stages: Stages) -> dict[str, Stages]:
    """What is replayed beside the service, but for ``PLAIN``."""
    lists = {LISTS: replace(stages, fusion=None, top=0)} if stages.fusion or stages.top else {}
    both = stages.fusion and stages.top
    return lists | ({FUSED: replace(stages, top=0), UNFUSED: replace(stages, fusion=None)} if both else {})


def sampled(curve: Curve, metric: str) -> dict[str, Samples]:
    """Means of a curve behind a service (``WHOLE``) and of its variations. Cost: O(DRAWS Q T) each."""
    samples = {}
    for name, of in {WHOLE: curve, **curve.variations}.items():
        means = np.vstack([of.values(metric), stats.bootstrap_means(of.per_query[metric], of.weights)])
        samples[name] = np.column_stack([means, stats.auc_draws(of.t, means, of.is_step)])
    return samples


def changes(
    stages: Stages, method: Mapping[str, Samples], old: Mapping[str, Samples], new: Mapping[str, Samples]
) -> Iterator[Change]:
    """The ladder of a method in one order and merge, then each stage left out alone.

    The ladder: the old model by the vectors alone; the new one in its place (model); the method, half-way between both
    (merge); then each stage of the service. It adds up to the service. A service that fuses old and new as lists of
    their own has no merge; the ladder has the vectors merged until the fusion takes their place.

    Left out alone: the upgrade (model: the old model in the same service), the backfill (merge: the new one there),
    fusion, re-ranker. The cut cannot be left out where a fusion follows: that scores a result by its rank or by the
    scores of the whole list, and would be another fusion over the whole gallery, which no partition returns. Nor where
    a re-ranker follows alone: the first results, which it sorts, are the same without a cut behind them.

    method, old, new: from ``sampled``.
    """
    yield Change(LADDER, OLD_MODEL, old[PLAIN])
    yield Change(LADDER, MODEL, new[PLAIN] - old[PLAIN])
    before, built = new[PLAIN], _built_up(stages, method)
    for stage, after in built.items():
        yield Change(LADDER, stage, after - before)
        before = after
    left_out = {MODEL: old[WHOLE], MERGE: new[WHOLE]}
    if [*built][-1] == CUT:
        left_out[CUT] = method[PLAIN]
    if stages.fusion:
        left_out[FUSION] = method.get(UNFUSED, method[LISTS])
    if stages.top:
        left_out[RERANKER] = method.get(FUSED, method[LISTS])
    for stage, rest in left_out.items():
        yield Change(WITHOUT, stage, method[WHOLE] - rest)


def upgrade_changes(stages: Stages, old: Mapping[str, Samples], new: Mapping[str, Samples]) -> Iterator[Change]:
    """New minus old by the vectors alone (model), what each stage changes of it, and sums of these."""
    olds = _built_up(stages, old)
    worth = {stage: samples - olds[stage] for stage, samples in _built_up(stages, new).items()}
    first = before = worth.pop(MERGE)
    yield Change(UPGRADE, MODEL, first)
    for stage, after in worth.items():
        yield Change(UPGRADE, stage, after - before)
        before = after
    yield Change(UPGRADE, STAGES, before - first)
    yield Change(UPGRADE, SERVICE, before)


def _built_up(stages: Stages, of: Mapping[str, Samples]) -> dict[str, Samples]:
    """The vectors' whole ranking, and the service with one stage more each."""
    built = {MERGE: of[PLAIN], CUT: of.get(LISTS, of[WHOLE])}
    if stages.fusion:
        built[FUSION] = of.get(FUSED, of[WHOLE])
    if stages.top:
        built[RERANKER] = of[WHOLE]
    return built
