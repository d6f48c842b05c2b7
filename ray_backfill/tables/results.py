"""Tables in RUN/results: the row type of each table, and the part of the manifest that readers use."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any, Literal

# The two services that every method is compared with; they are part of every comparison.
OLD, NEW = "old", "new"
# In the column ``group``: best group minus worst group.
GAP = "(gap)"

NEGATIVE_FLIPS, NEGATIVE_FLIPS_VS_OLD = "negative_flips", "negative_flips_vs_old"
POSITIVE_FLIPS, POSITIVE_FLIPS_VS_OLD = "positive_flips", "positive_flips_vs_old"
# Values of the column ``metric`` that are not quality metrics -> title.
FLIP_METRICS = {
    NEGATIVE_FLIPS: "Negative flips against the method's own start",
    NEGATIVE_FLIPS_VS_OLD: "Negative flips against the old service",
    POSITIVE_FLIPS: "Positive flips against the method's own start",
    POSITIVE_FLIPS_VS_OLD: "Positive flips against the old service",
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
        f"`{NEGATIVE_FLIPS_VS_OLD}`, `{POSITIVE_FLIPS_VS_OLD}` (against {{old, old}})",
    ]
    t: Annotated[float, "share of the gallery that is backfilled, 0 to 1"]
    value: Annotated[float, "value of the metric at progress t (M_t) in [0, 1], or a share of queries"]
    low: Annotated[float, "95 % percentile bootstrap interval over queries (1,000 draws, seed 0)"]
    high: float


@dataclass(frozen=True)
class SummaryRow:
    """Statistics of a curve; one row for each method, order, merge and metric."""

    method: Annotated[str, "as in `curves.parquet`; title is the method's name in reports"]
    order: str
    merge: str
    title: str
    metric: str
    auc: Annotated[float, "area under M_t by the trapezoid rule, and its 95 % interval"]
    auc_low: float
    auc_high: float
    auc_mean: Annotated[float, "plain mean of the points (as in FastFill's code)"]
    gain: Annotated[
        float,
        "(auc - auc of old) / (auc of new - auc of old), 1.0 = 100 %; and its 95 % interval, NaN if new does not "
        "differ significantly from old",
    ]
    gain_low: float
    gain_high: float
    start: Annotated[float, "values before (M_0) and after (M_1) the backfill"]
    end: float
    monotone: Annotated[bool | None, "M_t never decreases"]
    largest_fall: Annotated[float, "largest drop between neighbouring points"]
    starts_at_old: Annotated[bool | None, "M_0 is at least the metric of {old, old}"]
    ends_at_new: Annotated[bool | None, "M_1 is at least the metric of {new, new}"]
    negative_flips_max: Annotated[float, "largest share of queries that are right at t = 0 and wrong later"]


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


@dataclass(frozen=True)
class SubgroupPoint:
    """A point of a curve over the queries of one group."""

    method: Annotated[str, "as in `curves.parquet`"]
    order: str
    merge: str
    metric: str
    group: Annotated[str, f"value of the queries' column `group`; `{GAP}` is best minus worst group"]
    queries: Annotated[int, "number of queries in the group"]
    t: Annotated[float, "as in `curves.parquet`; a gap has no interval"]
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class CostRow:
    """The cost of a method, counted while it processes a query and an item."""

    method: Annotated[str, "as in `summary.parquet`"]
    title: str
    query_models: Annotated[
        str,
        "models that embed a query: `new`, `old + new` (both while the backfill runs) or `old then new`",
    ]
    query_backbone_macs: Annotated[
        float, "multiply-accumulates of these models per query; NaN if the embeddings came without models"
    ]
    query_parameters: Annotated[int, "parameters and multiply-accumulates per query in addition to these models"]
    query_macs: int
    gallery_macs: Annotated[
        int,
        "multiply-accumulates per gallery item in addition to the models (stand-ins of old items, rho of new items)",
    ]
    training_flops: Annotated[int, "floating-point operations to fit the method's map"]
    trained_models: Annotated[str, "models that the method needs in addition to the old one"]
    backbone_training_flops: Annotated[float, "floating-point operations to train these models; NaN if unknown"]


# File name without its suffix -> row type.
TABLES: Mapping[str, type] = {
    "curves": CurvePoint,
    "summary": SummaryRow,
    "differences": DifferenceRow,
    "subgroups": SubgroupPoint,
    "costs": CostRow,
}


@dataclass(frozen=True)
class LeftOut:
    """A method, a merge, or the fitted merges of a method that a run left out, with the reason."""

    kind: Literal["method", "merge", "fitted merges"]
    name: str
    reason: str

    @property
    def words(self) -> str:
        """Name in reports: "rm", "csls merge", "bct with fitted merges"."""
        return {"method": "{}", "merge": "{} merge", "fitted merges": "{} with fitted merges"}[self.kind].format(
            self.name
        )


@dataclass(frozen=True)
class MethodTraits:
    """Properties of a method that reports use."""

    title: str
    family: str
    is_reference: bool = False
    """It serves one system at a time, so orders and merges do not change it."""
    is_baseline: bool = False
    """It needs only the two models."""
    glossary: Mapping[str, str] = field(default_factory=dict)
    """Term -> meaning."""


@dataclass(frozen=True)
class OrderTraits:
    """Properties of an order that reports use."""

    title: str
    is_oracle: bool = False
    """It uses information that is not available before the backfill."""
    glossary: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class MergeTraits:
    """Properties of a merge that reports use."""

    title: str
    glossary: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Traits:
    """Properties of all methods, orders and merges of a run, by name."""

    methods: Mapping[str, MethodTraits]
    orders: Mapping[str, OrderTraits]
    merges: Mapping[str, MergeTraits]

    @classmethod
    def from_json(cls, found: Mapping[str, Mapping[str, Any]]) -> "Traits":
        return cls(
            {name: MethodTraits(**traits) for name, traits in found["methods"].items()},
            {name: OrderTraits(**traits) for name, traits in found["orders"].items()},
            {name: MergeTraits(**traits) for name, traits in found["merges"].items()},
        )


@dataclass(frozen=True)
class Manifest:
    """The contents of manifest.json apart from ``stage`` and ``finished``."""

    primary_metric: str
    """The metric by which methods are judged."""
    traits: Traits
    left_out: tuple[LeftOut, ...] = ()
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

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Manifest":
        known = {each.name: found[each.name] for each in fields(cls) if each.name in found}
        left_out = tuple(LeftOut(**each) for each in found.get("left_out", ()))
        return cls(**known | {"traits": Traits.from_json(found["traits"]), "left_out": left_out})

    def facts(self) -> dict[str, Any]:
        """Return everything except the settings, for JSON."""
        return {name: value for name, value in asdict(self).items() if name != "settings"}
