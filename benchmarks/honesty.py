"""The effect of approximate indexes on the quality of a half-backfilled gallery, and how much merges repair."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from benchmarks.galleries import Case, backfill, header, new_shard, of_length_one, random_plan, row
from ray_backfill.drill.plan import NEW, OLD, DrillPlan
from ray_backfill.drill.results import depth, exact_answers, exact_quality, live_quality, recall
from ray_backfill.drill.shard import View
from ray_backfill.engine.distances import ProductForm
from ray_backfill.engine.index import IndexSettings, Partition
from ray_backfill.engine.index.exact import ExactPartition
from ray_backfill.engine.lists import RankedLists, best_first, merge_sides
from ray_backfill.engine.merges import RAW, Merge, all_merges, fit_merge
from ray_backfill.engine.merges.score_map import ScoreMap
from ray_backfill.engine.systems import IntArray, RetrievalSystem, UpgradePair
from ray_backfill.pipeline.live import Answering

Pairs = tuple[tuple[IndexSettings, IndexSettings], ...]
METRICS = ("mAP@100", "CMC@1")
# Old and new index: first the same on both sides, then only one side quantised, without lists that hide items.
PAIRS: Pairs = tuple(
    (IndexSettings(*old), IndexSettings(*new))
    for old, new in (
        (("exact", 0), ("exact", 0)), (("IVF256,Flat", 16), ("IVF256,Flat", 16)),
        (("IVF256,PQ16", 16), ("IVF256,PQ16", 16)), (("IVF256,PQ32", 16), ("IVF256,PQ32", 16)),
        (("HNSW32", 64), ("HNSW32", 64)), (("PQ16", 0), ("exact", 0)), (("exact", 0), ("PQ16", 0)),
    )
)  # fmt: skip
POINTS = 11
_PARTS = 50
# Merges fitted on exact distances, and on the index's own distances.
FITTED = ("quantile", "isotonic")
OF_INDEX = ", of the index"
RERANKED = "exact distances of the items found"


@dataclass
class Curves:
    """Measurements of a pair of indexes, one value per moment. quality: (merge, metric) -> quality with the index.

    exact: (merge, metric) -> quality of exact search. bias: index minus exact distance of answered items, by side.
    """

    name: str
    is_quantised: bool
    t: list[float] = field(default_factory=list)
    recall: dict[int, list[float]] = field(default_factory=lambda: {OLD: [], NEW: []})
    bias: dict[int, list[float]] = field(default_factory=lambda: {OLD: [], NEW: []})
    share_new: list[tuple[float, float]] = field(default_factory=list)
    quality: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    exact: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def add(self, into: dict[tuple[str, str], list[float]], merge: str, values: Mapping[str, float]) -> None:
        for metric, value in values.items():
            into.setdefault((merge, metric), []).append(value)


def honesty(case: Case, pairs: Pairs = PAIRS, points: int = POINTS) -> list[Curves]:
    """Measure all pairs of indexes; print a table for each, and a summary."""
    plan = random_plan(case.truth.n_gallery, points, _PARTS)
    k = depth(METRICS, case.truth)
    merges = _fitted(case, None)
    exact = _exact(case, plan, merges, k)
    found = []
    for old, new in pairs:
        curves = measure(case, plan, (old, new), merges, exact, k)
        found.append(curves)
        _print(curves)
    _summary(found)
    return found


@dataclass(frozen=True)
class Exact:
    """By moment: the quality of each merge, and the (Q, k) best items by raw distances."""

    quality: list[dict[str, dict[str, float]]]
    best: list[IntArray]


def _exact(case: Case, plan: DrillPlan, merges: Mapping[str, Merge], k: int) -> Exact:
    quality, best, pair = [], [], case.pair
    for checkpoint in plan.checkpoints:
        state = plan.state(checkpoint.applied, {})
        quality.append(
            {name: exact_quality(pair, case.truth, state, METRICS, case.distance, m) for name, m in merges.items()}
        )
        best.append(exact_answers(case.sides, pair, state, Answering.plain(case.sides.merge, k)))
    return Exact(quality, best)


def measure(
    case: Case,
    plan: DrillPlan,
    indexes: tuple[IndexSettings, IndexSettings],
    merges: Mapping[str, Merge],
    exact: Exact,
    k: int,
) -> Curves:
    """Run a backfill through a shard with these indexes, measured at the checkpoints of a drill."""
    old, new = indexes
    name = _name(old) if old == new else f"{_name(old)} old, {_name(new)} new"
    curves = Curves(name, any("PQ" in settings.kind for settings in indexes))
    shard = new_shard(case, plan, old, new)
    empty = shard.view.old.without(plan.order), shard.view.new  # trained like the serving ones
    all_merges = dict(merges) | {merge + OF_INDEX: fitted for merge, fitted in _fitted(case, empty).items()}
    for checkpoint in plan.checkpoints:
        for _ in backfill(case, shard, checkpoint.applied):
            pass
        state = plan.state(checkpoint.applied, {})
        found = search(case, shard.view, k)
        at = checkpoint.moment
        curves.t.append(checkpoint.t)
        raw = merge_sides(*found, RAW, k)
        for side in (OLD, NEW):
            curves.recall[side].append(recall(raw.item, exact.best[at], state, side))
            curves.bias[side].append(_bias(case.pair, case.distance, raw, side))
        curves.share_new.append((_share_new(raw.item, state), _share_new(exact.best[at], state)))
        for merge_name, merge in all_merges.items():
            position = merge_sides(*found, merge, k).item
            curves.add(curves.quality, merge_name, live_quality(position, case.truth, METRICS))
        reranked = merge_sides(*_with_exact_distances(case.pair, case.distance, found), RAW, k).item
        curves.add(curves.quality, RERANKED, live_quality(reranked, case.truth, METRICS))
        for merge_name, quality in exact.quality[at].items():
            curves.add(curves.exact, merge_name, quality)
    return curves


def search(case: Case, view: View, k: int) -> tuple[RankedLists, RankedLists]:
    """The results of both partitions, searched like in a shard."""
    total, pair = view.old.n + view.new.n, case.pair
    return (
        view.old.search(pair.backward.query, k, share=view.old.n / total),
        view.new.search(pair.forward.query, k, share=view.new.n / total),
    )


def _fitted(case: Case, empty: tuple[Partition, Partition] | None) -> dict[str, Merge]:
    """Raw, and all merges that can be fitted, on exact distances or on those of trained, ``empty`` indexes."""
    names = [name for name in FITTED if case.train_label is not None or not all_merges()[name].needs_labels]
    train = case.train_pair
    if empty is None:
        return {"raw": RAW} | {name: fit_merge(name, train, case.train_label, case.distance) for name in names}
    backward, forward = (
        _as_indexed(system, partition, case.distance)
        for system, partition in zip((train.backward, train.forward), empty, strict=True)
    )
    # Under cosine an index compares a query of length 1 with its stored vector, whatever the length of that.
    distance = "inner_product" if case.distance == "cosine" else case.distance
    fitted = {name: fit_merge(name, UpgradePair(backward, forward), case.train_label, distance) for name in names}
    return {name: _moved(merge, 1.0) if case.distance == "cosine" else merge for name, merge in fitted.items()}


def _as_indexed(system: RetrievalSystem, empty: Partition, distance: str) -> RetrievalSystem:
    """Train items as reconstructed by an index, and queries in the form it expects."""
    plain = of_length_one(system, distance)
    if isinstance(empty, ExactPartition):
        return plain
    rows = np.arange(len(system.gallery))
    return RetrievalSystem(plain.query, empty.with_rows(system.gallery, rows).compacted().vectors(rows))


def _moved(merge: Merge, by: float) -> Merge:
    """The merge for distances shifted by ``by``: cosine distances instead of negative inner products."""
    assert merge.backward is not None
    assert merge.forward is not None
    return Merge(merge.name, _map_moved(merge.backward, by), _map_moved(merge.forward, by))


def _map_moved(score_map: ScoreMap, by: float) -> ScoreMap:
    distances, first = np.unique(score_map.distances + by, return_index=True)  # rounding may merge knots
    return ScoreMap(distances, score_map.scores[first])


def _exact_distances(system: RetrievalSystem, distance: str, position_Qk: IntArray) -> NDArray[np.float32]:
    """(Q, k) exact distances of these items, infinite for padding."""
    of_query, place = np.nonzero(position_Qk >= 0)
    out = np.full(position_Qk.shape, np.inf, np.float32)
    out[of_query, place] = ProductForm.of(system, distance).exact(of_query, position_Qk[of_query, place])
    return out


def _with_exact_distances(
    pair: UpgradePair, distance: str, found: tuple[RankedLists, RankedLists]
) -> tuple[RankedLists, RankedLists]:
    """The lists sorted by exact distances, which they then have."""

    def of_system(system: RetrievalSystem, lists: RankedLists) -> RankedLists:
        there = lists.item >= 0
        exact = _exact_distances(system, distance, lists.item)[there]
        return best_first(np.nonzero(there)[0], exact, lists.item[there], *there.shape)

    return of_system(pair.backward, found[0]), of_system(pair.forward, found[1])


def _bias(pair: UpgradePair, distance: str, answer: RankedLists, side: int) -> float:
    """Mean of index minus exact distance over the answered items of a side; NaN if there are none."""
    is_of_side = (answer.item >= 0) & (answer.is_forward == (side == NEW))
    position = np.where(is_of_side, answer.item, -1)
    exact = _exact_distances(pair.forward if side == NEW else pair.backward, distance, position)
    difference = answer.distance[is_of_side].astype(np.float64) - exact[is_of_side]
    return float(difference.mean()) if len(difference) else float("nan")


def _share_new(position_Qk: IntArray, state: NDArray[np.uint8]) -> float:
    return float((state[position_Qk[position_Qk >= 0]] == NEW).mean())


def _name(settings: IndexSettings) -> str:
    return settings.kind + (f"/{settings.effort}" if settings.effort else "")


def _print(curves: Curves) -> None:
    print(f"\n### {curves.name}")
    header("t", *(f"{t:g}" for t in curves.t))
    for side, which in ((OLD, "old"), (NEW, "new")):
        row(f"recall@100, {which} items", *(_cell(value, "{:.3f}") for value in curves.recall[side]))
    for side, which in ((OLD, "old"), (NEW, "new")):
        row(f"index minus exact distance, {which} items", *(_cell(value, "{:+.4f}") for value in curves.bias[side]))
    row(
        "new items among the answers, index / exact (%)",
        *(f"{100 * a:.0f} / {100 * b:.0f}" for a, b in curves.share_new),
    )
    row(f"{METRICS[0]}, exact search, raw", *_percents(curves.exact["raw", METRICS[0]]))
    for merge in dict.fromkeys(name for name, _ in curves.quality):
        row(f"{METRICS[0]}, index, {merge}", *_percents(curves.quality[merge, METRICS[0]]))


def _summary(found: list[Curves]) -> None:
    """Print means over the moments between start and end, where both sides answer."""
    merges = list(dict.fromkeys(name for curves in found for name, _ in curves.quality))
    for metric in METRICS:
        print(f"\n{metric} (%), mean over 0 < t < 1; in brackets what exact search has with the same merge")
        header("indexes", *merges)
        for curves in found:
            cells = []
            for merge in merges:
                base = curves.exact.get((merge.removesuffix(OF_INDEX), metric), curves.exact["raw", metric])
                value = _inner(curves.quality[merge, metric]) if (merge, metric) in curves.quality else float("nan")
                cells.append(f"{100 * value:.2f} ({100 * _inner(base):.2f})")
            row(curves.name, *cells)


def _inner(values: list[float]) -> float:
    return float(np.mean(values[1:-1]))


def _cell(value: float, form: str) -> str:
    return "" if np.isnan(value) else form.format(value)


def _percents(values: list[float]) -> list[str]:
    return [f"{100 * value:.2f}" for value in values]
