"""The tables of a page as text. Each function returns one table of the runs, or None if there is nothing to show."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ray_backfill.compare.results import Row
from ray_backfill.core.schema import read_table
from ray_backfill.page.numbers import NOTHING, amount, percent, percent_sign
from reproduction.markdown import PageTable
from reproduction.names import MERGES, ORDERS, REFERENCES, UNMIXED, grouped, in_order
from reproduction.published import Figures, PublishedTable
from reproduction.runs import Case, Floats, Runs
from reproduction.spread import mean_and_spread, mean_of, seeds_interval, signed
from reproduction.subgroups import EARLY, MOMENTS, cases_with_gaps, gap_at, moments_read, share_closed

CMC = "CMC@1"


@dataclass(frozen=True)
class AblationRow:
    """A row of ``ablation.parquet``: one setting of the heads for one seed; tau is NaN if the loss has none."""

    loss: str
    rho: bool
    mining: bool
    tau: float
    auc: float
    gain: float
    start: float
    end: float


def main_table(runs: Runs, order: str) -> PageTable | None:
    """Mean and spread over seeds of every method in one order and the raw merge, in groups."""
    second = CMC if CMC in runs.metrics and runs.primary != CMC else None
    header = (
        *("", f"AUC {runs.primary}", *([f"AUC {second}"] if second else []), "gain", "M_0", "M_1"),
        *("largest fall", "negative flips vs old, max"),
    )
    rows: list[tuple[str, ...]] = []
    for heading, methods in grouped(runs.methods).items():
        cases = [Case(m, order) for m in methods if runs.has(Case(m, order))]
        if cases:
            rows.append((f"*{heading}*", *[""] * (len(header) - 1)))
        for case in cases:
            cmc = [mean_and_spread(runs.areas(case, second))] if second else []
            rows.append((runs.title(case.method), mean_and_spread(runs.areas(case)), *cmc, *_conditions(runs, case)))
    return PageTable(header, tuple(rows)) if rows else None


def _conditions(runs: Runs, case: Case) -> tuple[str, ...]:
    return (
        *(mean_and_spread(runs.values(case, field)) for field in (_gain, _start, _end)),
        mean_and_spread(runs.values(case, lambda r: r.largest_fall)),
        mean_and_spread(runs.values(case, lambda r: r.negative_flips_vs_old_max)),
    )


def settings_table(published: Runs, runs: Runs, order: str) -> PageTable:
    """Every method fitted with the papers' settings beside the same with those of the runs, and what was tuned."""
    header = (
        *("", f"as published: AUC {runs.primary}", "gain", "M_0", "M_1"),
        *(f"here: AUC {runs.primary}", "gain", "M_0", "M_1", "tuned"),
    )
    tuned = {each.method: each.values for each in runs.results[0].manifest.tuned}
    rows = []
    for method in (m for m in published.methods if m not in REFERENCES):
        case = Case(method, order)
        numbers = (
            mean_and_spread(of.values(case, field))
            for of in (published, runs)
            for field in (_area, _gain, _start, _end)
        )
        values = ", ".join(f"{name} {value}" for name, value in tuned.get(method, {}).items())
        rows.append((runs.title(method), *numbers, values or NOTHING))
    return PageTable(header, tuple(rows))


def _area(row: Row) -> float:
    return row.auc


def _gain(row: Row) -> float:
    return row.gain


def _start(row: Row) -> float:
    return row.start


def _end(row: Row) -> float:
    return row.end


def beside_published(runs: Runs, paper: PublishedTable, order: str) -> PageTable:
    """A paper's table, preceded by columns with our results; if the paper takes a plain mean, so do ours."""
    ours = "mean" if paper.plain_mean else "AUC"
    order_of = {entry: entry.order or order for entry in paper.rows}
    has_gain = any(cell is not None and cell.gain is not None for entry in paper.rows for cell in entry.cells)
    orders = ("order",) if any(entry.order for entry in paper.rows) else ()
    gains = ("here: gain",) if has_gain else ()
    header = (
        "",
        *orders,
        f"here: {ours} {runs.primary}",
        f"here: {ours} {CMC}",
        *gains,
        *(column.data_set for column in paper.columns),
    )
    rows = []
    for entry in paper.rows:
        case = Case(entry.method, order_of[entry])
        own = [
            mean_and_spread(runs.values(case, lambda r: r.auc_mean if paper.plain_mean else r.auc, metric))
            for metric in (runs.primary, CMC)
        ]
        gain = [mean_and_spread(runs.values(case, lambda r: r.gain))] if has_gain else []
        printed = [as_printed(cell, paper.digits) for cell in entry.cells]
        rows.append((entry.name, *([case.order] if orders else []), *own, *gain, *printed))
    return PageTable(header, tuple(rows))


def as_printed(cell: Figures | None, digits: int) -> str:
    """A cell of a paper's table: AUC mAP / AUC CMC@1 / gain."""
    if cell is None:
        return NOTHING
    gain = "" if cell.gain is None else f" / {cell.gain:g} %"
    return f"{cell.auc_map:.{digits}f} / {cell.auc_cmc1:.{digits}f}{gain}"


def orders_table(runs: Runs) -> PageTable | None:
    """Mean AUC by method and order, raw merge; the best deployable order of a row in bold."""
    return _grid(runs, runs.orders, ORDERS, lambda method, order: Case(method, order))


def merges_table(runs: Runs, order: str) -> PageTable | None:
    """Mean AUC by method and merge, in one order; the best merge of a row in bold."""
    return _grid(runs, runs.merges, MERGES, lambda method, merge: Case(method, order, merge))


def _grid(
    runs: Runs, columns: Sequence[str], known: tuple[str, ...], case: Callable[[str, str], Case]
) -> PageTable | None:
    methods = [m for m in runs.methods if m not in UNMIXED]
    means = {(m, c): mean_of(runs.areas(case(m, c))) for m in methods for c in columns}
    compared = [m for m in methods if sum(np.isfinite(means[m, c]) for c in columns) > 1]
    used = in_order((c for c in columns if any(np.isfinite(means[m, c]) for m in compared)), known)
    if not compared:
        return None
    rows = []
    for method in compared:
        real = [means[method, c] for c in used if c not in runs.oracles and np.isfinite(means[method, c])]
        best = max(real, default=float("nan"))
        cells = []
        for column in used:
            text = percent(means[method, column])
            cells.append(f"**{text}**" if means[method, column] == best and column not in runs.oracles else text)
        rows.append((runs.title(method), *cells))
    return PageTable(("", *(f"{c} (oracle)" if c in runs.oracles else c for c in used)), tuple(rows))


def against_random(runs: Runs) -> PageTable | None:
    """For each method with a random order: AUC of the other orders minus its AUC, and the number of seeds above 0.

    First its best label-free order, by the mean over seeds, with the 95 % interval of the difference over seeds. The
    last row counts the methods for which an order is better than random in every seed.
    """
    orders = tuple(o for o in runs.orders if o != "random")
    leads: dict[str, list[Floats]] = {}
    for method in (m for m in runs.methods if m not in UNMIXED):
        own = [runs.areas(Case(method, o)) - runs.areas(Case(method, "random")) for o in orders]
        if any(np.isfinite(lead_S).any() for lead_S in own):
            leads[method] = own
    if not leads:
        return None
    rows = []
    for method, own in leads.items():
        by_order = dict(zip(orders, own, strict=True))
        rows.append((runs.title(method), *_best_label_free(runs, by_order), *(_lead(lead_S) for lead_S in own)))
    always = []
    for index in range(len(orders)):
        column = [own[index] for own in leads.values() if np.isfinite(own[index]).any()]
        always.append(f"{sum(bool((lead_S > 0).all()) for lead_S in column)} of {len(column)} methods")
    rows.append(("*better in every seed*", "", "", *always))
    header = ("", "best label-free order", "its difference, 95 % interval over seeds")
    return PageTable((*header, *(f"{o} (oracle)" if o in runs.oracles else o for o in orders)), tuple(rows))


def _best_label_free(runs: Runs, leads: Mapping[str, Floats]) -> tuple[str, str]:
    """The best order without labels of the gallery, and its lead; random if no other is better. leads: by order."""
    means = {o: mean_of(leads[o]) for o in runs.label_free_orders if o in leads}
    best = max((o for o in means if means[o] > 0), key=lambda o: means[o], default=None)
    if best is None:
        return "random", NOTHING
    low, high = seeds_interval(leads[best])
    limits = f" ({signed(low)} to {signed(high)})" if np.isfinite(low) else ""
    return best, signed(means[best]) + limits


def _lead(lead_S: Floats) -> str:
    known = int(np.isfinite(lead_S).sum())
    return f"{signed(mean_of(lead_S))}, {int((lead_S > 0).sum())} of {known}" if known else NOTHING


def ablation_table(path: Path) -> PageTable:
    """Mean and spread over the rows (seeds) of each setting of the heads.

    Raises:
        InputError: no such file, or a column is missing.
    """
    frame = read_table(path, AblationRow, "run ray-backfill reproduce again")
    rows = []
    for key, part in frame.groupby(["loss", "rho", "mining", "tau"], sort=True, dropna=False):
        loss, rho, mining, tau = key
        measured = ("auc", "gain", "start", "end")
        numbers = (mean_and_spread(part[name].to_numpy(dtype=np.float64)) for name in measured)
        what = (str(loss), _yes(rho), _yes(mining), f"{tau:g}" if tau == tau else NOTHING)
        rows.append((*what, *numbers, str(len(part))))
    return PageTable(("loss", "rho", "hard mining", "tau", "AUC", "gain", "M_0", "M_1", "runs"), tuple(rows))


def _yes(flag: object) -> str:
    return "yes" if flag else "no"


def subgroup_table(runs: Runs) -> PageTable | None:
    """The gap between the best and the worst subgroup at several moments, and the share that is closed early."""
    cases = cases_with_gaps(runs)
    if not cases:
        return None
    several = len({c.merge for c in cases}) > 1
    closed = (f"closed at {_moment(runs, m)}" for m in EARLY)
    header = ("", "order", *(["merge"] if several else []), *(_moment(runs, m) for m in MOMENTS), *closed)
    rows = []
    for case in cases:
        free = case.method in REFERENCES
        what = [NOTHING if free else case.order, *([NOTHING if free else case.merge] if several else [])]
        gaps = (mean_and_spread(gap_at(runs, case, m)) for m in MOMENTS)
        shares = (percent_sign(share_closed(runs, case, m), 0) for m in EARLY)
        rows.append((runs.title(case.method), *what, *gaps, *shares))
    return PageTable(header, tuple(rows))


def _moment(runs: Runs, moment: float) -> str:
    read = moments_read(runs, moment)
    if len(read) == 1 and abs(read[0] - moment) < 1e-9:
        return f"t = {moment:g}"
    return f"t = {moment:g} ({'mean of ' if len(read) > 1 else 'read at '}{' and '.join(f'{t:g}' for t in read)})"


def costs_table(runs: Runs) -> PageTable | None:
    """Cost of each method, from the first seed whose run counted it."""
    costs = next((r.costs for r in runs.results if r.costs), ())
    if not costs:
        return None
    header = (
        *("", "models that embed a query", "their MACs a query", "MACs a query beside them", "parameters beside them"),
        *("MACs a gallery item beside them", "FLOPs to fit its map", "models to train", "FLOPs to train those"),
    )
    by_method = {cost.method: cost for cost in costs}
    rows = []
    for name in (m for methods in grouped(by_method).values() for m in methods):
        cost = by_method[name]
        of_query = (cost.query_backbone_macs, cost.query_macs, cost.query_parameters)
        counts = map(amount, (*of_query, cost.gallery_macs, cost.training_flops))
        models = cost.trained_models or NOTHING, amount(cost.backbone_training_flops)
        rows.append((runs.title(name), cost.query_models, *counts, *models))
    return PageTable(header, tuple(rows))


def backbones_table(runs: Runs) -> PageTable | None:
    """Cost of one embedding and of the training of each model, from the first seed's manifest."""
    backbones = runs.results[0].manifest.backbones
    if not backbones:
        return None
    counted = ("parameters", "macs", "training_flops")
    header = ("", "parameters", "MACs an image", "FLOPs of training", "minutes of training")
    rows = (
        (
            name,
            *(amount(facts[key]) for key in counted),
            f"{facts['seconds'] / 60:.1f}" if facts["seconds"] else NOTHING,
        )
        for name, facts in backbones.items()
    )
    return PageTable(header, tuple(rows))
