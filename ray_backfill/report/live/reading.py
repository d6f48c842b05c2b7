"""Reads and checks the folder of a live drill: five tables and a manifest in, one frozen ``Drill`` out."""

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from ray_backfill.errors import InputError
from ray_backfill.report.tables import read_manifest, read_table

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

AGAIN = "run the live drill again"
COUNTS = (
    *("moment", "backfilled", "old_items", "new_items", "kept_old", "inserted", "deleted", "old_bytes", "new_bytes"),
    *("queries", "unanswered", "retried", "violations"),
)
NUMBERS = (
    *("t", "elapsed_s", "queries_per_s", "p50_ms", "p95_ms", "p99_ms", "items_per_s", "old_recall", "new_recall"),
)
QUALITY_COLUMNS = ("moment", "t", "metric", "live", "exact")
REPLAYED_COLUMNS = ("t", "metric", "serving", "value")
TIMELINE_COLUMNS = (
    "elapsed_s",
    "queries",
    "p50_ms",
    "p99_ms",
    "items",
    "unanswered",
    "is_measuring",
    "is_warm_up",
    "leg",
)
INCIDENT_COLUMNS = ("elapsed_s", "kind", "detail")
BACKFILL, ROLLBACK = "backfill", "rollback"
SAME_T = 1e-6  # progress this close is the same: a millionth of a gallery is no item, or few


@dataclass(frozen=True)
class Checkpoint:
    """One line of checkpoints.parquet. NaN = nothing to measure; queries and what follows are since the one before."""

    moment: int
    t: float
    phase: str
    elapsed_s: float
    backfilled: int
    old_items: int
    new_items: int
    kept_old: int
    inserted: int
    deleted: int
    old_bytes: int
    new_bytes: int
    queries: int
    unanswered: int
    retried: int
    violations: int
    queries_per_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    items_per_s: float
    old_recall: float
    new_recall: float

    @property
    def items(self) -> int:
        """The gallery as the two partitions serve it."""
        return self.old_items + self.new_items

    @property
    def is_rollback(self) -> bool:
        """Whether it was measured on the way back to the old model."""
        return self.phase == ROLLBACK


class Quality(NamedTuple):
    """A metric at every checkpoint, as shares: live answers, and what exact indexes give on the same gallery."""

    live: Floats
    exact: Floats


class Curve(NamedTuple):
    """A replayed curve: progress and values, sorted by progress."""

    t: Floats
    value: Floats


@dataclass(frozen=True)
class Timeline:
    """Arrays of one length, a second of the drill each, in the order of time."""

    elapsed_s: Floats
    queries: Floats
    p50_ms: Floats
    p99_ms: Floats
    items: Floats
    unanswered: Floats
    is_measuring: npt.NDArray[np.bool_]
    is_warm_up: npt.NDArray[np.bool_]
    leg: Ints


@dataclass(frozen=True)
class Incident:
    """Something that happened to the drill: when, what, and to whom."""

    elapsed_s: float
    kind: str
    detail: str


class Gap(NamedTuple):
    """A difference of two shares, and where it is."""

    size: float
    metric: str
    checkpoint: Checkpoint


@dataclass(frozen=True)
class Drill:
    """The folder of a live drill in memory.

    quality: by metric, in the order of the checkpoints. replayed: by (metric, serving), which is "backfill", "old" or
    "new".
    """

    checkpoints: tuple[Checkpoint, ...]
    quality: dict[str, Quality]
    replayed: dict[tuple[str, str], Curve]
    timeline: Timeline
    incidents: tuple[Incident, ...]
    manifest: dict[str, Any]

    @property
    def primary(self) -> str:
        """The metric by which the drill is judged."""
        return str(self.manifest["primary_metric"])

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """All metrics, the primary one first."""
        listed = (m for m in self.manifest.get("metrics", ()) if m in self.quality)
        return tuple(dict.fromkeys((self.primary, *listed, *self.quality)))

    @property
    def is_exact(self) -> bool:
        """Whether both indexes search exactly."""
        return bool(self.manifest.get("is_exact", False))

    @property
    def has_churn(self) -> bool:
        """Whether items came or went meanwhile."""
        return bool(self.manifest.get("has_churn", False))

    @property
    def rolled_back(self) -> bool:
        """Whether the drill went back to the old model."""
        return bool(self.manifest.get("rolled_back", False)) or any(c.is_rollback for c in self.checkpoints)

    @property
    def forward(self) -> list[Checkpoint]:
        """The checkpoints of the backfill itself, without those of a rollback."""
        return [c for c in self.checkpoints if not c.is_rollback]

    @property
    def legs(self) -> int:
        """How many drivers it took: one, and one more for each restart."""
        return int(self.manifest.get("legs", 1))

    def total(self, column: str) -> int:
        """The sum of a count over all checkpoints."""
        return sum(int(getattr(c, column)) for c in self.checkpoints)

    @property
    def has_traffic(self) -> bool:
        """Whether any query was sent."""
        return self.total("queries") + self.total("unanswered") > 0 or bool(self.timeline.queries.sum() > 0)

    def promised(self, checkpoint: Checkpoint, metric: str) -> float:
        """What the replay says for a checkpoint, where it says anything; else NaN.

        Nothing of a rollback, nor of a gallery that changed by more than the backfill.
        """
        curve = self.replayed.get((metric, "backfill"))
        if checkpoint.is_rollback or curve is None:
            return math.nan
        nearest = int(np.argmin(np.abs(curve.t - checkpoint.t)))
        return float(curve.value[nearest]) if abs(curve.t[nearest] - checkpoint.t) <= SAME_T else math.nan

    def off_exact(self) -> list[Gap]:
        """Live minus exact for every metric and checkpoint where the metric is defined."""
        return self._gaps(lambda metric, index: float(self.quality[metric].exact[index]))

    def off_promise(self) -> list[Gap]:
        """Live minus replayed for every metric and checkpoint that the replay knows."""
        return self._gaps(lambda metric, index: self.promised(self.checkpoints[index], metric))

    def _gaps(self, other: Any) -> list[Gap]:
        found = []
        for metric in self.metrics:
            for index, checkpoint in enumerate(self.checkpoints):
                live, reference = float(self.quality[metric].live[index]), float(other(metric, index))
                if not math.isnan(reference):
                    # What should be there and is not is the largest gap there can be.
                    found.append(Gap(math.inf if math.isnan(live) else live - reference, metric, checkpoint))
        return found

    @cached_property
    def missing(self) -> list[tuple[Checkpoint, int]]:
        """Checkpoints at which the partitions do not add up to the gallery, and by how many items too few."""
        first = self.checkpoints[0]
        start = first.items - first.inserted + first.deleted
        known = self.manifest.get("data", {}).get("gallery_items")
        if not self.has_churn and isinstance(known, int):
            start = known
        short = [(c, start + c.inserted - c.deleted - c.items) for c in self.checkpoints]
        return [(c, items) for c, items in short if items]


def read_drill(folder: Path) -> Drill:
    """Read checkpoints, quality, replayed, timeline, incidents and manifest.json of a live drill.

    Raises:
        InputError: the folder, a file, a column or a key is missing, or the files contradict each other.
    """
    if not folder.is_dir():
        raise InputError(f"no folder of a live drill at {folder}: give RUN/live of a run that had one")
    checkpoints = read_table(folder / "checkpoints.parquet", (*COUNTS, *NUMBERS, "phase"), AGAIN)
    quality = read_table(folder / "quality.parquet", QUALITY_COLUMNS, AGAIN)
    replayed = read_table(folder / "replayed.parquet", REPLAYED_COLUMNS, AGAIN)
    timeline = read_table(folder / "timeline.parquet", TIMELINE_COLUMNS, AGAIN, may_be_empty=True)
    incidents = read_table(folder / "incidents.parquet", INCIDENT_COLUMNS, AGAIN, may_be_empty=True)
    rows = [_checkpoint(record) for record in checkpoints.sort_values("moment", kind="stable").to_dict("records")]
    drill = Drill(
        tuple(rows),
        {str(metric): _quality(part, rows, folder) for metric, part in quality.groupby("metric", sort=False)},
        {_key(key): _curve(part) for key, part in replayed.groupby(["metric", "serving"], sort=False)},
        _timeline(timeline.sort_values("elapsed_s", kind="stable")),
        tuple(
            Incident(float(r["elapsed_s"]), str(r["kind"]), str(r["detail"]))
            for r in incidents.sort_values("elapsed_s", kind="stable").to_dict("records")
        ),
        read_manifest(folder / "manifest.json", AGAIN),
    )
    if drill.primary not in drill.quality:
        raise InputError(f"{folder / 'quality.parquet'} has no rows for the primary metric {drill.primary!r}: {AGAIN}")
    return drill


def _checkpoint(record: dict[Any, Any]) -> Checkpoint:
    values: dict[str, Any] = {name: int(record[name]) for name in COUNTS}
    values |= {name: float(record[name]) for name in NUMBERS}
    return Checkpoint(phase=str(record["phase"]), **values)


def _quality(part: pd.DataFrame, checkpoints: list[Checkpoint], folder: Path) -> Quality:
    ordered = part.sort_values("moment", kind="stable")
    if ordered["moment"].tolist() != [c.moment for c in checkpoints]:
        metric = ordered["metric"].iloc[0]
        raise InputError(
            f"{folder / 'quality.parquet'} does not have {metric} once for every row of checkpoints.parquet: {AGAIN}"
        )
    return Quality(ordered["live"].to_numpy(np.float64), ordered["exact"].to_numpy(np.float64))


def _key(key: Any) -> tuple[str, str]:
    metric, serving = key
    return str(metric), str(serving)


def _curve(part: pd.DataFrame) -> Curve:
    ordered = part.sort_values("t", kind="stable")
    return Curve(ordered["t"].to_numpy(np.float64), ordered["value"].to_numpy(np.float64))


def _timeline(table: pd.DataFrame) -> Timeline:
    elapsed, queries, p50, p99, items, unanswered = (table[name].to_numpy(np.float64) for name in TIMELINE_COLUMNS[:6])
    legs = table["leg"].to_numpy(np.int64)
    measuring, warm_up = (table[name].to_numpy(np.bool_) for name in ("is_measuring", "is_warm_up"))
    return Timeline(elapsed, queries, p50, p99, items, unanswered, measuring, warm_up, legs)
