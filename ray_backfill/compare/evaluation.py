"""The settings of a comparison, the names in them looked up once, and the memory that its curves need."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import chain, combinations
from pathlib import Path
from typing import Any, Self

import numpy as np

from ray_backfill.compare.tables import HEAD_ALONE
from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import say
from ray_backfill.core.store_path import path_of
from ray_backfill.data.truth import parse_truth
from ray_backfill.engine.distances import check_distance
from ray_backfill.engine.merges import BEST, MergeKind, all_merges, check_merge
from ray_backfill.engine.metrics import parse_metric, same_metric
from ray_backfill.engine.orders import Order, find_order
from ray_backfill.engine.statistics import DRAWS
from ray_backfill.learn.methods import CONTROLS, Method, all_methods, find_methods
from ray_backfill.pipeline.service import ServiceSettings, read_service

# Default of recipes: the references, methods without training, and the best-known methods of each family.
METHODS = (
    *("old", "new", "offline", "rm_naive", "procrustes_gallery", "relaxed_gallery", "ridge_gallery", "fct", "fastfill"),
    *("rqt", "cl_s", "mcl", "rm"),
)

# A word for what users of a service see: the first results, and how many of few right answers are among them.
RECOMMENDED = "recommended"
FEW_ANSWERS = 10

# Falls, milestones and flips are judged at this many moments or more, whatever --points says.
JUDGED = 101

# Shares of flipped queries: against the method's own start and against the old service, negative and positive.
_FLIPS = 4


@dataclass(frozen=True)
class Evaluation:
    """Methods, orders, merges and metrics of a comparison."""

    methods: tuple[str, ...] = METHODS
    """Upgrade methods to compare, by name; "recommended", "all", "two_models" (those of "all" that train no backbone
    beside old and new) or "controls" (which "all" leaves out) stand for several. old and new always take part."""
    orders: tuple[str, ...] = ("classifier_score",)
    """Orders in which the gallery is backfilled."""
    merges: tuple[str, ...] = ("raw",)
    """Ways to make the distances of the two systems comparable; raw leaves them as they are, best chooses one for each
    method on train items."""
    metrics: tuple[str, ...] = ("mAP", "CMC@1")
    """Metrics of retrieval, such as mAP, nDCG@10 and CMC@1 (all: ``metric_forms``); "recommended" stands for
    nDCG@10 and CMC@1, and for recall@10 if half of the queries have at most 10 right answers; for recall@10 alone if
    the new model's results are taken as right. The first one leads the report."""
    points: int = 11
    """Number of moments of the backfill to report, t = 0 and t = 1 included."""
    distance: str = "cosine"
    """Distance between embeddings: cosine, l2 or inner_product."""
    margin: float = 0.005
    """Largest loss of quality that still counts as none, as a share: 0.005 is half a percentage point."""
    truth: tuple[str, ...] = ()
    """Which items count as right answers: labels, positives, known-item COLUMN, qrels FILE, clicks SOURCE, or new-topK:
    what the finished upgrade finds first; judged FILE: as new-top1, and the filled file of --judge says which model is
    better. Default: the queries' positives, otherwise labels."""
    filter: str = ""
    """Column of queries and gallery, such as the tenant: a query finds only items with its own value. Default: none."""
    slices: tuple[str, ...] = ()
    """Columns of the queries by which to split them: text, true/false values or numbers. Default: group, if there is
    one."""
    order_seed: int = 0
    """Random seed for the random order."""
    permutations: int = 1
    """Number of random permutations: curves of the random order are means over them. A claim about orders needs 10."""

    cutoffs: tuple[float, ...] = ()
    """Score cut-offs of a service that shows only results with at least this similarity (cosine, inner_product) or with
    at most this distance (l2) in {old, old}: translated to the systems of each method by the merges."""

    embed_per_query: bool = False
    """Whether methods that embed gallery items for every query (cascades) may be recommended, too. Their price, which
    others do not pay, is shown in any case."""

    service: Path | None = None
    """File (YAML) with the stages of your service: how many results each partition returns, a fusion with a text list,
    a re-ranker; docs/pipeline.md has all keys. Default: none, the vectors' whole ranking."""

    @classmethod
    def of_folder(cls) -> Self:
        """The defaults for a folder of embeddings, which seldom has the old classifier's scores."""
        return cls(methods=(RECOMMENDED,), orders=("random",), merges=(BEST,), metrics=(RECOMMENDED,))

    @property
    def step(self) -> int:
        """Number of replayed moments from one reported point to the next."""
        return -(-(JUDGED - 1) // (self.points - 1))

    @property
    def moments(self) -> int:
        """Number of moments that are replayed and judged: at least 101, the reported points among them."""
        return (self.points - 1) * self.step + 1

    @cached_property
    def named(self) -> "Named":
        """The settings with their names looked up, once for each value.

        Raises:
            InputError: A name is unknown, or a setting is impossible.
        """
        known = all_methods().values()
        all_but_controls = [method for method in known if method.family != CONTROLS]
        several = {
            "all": all_but_controls,
            RECOMMENDED: [method for method in all_but_controls if method.is_recommended],
            "two_models": [method for method in all_but_controls if set(method.models) == {"old", "new"}],
            "controls": [method for method in known if method.family == CONTROLS],
        }
        groups = ([m.name for m in several[word]] if word in several else [word] for word in self.methods)
        methods = asked = find_methods(tuple(dict.fromkeys(("old", "new", *chain(*groups)))))
        if any(method.learns_new for method in asked):
            methods = [*asked[:2], *find_methods((HEAD_ALONE,)), *(m for m in asked[2:] if m.name != HEAD_ALONE)]
        for one, other in combinations(dict.fromkeys(self._named_metrics), 2):
            if same_metric(one, other):
                raise InputError(f"--metrics {one} and {other} are the same metric; give one of them")
        orders = tuple(find_order(name) for name in self.orders)
        check_distance(self.distance)
        self.check_truth()
        for merge in self.merges:
            check_merge(merge, self.distance)
        if not self.metrics or not self.orders or not self.merges:
            raise InputError("give at least one of each: --metrics, --orders and --merges")
        if self.order_seed < 0:
            raise InputError(f"--order-seed must not be negative, got {self.order_seed}")
        if self.permutations < 1:
            raise InputError(f"--permutations must be at least 1, got {self.permutations}")
        if not 2 <= self.points <= 1 << 16:
            raise InputError(f"--points must be at least 2 and at most {1 << 16}, got {self.points}")
        if not 0 <= self.margin < 1:
            raise InputError(f"--margin must be at least 0 and below 1 (0.005 is half a point), got {self.margin}")
        merges = tuple(all_merges()[name] for name in self.merges)
        self._check_cutoffs(merges)
        service = None if self.service is None else read_service(path_of(self.service))
        if service is not None and self.cutoffs:
            raise InputError("--cutoffs are of distances, and the results of a --service have none; give one of them")
        return Named(self, tuple(methods), tuple(asked), orders, merges, service)

    def check(self) -> None:
        """Raises InputError for any unknown name or impossible setting."""
        _ = self.named

    @property
    def _named_metrics(self) -> list[str]:
        return [name for name in self.metrics if name != RECOMMENDED]

    def check_truth(self) -> None:
        """Raises InputError for a metric that cannot reach 100 % with the right answers that are asked for."""
        kind, k, _ = parse_truth(self.truth)
        for name, of in ((metric, parse_metric(metric)) for metric in self._named_metrics):
            cut = of.k or k
            is_out_of_reach = cut < k if of.kind in ("recall", "AP") else of.kind == "P" and cut > k
            if kind.is_retention and is_out_of_reach:
                raise InputError(
                    f"{name} cannot reach 100 % with {k:,} right answers for each query (--truth {self.truth[0]}); use "
                    f"{of.kind}@{k} or another number in --truth"
                )

    def _check_cutoffs(self, merges: Sequence[MergeKind]) -> None:
        # What float32 cannot hold is no distance.
        largest = float(np.finfo(np.float32).max)
        limits_of = {"cosine": (-1.0, 1.0), "l2": (0.0, largest), "inner_product": (-largest, largest)}
        least, most = limits_of[self.distance]
        what = "distances" if self.distance == "l2" else "similarities"
        for cutoff in self.cutoffs:
            if not least <= cutoff <= most:  # also refuses NaN
                limits = f"from {least:g} on" if most > 2 else f"from {least:g} to {most:g}"
                limits = "finite numbers" if least < -1 else limits
                raise InputError(f"--cutoffs are {what} under the {self.distance} distance, {limits}; got {cutoff:g}")
        if self.cutoffs and BEST not in self.merges and all(merge.why_no_cutoffs for merge in merges):
            raise InputError(
                f"--cutoffs cannot be translated by the {merges[0].name} merge, which {merges[0].why_no_cutoffs}; "
                "add raw, or quantile if there is a train.parquet"
            )


@dataclass(frozen=True)
class Named:
    """An evaluation with its names looked up: all that is known before data are read.

    methods: those that take part, old and new first. Where one trains rho, {rho(new), rho(new)} stands beside
    {new, new}: how good the new model is with that alone. asked: the methods that are asked for.
    """

    evaluation: Evaluation
    methods: tuple[Method, ...]
    asked: tuple[Method, ...]
    orders: tuple[Order, ...]
    merges: tuple[MergeKind, ...]
    service: ServiceSettings | None = None

    def recorded(self) -> dict[str, Any]:
        """The settings as results record them, with each method by its name: "all" changes when methods are added."""
        recorded = asdict(self.evaluation) | {"methods": [method.name for method in self.methods]}
        del recorded["service"]  # what is in the file counts
        return recorded | ({"service": self.service.recorded()} if self.service else {})

    @property
    def replayed_orders(self) -> int:
        """Number of orders in which a method is replayed, each permutation of a random one counted."""
        return sum(self.evaluation.permutations if order.is_random else 1 for order in self.orders)

    def with_metrics(self, right_answers: float) -> "Named":
        """The same with the metrics that "recommended" stands for. right_answers: median number of a query."""
        of_few = ("recall@10",) if right_answers <= FEW_ANSWERS else ()
        return self.with_recommended(("nDCG@10", "CMC@1", *of_few))

    def with_recommended(self, metrics: tuple[str, ...]) -> "Named":
        """The same with these metrics in place of "recommended". Raises InputError if one does not fit the truth."""
        given = self.evaluation._named_metrics
        metrics = tuple(name for name in metrics if not any(same_metric(name, other) for other in given))
        names = chain(*(metrics if name == RECOMMENDED else (name,) for name in self.evaluation.metrics))
        evaluation = replace(self.evaluation, metrics=tuple(dict.fromkeys(names)))
        evaluation.check_truth()
        return replace(self, evaluation=evaluation)

    def without_training(self) -> "Named":
        """The same where "recommended" stands for methods that train nothing. Those that are named stay."""
        if RECOMMENDED not in self.evaluation.methods:
            return self
        quick = [m.name for m in all_methods().values() if m.is_recommended and not m.is_trained]
        names = chain(*(quick if name == RECOMMENDED else (name,) for name in self.evaluation.methods))
        return replace(self.evaluation, methods=tuple(dict.fromkeys(names))).named

    def with_method(self, method: Method) -> "Named":
        """The same with one more method, which trains no rho."""
        if method in self.methods:
            return self
        evaluation = replace(self.evaluation, methods=(*self.evaluation.methods, method.name))
        return replace(self, evaluation=evaluation, methods=(*self.methods, method), asked=(*self.asked, method))


def check_memory(named: Named, methods: int, queries: int) -> None:
    """Raise InputError if the curves would take more than half of the memory; say it if they take much.

    methods: number of methods. queries: number of queries, an upper bound of those with an answer.
    """
    evaluation = named.evaluation
    needed, memory = curve_bytes(named, methods, queries), memory_bytes()
    size = f"{evaluation.points:,} --points of {methods} methods and {queries:,} queries"
    if needed > memory / 2:
        fit = max(2, int(evaluation.points * memory / 2 / needed))
        raise InputError(
            f"{size} need about {_gb(needed)} of memory, more than half of this machine's {_gb(memory)}; give at most "
            f"--points {fit}, or fewer --methods, --orders, --merges or --metrics"
        )
    curves = methods * len(named.orders) * len(named.merges)
    drawn = len(evaluation.metrics) * evaluation.moments + _FLIPS * evaluation.points
    # The multiply-adds of the bootstrap take most of the time if there are many points.
    if needed > 2 << 30 or curves * DRAWS * queries * drawn > 3e11:
        say(f"{size} need about {_gb(needed)} of memory and minutes for their intervals; fewer --points need less")


def curve_bytes(named: Named, methods: int, queries: int) -> int:
    """Estimate of the memory for curves, their bootstrap draws and their tables."""
    evaluation = named.evaluation
    metrics, points, moments = len(evaluation.metrics), evaluation.points, evaluation.moments
    # Whether the first result is right; of several permutations, the share of them, and whether it is in the first.
    right = 9 if evaluation.permutations > 1 else 1
    flips = 28  # what is kept of a query whose first result changes once
    values = queries * (8 * metrics * points + right * moments + flips)
    draws = 8 * DRAWS * metrics * points
    table_rows = 2 * 64 * ((metrics + _FLIPS) * points + metrics * moments)
    # While a method is replayed in all orders, and its draws at all moments are judged.
    of_one_method = named.replayed_orders * queries * moments * (8 * metrics + 1) + 8 * DRAWS * moments
    # What is first for a query at a moment, while its changes are looked for, takes 6 bytes.
    of_one_method += 6 * len(named.orders) * queries * moments
    return methods * len(named.orders) * len(named.merges) * (values + draws + table_rows) + of_one_method


def memory_bytes() -> int:
    """Memory of this machine, or of the container if that is less."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    given = limit.read_text().strip() if limit.exists() else "max"
    return min(memory, int(given)) if given.isdigit() else memory


def _gb(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"
