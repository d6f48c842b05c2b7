"""The papers' claims, and whether they hold here. ``effects`` has the rule for claims that compare two methods.

Other claims have a margin for each seed: above 0 if the claim is true, below 0 if the reverse is true, and NaN if it
was not measured. What is equal by construction is no claim: without rho CL-M and CL-S are the same training. (So figure
8 of RM, where they differ, shows them with rho.)
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from ray_backfill.compare.tables import AUC, END
from ray_backfill.page.numbers import percent
from reproduction.effects import FAILS, HOLDS, UNMEASURED, UNTOLD, Effect, difference, verdict_of_all
from reproduction.names import REFERENCES, UNMIXED
from reproduction.published import FF_KENDALL_TAU
from reproduction.runs import Case, Floats, Runs
from reproduction.spread import by_seed, plain, seed_by_seed
from reproduction.subgroups import EARLY, gap_at, moments_read, share_closed

# Sums of a few hundred float64 shares differ by less than this if they are mathematically equal.
EQUAL = 1e-9
# tau = 0.5: three in four pairs of items have the same sequence in both orders.
LEAST_TAU = 0.5
# Methods that RM's tables 1 and A2 compare full RM with. FastFill is in neither.
RIVALS_OF_RM = ("rm_naive", "bct", "ract", "fct", "fct_side", "bict")


@dataclass(frozen=True)
class Evidence:
    """Input of the rules: runs, the order of the main table and, if available, tau per seed and subgroups."""

    runs: Runs
    order: str
    kendall_tau_S: Floats | None = None
    subgroups: Runs | None = None


class Side(NamedTuple):
    """One side of a comparison; order None: that of the main table."""

    method: str
    order: str | None = None


class Measured(NamedTuple):
    """What was found: (S,) margins by seed, the text for the page, and effects if queries were compared.

    Without effects the verdict follows from the margins, whose sign is that of the claim in each seed.
    """

    margin_S: Floats
    words: str
    effects: tuple[Effect, ...] = ()


@dataclass(frozen=True)
class Claim:
    """A claim and its rule. strict: the claim is that one side is better, not only that it is no worse."""

    text: str
    source: str
    measure: Callable[[Evidence], Measured]
    strict: bool = True
    note: str = ""


class Judged(NamedTuple):
    """A row of the page."""

    claim: Claim
    verdict: str
    words: str


def verdict(measured: Measured, strict: bool) -> str:
    """The verdict by effects; without them, by seeds: true for every seed, or the reverse for every seed.

    A seed without the numbers counts as neither, so only all seeds together can decide a claim.
    """
    margin_S = measured.margin_S
    if not np.isfinite(margin_S).any():
        return UNMEASURED
    if measured.effects:
        return verdict_of_all(measured.effects, strict) if np.isfinite(margin_S).all() else UNTOLD
    clear_S = np.where(np.abs(margin_S) <= EQUAL, 0.0, margin_S)
    if np.all(clear_S > 0 if strict else clear_S >= 0):
        return HOLDS
    return FAILS if np.all(clear_S < 0) else UNTOLD


def judge(evidence: Evidence, claims: Iterable[Claim]) -> list[Judged]:
    """Judge every claim in the given sequence, including those that were not measured."""
    found = ((claim, claim.measure(evidence)) for claim in claims)
    return [Judged(claim, verdict(measured, claim.strict), measured.words) for claim, measured in found]


def _case(evidence: Evidence, side: Side) -> Case:
    return Case(side.method, side.order or evidence.order)


def _missing(evidence: Evidence, *sides: Side) -> Measured:
    """No seed has all of these."""
    lacking = [c for c in (_case(evidence, side) for side in sides) if not evidence.runs.has(c)]
    names = (c.method if c.method in REFERENCES else f"{c.method} in {c.order} order" for c in lacking)
    return Measured(np.full(len(evidence.runs.seeds), np.nan), f"no seed has {', '.join(names)}")


def better(one: Side, other: Side) -> Callable[[Evidence], Measured]:
    """AUC of one side minus AUC of the other."""
    return partial(_pair, one, other, AUC, "AUC")


def ends_above(one: Side, other: Side) -> Callable[[Evidence], Measured]:
    """M_1 of one side minus M_1 of the other."""
    return partial(_pair, one, other, END, "M_1")


def _pair(one: Side, other: Side, quantity: str, name: str, evidence: Evidence) -> Measured:
    margin_S, effect = difference(evidence.runs, _case(evidence, one), _case(evidence, other), quantity)
    if effect is None:
        return _missing(evidence, one, other)
    return Measured(margin_S, f"{name} {_words(margin_S, effect)}", (effect,))


def never_falls(side: Side) -> Callable[[Evidence], Measured]:
    """0 if the largest fall at any judged moment is within the run's margin, otherwise minus this fall."""

    def measure(evidence: Evidence) -> Measured:
        fall_S = evidence.runs.values(_case(evidence, side), lambda row: row.largest_fall)
        margin_S = np.where(fall_S > evidence.runs.margin, -fall_S, 0 * fall_S)
        never = int(np.sum(margin_S == 0))
        falls = seed_by_seed(fall_S, percent)
        words = (
            f"at most {percent(evidence.runs.margin)} points in {never} of {np.isfinite(fall_S).sum()} seeds; "
            f"largest fall {falls} points"
        )
        return Measured(margin_S, words) if np.isfinite(fall_S).any() else _missing(evidence, side)

    return measure


def best_of(side: Side, rivals: tuple[str, ...]) -> Callable[[Evidence], Measured]:
    """AUC of one minus that of each rival that was run: it has to be better than each."""

    def measure(evidence: Evidence) -> Measured:
        cases = [_case(evidence, Side(m, side.order)) for m in rivals]
        found = _against(evidence, _case(evidence, side), cases)
        if not found:
            return _missing(evidence, side, *(Side(m) for m in rivals))
        left = [c.method for c in cases if c not in found]
        closest = min(found, key=lambda c: found[c][1].size)
        words = f"AUC against the best rival, {evidence.runs.title(closest.method)}: {_words(*found[closest])}"
        return _all_of(found, words + (f"; not run: {', '.join(left)}" if left else ""))

    return measure


def worst_of(method: str) -> Callable[[Evidence], Measured]:
    """AUC of each other method that mixes two systems, in the main order, minus that of this one: each is better."""

    def measure(evidence: Evidence) -> Measured:
        runs, own = evidence.runs, Case(method, evidence.order)
        others = [Case(m, evidence.order) for m in runs.methods if m not in UNMIXED]
        found = {
            case: (-margin_S, Effect(-effect.size, -effect.high, -effect.low))
            for case, (margin_S, effect) in _against(evidence, own, others).items()
        }
        if not found:
            alone = Measured(np.full(len(runs.seeds), np.nan), "no other method")
            return alone if runs.has(own) else _missing(evidence, Side(method))
        lowest = min(found, key=lambda c: found[c][1].size)
        words = f"AUC of the lowest of {len(found)} others, {runs.title(lowest.method)}: {_words(*found[lowest])}"
        return _all_of(found, words)

    return measure


def _all_of(found: Mapping[Case, tuple[Floats, Effect]], words: str) -> Measured:
    """A claim about each of these; a seed that lacks one of them has no margin."""
    margins, effects = zip(*found.values(), strict=True)
    return Measured(np.min(margins, axis=0), words, effects)


def _words(margin_S: Floats, effect: Effect) -> str:
    return f"{effect.words}; seeds {by_seed(margin_S)}"


def _against(evidence: Evidence, own: Case, others: Iterable[Case]) -> dict[Case, tuple[Floats, Effect]]:
    """The AUC of one case minus that of each other that was run, by seed and as an effect."""
    found = {case: difference(evidence.runs, own, case, AUC) for case in others}
    return {case: (margin_S, effect) for case, (margin_S, effect) in found.items() if effect is not None}


def follows_the_loss(evidence: Evidence) -> Measured:
    """Kendall's tau between the orders by sigma and by the true loss, minus ``LEAST_TAU``."""
    if evidence.kendall_tau_S is None:
        return Measured(np.full(len(evidence.runs.seeds), np.nan), "no tau was given")
    words = f"tau {seed_by_seed(evidence.kendall_tau_S, plain)}; the paper: {plain(FF_KENDALL_TAU)}"
    return Measured(evidence.kendall_tau_S - LEAST_TAU, words)


def closes_the_gap(side: Side, t: float) -> Callable[[Evidence], Measured]:
    """The gap in CMC@1 between subgroups at the end minus the gap at t: not negative if it is closed at t."""

    def measure(evidence: Evidence) -> Measured:
        runs = evidence.subgroups
        if runs is None:
            return Measured(np.full(len(evidence.runs.seeds), np.nan), "no results with subgroups were given")
        case = Case(side.method, side.order or evidence.order)
        start_S, early_S, end_S = (gap_at(runs, case, moment) for moment in (0.0, t, 1.0))
        if not np.isfinite(early_S).any():
            return Measured(early_S, f"no subgroups of {case.method} in {case.order} order")
        # An upgrade that does not reduce the gap cannot reduce it early.
        margin_S = np.where(start_S > end_S, end_S - early_S, np.nan)
        read = " and ".join(f"{moment:g}" for moment in moments_read(runs, t))
        words = f"gap at t = 1 minus gap at t = {t:g} (read at {read}): {seed_by_seed(margin_S)} points"
        closed = [f"{percent(share_closed(runs, case, moment), 0)} % at t = {moment:g}" for moment in EARLY]
        words += f"; closed of the closable gap: {', '.join(closed)}"
        return Measured(margin_S, words)

    return measure


# AUC of the primary metric; the orders are those of the paper's comparison, otherwise that of the main table.
CLAIMS = (
    Claim("Full RM is better than RM naive", "RM, table 1", better(Side("rm"), Side("rm_naive"))),
    Claim(
        "Full RM is the best of the methods in RM's tables",
        "RM, tables 1 and A2",
        best_of(Side("rm"), RIVALS_OF_RM),
        note="the paper does not compare RM with FastFill",
    ),
    Claim("RM's curve does not fall", "RM, eq. 8 and section 5.3", never_falls(Side("rm")), strict=False),
    Claim("RM naive's curve does not fall", "RM, section 3.3", never_falls(Side("rm_naive")), strict=False),
    Claim(
        "M_1 of RM is not below {new, new}",
        "RM, eq. 7 and section 5.3",
        ends_above(Side("rm"), Side("new")),
        strict=False,
    ),
    Claim("MCL is no worse than CL-M, with rho", "RM, figure 8", better(Side("rm"), Side("cl_m_rho")), strict=False),
    Claim(
        "CL-M is no worse than CL-S, with rho", "RM, figure 8", better(Side("cl_m_rho"), Side("cl_s_rho")), strict=False
    ),
    Claim("MCL is no worse than CL-S, without rho", "RM, section 4.2", better(Side("mcl"), Side("cl_s")), strict=False),
    Claim("BCT's M_1 is below {new, new}", "RM, sections 1 and 2", ends_above(Side("new"), Side("bct"))),
    Claim("BiCT's M_1 is below {new, new}", "RM, section 5.3", ends_above(Side("new"), Side("bict"))),
    Claim("RACT's M_1 is below {new, new}", "RM, section 5.3", ends_above(Side("new"), Side("ract"))),
    Claim("FCT with side information is better than FCT", "RM, table 1", better(Side("fct_side"), Side("fct"))),
    Claim(
        "FastFill (sigma order) is better than FCT (random order)",
        "FF, tables 1 to 3",
        better(Side("fastfill", "sigma"), Side("fct", "random")),
    ),
    Claim(
        "FastFill is better than FCT, both in random order",
        "FF, table 5",
        better(Side("fastfill", "random"), Side("fct", "random")),
    ),
    Claim(
        "l2 + disc is better than l2 (= FCT), in random order",
        "FF, table 5",
        better(Side("fastfill_l2_disc", "random"), Side("fct", "random")),
    ),
    Claim(
        "l2 + disc is better than disc, in random order",
        "FF, table 5",
        better(Side("fastfill_l2_disc", "random"), Side("fastfill_disc", "random")),
    ),
    Claim(
        "Sigma order beats random, FastFill",
        "FF, table 5",
        better(Side("fastfill", "sigma"), Side("fastfill", "random")),
    ),
    Claim(
        "Sigma order beats random, l2 + uncertainty",
        "FF, table 5",
        better(Side("fastfill_l2_u", "sigma"), Side("fastfill_l2_u", "random")),
    ),
    Claim(
        "Sigma order beats entropy, FastFill",
        "FF, tables 6 and 7",
        better(Side("fastfill", "sigma"), Side("fastfill", "entropy")),
    ),
    Claim(
        "Classifier-score order beats random, full RM",
        "RM, figure A11",
        better(Side("rm", "classifier_score"), Side("rm", "random")),
    ),
    Claim(
        "Cosine-to-centroid order beats random, full RM",
        "RM, figure A11",
        better(Side("rm", "centroid_cosine"), Side("rm", "random")),
    ),
    Claim(
        "Sigma follows the true loss",
        "FF, section 4.2 and figure 2c",
        follows_the_loss,
        note=f"our rule: tau above {LEAST_TAU:g}",
    ),
    Claim(
        "A quarter of the backfill closes the gap between subgroups, FastFill in sigma order",
        "FF, section 5.3",
        closes_the_gap(Side("fastfill", "sigma"), 0.25),
        strict=False,
        note="closed: no larger than at the end",
    ),
    Claim(
        "Offline is the worst way to upgrade",
        "FF, figure 1",
        worst_of("offline"),
        note="RM's table 1 has BCT on ImageNet at a gain of 4 %; offline's is 5 % by definition of the trapezoid rule",
    ),
)
