"""The folder of a live drill in memory: six tables and a manifest in, one frozen ``Drill`` out."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ray_backfill.core.errors import InputError
from ray_backfill.core.schema import RowT, read_manifest, read_table, rows_of
from ray_backfill.drill import tables
from ray_backfill.drill.tables import CheckpointRow, Phase, QualityRow

AGAIN = "run the live drill again"
SAME_T = 1e-6  # tolerance for equal progress: a millionth of a gallery is at most a few items


class Gap(NamedTuple):
    """A difference of two shares, with its metric and checkpoint."""

    size: float
    metric: str
    checkpoint: CheckpointRow


@dataclass(frozen=True, eq=False)
class Drill:
    """The folder of a live drill in memory.

    quality: by metric, in checkpoint order. replayed: by (metric, serving), sorted by progress. timeline: of
    ``SecondRow``. It and incidents are sorted by time. phases: by name. settings: the settings in the drill's manifest.
    """

    checkpoints: tuple[CheckpointRow, ...]
    quality: dict[str, list[QualityRow]]
    replayed: dict[tuple[str, str], list[tables.ReplayedRow]]
    timeline: pd.DataFrame
    phases: dict[str, tables.PhaseRow]
    incidents: tuple[tables.IncidentRow, ...]
    facts: tables.DrillFacts
    settings: Mapping[str, Any]

    @property
    def primary(self) -> str:
        """The primary metric."""
        return self.facts.primary_metric

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """All metrics, the primary one first."""
        listed = (m for m in self.facts.metrics if m in self.quality)
        return tuple(dict.fromkeys((self.primary, *listed, *self.quality)))

    @property
    def rolled_back(self) -> bool:
        """Whether the drill was rolled back to the old model."""
        return self.facts.rolled_back or any(c.is_rollback for c in self.checkpoints)

    @property
    def forward(self) -> list[CheckpointRow]:
        """The checkpoints of the backfill itself, without a rollback."""
        return [c for c in self.checkpoints if not c.is_rollback]

    def total(self, count: Callable[[CheckpointRow], int]) -> int:
        """The sum of a count over all checkpoints."""
        return sum(count(c) for c in self.checkpoints)

    @property
    def sent(self) -> int:
        """Number of traffic queries, answered or not."""
        return self.total(lambda c: c.queries + c.unanswered)

    @property
    def has_traffic(self) -> bool:
        """Whether any query was sent."""
        return self.sent > 0

    @property
    def queries_per_s(self) -> float:
        """Rate of answered queries in all phases but warm-ups and measurements; NaN without traffic."""
        serving = [self.phases[name] for name in tables.SERVING if name in self.phases]
        seconds = sum(phase.seconds for phase in serving)
        return sum(phase.queries for phase in serving) / seconds if self.has_traffic and seconds else math.nan

    def promised(self, checkpoint: CheckpointRow, metric: str) -> float:
        """The replayed quality at a checkpoint; NaN if there is none.

        There is none after a rollback, nor if items were inserted or deleted.
        """
        curve = self.replayed.get((metric, "backfill"))
        if checkpoint.is_rollback or curve is None:
            return math.nan
        nearest = min(curve, key=lambda point: abs(point.t - checkpoint.t))
        return nearest.value if abs(nearest.t - checkpoint.t) <= SAME_T else math.nan

    def off_exact(self) -> list[Gap]:
        """Live minus exact quality, for every metric and checkpoint where it is defined."""
        return self._gaps(lambda row, checkpoint: row.exact)

    def off_promise(self) -> list[Gap]:
        """Live minus replayed quality, for every metric and checkpoint that the replay covers."""
        return self._gaps(lambda row, checkpoint: self.promised(checkpoint, row.metric))

    def _gaps(self, reference: Callable[[QualityRow, CheckpointRow], float]) -> list[Gap]:
        gaps = []
        for metric in self.metrics:
            for row, checkpoint in zip(self.quality[metric], self.checkpoints, strict=True):
                wanted = reference(row, checkpoint)
                if not math.isnan(wanted):
                    # A missing live value counts as an infinite gap.
                    gaps.append(Gap(math.inf if math.isnan(row.live) else row.live - wanted, metric, checkpoint))
        return gaps

    @cached_property
    def missing(self) -> list[tuple[CheckpointRow, int]]:
        """Checkpoints where the partitions do not add up to the gallery, with the number of missing items."""
        first = self.checkpoints[0]
        start = first.items - first.inserted + first.deleted
        if not self.facts.has_churn:
            start = self.facts.data.get("gallery_items", start)
        short = [(c, start + c.inserted - c.deleted - c.items) for c in self.checkpoints]
        return [(c, items) for c, items in short if items]


def read_drill(folder: Path) -> Drill:
    """Read checkpoints, quality, replayed, timeline, phases, incidents and manifest.json of a live drill.

    Raises:
        InputError: the folder, a file, a column or a key is missing, or the files contradict each other.
    """
    if not folder.is_dir():
        raise InputError(f"no folder of a live drill at {folder}: give the folder RUN/live of a drill")

    def rows(name: str, row_type: type[RowT], by: Callable[[RowT], Any], may_be_empty: bool = False) -> list[RowT]:
        table = read_table(folder / f"{name}.parquet", row_type, AGAIN, may_be_empty)
        return sorted(rows_of(row_type, table), key=by)

    manifest = read_manifest(folder / "manifest.json", ("primary_metric",), AGAIN, tables.FORMAT)
    checkpoints = rows("checkpoints", CheckpointRow, lambda c: c.moment)
    quality = _grouped(rows("quality", QualityRow, lambda q: q.moment), lambda q: q.metric)
    drill = Drill(
        tuple(checkpoints),
        quality,
        _grouped(rows("replayed", tables.ReplayedRow, lambda r: r.t), lambda r: (r.metric, r.serving)),
        read_table(folder / "timeline.parquet", tables.SecondRow, AGAIN, may_be_empty=True).sort_values("elapsed_s"),
        {row.phase: row for row in rows("phases", tables.PhaseRow, lambda p: list(Phase).index(Phase(p.phase)), True)},
        tuple(rows("incidents", tables.IncidentRow, lambda i: i.elapsed_s, may_be_empty=True)),
        tables.DrillFacts.of(manifest),
        manifest.get("settings", {}),
    )
    path = folder / "quality.parquet"
    for metric, of_metric in quality.items():
        if [row.moment for row in of_metric] != [c.moment for c in checkpoints]:
            raise InputError(f"{path} does not have {metric} once for every row of checkpoints.parquet: {AGAIN}")
    if drill.primary not in quality:
        raise InputError(f"{path} has no rows for the primary metric {drill.primary!r}: {AGAIN}")
    return drill


def _grouped(rows: Sequence[RowT], key: Callable[[RowT], Any]) -> dict[Any, list[RowT]]:
    groups: dict[Any, list[RowT]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def cost(drill: Drill) -> tuple[float, float] | None:
    """p99 of a typical second before and during the backfill, in ms; None if either has too few requests."""
    both = tuple(drill.phases[name].p99_ms for name in (Phase.BEFORE, Phase.DURING) if name in drill.phases)
    return both if len(both) == 2 and np.isfinite(both).all() else None


def median(values: Iterable[float]) -> float:
    """The median of the finite values; NaN if there are none."""
    known = [value for value in values if math.isfinite(value)]
    return float(np.median(known)) if known else math.nan
