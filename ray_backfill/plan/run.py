"""Makes the plan of an upgrade: from finished results and a fleet to a folder of tables and a page."""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ray_backfill.compare.report.verdict import export_of
from ray_backfill.core import __version__
from ray_backfill.core.errors import InputError, unknown_name
from ray_backfill.core.outcome import json_value
from ray_backfill.core.progress import step
from ray_backfill.core.schema import frame, write_table
from ray_backfill.core.stages import replaced_whole, write_json
from ray_backfill.export.service import why_not
from ray_backfill.learn.methods import find_methods
from ray_backfill.plan.assumptions import Assumptions, assume
from ray_backfill.plan.evidence import Evidence, first_items, read_evidence
from ray_backfill.plan.fleet import FleetSettings, number_of, read_fleet
from ray_backfill.plan.options import QUANTILES, SWITCH, Choice, Options, dominated, find_options, quantiles
from ray_backfill.plan.report import write_plan_report
from ray_backfill.plan.sentences import answers
from ray_backfill.plan.tables import TABLES, DollarRow, HourRow, OptionRow, WhatIfRow
from ray_backfill.plan.verdict import Judged, Verdict, find_deadline, find_flips, judge

FORMAT = 1


def plan_upgrade(
    results: Path, fleet_file: Path | None, out: Path | None = None, what_if: Sequence[str] = (), command: str = "",
    runs: int = 1000,
) -> Path:  # fmt: skip
    """Plan an upgrade; returns the folder of the plan, by default RUN/plan.

    results: folder that ``simulate`` or ``forecast`` wrote. fleet_file: fleet.yaml; None: hours are unknown.
    what_if: such as "workers.number=8,16,32": plans with other values of an assumption. Cost: seconds; searching what
    changes the verdict takes most of it.

    Raises:
        InputError: Results are missing or have no interval, the fleet is malformed, or an assumption has no such name.
    """
    evidence = read_evidence(results)
    fleet = read_fleet(fleet_file) if fleet_file else FleetSettings()
    now = datetime.now().replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    start = fleet.start or now
    if fleet.old_model_ends and fleet.old_model_ends <= start:
        raise InputError(
            f"old_model_ends {fleet.old_model_ends} is in the past; give the date after which it answers no more"
        )
    assumed = partial(assume, evidence, fleet, now.date())
    known = assumed()
    changes = list(_changes(known, fleet, what_if))
    with step("plan"):
        options = find_options(evidence, known, fleet, start, runs)
        judged = judge(evidence, known, options)
        deadline = find_deadline(known, fleet, start, known["index.build_hours"].value)
    rests_on_fleet = judged.verdict in (Verdict.SWITCH, Verdict.ONLINE) or (judged.choice and options.backfill.is_known)
    flips = find_flips(evidence, assumed, fleet, start) if rests_on_fleet else []
    worse = dominated(options)
    tables: Mapping[str, Sequence[Any]] = {
        "assumptions": list(known.values()),
        "options": [_option_row(choice, worse) for choice in options.choices],
        "dollars": [
            DollarRow(choice.name, part, *quantiles(amounts))
            for choice in options.choices
            for part, amounts in choice.dollars.items()
        ],
        "hours": _hour_rows(evidence, options),
        "flips": flips,
        "what_if": [_what_if(evidence, assumed({name: value}), fleet, start, name, value) for name, value in changes],
    }
    first = first_items(evidence, judged.choice.curve) if judged.choice and judged.choice.curve else []
    out = out or evidence.folder / "plan"
    facts = {
        "stage": "plan", "format": FORMAT, "version": __version__, "command": command,
        "verdict": judged.verdict.name, "sentence": judged.sentence, "inequality": judged.inequality,
        "decision": judged.verdict.decision.value, "chosen": judged.choice.name if judged.choice else "",
        "metric": evidence.metric, "old": evidence.old, "new": evidence.new, "step": list(evidence.step),
        "basis": evidence.basis, "start": start.isoformat(sep=" "), "slowest": options.backfill.slowest,
        "answers": answers(evidence, known, fleet, start, options, judged, deadline, first),
        "first_items": first, "next": _commands(evidence, judged),
    }  # fmt: skip
    files = (*(f"{name}.parquet" for name in TABLES), "manifest.json", "curves.png", "report.html", "plan.md")
    with replaced_whole(out, files) as half:
        for name, kind in TABLES.items():
            write_table(half / f"{name}.parquet", frame(kind, list(tables[name])))
        write_json(half / "manifest.json", dict(json_value(facts)))
    write_plan_report(out)
    return out


def _option_row(choice: Choice, worse: Mapping[str, str]) -> OptionRow:
    curve = choice.curve
    return OptionRow(
        choice.policy, choice.name, *((curve.method, curve.order, curve.merge) if curve else ("", "", "")),
        *quantiles(choice.finish), *quantiles(choice.total), *quantiles(choice.extra_dollars),
        *quantiles(choice.point_days), choice.memory_gb, choice.needs_old, worse.get(choice.name, ""),
    )  # fmt: skip


def _hour_rows(evidence: Evidence, options: Options) -> list[HourRow]:
    """Of a switch, and of every merge."""
    rows = []
    for choice in options.choices if len(options.hours) else ():
        if choice.curve or choice.policy == SWITCH:
            quality = np.quantile(evidence.old + choice.lead, QUANTILES, axis=0).T
            both = zip(options.hours, quality, strict=True)
            rows += [HourRow(choice.name, float(hour), *map(float, three)) for hour, three in both]
    return rows


def _changes(known: Assumptions, fleet: FleetSettings, what_if: Sequence[str]) -> list[tuple[str, float]]:
    """The assumptions of --what-if, each with a value."""
    changes = []
    for text in what_if:
        name, sign, values = text.partition("=")
        if name in ("gpus", "workers") and len(fleet.workers) == 1:
            name = f"{fleet.workers[0].name}.number"
        if not sign or name not in known:
            raise unknown_name("assumption of --what-if", name, known)
        for value in values.split(","):
            try:
                number = number_of(name, value)
                if name == "share" and number > 1:
                    raise ValueError("a share up to 1")
            except ValueError as error:
                raise InputError(f"--what-if {text}: {value!r} is not {error}") from None
            changes.append((name, number))
    return changes


def _what_if(
    evidence: Evidence, known: Assumptions, fleet: FleetSettings, start: datetime, name: str, value: float
) -> WhatIfRow:
    options = find_options(evidence, known, fleet, start, 300)
    judged, switch = judge(evidence, known, options), options.of(SWITCH)
    won = judged.choice.point_days - switch.point_days if judged.choice else np.full(1, math.nan)
    took, paid = quantiles(switch.finish), quantiles(switch.total)[1]
    return WhatIfRow(name, value, *took, paid, quantiles(won)[1], judged.verdict.value, judged.sentence)


def _commands(evidence: Evidence, judged: Judged) -> list[str]:
    """What to type next."""
    curve = judged.choice.curve if judged.choice else None
    if curve is None or evidence.more != "queries" or judged.verdict not in (Verdict.ONLINE, Verdict.OPEN):
        return []
    if why_not(find_methods((curve.method,))[0]):
        return []
    return [export_of(evidence.folder, curve.method, curve.merge, curve.order)]
