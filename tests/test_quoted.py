"""Figures that README and docs quote are those of stored results (docs/results)."""

import io
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console

from ray_backfill.compare.report import print_table, read_results
from ray_backfill.compare.report.answers import answer
from ray_backfill.compare.selection import RETENTION_WARNING
from ray_backfill.data.judging import TELLS
from reproduction.atlas.facts import facts
from reproduction.atlas.rrf import write_rrf
from tests.test_readme import README
from tests.test_structure import ROOT

DEMO = ROOT / "docs" / "results" / "demo"
DEMO_PAGE = (ROOT / "docs" / "demo.md").read_text(encoding="utf-8")
METHODS_PAGE, MEASURED_PAGE = (
    (ROOT / "docs" / path / "methods.md").read_text(encoding="utf-8") for path in (".", "results")
)
ROWS = {"rm_naive": "RM naive", "ridge_gallery": "ridge, gallery", "fct": "FCT", "rm": "full RM"}


def test_the_table_of_the_demo() -> None:
    printed = io.StringIO()
    print_table(DEMO, Console(width=110, file=printed))
    drawn = [line.rstrip() for line in printed.getvalue().splitlines()]
    table = drawn[: next(i for i, line in enumerate(drawn) if line.startswith("└")) + 1]
    assert "\n".join(f"    {line}" for line in table) in DEMO_PAGE


def rows_of(table: str) -> list[list[str]]:
    """The cells of a table of a page, without its heading."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()[2:]]


def test_the_four_rows_of_the_readme() -> None:
    summary = {row.method: row for row in read_results(DEMO).rows if row.metric == "mAP@100"}
    section = README[README.index("| method |") : README.index("The old service has")]
    for method, cells in zip(ROWS, rows_of(section), strict=True):
        row = summary[method]
        assert f"`{method}`" in cells[0]
        assert cells[2:] == [f"{100 * row.start:.1f} → {100 * row.end:.1f}", f"{100 * row.gain:.0f} %"]
    old, new, head = (100 * summary[name].auc for name in ("old", "new", "rho_alone"))
    assert f"The old service has {old:.1f} mAP@100 and the finished upgrade {new:.1f}." in README
    assert f"Any finished upgrade could add this network: it then has {head:.1f}." in README


def test_the_real_decision_is_that_of_the_atlas() -> None:
    section = README[README.index("| during the backfill |") : README.index("Distances of the two models")]
    table = pd.read_parquet(ROOT / "docs" / "results" / "atlas.parquet")
    upgrade = "collection == 'banking77' and old == 'glove' and new == 'minilm' and train == 1950"
    curves = (
        table.query(f"{upgrade} and fold == '' and order == 'random'").set_index(["method", "merge"]).to_dict("index")
    )
    choices = [("offline", "raw"), ("rm_naive", "raw"), ("rm_naive", "best")]
    choices += [("ridge_gallery", "best"), ("fct", "best"), ("cascade@100", "raw")]
    for cells, choice in zip(rows_of(section), choices, strict=True):
        row = curves[choice]
        start, end, mean, lowest = (
            f"{100 * float(value):.1f}" for value in (row["start"], row["end"], row["auc"], row["curve"].min())
        )
        assert [cell.strip("*") for cell in cells[1:]] == [f"{start} → {end}", mean, lowest]


def test_the_figures_of_the_findings() -> None:
    """The first sentence and the bullet on the report, from the rows that ``reproduction.atlas.facts`` prints."""
    findings = " ".join((ROOT / "docs" / "results" / "atlas-findings.md").read_text(encoding="utf-8").split())
    lines = [*facts(pd.read_parquet(ROOT / "docs" / "results" / "atlas.parquet"))]
    pattern = r"(\w+): mean (\S+); of \d+ decided halves (\S+) % within 0.5, (\S+) % within 1.0; .* (\d+ of \d+) within"
    rows = [found.groups() for line in lines if (found := re.match(pattern, line))]
    assert len(rows) == 13, "no rule more"
    rules = {
        name: (float(mean), f"{float(close):.0f}", f"{float(near):.0f}", of) for name, mean, close, near, of in rows
    }
    mean, (close, near, of) = {name: f"{rule[0]:.1f}" for name, rule in rules.items()}, rules["report"][1:]
    seen, every, hindsight, convex = (rules[name] for name in ("seen", "report_all", "hindsight", "report_convex"))
    merges = [re.search(r"^best, .* below raw in (\d+) of (\d+);", line) for line in lines]
    below, compared = (sum(int(counts[number]) for counts in merges if counts) for number in (1, 2))
    for text in (
        f"loses {mean['report']} points on average against the best",
        f"FCT with the chosen merge {mean['fct_best']}, ridge {mean['ridge_best']} (raw distances {mean['ridge']}), "
        f"rank merge {mean['rank_merge_best']} ({mean['rank_merge']}), switching at the end {mean['switch']}.",
        f"within 0.5 points of the best in {close} % of the halves of decided upgrades, and within 1.0 in {near} %. "
        f"Choosing among all methods and merges by the same half reaches {seen[1]} and {seen[2]} %. "
        f"With all queries it reaches {every[1]} and {every[2]} %, and choosing among all methods and merges with all "
        f"queries {hindsight[1]} and {hindsight[2]} %",
        f"{of} halves are within 0.5 points",
        f"{convex[1]} % with all queries",
        f"below raw distances in {below} of {compared:,} comparisons ({100 * below / compared:.0f} %)",
    ):
        assert text in findings


def test_the_sentences_on_the_demo() -> None:
    which, when, cost, risk = vars(answer(read_results(DEMO))).values()
    assert which[0] == (
        "Merge online with full RM: users get 86 % of the upgrade’s improvement while the backfill runs (95 % interval "
        "81 to 91), but 15.2 % of queries lose their right first result on the first day (finished upgrade: 5.0 %). "
        "mAP@100 goes from 23.9 % to 54.3 % (old service 15.5 %, new model alone 44.5 %). Its head alone (rho_alone, a "
        "comparison: no way to backfill) gives the finished upgrade 55.4 %."
    )
    assert "Until 26 % of the backfill FastFill serves better, by up to 6.2 points." in which
    assert "FastFill is ahead of full RM for the first 26 % of the backfill" in DEMO_PAGE
    assert DEMO_PAGE.splitlines()[2].startswith("Full RM serves 86 % of the upgrade's benefit")
    assert when[1].endswith("as good as the new model from 60 % of the backfill on.")
    assert cost[0].endswith("is embedded by the new model: +2 % query compute against the new model alone.")
    assert "15.2 % on the day of the switch (finished upgrade: 5.0 %)" in risk[0]
    assert "The finished upgrade has 5.0 %" in DEMO_PAGE
    falls = [row.largest_fall for row in read_results(DEMO).rows if row.metric == "mAP@100"]
    assert f"mAP@100 falls by at most {100 * max(falls):.2f} points" in DEMO_PAGE
    assert risk[1:3] == (
        "mAP@100 falls by at most 0.01 points at 101 moments.",
        "CMC@1 falls by 1.8 points at 101 moments, at most by 6.2 (95 % interval).",
    )


def test_the_gains_of_the_four_methods() -> None:
    pages = [
        (ROOT / "docs" / "results" / f"{name}.md").read_text(encoding="utf-8")
        for name in ("omniglot", "landmarks", "tiny_imagenet")
    ]
    table = METHODS_PAGE[: METHODS_PAGE.index("The numbers are the share")]
    for method, title in ROWS.items():
        line = next(line for line in table.splitlines() if f" `{method}` " in line or f" `{method}`: " in line)
        quoted = [int(cell) for cell in re.findall(r"(\d+) % \|", line)]
        rows = (
            re.search(rf"^\| {re.escape(title)} \| \S+ ± \S+ \| \S+ ± \S+ \| (\S+) ± ", page, re.M) for page in pages
        )
        assert quoted == [round(float(row[1])) for row in rows if row]


def test_what_of_full_rm_is_supervision_and_what_is_compatibility() -> None:
    """Of the pages' tables: AUC of old, new, full RM and {rho, rho}, and where full RM ends."""
    methods = " ".join(MEASURED_PAGE.split())
    shares = []
    for name in ("omniglot", "landmarks"):
        page = (ROOT / "docs" / "results" / f"{name}.md").read_text(encoding="utf-8")

        def of(title: str, column: int, page: str = page) -> float:
            line = next(
                line for line in page.splitlines() if line.startswith(f"| {title} | ") and line.count("\u00b1") == 7
            )
            return float(line.split(" | ")[column].split(" ")[0])

        old, new, head = of("old", 1), of("new", 1), of("{rho, rho}, rho alone", 1)
        assert f"{head} mAP" in methods
        assert any(f"({words}{new}; {other}{old})" in methods for words, other in (("without it ", "old "), ("", "")))
        assert f"{of('full RM', 5)}" in methods
        shares.append(100 * (of("full RM", 1) - old) / (head - old))
    assert f"{shares[0]:.0f} % of the way" in methods
    assert f"{shares[1]:.0f} % on landmarks" in methods


def test_the_known_error_of_retention() -> None:
    page = (ROOT / "docs" / "results" / "retention.md").read_text(encoding="utf-8")
    table = page[: page.index("- **Retention")]
    # Mean error in points, its sign, and tau, for each data set.
    cells = re.findall(r"([\d.]+) \(([−+])[\d.]+\), ([\d.]+)", table)
    errors = [float(error) for error, _, _ in cells]
    assert len(errors) == 8 * 4
    closest = [
        float(error)
        for error in re.findall(r"([\d.]+) \(", next(line for line in table.splitlines() if "recall@10" in line))
    ]
    assert f"{min(closest):.1f} to {max(closest):.1f} points on average" in page
    by_metric = page[page.index("## By the metric") : page.index("## By the number")]
    further = re.findall(r"([\d.]+) \([−+][\d.]+\), ([−\d.]+)", by_metric)
    assert len(further) == 2 * 6 * 6
    rows = [line.strip(" |").split(" | ") for line in by_metric.splitlines() if line.startswith("| ")]
    read_by = {name: [float(row[column].split(" ")[0]) for row in rows[1:]] for column, name in enumerate(rows[0])
               if name in ("CMC@1", "nDCG@10", "recall@10", "recall@20")}  # fmt: skip
    for name, values in read_by.items():
        for first in (0, 7):
            assert abs(values[first + 6] - sum(values[first : first + 6]) / 6) < 0.06, name
    assert max(read_by["recall@10"][6], read_by["recall@20"][6]) < 9.5
    assert min(read_by["nDCG@10"][6::7]) > 14
    errors += [float(error) for error, _ in further]
    closest += [value for place, value in enumerate(read_by["recall@10"]) if place % 7 < 6]
    assert f"were up to {max(errors):.0f} points away" in RETENTION_WARNING
    assert f"by up to {max(errors):.0f} in other forms" in page
    assert f"by {min(closest):.0f} to {max(closest):.0f} points on average" in page
    assert f"new-top1 by recall@10 {min(closest):.0f} to {max(closest):.0f}, mostly too low" in RETENTION_WARNING
    line = next(line for line in table.splitlines() if "`new-top1`, recall@10" in line)
    assert line.count("(+") == 2, "too high on two of them"
    assert table.count("(+") == 2, "all others too low"
    taus = [float(tau) for _, _, tau in cells]
    assert f"tau is between {min(taus):.1f} and {max(taus):.1f}" in page
    every = [*taus, *(float(tau.replace("−", "-")) for _, tau in further)]
    assert f"was {min(every):.1f} to {max(every):.1f} ".replace("-", "−") in RETENTION_WARNING


def test_what_judgements_tell() -> None:
    page = (ROOT / "docs" / "results" / "judging.md").read_text(encoding="utf-8")
    measured = re.findall(r"^ +\d+ +\[(\d+), \d+\) +(\d+|50, 100) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)", page, re.M)
    assert len(measured) == 5 * 4
    found = {(int(least), judged): shares for least, judged, *shares in measured}
    for least, name in ((20, "20 or more"), (10, "10 to 20"), (5, "5 to 10"), (2, "2 to 5"), (0, "below 2")):
        row = next(line for line in page.splitlines() if line.startswith(f"| {name} |"))
        for judged in ("25", "50", "100", "50, 100"):
            assert f"| {' / '.join(found[least, judged][1:])} |" in row
    right = {least: float(found[least, "50"][1]) for least in (20, 10, 5, 2, 0)}
    assert f"{right[20]} % of draws" in page
    assert f"in {right[10]:.0f} % at 10 to 20 points, and in {right[5]:.0f} % at" in page
    assert right[20] > 99
    assert f"in {right[10]:.0f} % of cases by 10 to 20, in {right[5]:.0f} % by 5 to 10" in TELLS
    assert max(right[2], right[0]) < 25, "closer models mostly stay open"
    wrong = {least: found[least, "50"][3] for least in right}
    assert f"It was wrong in {wrong[0]} % of draws below 2 points, and in none above" in page
    assert {wrong[least] for least in (2, 5, 10, 20)} == {"0.0"}


RRF_PAGE = ROOT / "docs" / "rrf.md"


def test_the_page_on_rank_fusion_is_that_of_the_atlas(tmp_path: Path) -> None:
    """Its command makes the same page, and single cells come out of the curves in another way."""
    shutil.copy(RRF_PAGE, tmp_path / "rrf.md")
    (tmp_path / "results").mkdir()
    curves = pd.read_parquet(ROOT / "docs" / "results" / "atlas.parquet")
    write_rrf(curves, tmp_path / "rrf.md")
    page = RRF_PAGE.read_text(encoding="utf-8")
    command = "python -m reproduction.atlas.rrf docs/results/atlas.parquet docs/rrf.md"
    assert (tmp_path / "rrf.md").read_text(encoding="utf-8") == page, f"the atlas has changed: {command}"
    assert command in page
    assert (tmp_path / "results" / "atlas-rrf.png").stat().st_size > 10_000
    whole = curves.query("fold == '' and order == 'random' and train == 1950")
    names = ["collection", "old", "new", "auc", "curve", "old_auc", "overlap"]
    of = {
        key: {tuple(row[:3]): row[3:] for row in own[names].to_numpy().tolist()}
        for key, own in whole.groupby(["method", "merge"])
    }
    raw, rrf, best = (of["rm_naive", merge] for merge in ("raw", "rrf", "best"))
    below = sum(min(100 * each - 100 * old_auc for each in curve) < -1e-4 for _, curve, old_auc, _ in rrf.values())
    cells = next(row for row in rows_of(page[page.index("|  | mean") : page.index("| upgrades")]) if row[0] == "RRF")
    assert cells[1] == f"{100 * np.mean([auc for auc, *_ in rrf.values()]):.1f}"
    assert cells[2] == f"{100 * np.mean([curve[1] for _, curve, *_ in rrf.values()]):.1f}"
    assert cells[6] == f"{max(100 * old_auc - 100 * min(curve) for _, curve, old_auc, _ in rrf.values()):.1f}"
    assert cells[7] == str(below)
    # The sentences.
    assert "better than RRF** but in one upgrade" in page
    assert sum(rrf[key][0] > best[key][0] for key in rrf) == 1
    apart = [key for key in raw if raw[key][3] == 0]
    assert all(rrf[key][0] > raw[key][0] for key in apart), "better wherever they do not overlap"
    level = [rrf[key][0] - raw[key][0] for key in raw if key not in apart]
    assert abs(100 * np.mean(level)) < 0.5, "level on average where they overlap"
    at = {name: 100 * np.mean([own[key][1] for key in own], axis=0) for name, own in (("raw", raw), ("rrf", rrf))}
    old = 100 * np.mean([row[2] for row in raw.values()])
    assert all(at["rrf"][end] < min(old, at["raw"][end]) for end in (1, -2)), "worse at both ends"
    assert at["rrf"][50] > at["raw"][50]
    assert "seven new models are worse" in page
    assert sum(curve[-1] < old_auc for _, curve, old_auc, _ in of["offline", "raw"].values()) == 7
    assert "but not before a tenth or after nine tenths" in page
    some = 100 * np.mean([np.array(rrf[key][1]) - rrf[key][2] for key in apart], axis=0)
    assert (some[10:91] > 0).all()


def test_the_example_of_rank_fusion() -> None:
    """1 / (60 + rank) summed over lists, as Cormack et al. write it."""

    def fused(lists: dict[str, int], weight: float = 0.5) -> list[str]:
        scores = [
            (2 * (weight if name == "new" else 1 - weight) / (60 + rank), name)
            for name, length in lists.items()
            for rank in range(1, length + 1)
        ]
        return [name for _, name in sorted(scores, key=lambda each: -each[0])][:10]

    assert all(fused({"old": 1000 - n, "new": n}).count("new") == 5 for n in (10, 500, 990))
    page = RRF_PAGE.read_text(encoding="utf-8")
    assert "until 46.6 %, so the first ten are all old, and from 53.4 % on" in page
    shares = [t / 1000 for t in range(10, 991)]
    first = [fused({"old": round(1000 - 1000 * t), "new": round(1000 * t)}, weight=t) for t in shares]
    assert max(t for t, names in zip(shares, first, strict=True) if "new" not in names) == 0.465
    assert min(t for t, names in zip(shares, first, strict=True) if "old" not in names) == 0.535
    # Old vectors kept: the nearest backfilled item is in both lists, whatever its rank among the old vectors.
    assert min(1 / 61 + 1 / (60 + rank) for rank in range(1, 1001)) > 1 / 61
