"""The papers' claims, and whether they hold here: one rule per claim, a margin whose sign decides.

For each seed, the margin is above 0 if the claim is true, below 0 if the reverse is true, and NaN if it was not
measured.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ray_backfill.papers.names import REFERENCES
from ray_backfill.papers.published import FF_KENDALL_TAU
from ray_backfill.papers.runs import Case, Floats, Runs
from ray_backfill.papers.spread import mean_of, plain, seed_by_seed
from ray_backfill.papers.subgroups import EARLY, gap_at, moments_read, share_closed
from ray_backfill.report.wording import percent

HOLDS, FAILS, UNTOLD, UNMEASURED = "holds", "**does not hold**", "not distinguishable", "not measured"
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
    """(S,) margins of one claim, and the text for the page."""

    margin_S: Floats
    words: str


@dataclass(frozen=True)
class Claim:
    """A claim and its rule. strict: a margin of 0 is not enough."""

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


def verdict(margin_S: Floats, strict: bool) -> str:
    """Holds if true for every seed, does not hold if reversed for every seed, otherwise not distinguishable.

    A seed that was not measured counts as neither, so only all seeds together can decide a claim.
    """
    if not np.isfinite(margin_S).any():
        return UNMEASURED
    clear_S = np.where(np.abs(margin_S) <= EQUAL, 0.0, margin_S)
    if np.all(clear_S > 0 if strict else clear_S >= 0):
        return HOLDS
    return FAILS if np.all(clear_S < 0) else UNTOLD


def judge(evidence: Evidence, claims: Iterable[Claim]) -> list[Judged]:
    """Judge every claim in the given sequence, including those that were not measured."""
    found = ((claim, claim.measure(evidence)) for claim in claims)
    return [Judged(claim, verdict(m.margin_S, claim.strict), m.words) for claim, m in found]


def _case(evidence: Evidence, side: Side) -> Case:
    return Case(side.method, side.order or evidence.order)


def _missing(evidence: Evidence, *sides: Side) -> Measured | None:
    cases = [_case(evidence, side) for side in sides]
    lacking = [c for c in cases if not evidence.runs.has(c)]
    if not lacking:
        return None
    names = (c.method if c.method in REFERENCES else f"{c.method} in {c.order} order" for c in lacking)
    words = f"no seed has {', '.join(names)}"
    return Measured(np.full(len(evidence.runs.seeds), np.nan), words)


def better(one: Side, other: Side) -> Callable[[Evidence], Measured]:
    """AUC of one minus AUC of the other, paired by seed."""

    def measure(evidence: Evidence) -> Measured:
        areas = [evidence.runs.areas(_case(evidence, side)) for side in (one, other)]
        margin_S = areas[0] - areas[1]
        return _missing(evidence, one, other) or Measured(margin_S, f"AUC {seed_by_seed(margin_S)} points")

    return measure


def ends_above(one: Side, other: Side) -> Callable[[Evidence], Measured]:
    """M_1 of one minus M_1 of the other, paired by seed."""

    def measure(evidence: Evidence) -> Measured:
        ends = [evidence.runs.values(_case(evidence, side), lambda row: row.end) for side in (one, other)]
        margin_S = ends[0] - ends[1]
        return _missing(evidence, one, other) or Measured(margin_S, f"M_1 {seed_by_seed(margin_S)} points")

    return measure


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
        return _missing(evidence, side) or Measured(margin_S, words)

    return measure


def best_of(side: Side, rivals: tuple[str, ...]) -> Callable[[Evidence], Measured]:
    """AUC of one minus the best AUC of the rivals that were run."""

    def measure(evidence: Evidence) -> Measured:
        cases = [_case(evidence, Side(m, side.order)) for m in rivals]
        run = [c for c in cases if evidence.runs.has(c)]
        if missing := _missing(evidence, side) or (None if run else _missing(evidence, *(Side(m) for m in rivals))):
            return missing
        areas = [evidence.runs.areas(c) for c in run]
        margin_S = evidence.runs.areas(_case(evidence, side)) - np.fmax.reduce(areas)
        closest = run[int(np.argmax([mean_of(a) for a in areas]))].method
        left = [c.method for c in cases if c not in run]
        words = f"AUC {seed_by_seed(margin_S)} points above the best rival, {evidence.runs.title(closest)} by its mean"
        return Measured(margin_S, words + (f"; not run: {', '.join(left)}" if left else ""))

    return measure


def worst_of(method: str) -> Callable[[Evidence], Measured]:
    """The lowest AUC of all other methods in the main order, except references, minus the AUC of this one."""

    def measure(evidence: Evidence) -> Measured:
        runs = evidence.runs
        others = [m for m in runs.methods if m not in REFERENCES and runs.has(Case(m, evidence.order))]
        if missing := _missing(evidence, Side(method)):
            return missing
        if not others:
            return Measured(np.full(len(runs.seeds), np.nan), "no other method")
        own_S = runs.areas(Case(method, evidence.order))
        leads = {m: runs.areas(Case(m, evidence.order)) - own_S for m in others}
        margin_S = np.fmin.reduce(list(leads.values()))
        below = [runs.title(m) for m, lead_S in leads.items() if mean_of(lead_S) < -EQUAL]
        words = f"AUC of the lowest of {len(others)} others {seed_by_seed(margin_S)} points above it"
        return Measured(margin_S, words + (f"; below it by their means: {', '.join(below)}" if below else ""))

    return measure


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
    Claim("MCL is no worse than CL-M, without rho", "RM, figure 8", better(Side("mcl"), Side("cl_m")), strict=False),
    Claim(
        "CL-M is no worse than CL-S, without rho",
        "RM, figure 8",
        better(Side("cl_m"), Side("cl_s")),
        strict=False,
        note="equal by definition: without rho the second term of eq. 14 has no gradient",
    ),
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
