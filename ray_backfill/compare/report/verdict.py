"""The main sentence of a report: which method to take, or why none is recommended. Computes nothing.

It depends on what the comparison can decide: whether the new model is better, whether its metrics agree on that, and
whether there are enough queries to tell.
"""

import math
import shlex
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from ray_backfill.compare.analyses.cascades import price
from ray_backfill.compare.results import ResultsData, Row, Variant
from ray_backfill.compare.selection import is_retention, judged_side, judgement, retained, service_in_words
from ray_backfill.compare.tables import HEAD_ALONE, NEGATIVE_FLIPS_VS_OLD, NEW, OLD, POSITIVE_FLIPS_VS_OLD
from ray_backfill.core.outcome import Decision
from ray_backfill.core.printable import printable
from ray_backfill.core.schema import NO, UNDECIDED, YES
from ray_backfill.core.store_path import path_of
from ray_backfill.data.judging import FIRST
from ray_backfill.page import Difference
from ray_backfill.page.numbers import in_brackets, interval, listed, percent, percent_sign, points, upper

# Below this number of queries a percentile bootstrap is known to be too narrow.
FEW_QUERIES = 30
# Options of simulate that the drill after it does not take over: it has its own method, order and merge, answers with
# the first results only, and shall not delete what was written.
NOT_OF_DRILL = {"--methods", "--orders", "--merges", "--metrics", "--cutoffs", "--permutations"} | {
    *("--device", "--shards", "--json", "--drop-broken", "--overwrite", "--judge")
}


class Situation(Enum):
    """What can be said about an upgrade, from the primary metric."""

    TOO_FEW_QUERIES = "no interval can be estimated"
    WORSE = "the new model is worse than the old one"
    EQUAL = "the new model cannot be told apart from the old one"
    NO_METHOD = "only old and new were compared, or controls beside them"
    UNLEARNED = "all methods were fitted and did not learn here"
    ONLY_CASCADES = "only cascades were compared"
    ONLY_BOUNDS = "only oracle orders were compared"
    NOT_MIXED = "no method serves better than the old service while the backfill runs"
    NOT_SHOWN = "some method serves better, but what it gains may be nothing"
    UPGRADE = "some method serves better than the old service while the backfill runs"


_NOT_BETTER = (Situation.WORSE, Situation.EQUAL)


def verdict(results: ResultsData) -> str:
    """The main sentence: which method serves best during the backfill, or why none is recommended.

    If the metrics disagree about the new model, that comes first.
    """
    situation = find_situation(results)
    said = _by_judgements(results) if is_retention(results) else disagreement(results)
    if situation is Situation.TOO_FEW_QUERIES:
        return "These results have no intervals, so nothing is recommended: compare on at least 30 queries."
    if not said:
        return _recommendation(results)
    if is_retention(results) or situation not in _NOT_BETTER:
        return f"{said} {_recommendation(results)}"
    # The new model is not better by the first metric, and another one contradicts it.
    others = [metric for metric, side in _against(results).items() if side == 1]
    if not others:
        return f"{said} Do not upgrade on this evidence."
    first = " ".join((*others, *(metric for metric in results.metrics if metric not in others)))
    return (
        f"{said} Do not upgrade if {results.primary} is what your users notice. If {listed(others, 'or')} is, compare "
        f"the methods by it: --metrics {first}."
    )


def in_two(said: str) -> tuple[str, str]:
    """The first sentence of a verdict, which says what to do, and the others."""
    first, dot, others = said.partition(". ")
    return f"{first}{dot.strip()}", others


def _recommendation(results: ResultsData) -> str:
    """The main sentence by the first metric alone."""
    situation, metric, best = find_situation(results), results.primary, results.best()
    old, new, step = results.reference(OLD), results.reference(NEW), upgrade(results)
    if situation is Situation.NO_METHOD:
        compared = "old, new and controls" if results.controls else "old and new"
        return f"Only {compared} were compared, so nothing is recommended."
    if situation is Situation.UNLEARNED:
        return "No method learned anything here, so nothing is recommended."
    if situation is Situation.ONLY_BOUNDS:
        return "Only oracle orders were compared, which cannot be deployed, so nothing is recommended."
    assert old is not None
    if is_retention(results):
        return _of_retention(results, situation, old)
    assert new is not None
    assert step is not None
    digits = results.digits(metric)
    values = f"{percent_sign(new.auc, digits)} {metric} against {percent_sign(old.auc, digits)}"
    both = f"{values}, a difference of {with_limits(step, digits)}"
    if situation is Situation.WORSE:
        return f"Do not upgrade: the new model is worse than the old one, with {both}."
    if situation is Situation.EQUAL:
        return (
            "Do not upgrade on this evidence: these queries cannot distinguish the new model from the old one, with "
            f"{both}."
        )
    if situation is Situation.ONLY_CASCADES:
        return f"Only cascades were compared, which embed items for every query. {_of_cascade(results, old)}"
    assert best is not None
    if situation is Situation.NOT_MIXED:
        return _not_mixed(results, best, old, step)
    if situation is Situation.NOT_SHOWN:
        return _not_shown(results, best, old, step)
    # What to do, and what users get by it: a share of the upgrade's improvement, or points where that would mislead.
    if best.is_reference:
        advice = "Switch when the new index is complete"
    elif results.manifest.traits.methods[best.method].recalls:
        advice = f"Re-rank with the new model ({_name(results, best)})"
    else:
        advice = f"Merge online with {_name(results, best)}"
    if exceeds_upgrade(results, best):
        lead = results.difference(best, old, at_once=True)
        assert lead is not None
        given = (
            f"{points(lead.value)} more {metric} than the old service while the backfill runs (95 % interval "
            f"{interval(lead.low, lead.high)}; the finished upgrade: {percent(step.value)})"
        )
    else:
        limits = in_brackets(best.gain_low, best.gain_high, 0)
        given = f"{percent_sign(best.gain, 0)} of the upgrade\u2019s improvement while the backfill runs{limits}"
    said = [f"{advice}: users get {given}{_trade(results, best)}."]
    # Its start and its end, beside the old service and the new model.
    is_worse = best.never_falls == NO and best.end < best.start
    start, end, of_old, of_new = (percent_sign(share, digits) for share in (best.start, best.end, old.auc, new.auc))
    said.append(
        f"{'The backfill makes it worse: ' * is_worse}{metric} goes from {start} to {end} (old service {of_old}, new "
        f"model alone {of_new})."
    )
    # What of it is not the backfill: the price of a cascade, a head, or a merge that needs no upgrade.
    alone = head_alone(results, best)
    if cost := price(results, best):
        said.append(f"{upper(cost)}.")
    elif alone is not None:
        value = percent_sign(alone.auc, digits)
        said.append(
            f"Its head alone ({alone.method}, a comparison: no way to backfill) gives the finished upgrade {value}."
        )
    elif by_merge := merge_alone(results, best):
        said.append(by_merge)
    return " ".join(said)


class Lost(NamedTuple):
    """Shares of queries whose right first result of the old service is lost.

    first_day: at the method's start. worst: at the worst moment. finished: with the finished upgrade, NaN if unknown.
    """

    first_day: float
    worst: float
    finished: float

    @property
    def beside(self) -> str:
        """The share of the finished upgrade in brackets."""
        return f" (finished upgrade: {percent_sign(self.finished)})" * math.isfinite(self.finished)


def lost(results: ResultsData, row: Row) -> Lost | None:
    """How many queries lose their right first result with a method; None if it is not known."""
    line, new = results.line(row, NEGATIVE_FLIPS_VS_OLD), results.reference(NEW, row.metric)
    end = results.line(new, NEGATIVE_FLIPS_VS_OLD) if new is not None else None
    if line is None:
        return None
    finished = math.nan if end is None else float(end.value[-1])
    return Lost(float(line.value[0]), row.negative_flips_vs_old_max, finished)


def _trade(results: ResultsData, best: Row) -> str:
    """What users pay for it on the first day or later, beyond what the finished upgrade costs; "" if nothing."""
    below = [row.metric for row in results.in_all_metrics(best) if row.starts_at_old == NO]
    flips, margin = lost(results, best), results.manifest.margin
    told = [f"{listed(below, 'and')} start{'s' * (len(below) == 1)} below the old service"] if below else []
    if flips is not None:
        many = margin + (flips.finished if math.isfinite(flips.finished) else 0.0)
        is_first = bool(below) or flips.first_day > many
        share, when = (flips.first_day, "on the first day") if is_first else (flips.worst, "on the way")
        if is_first or share > many:
            told.append(f"{percent_sign(share)} of queries lose their right first result {when}{flips.beside}")
    return f", but {' and '.join(told)}" if told else ""


def basis(results: ResultsData) -> str:
    """What the verdict rests on: numbers of queries and items, and the difference between the models."""
    items, step = results.manifest.data["gallery_items"], upgrade(results)
    old, new, metric = results.reference(OLD), results.reference(NEW), results.primary
    behind = f", behind a service: {service}" if (service := service_in_words(results)) else ""
    said = f"This rests on {queries(results):,} queries and {items:,} gallery items{behind}."
    if old is None or new is None or step is None or is_retention(results) or find_situation(results) in _NOT_BETTER:
        return said
    digits = results.digits(metric)
    worth = f"{points(step.value, digits)} of {metric}{in_brackets(step.low, step.high, digits)}"
    return f"{said} The upgrade is worth {worth}."


def next_command(results: ResultsData) -> str:
    """The command to run after this one, with its own arguments; "" if none follows, or if it was no command."""
    from ray_backfill.engine.metrics import of_lists, parse_metric

    words = shlex.split(results.manifest.command)[1:]
    given = list(_options(words[1:])) if words[:1] == ["simulate"] else []
    names, best, traits = {name for name, _ in given}, results.best(), results.manifest.traits
    if words[:1] != ["simulate"] or "--scale" in names:
        return ""
    if is_retention(results) and judgement(results) is None:
        others = [option for option in given if option[0] != "--truth"]
        return _command("simulate", [*others, ("--judge", ["judgements.csv"])])
    if names & {"--old-gallery", "--filter", "--service"} or (
        is_retention(results) and decide(results) is not Decision.GO
    ):
        return ""
    if find_situation(results) is not Situation.UPGRADE or best is None or best.is_reference:
        return ""
    if traits.methods[best.method].recalls or traits.merges[best.merge].by_rank:
        return ""
    kept = [option for option in given if option[0] not in NOT_OF_DRILL]
    metrics = [name for name in dict(given).get("--metrics", []) if name in results.metrics]  # "recommended" is none
    if metrics := [name for name in metrics if parse_metric(of_lists(name)).k is not None]:
        kept.append(("--metrics", metrics))
    chosen = [("--orders", [best.order]), ("--merges", [best.merge]), ("--live.method", [best.method])]
    return _command("drill", kept + chosen)


def export_command(results: ResultsData, folder: Path) -> str:
    """The command that writes what a service needs of the advised method; "" if no method is, or it cannot be exported.

    folder: of the results.
    """
    best = results.best()
    if decide(results) is not Decision.GO or best is None or best.is_reference:
        return ""
    if results.manifest.traits.methods[best.method].recalls or results.evaluation.get("filter"):
        return ""
    return export_of(folder, best.method, best.merge, best.order)


def export_of(folder: Path, method: str, merge: str, order: str) -> str:
    """The command that exports a method of the results in a folder."""
    run = _run_of(folder)
    words = ["--method", method, "--merge", merge, "--order", order, "--to", str(run / "upgrade")]
    return shlex.join(["ray-backfill", "export", str(run), *words])


def plan_command(folder: Path) -> str:
    """The command that plans an upgrade by the results of ``simulate`` or ``forecast`` in a folder."""
    return shlex.join(["ray-backfill", "plan", str(_run_of(folder)), "--fleet", "fleet.yaml"])


def _run_of(folder: Path) -> Path:
    """The folder of the run that has these results, as a user can type it."""
    run = folder.parent if folder.name in ("results", "forecast") else folder
    return path_of(printable(str(run.relative_to(Path.cwd()) if run.is_relative_to(Path.cwd()) else run)))


def _options(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """The options of a command line, each with its values."""
    starts = [place for place, word in enumerate(words) if word.startswith("--")]
    for start, end in pairwise([*starts, len(words)]):
        name, equals, value = words[start].partition("=")
        yield name, [value] * bool(equals) + list(words[start + 1 : end])


def after_judging(command: str, file: str) -> str:
    """The command that reads the file which this command has written."""
    replaced = ("--judge", "--truth", "--overwrite")
    kept = [option for option in _options(shlex.split(command)[2:]) if option[0] not in replaced]
    return _command("simulate", [*kept, ("--truth", ["judged", file]), ("--overwrite", [])])


def _command(name: str, options: Iterable[tuple[str, list[str]]]) -> str:
    return shlex.join(["ray-backfill", name, *(word for option, values in options for word in (option, *values))])


def exceeds_upgrade(results: ResultsData, row: Row) -> bool:
    """Whether the upgrade is a wrong measure for a method: it gives more, or its own head adds more than the upgrade.

    The share of the upgrade's improvement is then mostly something else, which a finished upgrade could have as well.
    """
    new, alone, step = results.reference(NEW), head_alone(results, row), upgrade(results)
    if not row.gain <= 1:
        return True
    return new is not None and alone is not None and step is not None and alone.auc - new.auc > step.value


def head_alone(results: ResultsData, row: Row) -> Row | None:
    """{rho(new), rho(new)}, if this method trains rho and it took part."""
    return results.reference(HEAD_ALONE) if results.manifest.traits.methods[row.method].learns_new else None


def supervision(results: ResultsData, best: Row) -> str:
    """A sentence about what of a method is training on labels, and what is compatibility; "" without rho."""
    old, alone = results.reference(OLD), head_alone(results, best)
    if old is None or alone is None or not alone.auc > old.auc:
        return ""
    return (
        f"Its head rho is supervised training, which a finished upgrade could have as well. Compatibility is what "
        f"users get of that before the end: {percent_sign((best.auc - old.auc) / (alone.auc - old.auc), 0)} of the way "
        "from the old service to it, on average over the backfill."
    )


def conditions(results: ResultsData, row: Row) -> tuple[str, ...]:
    """Starts at old, ends at new, never falls: yes if so in all metrics of the run, no if not in one."""
    verdicts = zip(*(same.conditions for same in results.in_all_metrics(row)), strict=True)
    return tuple(NO if NO in marks else YES if set(marks) == {YES} else UNDECIDED for marks in verdicts)


def merge_alone(results: ResultsData, row: Row) -> str:
    """What the merge of a row gives the old service without any upgrade; "" if nothing."""
    old = results.reference(OLD, row.metric)
    if old is None or not row.old_auc - old.auc > results.manifest.margin:
        return ""
    value = percent_sign(row.old_auc, results.digits(row.metric))
    return f"Its merge alone gives the old service {value}, without any upgrade."


def _not_mixed(results: ResultsData, best: Row, old: Row, step: Difference) -> str:
    """The main sentence if the old service is better than every method that could be recommended."""
    # The best row can be the reference that switches at the end, which is what the sentence advises.
    mixing = next((row for row in results.candidates(results.primary) if not row.is_reference), best)
    cascade = results.best_cascade()
    is_beaten = cascade is not None and cascade.auc > max(old.auc, mixing.old_auc)
    # With csls, the old service can be better than every method, and than the old service without it.
    chosen = mixing.title.rpartition(" + ")[2] if mixing.merge == "best" else mixing.merge
    merge = f" with {chosen}, which needs no upgrade" if mixing.old_auc > old.auc else ""
    value = f"{percent_sign(mixing.old_auc)}, and {percent_sign(old.auc)} without" if merge else percent_sign(old.auc)
    sentence = (
        f"Switch when the new index is complete: no method{' but cascades' * is_beaten} serves better than the old "
        f"service{merge}{',' * bool(merge)} while the backfill runs. The best{' of the others' * is_beaten}, "
        f"{_name(results, mixing)}, has {percent_sign(mixing.auc)} {results.primary} on average against {value}."
    )
    return f"{sentence} {_with_price(results, cascade, old, step)}" if cascade is not None and is_beaten else sentence


def _not_shown(results: ResultsData, best: Row, old: Row, step: Difference) -> str:
    """The main sentence if these queries do not show that the best method gives users anything."""
    lead, cascade = results.difference(best, old, at_once=True), results.best_cascade()
    gained = f"{percent_sign(best.gain, 0)} of the upgrade\u2019s improvement"
    limits = in_brackets(best.gain_low, best.gain_high, 0)
    if lead is not None and not best.gain_low <= 0:
        gained, limits = f"{points(lead.value)} of {best.metric}", in_brackets(lead.low, lead.high)
    said = (
        "Undecided: build the new index beside the old one and switch when it is complete, because these queries do "
        f"not show that a method gains anything before. The best, {_name(results, best)}, gains {gained}{limits}."
    )
    return f"{said} {_with_price(results, cascade, old, step)}" if cascade and cascade.auc > best.auc else said


def _with_price(results: ResultsData, cascade: Row, old: Row, step: Difference) -> str:
    share = f"{percent_sign(cascade.gain, 0)} of the upgrade\u2019s improvement"
    more = f"{points(cascade.auc - old.auc)} more than the old service; the upgrade is worth {points(step.value)}"
    cost = price(results, cascade) or "it embeds items for every query"
    return (
        f"{upper(_name(results, cascade))} has {percent_sign(cascade.auc)}, "
        f"{share if cascade.gain <= 1 else more}. Its price: {cost}."
    )


def _of_cascade(results: ResultsData, old: Row) -> str:
    cascade = results.best_cascade()
    assert cascade is not None
    return (
        f"The best cascade, {_name(results, cascade)}, has {percent_sign(cascade.auc)} {results.primary} on average; "
        f"the old service has {percent_sign(old.auc)}."
    )


def _by_judgements(results: ResultsData) -> str:
    """Which model is better, as far as judged queries tell; a request for judgements if there are none."""
    judgements, side = judgement(results), judged_side(results)
    if judgements is None:
        how = "rb.judge" if results.manifest.command.startswith("rb.") else "simulate --judge FILE"
        return (
            f"Judge {FIRST} queries first ({how}, an hour\u2019s work): nothing here says whether the "
            "new model is better than the old one."
        )
    judged = f"{judgements['queries']} judged queries"
    step = with_limits(Difference(judgements["difference"], judgements["low"], judgements["high"]))
    difference = f"the difference of precision@{judgements['depth']} is {step}"
    if side:
        better = "The new model is better" if side > 0 else "Do not upgrade: the new model is worse"
        return f"{better} by {judged}: {difference}."
    left = judgements["to_judge"] - judgements["queries"]
    more = f" {judgements['path']} has {left} more to judge." if left else ""
    return f"Do not upgrade on this evidence: {judged} do not tell which model is better; {difference}.{more}"


def _of_retention(results: ResultsData, situation: Situation, old: Row) -> str:
    """Which method to take if what the new model finds was taken as right: only if the new model is better."""
    what, metric, best = retained(results), results.primary, results.best()
    of_old = f"{percent_sign(old.auc)} {metric}"
    if situation in _NOT_BETTER:
        return f"The old service finds {what} as well as the new model, as far as these queries tell: {of_old}."
    if situation is Situation.ONLY_CASCADES:
        return f"Only cascades were compared, which embed items for every query. {_of_cascade(results, old)}"
    assert best is not None
    limits = in_brackets(best.auc_low, best.auc_high)
    condition = {1: "", -1: "if you upgrade anyway, "}.get(judged_side(results) or 0, "if you upgrade, ")
    among = f"while the backfill runs, no method {'that embeds no items for a query ' * bool(results.recalling)}keeps"
    if situation is Situation.NOT_MIXED:
        said = (
            f"{condition}switch when the new index is complete: {among} more of {what} than the old service, {of_old}. "
            f"The best, {_name(results, best)}, keeps {percent_sign(best.auc)} on average{limits}."
        )
    else:
        said = (
            f"{condition}merge online with {_name(results, best)}: {among} more of {what}, {percent_sign(best.auc)} "
            f"{metric} on average{limits}; it starts at {percent_sign(best.start)}, the old service has "
            f"{percent_sign(old.auc)}."
        )
    return upper(said)


def closest(results: ResultsData) -> str:
    """If nothing is gained on average, the method that costs users least."""
    best = next((row for row in results.candidates(results.primary) if not row.is_reference), None)
    if best is None or find_situation(results) is not Situation.WORSE:
        return ""
    which = " and embed no items for a query" if results.recalling else ""
    return (
        f"If the upgrade is needed for another reason: of the methods that switch before the end{which}, "
        f"{_name(results, best)} loses least, with {percent_sign(best.auc)} {best.metric} on average."
    )


def with_limits(difference: Difference, digits: int = 1) -> str:
    """A difference in points with its 95 % interval."""
    return points(difference.value, digits) + in_brackets(difference.low, difference.high, digits)


def _name(results: ResultsData, row: Row) -> str:
    return row.title + (f" ({results.label(row.variant)})" if results.group(row) else "")


def find_situation(results: ResultsData) -> Situation:
    """The situation of these results, by the primary metric."""
    step = upgrade(results)
    if queries(results) == 1 or step is None:
        return Situation.TOO_FEW_QUERIES
    if step.high < 0:
        return Situation.WORSE
    if not step.low > 0:
        return Situation.EQUAL
    best, old = results.best(), results.reference(OLD)
    if best is None:
        rows = [row for row in results.rows if not (row.is_end or row.method in results.controls)]
        if rows and all(row.method in results.unlearned for row in rows):
            return Situation.UNLEARNED
        if results.best_cascade() is not None:
            return Situation.ONLY_CASCADES
        return Situation.ONLY_BOUNDS if any(row.is_bound for row in rows) else Situation.NO_METHOD
    if old is not None and best.auc <= max(old.auc, best.old_auc):
        return Situation.NOT_MIXED
    # Whether no interval of what it gains over the old service contains nothing gained.
    lead = results.difference(best, old, at_once=True) if old is not None else None
    is_shown = not best.gain_low <= 0 and (lead is None or lead.low > 0)
    return Situation.UPGRADE if is_retention(results) or is_shown else Situation.NOT_SHOWN


def decide(results: ResultsData) -> Decision:
    """Whether to go ahead: only if the new model is better, no metric contradicts, and there is something to do."""
    situation, side = find_situation(results), judged_side(results)
    unknown = side != 1 if is_retention(results) else bool(disagreement(results))
    if side == -1 or (situation is Situation.WORSE and not is_retention(results) and not unknown):
        return Decision.STOP
    return Decision.GO if situation in (Situation.UPGRADE, Situation.NOT_MIXED) and not unknown else Decision.OPEN


# What a verdict advises: no upgrade, a switch when the new index is complete, or a merge online.
STAY, SWITCH, MERGE = "stay", "switch", "merge"


def advised(results: ResultsData) -> str:
    """What the verdict advises, by the primary metric; "" if no interval can be estimated."""
    situation, best = find_situation(results), results.best()
    if situation is Situation.TOO_FEW_QUERIES:
        return ""
    if situation in _NOT_BETTER:
        return STAY
    return MERGE if situation is Situation.UPGRADE and best is not None and not best.is_reference else SWITCH


def plain_advice(results: ResultsData) -> str:
    """What the vectors alone would have advised, and what that means in this service; "" if the same, or unknown."""
    rows, here, best = results.table_of("plain_advice"), advised(results), results.best()
    old, metric = results.reference(OLD), results.primary
    if not rows or not here or old is None:
        return ""
    plain = rows[0]
    would = results.row(plain.method, Variant(plain.order, plain.merge), metric)
    names = {STAY: "no upgrade", SWITCH: "a switch when the new index is complete"}
    if plain.advice == MERGE:
        if would is None:  # these are results without it
            return ""
        names[MERGE] = _name(results, would)
    who, other, lead = "the finished upgrade", "the old service", upgrade(results)
    if plain.advice == here == MERGE and would is not None and best is not None:
        who, other = names[MERGE], _name(results, best)
        lead = Difference(plain.difference, plain.low, plain.high)
    elif plain.advice == here:
        return ""
    elif STAY not in (plain.advice, here):
        row = would if plain.advice == MERGE else best
        assert row is not None
        who, lead = _name(results, row), results.difference(row, old, at_once=True)
    if lead is None or who == other:
        return ""
    serves = f"no difference between {who} and {other} is shown ({with_limits(lead)})"
    if lead.side:
        low, high = (lead.low, lead.high) if lead.side > 0 else (-lead.high, -lead.low)
        more = f"{points(abs(lead.value))} {'more' if lead.side > 0 else 'less'} {metric}"
        serves = f"{'it' if who == names[plain.advice] else who} serves {more} than {other}{in_brackets(low, high)}"
    return f"By the vectors alone, {names[plain.advice]} would have been recommended; in this service {serves}."


def queries(results: ResultsData) -> int:
    """Number of scored queries."""
    data = results.manifest.data
    return int(data["queries"] - data["queries_skipped"])


def merge_outlives(results: ResultsData, row: Row) -> bool:
    """Whether the merge, such as csls, changes the ranking even when everything is backfilled by the new model."""
    new, traits = results.reference(NEW, row.metric), results.manifest.traits.methods[row.method]
    if new is None or row.merge == "raw" or traits.stays or row.is_reference:
        return False
    return abs(row.end - new.end) > 1e-9


def upgrade(results: ResultsData, metric: str = "") -> Difference | None:
    """AUC of new minus AUC of old with its interval; None without one."""
    old, new = results.reference(OLD, metric), results.reference(NEW, metric)
    step = results.difference(new, old) if old is not None and new is not None else None
    return step if step is not None and step.low == step.low else None


def disagreement(results: ResultsData) -> str:
    """By which metrics the new model is better and by which worse, in a sentence; "" if none contradicts the first.

    A metric contradicts it if its 95 % interval shows a difference, and that of the first one does not show the same.
    """
    first, against = upgrade(results), _against(results)
    if first is None or not against:
        return ""
    words = {1: "better", -1: "worse", 0: "not distinguishable from the old one by these queries"}
    parts = [f"{words[first.side]} by {_told(results, results.primary)}"]
    for side in (1, -1):
        if told := [_told(results, metric) for metric, of in against.items() if of == side]:
            parts.append(f"{words[side]} by {listed(told, 'and')}")
    return f"The new model is {' but '.join(parts)}."


def _against(results: ResultsData) -> dict[str, int]:
    """Metric that contradicts the first one -> 1 if the new model is better by it, -1 if it is worse."""
    if (first := upgrade(results)) is None:
        return {}
    steps = {metric: upgrade(results, metric) for metric in results.metrics}
    return {
        metric: step.side for metric, step in steps.items() if step is not None and step.side not in (0, first.side)
    }


def _told(results: ResultsData, metric: str) -> str:
    """A metric with both values; of the first result also how many queries win and lose it."""
    from ray_backfill.engine.metrics import same_metric

    old, new = results.reference(OLD, metric), results.reference(NEW, metric)
    assert old is not None
    assert new is not None
    won, lost = results.line(new, POSITIVE_FLIPS_VS_OLD), results.line(new, NEGATIVE_FLIPS_VS_OLD)
    flips = ""
    if same_metric(metric, "CMC@1") and won is not None and lost is not None:
        shares = percent_sign(won.value[-1]), percent_sign(lost.value[-1])
        flips = f": {shares[0]} of the queries win a right first result, {shares[1]} lose one"
    return f"{metric} ({percent(old.auc)} \u2192 {percent(new.auc)}{flips})"
