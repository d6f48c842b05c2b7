"""The findings of a live drill in plain words, for both the terminal and the HTML page."""

import math

from ray_backfill.compare.selection import GLOSSARY, of_metrics
from ray_backfill.core.outcome import Decision
from ray_backfill.drill.report.drill_folder import Drill, Gap, cost, median
from ray_backfill.drill.tables import CheckpointRow
from ray_backfill.page.numbers import count, duration, milliseconds, percent_sign, rate, signed_points

FEW = 4  # kinds of incidents that a sentence can list

LIVE_GLOSSARY = {
    "Live quality": "The metric computed on the running service's answers to all test queries.",
    "Exact": "The quality that exact indexes would give at the same moment, for the same state of the gallery.",
    "Replayed": "The curve that the replay computes from the same embeddings in the same order. There is none if items "
    "were inserted or deleted or images were broken, as it would describe another gallery.",
    "Checkpoint": "A moment at which the drill measured, at t = 0, 10 %, ... of the plan. Queries and rates in a table "
    "count from the previous checkpoint.",
    "Old, new partition": "Each shard keeps its items in two indexes: items that still have their old embedding, and "
    "backfilled items. Exactly one of them must serve each item at every moment.",
    "p50, p95, p99": "Half, 95 % and 99 % of the queries were answered within this time. It counts from the moment the "
    "query was due, so that a stall is visible. Fewer than 2, 20 and 100 requests are too few for it.",
    "Unanswered": "Queries of the traffic that got no answer by their deadline, retries included.",
    "Retried": "Queries that had to be sent again, for example because a shard had died.",
    "Violation": "An answer that violates an invariant of the service, for example one that contains an item twice or "
    "comes from a gallery of the wrong size. There must be none.",
}
# Terms that only some drills need.
FURTHER_GLOSSARY = {
    "Recall": "The share of the items in the exact answer that the live answer contains too, separately for old and "
    "new items. It is 100 % with exact indexes.",
    "Churn": "Items that are inserted and deleted while the backfill runs. The replay does not model them.",
    "Kept old": "Items whose image could not be read when their turn came. They keep their old embedding and stay in "
    "service.",
    "Rollback": "The return to the old model: every item is served by its old embedding again, as before the backfill.",
    "Leg": "The part of the drill that one driver process ran. If a driver is killed, the next one continues from "
    "there.",
}


def verdict(drill: Drill) -> str:
    """Whether the service was as good as replayed, and whether anything was lost. An alarm comes first."""
    lost = _losses(drill)
    return f"{lost} {_promise(drill)}" if is_alarming(drill) else f"{_promise(drill)} {lost}"


def details(drill: Drill) -> list[str]:
    """The sentences below the verdict: the work done, its effect on latency, and other events."""
    parts = (_work, _latency, _approximate, _broken, _churn, _way_back, _incidents)
    return [sentence for part in parts if (sentence := part(drill))]


def is_alarming(drill: Drill) -> bool:
    """Whether an invariant was violated, or the partitions did not add up to the gallery."""
    return drill.total(lambda c: c.violations) > 0 or bool(drill.missing)


def decide(drill: Drill) -> Decision:
    """Stop if items were lost or exact indexes did not serve what they must; undecided if nothing was compared."""
    gaps = [gap.size for gap in drill.off_exact()]
    if is_alarming(drill) or any(map(math.isinf, gaps)) or (drill.facts.is_exact and any(gaps)):
        return Decision.STOP
    return Decision.GO if gaps else Decision.OPEN


def source(drill: Drill) -> str:
    """The configuration behind the numbers: "full RM, classifier_score order, raw merge; exact indexes"."""
    facts = drill.facts
    names = [facts.title or facts.method]
    names += [f"{name} {what}" for name, what in ((facts.order, "order"), (facts.merge, "merge")) if name]
    indexes = ("; exact indexes" if facts.is_exact else "; approximate indexes") + "; --service" * facts.has_service
    return ", ".join(name for name in names if name) + indexes


def moment(checkpoint: CheckpointRow) -> str:
    """The moment of a checkpoint: "t = 40 %", "the end of the rollback"."""
    if checkpoint.is_rollback:
        return "the end of the rollback" if checkpoint.new_items == 0 else "the rollback"
    return f"t = {progress(checkpoint)}"


def wrong_number(missing: int) -> str:
    """The error in the number of served items: "2 items too few"."""
    return f"{count(abs(missing))} items too {'few' if missing > 0 else 'many'}"


def glossary(drill: Drill) -> dict[str, str]:
    """Term -> definition: the general terms, and those that this drill needs."""
    general = {word: GLOSSARY[word] for word in ("Backfill", "M_t", "Order", "Merge")}
    is_needed = {
        "Recall": not drill.facts.is_exact,
        "Churn": drill.facts.has_churn,
        "Kept old": any(c.kept_old for c in drill.checkpoints),
        "Rollback": drill.rolled_back,
        "Leg": drill.facts.legs > 1,
    }
    further = {word: meaning for word, meaning in FURTHER_GLOSSARY.items() if is_needed[word]}
    return general | LIVE_GLOSSARY | of_metrics(drill.metrics) | dict(drill.facts.glossary) | further


def _promise(drill: Drill) -> str:
    off_exact, off_promise = drill.off_exact(), drill.off_promise()
    everywhere = _at_all(len(drill.checkpoints))
    farthest = max(off_exact, key=lambda g: abs(g.size), default=None)
    if farthest is None:
        return "No metric is defined for these queries, so nothing was compared."
    if math.isinf(farthest.size):
        return f"Live answers gave no {farthest.metric} at {moment(farthest.checkpoint)}, where exact indexes do."
    if farthest.size == 0:
        off = max(off_promise, key=lambda g: abs(g.size), default=None)
        known = len({g.checkpoint.moment for g in off_promise})
        if off is not None and off.size == 0 and known == len(drill.checkpoints):
            return f"Live quality equals the replayed curve {everywhere}."
        exact = f"Live quality equals what exact indexes give {everywhere}"
        if off is None:
            return f"{exact}."
        if off.size == 0:
            return f"{exact}, and the replayed curve at the {known} of them that the replay covers."
        why = ""
        if drill.facts.has_churn:
            why = ", which does not model inserted and deleted items"
        elif any(c.kept_old for c in drill.checkpoints):
            why = ", which does not model broken images"
        return f"{exact}; it differs by up to {_unsigned(off)} from the replayed curve{why}."
    if drill.facts.is_exact:
        return (
            f"Live quality is not what exact indexes give: it is off by up to {_unsigned(farthest)}, although both "
            "indexes are exact."
        )
    lowest = min(off_exact, key=lambda g: g.size)
    if lowest.size >= 0:
        return f"With approximate indexes, live quality is not below that of exact ones {everywhere}."
    return f"With approximate indexes, live quality stays within {_unsigned(lowest)} of what exact ones give."


def _unsigned(gap: Gap) -> str:
    return f"{signed_points(abs(gap.size)).removeprefix('+')} points ({gap.metric}, {moment(gap.checkpoint)})"


def _at_all(number: int) -> str:
    """All checkpoints in words: "at all 11 checkpoints"."""
    return {1: "at the only checkpoint", 2: "at both checkpoints"}.get(number, f"at all {number} checkpoints")


def _losses(drill: Drill) -> str:
    unanswered, sent = drill.total(lambda c: c.unanswered), drill.sent
    violations = drill.total(lambda c: c.violations)
    bad = []
    if violations:
        answers = "answer" if violations == 1 else "answers"
        bad.append(f"{count(violations)} {answers} violated an invariant of the service")
    if drill.missing:
        checkpoint, items = max(drill.missing, key=lambda missing: abs(missing[1]))
        bad.append(f"at {moment(checkpoint)} {wrong_number(items)} were served")
    if unanswered:
        bad.append(f"{count(unanswered)} of {count(sent)} queries got no answer")
    if bad:
        sentence = "; ".join(bad)
        return f"{sentence[:1].upper()}{sentence[1:]}."
    asked = f"0 of {count(sent)} queries unanswered, " if sent else ""
    whole = f"the two partitions hold the whole gallery {_at_all(len(drill.checkpoints))}"
    return f"Nothing was lost: {asked}0 violations, and {whole}."


def _work(drill: Drill) -> str:
    forward = drill.forward
    if not forward:
        return ""
    first, last = forward[0], forward[-1]
    seconds, done = last.elapsed_s - first.elapsed_s, last.backfilled - first.backfilled
    if len(forward) == 1 or seconds <= 0:
        work = f"At the only checkpoint {count(last.backfilled)} items were backfilled"
    else:
        speed = f"{rate(done / seconds)} per second, pauses included"
        work = f"{count(done)} items were backfilled in {duration(seconds)} ({speed})"
    if last.t < 1 and len(forward) > 1 and not drill.rolled_back:
        work += f", up to {moment(last)}"
    if not drill.has_traffic:
        return f"{work}. No queries were sent meanwhile."
    return f"{work}, while {rate(drill.queries_per_s)} queries per second were answered."


def _latency(drill: Drill) -> str:
    # The first checkpoint's latency is from before the backfill.
    known = [c for c in drill.checkpoints[1:] or drill.checkpoints if math.isfinite(c.p99_ms)]
    if not known:
        return "No checkpoint has the 100 queries before it that a p99 latency takes." if drill.has_traffic else ""
    worst = max(known, key=lambda c: c.p99_ms)
    middle = median(c.p99_ms for c in known)
    sentence = f"p99 latency was {milliseconds(middle)} ms"
    if len(known) > 1:
        sentence += f" at the median checkpoint and {milliseconds(worst.p99_ms)} ms at the worst one ({moment(worst)})"
    both = cost(drill)
    if both:
        before, during = both
        sentence += f"; in a typical second {milliseconds(during)} ms while items were backfilled"
        sentence += f", {milliseconds(before)} ms before the first"
    retried = drill.total(lambda c: c.retried)
    were = "query was" if retried == 1 else "queries were"
    return f"{sentence}." + (f" {count(retried)} {were} retried." if retried else "")


def _approximate(drill: Drill) -> str:
    if drill.facts.is_exact:
        return ""
    old = [(c.old_recall, "old", c) for c in drill.checkpoints]
    new = [(c.new_recall, "new", c) for c in drill.checkpoints]
    recalls = [recall for recall in old + new if math.isfinite(recall[0])]
    if not recalls:
        return ""
    lowest, side, checkpoint = min(recalls, key=lambda recall: recall[0])
    return f"The lowest recall was {percent_sign(lowest)} ({side} items, {moment(checkpoint)})."


def _broken(drill: Drill) -> str:
    kept = max(c.kept_old for c in drill.checkpoints)
    if kept == 1:
        return "1 image could not be read; its item keeps its old embedding."
    return f"{count(kept)} images could not be read; their items keep their old embeddings." if kept else ""


def _churn(drill: Drill) -> str:
    last = drill.checkpoints[-1]
    if not (last.inserted or last.deleted):
        return ""
    came, went = count(last.inserted), count(last.deleted)
    return f"Meanwhile {came} items were inserted and {went} deleted; {count(last.items)} are served at the end."


def _way_back(drill: Drill) -> str:
    if not drill.rolled_back:
        return ""
    back = [c for c in drill.checkpoints if c.is_rollback]
    if not back:
        return "The backfill was rolled back, but nothing was measured afterwards."
    end, before = back[-1], drill.forward[-1:]
    sentence = f"At t = {progress(end)} the backfill was rolled back"
    if before:
        sentence += f", which took {duration(end.elapsed_s - before[0].elapsed_s)}"
    if end.new_items:
        return f"{sentence}; {count(end.new_items)} items still have their new embeddings."
    return f"{sentence}; every item has its old embedding again."


def _incidents(drill: Drill) -> str:
    happened = [i.kind for i in drill.incidents]
    kinds = {kind: happened.count(kind) for kind in happened if kind not in ("rollback", "broken image")}
    sentences = [f"The driver was started {drill.facts.legs} times."] if drill.facts.legs > 1 else []
    if kinds:
        named = [kind + (f" ({times} times)" if times > 1 else "") for kind, times in list(kinds.items())[:FEW]]
        rest = f" and {len(kinds) - FEW} more kinds" if len(kinds) > FEW else ""
        sentences.append(f"Incidents: {', '.join(named)}{rest}.")
    return " ".join(sentences)


def progress(checkpoint: CheckpointRow) -> str:
    """The share that is backfilled: "40 %", "33.3 %"."""
    return f"{100 * checkpoint.t:.4g} %"
