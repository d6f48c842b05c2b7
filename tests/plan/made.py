"""Made evidence and fleets for the tests of this room."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from ray_backfill.core.outcome import Decision
from ray_backfill.page import Difference
from ray_backfill.plan.assumptions import Assumptions, assume
from ray_backfill.plan.evidence import Curve, Evidence
from ray_backfill.plan.fleet import FleetSettings, WorkersSettings

OLD = 0.5
TODAY = date(2026, 12, 1)


def curve(
    values: Sequence[float] = (0.52, 0.56, 0.6), name: str = "ridge_query", half: float = 0.0, per_query: float = 0.0,
    maps_items: bool = False,
) -> Curve:  # fmt: skip
    """A merge with these qualities at equal shares. half: half of its 95 % interval."""
    value, t = np.array(values), np.linspace(0, 1, len(values))
    lead = float(np.trapezoid(value, t)) - OLD
    return Curve(
        name, name, "random", "raw", t, value, Difference(lead, lead - half, lead + half),
        (0.0, math.nan, math.nan), True, maps_items, np.full(len(t), per_query),
    )  # fmt: skip


def evidence(
    step: float = 0.1, half: float = 0.0, decision: Decision = Decision.GO, curves: tuple[Curve, ...] | None = None,
    items: int = 1000,
) -> Evidence:  # fmt: skip
    """Results of an upgrade that is worth ``step``, with half of its 95 % interval."""
    return Evidence(
        "mAP@10", OLD, OLD + step, Difference(step, step - half, step + half), decision,
        (curve(half=half),) if curves is None else curves, items, "", "queries", 100, Path("results"),
    )  # fmt: skip


def fleet(number: float = 2, items_per_s: float = 10, dollars_per_hour: float = 3.6, **more: object) -> FleetSettings:
    """A fleet of one group whose rate is certain."""
    group = WorkersSettings(number, items_per_s=items_per_s, dollars_per_hour=dollars_per_hour)
    return FleetSettings(**{"workers": (group,)} | more)  # type: ignore[arg-type]


def changed(of: FleetSettings, name: str, value: Any) -> FleetSettings:
    """A fleet in which a setting has another value, that of its first workers if it is one of workers."""
    group, setting = name.rsplit(".", 1) if "." in name else ("", name)
    new: dict[str, Any] = {setting: value}
    if group == "workers":
        new = {"workers": (replace(of.workers[0], **new),)}
    elif group:
        new = {group: replace(getattr(of, group), **new)}
    return replace(of, **new)


def assumed(of: FleetSettings, by: Evidence | None = None, changed: Mapping[str, float] | None = None) -> Assumptions:
    """What a plan with this fleet rests on."""
    return assume(evidence() if by is None else by, of, TODAY, changed)
