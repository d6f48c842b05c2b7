"""What methods that learn from labels give on classes that training has not seen, where no query has such a class."""

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.compare.analyses import Analysis
from ray_backfill.compare.results import ResultsData
from ray_backfill.compare.tables import NEW, OLD
from ray_backfill.core.progress import detail
from ray_backfill.page.numbers import in_brackets, points, upper
from ray_backfill.page.sections import Cell, Section, limits, share, table_of

if TYPE_CHECKING:
    from ray_backfill.compare.resolve import Comparison


@dataclass(frozen=True)
class UnseenClasses:
    """A method fitted twice, each time on half of the train split's classes, and judged on validation items."""

    method: Annotated[str, "as in `summary.parquet`"]
    metric: Annotated[str, "the primary metric of the run"]
    queries: Annotated[int, "number of scored validation items; those of each half of the classes query each other"]
    classes: Annotated[int, "number of their classes, among which the bootstrap draws"]
    old: Annotated[float, "auc of {old, old} and of {new, new} on these items"]
    new: float
    seen: Annotated[float, "auc of the fit on an item's own half of the classes, and of the fit on the other half"]
    unseen: float
    gain: Annotated[float, "unseen minus old, and its paired 95 % interval"]
    gain_low: float
    gain_high: float
    difference: Annotated[float, "unseen minus seen, and its paired 95 % interval"]
    low: float
    high: float


def judge(comparison: "Comparison", *_: object) -> list[UnseenClasses] | None:
    """Replay both fits of each method on the items of both halves; None if nothing was fitted on halves."""
    from ray_backfill.compare.fits import MOST_ITEMS, replay_on_validation
    from ray_backfill.engine.merges import RAW
    from ray_backfill.engine.statistics import auc_draws
    from ray_backfill.learn.methods import find_methods

    how, halves, part = comparison.evaluation, comparison.halves, comparison.folder.validation
    methods = [m for m in comparison.methods if halves and all(m.name in maps.folders for _, maps in halves)]
    if not methods or part is None or part.label is None:
        return None
    metric, labels = how.metrics[0], list[NDArray[Any]]()
    areas: dict[tuple[str, bool], list[NDArray[np.float64]]] = defaultdict(list)
    with detail("judge on unseen classes"):
        for (classes, own), other in ((halves[0], halves[1][1]), (halves[1], halves[0][1])):
            items = part.take(np.flatnonzero(np.isin(part.label, classes))).drawn(MOST_ITEMS, how.order_seed)
            assert items.label is not None
            for maps, is_seen in ((own, True), (other, False)):
                replayed = [*find_methods((OLD, NEW)), *methods]
                curves = replay_on_validation(items, replayed, maps, metric, how.distance, how.order_seed)
                for (name, _merge), curve in curves.items():
                    areas[name, is_seen].append(auc_draws(curve.t, curve.per_query[metric], curve.is_step))
            labels.append(items.label[curves[OLD, RAW.name].scored])
    value_Q = {key: np.concatenate(values) for key, values in areas.items()}
    class_Q = np.unique(np.concatenate(labels), return_inverse=True)[1]
    return [_row(method.name, metric, value_Q, class_Q) for method in methods]


def _row(
    method: str, metric: str, value_Q: dict[tuple[str, bool], NDArray[np.float64]], class_Q: NDArray[np.int64]
) -> UnseenClasses:
    from ray_backfill.engine.statistics import bootstrap_means
    from ray_backfill.engine.statistics import interval as limits_of

    sizes = np.bincount(class_Q)

    def mean_of(values: NDArray[np.float64]) -> tuple[float, float, float]:
        """The mean over items, and its limits if other classes are drawn."""
        of_class = np.bincount(class_Q, values) / sizes
        low, high = limits_of(bootstrap_means(of_class[:, None], sizes.astype(np.float64))[:, 0], len(sizes))
        return float(values.mean()), float(low), float(high)

    old, new, seen, unseen = (value_Q[key] for key in ((OLD, True), (NEW, True), (method, True), (method, False)))
    return UnseenClasses(
        method, metric, len(old), len(sizes), float(old.mean()), float(new.mean()), float(seen.mean()),
        float(unseen.mean()), *mean_of(unseen - old), *mean_of(unseen - seen),
    )  # fmt: skip


def sentence(results: ResultsData, method: str) -> str:
    """What a method gives on classes that training has not seen; "" if that was not measured."""
    row: UnseenClasses | None = next((r for r in results.table_of("unseen_classes") if r.method == method), None)
    if row is None:
        return ""
    title = results.manifest.traits.methods[method].title
    gained = _compared(row.gain, row.gain_low, row.gain_high)
    apart = _compared(row.difference, row.low, row.high)
    return (
        f"{upper(title)} learns from labels, and training has seen the classes of all queries. On "
        f"classes held out from training its {row.metric} is {gained} than the old service\u2019s, and {apart} than on "
        f"classes that it has seen; measured on {row.queries:,} train items, by fits on half of the classes each."
    )


def _compared(value: float, low: float, high: float) -> str:
    """A difference in words: "2.1 points lower (95 % interval 1.0 to 3.2)"."""
    if value < 0:
        return f"{points(-value)} lower{in_brackets(-high, -low)}"
    return f"{points(value)} higher{in_brackets(low, high)}"


def section(results: ResultsData) -> Section | None:
    """A line for each method, and a sentence on the one that serves best on classes that it has not seen."""
    rows: tuple[UnseenClasses, ...] = results.table_of("unseen_classes")
    if not rows:
        return None
    lines = [
        [
            ("method", Cell(results.titles.get(row.method, row.method))),
            (f"average {row.metric}, unseen", share(row.unseen)),
            ("seen", share(row.seen)),
            ("unseen \u2212 seen", share(row.difference)),
            ("95 % interval", limits(row.low, row.high)),
        ]
        for row in rows
    ]
    said = sentence(results, max(rows, key=lambda row: row.unseen).method)
    words = (
        "Training has seen the classes of all queries, so the figures of methods that learn from labels hold for these "
        "classes. Here each was fitted twice more, on half of the classes each time, and judged on validation items: "
        "small galleries that query themselves by raw distances, of classes that the fit has seen and of the others."
    )
    return Section("Classes that training has not seen", [words, said, table_of("Unseen classes", lines)], said=[said])


ANALYSES = (Analysis("unseen_classes", UnseenClasses, judge, section, place=71),)
