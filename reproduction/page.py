"""Writes one page and its figure from tables and manifests, without training or replay."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ray_backfill.core.errors import InputError
from ray_backfill.core.stages import write_whole
from ray_backfill.page.drawing import to_png
from ray_backfill.page.numbers import percent
from ray_backfill.page.parts import DATA_WORDS
from reproduction import page_tables
from reproduction.claims import CLAIMS, Evidence, Judged, judge
from reproduction.effects import DRAWS, FAILS, HOLDS, LEAST_EFFECT, RULE, UNMEASURED, UNTOLD
from reproduction.figure import curves_figure
from reproduction.markdown import PageTable, markdown_environment
from reproduction.published import PAGE_TABLES
from reproduction.runs import Case, Floats, Runs, SeedRun, read_runs
from reproduction.spread import mean_and_spread
from reproduction.training_free import TrainingFree, best_training_free


@dataclass(frozen=True)
class PageInput:
    """Content of a page."""

    title: str
    """Heading, such as "Omniglot, extended class"."""
    protocol: str
    """Data set, protocol and models, as a paragraph of Markdown."""
    runs: tuple[SeedRun, ...]
    """One results folder per seed."""
    command: str
    """Command that writes the page."""
    date: str
    """Date, as shown on the page."""
    machine: str
    """The machine, such as "two cores of an AMD EPYC, no GPU"."""
    order: str = "classifier_score"
    """Order of the main table, of the figure, and of claims that name no order."""
    figure_methods: tuple[str, ...] = ("old", "new", "offline", "rm_naive", "bct", "fct", "fastfill", "mcl", "rm")
    """Methods in the figure; those that were not run are skipped."""
    kendall_tau: tuple[float, ...] = ()
    """Kendall's tau between the orders by sigma and by the true loss, one per run; empty: not measured."""
    published_runs: tuple[SeedRun, ...] = ()
    """Results folders of the same embeddings with the papers' settings, one per seed; empty: none."""
    long_runs: tuple[SeedRun, ...] = ()
    """Results folders with a new model that was trained longer, for some seeds; empty: none."""
    long_epochs: int = 0
    """Number of epochs of this training."""
    ablation: Path | None = None
    """Parquet file, a row per setting and seed: loss, rho, mining, tau, auc, gain, start, end; None: no ablation."""
    subgroup_runs: tuple[SeedRun, ...] = ()
    """Results folders with subgroups.parquet, one per seed, possibly of another experiment; empty: none."""
    subgroup_note: str = ""
    """Origin of the subgroups, as a sentence."""
    findings: Path | None = None
    """Handwritten Markdown file to include unchanged; None: no findings."""


def write_page(page: PageInput, path: Path) -> None:
    """Write ``path`` and, next to it, the figure of the same name as PNG, each atomically.

    Raises:
        InputError: A file or column is missing, or the seeds do not belong together.
    """
    runs = read_runs(page.runs)
    if page.order not in runs.orders:
        raise InputError(f"no run has {page.order} order; there are: {', '.join(runs.orders)}")
    metrics = [m for m in dict.fromkeys((runs.primary, page_tables.CMC)) if m in runs.metrics]
    figure = curves_figure(runs, page.figure_methods, page.order, metrics)
    picture = path.with_suffix(".png")
    text = render(page, runs, picture.name if figure is not None else None)
    if figure is not None:
        png = to_png(figure)
        write_whole(picture, lambda temporary: temporary.write_bytes(png))
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def render(page: PageInput, runs: Runs, picture: str | None) -> str:
    """The page as Markdown."""
    environment = markdown_environment(Path(__file__).parent)
    subgroups, published, long = (
        read_runs(found) if found else None for found in (page.subgroup_runs, page.published_runs, page.long_runs)
    )
    judged = judge(Evidence(runs, page.order, _kendall(page), subgroups), CLAIMS)
    return environment.get_template("page.md.jinja").render(
        page=page,
        runs=runs,
        picture=picture,
        facts=_facts(page, runs),
        findings=_findings(page.findings),
        left_out=_left_out(runs),
        main=page_tables.main_table(runs, page.order),
        settings=page_tables.settings_table(published, runs, page.order) if published else None,
        tuned=runs.results[0].manifest.tuned,
        long=page_tables.main_table(long, page.order) if long else None,
        claims=_claims_table(judged),
        verdicts=_counts(judged),
        papers=[(paper, page_tables.beside_published(runs, paper, page.order)) for paper in PAGE_TABLES],
        orders=page_tables.orders_table(runs),
        against_random=page_tables.against_random(runs),
        permutations=min(r.manifest.settings.get("evaluation", {}).get("permutations", 1) for r in runs.results),
        merges=page_tables.merges_table(runs, page.order),
        training_free=_training_free_table(runs, page.order),
        ablation=page_tables.ablation_table(page.ablation) if page.ablation else None,
        subgroups=page_tables.subgroup_table(subgroups) if subgroups else None,
        costs=page_tables.costs_table(runs),
        backbones=page_tables.backbones_table(runs),
        rule=RULE,
        least_effect=percent(LEAST_EFFECT),
        draws=f"{DRAWS:,}",
        UNTOLD=UNTOLD,
    )


def _kendall(page: PageInput) -> Floats | None:
    if page.kendall_tau and len(page.kendall_tau) != len(page.runs):
        raise InputError(f"{len(page.kendall_tau)} values of kendall_tau for {len(page.runs)} runs: give one a run")
    return np.array(page.kendall_tau, dtype=np.float64) if page.kendall_tau else None


def _findings(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}): write the findings there as Markdown") from error


def _facts(page: PageInput, runs: Runs) -> list[tuple[str, str]]:
    """Facts about runs and machine: one value if all seeds agree, otherwise one per seed."""
    data = [r.manifest.data for r in runs.results]
    words = {key: name for key, name in DATA_WORDS.items() if key != "fingerprint"}
    sizes = [(name, _agreed([d.get(key) for d in data])) for key, name in words.items() if any(key in d for d in data)]
    versions = [r.manifest.versions for r in runs.results]
    names = dict.fromkeys(name for v in versions for name in v)
    return [
        ("seeds", ", ".join(map(str, runs.seeds))),
        ("primary metric", runs.primary),
        ("order of the main table", page.order),
        *sizes,
        ("date", page.date),
        ("machine", page.machine),
        ("versions", ", ".join(f"{name} {_agreed([v.get(name) for v in versions])}" for name in names)),
    ]


def _agreed(values: list[object]) -> str:
    texts = [f"{v:,}" if isinstance(v, int) and not isinstance(v, bool) else str(v) for v in values]
    return texts[0] if len(set(texts)) == 1 else " / ".join(texts)


def _left_out(runs: Runs) -> list[tuple[str, str]]:
    reasons: dict[str, str] = {}
    for results in reversed(runs.results):
        reasons |= {each.words: each.reason for each in results.manifest.left_out}
    return sorted(reasons.items())


def _claims_table(judged: list[Judged]) -> PageTable:
    rows = (
        (j.claim.text + (f" ({j.claim.note})" if j.claim.note else ""), j.claim.source, j.words, j.verdict)
        for j in judged
    )
    return PageTable(("claim", "source", "measured", "here"), tuple(rows))


def _counts(judged: list[Judged]) -> dict[str, int]:
    return {v: sum(j.verdict == v for j in judged) for v in (HOLDS, FAILS, UNTOLD, UNMEASURED)}


def _training_free_table(runs: Runs, order: str) -> PageTable | None:
    """The best combination in the main order, and over all orders that need no training."""
    found = [
        (name, best)
        for name, orders in ((f"{order} order", (order,)), ("any order", runs.orders))
        if (best := best_training_free(runs, orders)) is not None
    ]
    if not found:
        return None
    header = (
        "",
        "best of",
        "method",
        "merge",
        "order",
        f"AUC {runs.primary}",
        "gain vs raw",
        "full RM's",
        "share of it",
    )
    return PageTable(header, tuple(_training_free_row(runs, name, best) for name, best in found))


def _training_free_row(runs: Runs, name: str, best: TrainingFree) -> tuple[str, ...]:
    case: Case = best.best
    gains = (mean_and_spread(g_S) for g_S in (best.gain_S, best.rm_gain_S, best.share_S))
    what = (name, str(best.tried), runs.title(case.method), case.merge, case.order)
    return (*what, mean_and_spread(best.area_S), *gains)
