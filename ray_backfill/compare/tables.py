"""The spine of RUN/results: the row types that every run writes, and the part of the manifest that readers use.

Further tables belong to analyses, see ``analyses``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

if TYPE_CHECKING:
    from ray_backfill.learn.training.fit import Tuned

# Version of the results folder; increases when the shape of a table or the meaning of the key changes.
FORMAT = 10
# The two services that every method is compared with; they are part of every comparison.
OLD, NEW = "old", "new"
# The control that is a reference beside ``new`` wherever a method trains rho: the new model with the same head alone.
HEAD_ALONE = "rho_alone"

NEGATIVE_FLIPS, NEGATIVE_FLIPS_VS_OLD = "negative_flips", "negative_flips_vs_old"
POSITIVE_FLIPS, POSITIVE_FLIPS_VS_OLD = "positive_flips", "positive_flips_vs_old"
# Of a cascade: gallery items that the new model has to embed for a query.
NEW_EMBEDDINGS = "new_embeddings"
# Where the gallery changes: share of the first results of a query whose old vectors are of stale content.
STALE_ANSWERS = "stale_answers"
# Values of the column ``metric`` that are shares of queries -> title; what users notice comes first.
FLIP_METRICS = {
    NEGATIVE_FLIPS_VS_OLD: "Negative flips against the old service",
    POSITIVE_FLIPS_VS_OLD: "Positive flips against the old service",
    NEGATIVE_FLIPS: "Negative flips against the method's own start",
    POSITIVE_FLIPS: "Positive flips against the method's own start",
}


@dataclass(frozen=True)
class CurvePoint:
    """A point of a curve; one row for each method, order, merge, metric and moment."""

    method: Annotated[str, "names as on the command line; old, new and offline are replayed without a merge (`raw`)"]
    order: str
    merge: str
    metric: Annotated[
        str,
        f"a metric, or `{NEGATIVE_FLIPS}`, `{POSITIVE_FLIPS}` (against the method's own t = 0), "
        f"`{NEGATIVE_FLIPS_VS_OLD}`, `{POSITIVE_FLIPS_VS_OLD}` (against {{old, old}}); of a cascade also "
        f"`{NEW_EMBEDDINGS}`, the number of gallery items that the new model has to embed for a query; where the "
        f"gallery changes, `{STALE_ANSWERS}`, the share of the first 10 results whose old vectors are of stale content",
    ]
    t: Annotated[float, "share of the gallery that is backfilled, 0 to 1"]
    value: Annotated[
        float,
        "value of the metric at progress t (M_t) in [0, 1], a share of queries, or a number; weighted, like all means "
        "and intervals, if the queries have a column `weight`",
    ]
    low: Annotated[
        float,
        "95 % percentile bootstrap interval over queries (1,000 draws, seed 0), expanded for few queries as Student's "
        "t is; docs/results/coverage.md says how often it contains the true value",
    ]
    high: float


@dataclass(frozen=True)
class SummaryRow:
    """Statistics of a curve; one row for each method, order, merge and metric."""

    method: Annotated[str, "as in `curves.parquet`; title is the method's name in reports"]
    order: str
    merge: str
    title: str
    metric: str
    auc: Annotated[
        float, "area under M_t by the trapezoid rule (offline: the exact area of its step), and its 95 % interval"
    ]
    auc_low: float
    auc_high: float
    auc_mean: Annotated[float, "plain mean of the points (as in FastFill's code)"]
    gain: Annotated[
        float,
        "(auc - auc of old) / (auc of new - auc of old), 1.0 = 100 %, of {old, old} and {new, new} as they are served, "
        "with raw distances; and its 95 % interval; all NaN if new is not significantly better than old",
    ]
    gain_low: float
    gain_high: float
    old_auc: Annotated[
        float,
        "auc of {old, old} and {new, new} with this merge, which differs from that with raw distances if the merge "
        "changes the ranking of a single system, as csls does",
    ]
    new_auc: float
    start: Annotated[float, "values before (M_0) and after (M_1) the backfill"]
    end: float
    start_vs_old: Annotated[float, "M_0 minus the metric of {old, old}, and its paired 95 % interval"]
    start_vs_old_low: float
    start_vs_old_high: float
    end_vs_new: Annotated[float, "M_1 minus the metric of {new, new}, and its paired 95 % interval"]
    end_vs_new_low: float
    end_vs_new_high: float
    moments: Annotated[int, "number of moments, reported points among them, at which the columns below were judged"]
    largest_fall: Annotated[
        float, "largest drop of M_t from an earlier to a later moment, and its simultaneous 95 % interval"
    ]
    largest_fall_low: float
    largest_fall_high: float
    fall_start: Annotated[float, "progress t before and after the largest fall"]
    fall_end: float
    passes_old_at: Annotated[
        float,
        "progress from which on M_t never is below the metric of {old, old} by more than the margin, NaN if it ends "
        "below; and its 95 % interval: infinite for never, NaN if unknown",
    ]
    passes_old_at_low: float
    passes_old_at_high: float
    half_gain_at: Annotated[
        float,
        "progress from which on at least half of the upgrade's improvement is reached, NaN without a gain; and its "
        "95 % interval",
    ]
    half_gain_at_low: float
    half_gain_at_high: float
    passes_new_at: Annotated[float, "like `passes_old_at`, for {new, new}"]
    passes_new_at_low: float
    passes_new_at_high: float
    starts_at_old: Annotated[
        str,
        "verdicts (`yes`, `no`, `undecided`) on three conditions: M_0 is no worse than {old, old}; M_1 no worse than "
        "{new, new}; M_t never falls. `yes`: the interval excludes a loss above the margin; `no`: it shows a loss",
    ]
    ends_at_new: str
    never_falls: str
    negative_flips_max: Annotated[
        float, "largest share of queries whose first result is right at the method's own t = 0 and wrong later"
    ]
    negative_flips_vs_old_max: Annotated[
        float, "largest share of queries whose first result is right in {old, old} and wrong at some moment"
    ]
    flips_as_new_at: Annotated[
        float,
        "progress from which on the share of these queries is at most that of {new, new} plus the margin; NaN if it "
        "ends above, or is unknown",
    ]


@dataclass(frozen=True)
class DifferenceRow:
    """The difference of two curves; one row for each pair that is compared and each metric."""

    method: Annotated[str, "the two curves and the metric"]
    order: str
    merge: str
    other_method: str
    other_order: str
    other_merge: str
    metric: str
    difference: Annotated[
        float,
        "auc of the first curve minus auc of the other, and its 95 % interval; the curves differ significantly if it "
        "excludes 0",
    ]
    low: float
    high: float
    low_at_once: Annotated[
        float,
        "limits that hold at once (max-t) for all curves compared with the other one, or, if that is a reference, for "
        "those of all orders and merges: so also for the best of them, though it was chosen on the same queries; of a "
        "reference, the same as `low` and `high`",
    ]
    high_at_once: float


@dataclass(frozen=True)
class MomentPoint:
    """A value of a curve at a judged moment; one row for each method, order, merge, metric and moment."""

    method: Annotated[str, "as in `curves.parquet`, whose points are among these moments"]
    order: str
    merge: str
    metric: str
    t: float
    value: Annotated[float, f"M_t, without an interval; also `{NEW_EMBEDDINGS}` and `{STALE_ANSWERS}`"]


@dataclass(frozen=True)
class ScoredQuery:
    """A query with a right answer in the gallery, which all means count."""

    id: Annotated[str, "as in the table of queries, or of the gallery if its items are the queries"]
    row: Annotated[int, "place in this table, from 0"]
    weight: Annotated[float, "its weight in every mean, relative to the largest; 1 if the queries have no weights"]


# Values of the column ``quantity``.
AUC, START, END = "auc", "start", "end"


@dataclass(frozen=True)
class QueryValues:
    """What each query contributes to a mean of the primary metric, with the raw merge."""

    method: Annotated[str, "as in `curves.parquet`, with the raw merge"]
    order: Annotated[
        str, f"empty where the order makes no difference: for `{START}`, `{END}`, and for old, new and offline"
    ]
    metric: Annotated[str, "the primary metric"]
    quantity: Annotated[str, f"`{AUC}`, `{START}` (M_0) or `{END}` (M_1)"]
    values: Annotated[list[float], "one for each query, in the order of `queries.parquet`"]


# File name without its suffix -> row type.
SPINE: Mapping[str, type] = {
    "curves": CurvePoint,
    "summary": SummaryRow,
    "differences": DifferenceRow,
    "moments": MomentPoint,
    "queries": ScoredQuery,
    "query_values": QueryValues,
}


@dataclass(frozen=True)
class LeftOut:
    """A method, a merge, the fitted merges of a method, or the cut-offs of a merge that a run left out: the reason."""

    kind: Literal["method", "merge", "fitted merges", "cut-offs", "cut-offs of"]
    name: str
    reason: str

    @property
    def words(self) -> str:
        """Name in reports: "rm", "csls merge", "bct with fitted merges", "cut-offs by the rrf merge"."""
        forms = {
            "method": "{}",
            "merge": "{} merge",
            "fitted merges": "{} with fitted merges",
            "cut-offs": "cut-offs by the {} merge",
            "cut-offs of": "cut-offs of {}",
        }
        return forms[self.kind].format(self.name)


@dataclass(frozen=True)
class MethodTraits:
    """Properties of a method that reports use."""

    title: str
    family: str
    is_reference: bool = False
    """It serves one system at a time, so orders and merges do not change it."""
    is_baseline: bool = False
    """It needs only the two models."""
    needs_labels: bool = False
    """Its fit needs the labels of a train split."""
    is_trained: bool = False
    """Its map is trained; otherwise a formula gives it, or it has none."""
    learns_new: bool = False
    """It trains rho, a head on top of the new model, which stays in use."""
    further_models: tuple[str, ...] = ()
    """Models that it needs besides old and new."""
    stays: bool = False
    """Its maps are still applied after the backfill; otherwise only the new model is."""
    recalls: int = 0
    """Number of candidates of a cascade, which the new model embeds for every query; 0 if it is none."""
    merges_models: bool = False
    """It merges distances of the two models as they are: rank merge without a map."""
    glossary: Mapping[str, str] = field(default_factory=dict)
    """Term -> meaning."""


@dataclass(frozen=True)
class OrderTraits:
    """Properties of an order that reports use."""

    title: str
    is_oracle: bool = False
    """It uses information that is not available before the backfill."""
    glossary: Mapping[str, str] = field(default_factory=dict)
    needs_labels: bool = False
    """It uses labels of the gallery, because the gallery has nothing else that it could use."""


@dataclass(frozen=True)
class MergeTraits:
    """Properties of a merge that reports use."""

    title: str
    by_rank: bool = False
    glossary: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Traits:
    """Properties of all methods, orders and merges of a run, by name."""

    methods: Mapping[str, MethodTraits]
    orders: Mapping[str, OrderTraits]
    merges: Mapping[str, MergeTraits]

    @classmethod
    def from_json(cls, recorded: Mapping[str, Mapping[str, Any]]) -> "Traits":
        return cls(
            {name: MethodTraits(**traits) for name, traits in recorded["methods"].items()},
            {name: OrderTraits(**traits) for name, traits in recorded["orders"].items()},
            {name: MergeTraits(**traits) for name, traits in recorded["merges"].items()},
        )


@dataclass(frozen=True)
class Manifest:
    """The contents of manifest.json apart from ``stage`` and ``finished``."""

    primary_metric: str
    """The metric by which methods are judged."""
    traits: Traits
    margin: float = 0.0
    """Largest loss that counts as none, as a share."""
    left_out: tuple[LeftOut, ...] = ()
    tuned: "tuple[Tuned, ...]" = ()
    kind: str = "simulation"
    command: str = ""
    created: str = ""
    seed: int | None = None
    """Seed of the random order."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the stage, written by ``begin_stage``."""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    timings_s: Mapping[str, float] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    """Fingerprint, sizes and notes."""
    backbones: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Model -> facts about it."""
    verdict: str = ""
    """The main sentence of the report, as it was written; "" before there is a report."""
    analyses: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Analysis that was computed -> the tables that it wrote."""
    first_results: Mapping[str, int] = field(default_factory=dict)
    """With the method and order of shown.parquet: how many queries lose and win their right first result on the way."""

    @classmethod
    def from_json(cls, recorded: Mapping[str, Any]) -> "Manifest":
        known = {field.name: recorded[field.name] for field in fields(cls) if field.name in recorded}
        known["traits"] = Traits.from_json(recorded["traits"])
        known["left_out"] = tuple(LeftOut(**missing) for missing in recorded.get("left_out", ()))
        known["tuned"] = ()
        if recorded.get("tuned"):
            from ray_backfill.learn.training.fit import Tuned  # what fits need; few results were tuned

            known["tuned"] = tuple(Tuned(**tuned) for tuned in recorded["tuned"])
        return cls(**known)

    def facts(self) -> dict[str, Any]:
        """Return everything except the settings, for JSON."""
        return {name: value for name, value in asdict(self).items() if name != "settings"}
