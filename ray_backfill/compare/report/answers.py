"""The answers of a report: which method, when to switch, what it costs, and what is at risk. Computes nothing."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ray_backfill.compare.analyses.costs import CostRow
from ray_backfill.compare.analyses.slices import slice_sentences
from ray_backfill.compare.analyses.unseen_classes import sentence as on_unseen_classes
from ray_backfill.compare.report import verdict
from ray_backfill.compare.results import ResultsData, Row
from ray_backfill.compare.selection import FEW, RETENTION_WARNING, crossings, is_retention, judged_side, retained
from ray_backfill.compare.tables import NEW
from ray_backfill.core.outcome import Remark
from ray_backfill.core.progress import duration
from ray_backfill.core.schema import NO, UNDECIDED, YES
from ray_backfill.page.heading import data_notes
from ray_backfill.page.numbers import amount, in_brackets, interval, listed, percent, percent_sign, points, upper


@dataclass(frozen=True)
class Answers:
    """Sentences that answer the four questions of a report; () where a question does not arise."""

    which: tuple[str, ...]
    when: tuple[str, ...]
    cost: tuple[str, ...]
    risk: tuple[str, ...]


def answer(results: ResultsData) -> Answers:
    """Answer the four questions."""
    best = results.best()
    is_open = is_retention(results) and judged_side(results) != 1  # nothing says that there is an upgrade to time
    if is_open or verdict.find_situation(results) is not verdict.Situation.UPGRADE or best is None:
        return Answers(tuple(filter(None, (verdict.verdict(results), verdict.closest(results)))), (), (), ())
    said, alone = verdict.verdict(results), verdict.merge_alone(results, best)
    first = (said, verdict.supervision(results, best), "" if alone in said else alone, runner_up(results))
    which, told = list(filter(None, first)), set[str]()
    for row, start, end, lead in crossings(results, best):  # two methods that are better for a while
        if row.method not in told | results.unlearned | results.controls and len(told) < 2:
            told.add(row.method)
            which.append(f"{_stretch(start, end)} {row.title} serves better, by up to {points(lead)}.")
    return Answers(tuple(which), _when(results, best), _cost(results, best), _risk(results, best))


def runner_up(results: ResultsData) -> str:
    """A sentence that names the second-best method; empty if there is none."""
    ranked = results.candidates(results.primary)
    second = next((r for r in ranked if r.method != ranked[0].method), None)
    if second is None:
        return ""
    is_share = math.isfinite(second.gain) and not verdict.exceeds_upgrade(results, second)
    gain = f", {percent_sign(second.gain, 0)} of the improvement" if is_share else ""
    lead = results.difference(ranked[0], second, at_once=True)
    apart = ""
    if lead is not None and math.isfinite(lead.low):
        apart = f"; {points(lead.value)} behind{in_brackets(lead.low, lead.high)}"
        apart += "" if lead.low > 0 else ", so these queries do not distinguish the two"
    return f"Next best: {second.title}, {percent_sign(second.auc)} on average{gain}{apart}."


def warnings(results: ResultsData) -> tuple[str, ...]:
    """Sentences that a reader must know before the results, because they can change the decision."""
    return tuple(remark for remark in _remarks(results) if remark.matters)


def good_to_know(results: ResultsData) -> tuple[str, ...]:
    """Other sentences about the data."""
    return tuple(remark for remark in _remarks(results) if not remark.matters)


def _remarks(results: ResultsData) -> Iterator[Remark]:
    sentences = [RETENTION_WARNING.format(retained(results))] if is_retention(results) else _crosses(results)
    if (scored := verdict.queries(results)) < verdict.FEW_QUERIES:
        what = "Only one query was" if scored == 1 else f"Only {scored} queries were"
        sentences.append(
            f"{what} scored: too few to tell methods apart. Use at least {verdict.FEW_QUERIES}, better hundreds."
        )
    if said := verdict.plain_advice(results):
        sentences.append(said)
    yield from map(Remark, sentences)
    if unlearned := [results.titles[name] for name in results.methods if name in results.unlearned]:
        shown = unlearned if len(unlearned) <= FEW + 1 else unlearned[:FEW]
        comma = "; " if any("," in title for title in shown) else ", "
        more = f" and {len(unlearned) - FEW} more" if len(shown) < len(unlearned) else ""
        text = f"Did not learn here: {comma.join(shown)}{more}. On validation items, which no fit saw, worse than rank "
        best, rows = results.best(), [row for row in results.table(results.primary) if row.method in results.unlearned]
        would_lead = best is None or any(row.auc > best.auc for row in rows)
        yield Remark(f"{text}merge without training (rm_naive), so never recommended.", would_lead)
    yield from data_notes(results.manifest.data, results.file)


def _crosses(results: ResultsData) -> list[str]:
    """A sentence for each safety condition that the advised method is shown to break; [] if none is advised."""
    best = results.best()
    if best is None or best.is_reference or verdict.find_situation(results) is not verdict.Situation.UPGRADE:
        return []

    def loss(metric: str, value: float, low: float, high: float) -> str:
        """A negative difference as a loss with its interval."""
        return f"{points(-value)} of {metric}{in_brackets(-high, -low)}"

    rows, name, broken = results.in_all_metrics(best), upper(best.title), []
    if drops := [loss(r.metric, r.start_vs_old, r.start_vs_old_low, r.start_vs_old_high)
                 for r in rows if r.starts_at_old == NO]:  # fmt: skip
        broken.append(f"{name} starts below the old service, by {listed(drops, 'and')}.")
    if drops := [loss(r.metric, r.end_vs_new, r.end_vs_new_low, r.end_vs_new_high)
                 for r in rows if r.ends_at_new == NO]:  # fmt: skip
        of_merge = verdict.merge_outlives(results, best)
        why = "as long as its merge stays in use: use none when the backfill is complete" if of_merge else "for ever"
        broken.append(f"{name} costs the finished upgrade {listed(drops, 'and')}, {why}.")
    if falls := [f"{row.metric} {fall_in_words(row)}" for row in rows if row.never_falls == NO]:
        broken.append(f"With {best.title}, {listed(falls, 'and')}.")
    return broken


def fall_in_words(row: Row) -> str:
    """What was found out about falls: size, interval, moments."""
    at = f"at {row.moments} moments"
    if not math.isfinite(row.largest_fall_high):
        return f"falls by at most {points(row.largest_fall)} {at}"
    if row.never_falls == NO:
        where = f"between {percent(row.fall_start, 0)} and {percent_sign(row.fall_end, 0)} of the backfill"
        limits = interval(row.largest_fall_low, row.largest_fall_high)
        return f"falls by up to {points(row.largest_fall)} {where} (95 % interval {limits}, {at})"
    size = points(row.largest_fall, 2)
    if row.never_falls == YES:
        return f"{'never falls' if size == points(0.0, 2) else f'falls by at most {size}'} {at}"
    return f"falls by {points(row.largest_fall)} {at}, at most by {percent(row.largest_fall_high)} (95 % interval)"


def fall_cell(results: ResultsData, row: Row, condition: str, digits: int = 1) -> tuple[str, str]:
    """The largest fall in a table and its mark; if it is undecided, what was measured instead of a mark.

    "0.3, at most 1.1", or "0.0, CMC@1 \u2264 6.2" where only other metrics leave it open.
    """
    size = percent(row.largest_fall, digits)
    if condition != UNDECIDED or not math.isfinite(row.largest_fall_high):
        return size, condition
    if row.never_falls == UNDECIDED:
        return f"{size}, at most {percent(row.largest_fall_high, digits)}", ""
    undecided = [same for same in results.in_all_metrics(row) if same.never_falls == UNDECIDED]
    most = max(undecided, key=lambda same: same.largest_fall_high)
    return f"{size}, {most.metric} \u2264 {percent(most.largest_fall_high)}", ""


def _when(results: ResultsData, best: Row) -> tuple[str, ...]:
    rows = results.in_all_metrics(best)
    latest = max((r.passes_old_at if math.isfinite(r.passes_old_at) else math.inf for r in rows), default=math.nan)
    by = f" by {listed([row.metric for row in rows], 'and')}" if len(rows) > 1 else ""
    unsure = [row.metric for row in rows if row.passes_old_at == 0 and row.starts_at_old != YES]
    not_shown = f" (not shown by {listed(unsure, 'and')})" if unsure else ""
    first = f"On average it is as good as the old service{by} {_from(latest)}{not_shown}."
    if (lost := verdict.lost(results, best)) is not None:
        first += f" {percent_sign(lost.first_day)} of queries lose their right first result on the first day"
        settles, finished = best.flips_as_new_at, f"the finished upgrade ({percent_sign(lost.finished)})"
        later = f"; {_from(settles)} no more do than with {finished}."
        first += later if settles > 0 and math.isfinite(lost.finished) else f"{lost.beside}."
    sentences = [first]
    for row in rows:
        steps = [("as good as the old service", row.passes_old_at, row.passes_old_at_low, row.passes_old_at_high)]
        if math.isfinite(row.gain):
            steps.append(("half the improvement", row.half_gain_at, row.half_gain_at_low, row.half_gain_at_high))
        steps.append(("as good as the new model", row.passes_new_at, row.passes_new_at_low, row.passes_new_at_high))
        told = []
        for words, t, low, high in steps:
            is_more = not (math.isnan(low) or low == t == high)  # than the milestone itself
            limits = f" (95 % interval {moment(low)} to {moment(high)})" * is_more
            told.append(f"{words} {_from(t)}{limits}")
        sentences.append(f"{row.metric}: {', '.join(told)}.")
    margin = points(results.manifest.margin)
    return (*sentences, f"These are averages over all queries; a loss of at most {margin} counts as none.")


def moment(t: float) -> str:
    """A milestone: "start", "12 %", "end", "never"."""
    return {0.0: "start", 1.0: "end"}.get(t, percent_sign(t, 0)) if math.isfinite(t) else "never"


def _cost(results: ResultsData, best: Row) -> tuple[str, ...]:
    traits = results.manifest.traits.methods[best.method]
    costs: dict[str, CostRow] = {cost.method: cost for cost in results.table_of("costs")}
    sentences = []
    if (mine := costs.get(best.method)) is not None:
        models = "both models" if "+" in mine.query_models else f"the {mine.query_models} model"
        total, alone, more = mine.query_backbone_macs + mine.query_macs, costs.get(NEW), ""
        if alone is not None and math.isfinite(total) and alone.query_backbone_macs > 0:
            change = _signed_percent(total / alone.query_backbone_macs - 1)
            more = f": {change} query compute against the new model alone"
        sentences.append(f"Each query is embedded by {models}{more}.")
        if traits.is_trained:  # those of a formula are counted in part
            sentences.append(f"Training its map takes {amount(mine.training_flops)} FLOPs.")
    needs = ["the labels of a train split"] if traits.needs_labels else []
    needs += [f"a further model ({name})" for name in traits.further_models]
    sentences += [f"It needs {listed(needs, 'and')}."] if needs else []
    data = results.manifest.data
    if "old_dim" in data and "new_dim" in data:
        before, size = (f"{amount(4 * data['gallery_items'] * data[dim])}B" for dim in ("old_dim", "new_dim"))
        change_of_size = data["new_dim"] / data["old_dim"] - 1
        how = f"grow from {before} to {size}" if change_of_size > 0 else f"shrink to {size}"
        told = f"{how} in float32 ({_signed_percent(change_of_size)})"
        sentences.append(
            f"The vectors of the gallery {told if change_of_size else f'keep their size, {size} in float32'}."
        )
    # How long the run's machine worked for the upgrade; unknown if the embeddings were made elsewhere.
    timings_s = results.manifest.timings_s
    parts = (("backbones/new", "training the new model"), ("embeddings", "embedding everything by both models"))
    if took := [f"{words} took {duration(timings_s[name])}" for name, words in parts if timings_s.get(name)]:
        sentences.append(f"On the machine of this run, {listed(took, 'and')}.")
    new = results.reference(NEW)
    if traits.stays:
        sentences.append("Its maps stay in use after the backfill.")
    elif new is not None and verdict.merge_outlives(results, best):
        sentences.append(
            f"Its merge changes what the finished upgrade finds: {best.metric} ends at {percent_sign(best.end)} with "
            f"it, and at {percent_sign(new.end)} if only the new model stays in use."
        )
    else:
        sentences.append("After the backfill only the new model is needed: nothing of the method remains.")
    return tuple(sentences)


def _risk(results: ResultsData, best: Row) -> tuple[str, ...]:
    sentences = []
    if (lost := verdict.lost(results, best)) is not None:
        sentences.append(
            f"At worst, {percent_sign(lost.worst)} of the queries lose a right first result of the old service, "
            f"{percent_sign(lost.first_day)} on the day of the switch{lost.beside}."
        )
    # What is shown to fall stands among the warnings.
    sentences += [f"{r.metric} {fall_in_words(r)}." for r in results.in_all_metrics(best) if r.never_falls != NO]
    unseen = on_unseen_classes(results, best.method)
    return (*sentences, *slice_sentences(results, best), *([unseen] if unseen else []))


def _stretch(start: float, end: float) -> str:
    if start == end:
        return {0.0: "At the start", 1.0: "At the end"}.get(start, f"At {percent_sign(start, 0)}") + " of the backfill"
    if start == 0 or end == 1:
        where = f"Until {percent_sign(end, 0)}" if start == 0 else f"From {percent_sign(start, 0)}"
        return "Throughout the backfill" if (start, end) == (0, 1) else f"{where} of the backfill" + " on" * (start > 0)
    return f"Between {percent(start, 0)} and {percent_sign(end, 0)} of the backfill"


def _from(t: float) -> str:
    """A milestone in a sentence: "from the start", "from 12 % of the backfill on"."""
    if not math.isfinite(t):
        return "at no time"
    ends = {0.0: "from the start", 1.0: "only at the end"}
    return ends.get(t, f"from {percent_sign(t, 0)} of the backfill on")


def _signed_percent(share: float) -> str:
    sign = "+" if share >= 0 else ""
    return f"{sign}{percent_sign(share, 0)}"
