"""What a plan says besides its verdict, one sentence for each question; each follows from the plan's own numbers."""

import math
from collections.abc import Sequence
from datetime import datetime

import numpy as np

from ray_backfill.page.numbers import count, listed, percent, percent_sign, points
from ray_backfill.plan.assumptions import Assumptions, Origin
from ray_backfill.plan.capacity import Backfill
from ray_backfill.plan.evidence import Evidence
from ray_backfill.plan.fleet import FleetSettings
from ray_backfill.plan.options import COLLECTION, SWITCH, Options, quantiles
from ray_backfill.plan.verdict import Deadline, Judged
from ray_backfill.plan.words import dollars, hours, spread

# Of the improvement: a backfill that has so much of it has nearly all.
_MOST_OF_IT = 0.9


def answers(
    evidence: Evidence, known: Assumptions, fleet: FleetSettings, start: datetime, options: Options, judged: Judged,
    deadline: Deadline | None, first_items: Sequence[str] = (),
) -> dict[str, str]:  # fmt: skip
    """Question -> sentence, in the order of the page."""
    a = {name: quantity.value for name, quantity in known.items()}
    said: dict[str, str] = {}
    switch, backfill = options.of(SWITCH), options.backfill
    if backfill.is_known:
        took, build = spread(*quantiles(backfill.finish)), a["index.build_hours"]
        of_index = f" The index takes {hours(build)} more." * (build > 0)
        if math.isnan(build):
            of_index = " The time to build the index is unknown, and not in these hours."
        said["How long?"] = (
            f"Embedding {count(a['items'])} items takes {took} from {start:%Y-%m-%d %H:%M} on, limited by "
            f"{backfill.slowest}.{of_index}"
        )
        parts = {part: quantiles(amounts) for part, amounts in switch.dollars.items()}
        told = [f"{part} {spread(*three, dollars)}" for part, three in parts.items() if not math.isnan(three[1])]
        unknown = [part for part, three in parts.items() if math.isnan(three[1])]
        said["What does a switch cost?"] = "; ".join(told or ["Nothing of it is known"]) + (
            f". Unknown: {listed(unknown, 'and')}, so there is no total." if unknown else "."
        )
        collection = options.of(COLLECTION)
        copies, more = collection.memory_gb - switch.memory_gb, quantiles(collection.total - switch.total)[1]
        price = f"{copies:,.1f} GB" + f" and {dollars(more)}" * (not math.isnan(more))
        said["A field or a second collection?"] = (
            "A second collection copies payloads, too, which takes "
            f"{'unknown memory' if math.isnan(copies) else f'{price} more'}; its alias switches all clients at once, "
            "and the old collection is deleted at the end. Of an added field each client names the new one."
        )
    choice = judged.choice
    if choice is not None and choice.curve is not None:
        curve = choice.curve
        first, *limits = curve.from_share
        if math.isnan(first):
            said["When is it safe?"] = f"{choice.name}: at no share does it stay at the old service or above."
        else:
            between, is_known = "", options.online.is_known and first > 0
            if np.isfinite(limits).all() and limits[1] > limits[0]:
                between = f" (95 % interval {percent(limits[0], 0)} to {percent(limits[1], 0)} %)"
            when = f", that is from {spread(*_when(options.online, first))} on" if is_known else ""
            since = f"{percent(first, 0)} % backfilled on" if first > 0 else "the start on"
            said["When is it safe?"] = f"{choice.name} is not below the old service from {since}{between}{when}."
        gained = (curve.value - evidence.old) >= _MOST_OF_IT * evidence.step.value
        last = int(np.flatnonzero(~gained)[-1]) + 1 if (~gained).any() else 0
        if last < len(curve.t):
            after = _when(options.online, float(curve.t[last])) if options.online.is_known else (math.nan,) * 3
            when = f", after {spread(*after)}" if after[1] < math.inf else ", which is never reached" * (after[1] > 0)
            said["When is it nearly done?"] = (
                f"{percent(_MOST_OF_IT, 0)} % of the upgrade's improvement is there from "
                f"{percent(float(curve.t[last]), 0)} % backfilled on{when}."
            )
        if len(options.hours):
            days = 7.0 if options.hours[-1] > 7 * 24 else 1.0
            period_M = (options.hours / (24 * days)).astype(np.int64)
            lead_M = np.median(choice.lead, axis=0)
            means = {int(period): float(lead_M[period_M == period].mean()) for period in np.unique(period_M)}
            worst = min(means, key=lambda period: means[period])
            lead = f"{'Week' if days == 7 else 'Day'} {worst + 1}: {points(abs(means[worst]))} of {evidence.metric}"
            said["Which time is worst?"] = f"{lead} {'above' if means[worst] >= 0 else 'below'} the old service."
        if curve.lost is not None:
            said["Who is worse off?"] = (
                f"{percent_sign(curve.lost.first_day)} of queries lose their right first result on the first day, "
                f"{percent_sign(curve.lost.worst)} at the worst moment{curve.lost.beside}."
            )
        named = f": {', '.join(first_items)}" if first_items else ""
        said["Which items first?"] = f"In the order {curve.order}{named}; ray-backfill export writes it as order.csv."
        reached = quantiles(options.online.end)
        has_budget = fleet.budget.items < 1 or fleet.budget.dollars < math.inf
        if has_budget and options.online.is_known and reached[1] < 1 - 1e-9:
            quality = float(np.interp(reached[1], curve.t, curve.value))
            ends = f" on {fleet.old_model_ends:%Y-%m-%d}" if fleet.old_model_ends else ""
            limit = f"until the old model ends{ends}" if curve.needs_old else "also without the old model"
            said["What does the budget buy?"] = (
                f"The first {percent(reached[1], 0)} % of the items in the order {curve.order} "
                f"({percent(reached[0], 0)} to {percent(reached[2], 0)} %), by which {evidence.metric} is "
                f"{percent_sign(quality)}, {points(quality - evidence.old)} above the old service. "
                f"It may stay so {limit}."
            )
    if deadline is not None:
        in_time = percent(deadline.finishes, 0)
        words = [f"{in_time} % of runs end before the old model does, on {deadline.ends:%Y-%m-%d}"]
        if deadline.latest:
            words.append(f"90 % still do with a start as late as {deadline.latest:%Y-%m-%d %H:%M}")
        if not math.isnan(deadline.workers):
            verb = "are" if deadline.workers > 1 else "is"
            words.append(f"{count(deadline.workers)} of such workers {verb} enough for 90 %")
        elif fleet.workers:
            words.append("32 times as many workers would not be enough for 90 %")
        free = sum(way.curve is not None and not way.needs_old for way in options.choices)
        if choice is not None:
            needs = "needs" if choice.needs_old else "does not need"
            words.append(f"{choice.name} {needs} the old model for queries until then, and {free} ways do not need it")
        said["Is it in time?"] = f"{'; '.join(words)}."
    a_day = a["inserted_per_day"]
    cost = f"each day {count(a_day)} items arrive, which the old model has to embed before a return"
    nothing = "it costs nothing, because no items arrive that would need old vectors"
    kept = "As long as the old vectors are kept, in a second partition"
    said["Until when can we go back?"] = f"{kept}; {cost if a_day else nothing}."
    missing = [name for name, quantity in known.items() if quantity.origin is Origin.UNKNOWN]
    said["What is unknown?"] = f"{listed(missing, 'and')}." if missing else "Nothing that this plan uses."
    return said


def _when(backfill: Backfill, share: float) -> tuple[float, float, float]:
    """10, 50 and 90 % of the hours after which a share is reached."""
    is_there = backfill.share >= np.float32(share) - 1e-6
    first = np.where(is_there.any(axis=1), backfill.hours[is_there.argmax(axis=1)], math.inf)
    return quantiles(first)
