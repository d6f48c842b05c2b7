"""Settings of a sample and of a forecast, and what cannot be forecast."""

from dataclasses import dataclass, replace
from functools import cached_property

from ray_backfill.compare.evaluation import RECOMMENDED, Evaluation, Named
from ray_backfill.core.errors import InputError
from ray_backfill.engine.merges import BEST, all_merges, check_merge
from ray_backfill.engine.metrics import parse_metric

SAMPLE_FILE = "sample.parquet"
# Fewer randomly sampled items of a part say little about how it differs from others.
FEW_ITEMS = 30
# Metrics that are sums over right answers of many ranks, see ``expected``. With a lower cut-off they depend on too few
# right answers (docs/results/forecast.md).
KINDS, LEAST_CUT = ("mAP", "AP", "recall", "P", "nDCG"), 100
_MOST_POINTS = 1001
# What stands for nDCG@10 and CMC@1, which depend on too few right answers. The intervals of nDCG@100 held 90 % of the
# time on an invented gallery, those of these two 95 % and more (docs/results/forecast.md).
_METRICS = ("mAP@100", "recall@100")


@dataclass(frozen=True)
class SampleSettings:
    """What determines a sample besides the data."""

    seed: int = 0
    """Random seed for the sample."""
    truth: tuple[str, ...] = ()
    """Which items count as right answers: labels, positives, known-item COLUMN, qrels FILE. Default: the queries'
    positives, otherwise labels."""
    distance: str = "cosine"
    """Distance between embeddings: cosine or l2."""
    filter: str = ""
    """Column of queries and gallery, such as the tenant: a query finds only items with its own value. Default: none."""


@dataclass(frozen=True)
class ForecastSettings:
    """What to forecast. The right answers, the distance and the filter are those of the sample."""

    methods: tuple[str, ...] = (RECOMMENDED,)
    """Upgrade methods to compare, by name; "recommended", "all", "two_models" (those of "all" that train no backbone
    beside old and new) or "controls" (which "all" leaves out) stand for several. old and new always take part."""
    orders: tuple[str, ...] = ("random",)
    """Orders in which the gallery is backfilled."""
    metrics: tuple[str, ...] = (RECOMMENDED,)
    """Metrics of retrieval: mAP, nDCG, mAP@k, nDCG@k, recall@k for any k from 100 on; "recommended" stands for
    mAP@100 and recall@100, because nDCG@10 and CMC@1 cannot be forecast. The first one leads the report."""
    points: int = 11
    """Number of moments of the backfill to report, t = 0 and t = 1 included."""
    margin: float = 0.005
    """Largest loss of quality that still counts as none, as a share: 0.005 is half a percentage point."""
    order_seed: int = 0
    """Random seed for the random order."""
    merge: str = BEST
    """How distances are merged; "best" chooses for each method, as in a comparison."""

    @cached_property
    def named(self) -> Named:
        """The comparison that is forecast, with its names looked up.

        Raises:
            InputError: A name is unknown, a setting is impossible, or something cannot be forecast.
        """
        settings = {name: value for name, value in vars(self).items() if name != "merge"}
        named = Evaluation(**settings, merges=(self.merge,)).named.with_recommended(_METRICS)
        if all_merges()[self.merge].is_by_rank:
            raise InputError(f"the {self.merge} merge compares ranks, which cannot be forecast; use another merge")
        for metric in named.evaluation.metrics:
            if why := why_not_forecast(metric):
                raise InputError(f"{metric} cannot be forecast: {why}; use mAP, mAP@100 or recall@100")
        for order in named.orders:
            if order.is_oracle:
                name = order.name
                raise InputError(f"the order {name} uses what is known only after the upgrade; it cannot be forecast")
        if self.points > _MOST_POINTS:
            raise InputError(f"--points {self.points} is too many for a forecast; give at most {_MOST_POINTS:,}")
        return named

    def check(self) -> None:
        """Raises InputError for any unknown name or impossible setting, and for what cannot be forecast."""
        _ = self.named

    def judged_as(self, sample: SampleSettings) -> Named:
        """The same with a sample's right answers, distance and filter. Raises InputError if the merge lacks that."""
        check_merge(self.merge, sample.distance)
        evaluation = replace(self.named.evaluation, truth=sample.truth, distance=sample.distance, filter=sample.filter)
        return replace(self.named, evaluation=evaluation)


def few_in_words(parts: int, column: str) -> str:
    """That so many parts have few items of a sample."""
    have = f"{parts:,} values of {column} have" if parts > 1 else f"1 value of {column} has"
    return f"{have} fewer than {FEW_ITEMS} randomly sampled items: what queries find there is estimated from the others"


def why_not_forecast(metric: str) -> str:
    """Why a metric cannot be forecast; "" if it can."""
    parsed = parse_metric(metric)
    if parsed.kind not in KINDS:
        return f"a sample settles only {', '.join(KINDS)}, which are sums over all right answers of a query"
    if parsed.k is not None and parsed.k < LEAST_CUT:
        return f"too few right answers count in the first {parsed.k}; a cut-off of {LEAST_CUT} or more can be forecast"
    return ""
