"""RUN/results: the row type of each table, and the manifest as far as readers use it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any, Literal

# The two services that every method is measured against; they take part in every comparison.
OLD, NEW = "old", "new"
# In the column ``group``: best group minus worst group.
GAP = "(gap)"

NEGATIVE_FLIPS, NEGATIVE_FLIPS_VS_OLD = "negative_flips", "negative_flips_vs_old"
POSITIVE_FLIPS, POSITIVE_FLIPS_VS_OLD = "positive_flips", "positive_flips_vs_old"
# In the column ``metric``: what is no measure of quality -> as it is shown.
FLIP_METRICS = {
    NEGATIVE_FLIPS: "Negative flips against the method's own start",
    NEGATIVE_FLIPS_VS_OLD: "Negative flips against the old service",
    POSITIVE_FLIPS: "Positive flips against the method's own start",
    POSITIVE_FLIPS_VS_OLD: "Positive flips against the old service",
}


@dataclass(frozen=True)
class CurvePoint:
    """A curve at one moment; one row for each method, order, merge, metric and moment."""

    method: Annotated[str, "as typed on the command line; old, new and offline are replayed without a merge: `raw`"]
    order: str
    merge: str
    metric: Annotated[
        str,
        f"a metric, or `{NEGATIVE_FLIPS}`, `{POSITIVE_FLIPS}` (against the method's own t = 0), "
        f"`{NEGATIVE_FLIPS_VS_OLD}`, `{POSITIVE_FLIPS_VS_OLD}` (against {{old, old}})",
    ]
    t: Annotated[float, "share of the gallery that is backfilled, 0 to 1"]
    value: Annotated[float, "M_t in [0, 1], or a share of queries"]
    low: Annotated[float, "95 % percentile bootstrap interval over queries (1,000 draws, seed 0)"]
    high: float


@dataclass(frozen=True)
class SummaryRow:
    """One row for each method, order, merge and metric."""

    method: Annotated[str, "as in `curves.parquet`; title is the name as shown"]
    order: str
    merge: str
    title: str
    metric: str
    auc: Annotated[float, "area under M_t by the trapezoid rule, and its 95 % interval"]
    auc_low: float
    auc_high: float
    auc_mean: Annotated[float, "plain mean of the points (FastFill's code)"]
    gain: Annotated[
        float,
        "(auc - auc of old) / (auc of new - auc of old), 1.0 = 100 %; and its 95 % interval, NaN where new is not "
        "surely different from old",
    ]
    gain_low: float
    gain_high: float
    start: Annotated[float, "M_0, M_1"]
    end: float
    monotone: Annotated[bool | None, "M_t never decreases"]
    largest_fall: Annotated[float, "largest drop between neighbouring points"]
    starts_at_old: Annotated[bool | None, "M_0 >= M(old, old)"]
    ends_at_new: Annotated[bool | None, "M_1 >= M(new, new)"]
    negative_flips_max: Annotated[float, "largest share of queries right at t = 0 and wrong later"]


@dataclass(frozen=True)
class DifferenceRow:
    """Whether one curve is better than another; one row for each two that are compared, and each metric."""

    method: Annotated[str, "what is compared"]
    order: str
    merge: str
    other_method: str
    other_order: str
    other_merge: str
    metric: str
    difference: Annotated[
        float, "auc of the first minus auc of the other, and its 95 % interval: they differ if 0 is outside"
    ]
    low: float
    high: float


@dataclass(frozen=True)
class SubgroupPoint:
    """A curve at one moment, over the queries of one group."""

    method: Annotated[str, "as in `curves.parquet`"]
    order: str
    merge: str
    metric: str
    group: Annotated[str, f"as the queries have it; `{GAP}` is best minus worst group"]
    queries: Annotated[int, "how many there are in the group"]
    t: Annotated[float, "as in `curves.parquet`; a gap has no interval"]
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class CostRow:
    """What a method costs, counted while a query and an item go through it."""

    method: Annotated[str, "as in `summary.parquet`"]
    title: str
    query_models: Annotated[
        str,
        "models that embed a query: `new`, `old + new` (both, as long as the backfill runs), `old then new`",
    ]
    query_backbone_macs: Annotated[
        float, "multiply-accumulates of these models for one query; NaN where embeddings came without models"
    ]
    query_parameters: Annotated[int, "of what a query passes beside them"]
    query_macs: int
    gallery_macs: Annotated[
        int,
        "multiply-accumulates for each gallery item beside the models (stand-ins of old items, rho of new ones)",
    ]
    training_flops: Annotated[int, "floating-point operations of fitting the method's map"]
    trained_models: Annotated[str, "models that it needs beside the old one"]
    backbone_training_flops: Annotated[float, "floating-point operations of training those; NaN where not known"]


# Name of the file without its ending -> its rows.
TABLES: Mapping[str, type] = {
    "curves": CurvePoint,
    "summary": SummaryRow,
    "differences": DifferenceRow,
    "subgroups": SubgroupPoint,
    "costs": CostRow,
}


@dataclass(frozen=True)
class LeftOut:
    """A method, a merge, or the fitted merges of a method, and the reason why it did not take part."""

    kind: Literal["method", "merge", "fitted merges"]
    name: str
    reason: str

    @property
    def words(self) -> str:
        """As it is shown: "rm", "csls merge", "bct with fitted merges"."""
        return {"method": "{}", "merge": "{} merge", "fitted merges": "{} with fitted merges"}[self.kind].format(
            self.name
        )


@dataclass(frozen=True)
class MethodTraits:
    """What a report needs to know of a method. glossary: word -> meaning.

    is_reference: it serves one system at a time, so it is the same in any order and merge. is_baseline: it needs
    nothing beside the two models.
    """

    title: str
    family: str
    is_reference: bool = False
    is_baseline: bool = False
    glossary: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class OrderTraits:
    """What a report needs to know of an order. is_oracle: it peeks at what nobody has before the backfill."""

    title: str
    is_oracle: bool = False
    glossary: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class MergeTraits:
    """What a report needs to know of a merge."""

    title: str
    glossary: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Traits:
    """By name, of everything that took part."""

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
    """What manifest.json says beside ``stage`` and ``finished``.

    primary_metric: by which methods are judged. settings: of the stage; the writer of stages keeps them. seed: of the
    random order. data: fingerprint, sizes, notes. backbones: model -> what is known about it.
    """

    primary_metric: str
    traits: Traits
    left_out: tuple[LeftOut, ...] = ()
    kind: str = "simulation"
    command: str = ""
    created: str = ""
    seed: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    timings_s: Mapping[str, float] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    backbones: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Manifest":
        known = {each.name: found[each.name] for each in fields(cls) if each.name in found}
        left_out = tuple(LeftOut(**each) for each in found.get("left_out", ()))
        return cls(**known | {"traits": Traits.from_json(found["traits"]), "left_out": left_out})

    def facts(self) -> dict[str, Any]:
        """What is noted beside the settings of the stage, for JSON."""
        return {name: value for name, value in asdict(self).items() if name != "settings"}
