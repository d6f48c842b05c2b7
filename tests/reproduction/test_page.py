"""The page as a whole: complete with everything, still there with almost nothing, and never half written."""

import dataclasses
import json
import re
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from ray_backfill.compare.analyses.costs import CostRow
from ray_backfill.core.errors import InputError
from ray_backfill.core.schema import frame, write_table
from ray_backfill.learn.training.fit import Tuned
from reproduction.claims import CLAIMS
from reproduction.figure import curves_figure
from reproduction.page import PageInput, write_page
from reproduction.runs import Case, SeedRun, read_runs
from tests.reproduction.folder import ORDER, Made, T, flat, runs_of, write_seed

pytestmark = pytest.mark.full

FINDINGS = "## Findings\n\nBy hand: {{ no template }} | <b>as it is</b>."


def page_of(tmp_path: Path) -> PageInput:
    """Three seeds, two orders, two merges, everything else too."""
    gaps = {Case("fastfill", "sigma"): (0.2, 0.1, 0.08, 0.06, 0.05)}
    made = {Case("rm", ORDER): Made(0.40, 0.60), Case("rm_naive", ORDER): Made(0.30, 0.50)}
    made |= {Case("rm", "random"): flat(0.45), Case("rm_naive", ORDER, "csls"): flat(0.45)}
    made |= {Case("fastfill", "sigma"): flat(0.47), Case("rm_naive", "random"): flat(0.37)}
    runs = tuple(SeedRun(s, write_seed(tmp_path / f"s{s}", made, gaps=gaps)) for s in range(3))
    tuned = [Tuned("rm", "mAP", 8, {"heads.lr": 0.003, "heads.loss.hard_mining": True}, 0.5, 0.4)]
    found = json.loads((tmp_path / "s0" / "manifest.json").read_text())
    (tmp_path / "s0" / "manifest.json").write_text(json.dumps(found | {"tuned": [asdict(each) for each in tuned]}))
    as_published = {Case("rm", ORDER): Made(0.35, 0.45)}
    published = tuple(SeedRun(s, write_seed(tmp_path / f"p{s}", as_published)) for s in range(3))
    long = (SeedRun(0, write_seed(tmp_path / "long", {Case("rm", ORDER): Made(0.45, 0.65)})),)
    cost = CostRow("rm", "full RM", "new", 0.0, 0, 0, 0, 2_000_000_000, "new", 0.0)
    write_table(tmp_path / "s0" / "costs.parquet", frame(CostRow, [cost]))
    setting = {"loss": "mcl", "rho": True, "mining": True, "tau": 0.1, "auc": 0.5, "gain": 1, "start": 0.4, "end": 0.6}
    pd.DataFrame([setting]).to_parquet(tmp_path / "ablation.parquet")
    (tmp_path / "findings.md").write_text(FINDINGS)
    return PageInput(
        title="Omniglot, extended class",
        protocol="Real images.",
        runs=runs,
        command="make reproduce",
        date="2026-11-21",
        machine="two cores | no GPU",
        kendall_tau=(0.6, 0.61, 0.62),
        published_runs=published,
        long_runs=long,
        long_epochs=40,
        ablation=tmp_path / "ablation.parquet",
        subgroup_runs=runs,
        subgroup_note="Faces.",
        findings=tmp_path / "findings.md",
    )


def sections(text: str) -> list[str]:
    return re.findall(r"^## (.*)$", text, flags=re.MULTILINE)


def test_references_are_drawn_as_steps(tmp_path: Path) -> None:
    """Offline stays at the old service until everything is backfilled; a slope to the end would be an upgrade."""
    figure = curves_figure(read_runs(page_of(tmp_path).runs), ("offline", "rm"), ORDER, ("mAP",))
    assert figure is not None
    panel, _ = figure.axes
    drawn = {line.get_drawstyle(): line.get_ydata() for line in panel.get_lines()}
    assert drawn.keys() == {"steps-post", "default"}
    assert np.asarray(drawn["steps-post"])[0] == pytest.approx(31), "that of offline"


def test_everything(tmp_path: Path) -> None:
    write_page(page_of(tmp_path), tmp_path / "docs" / "omniglot.md")
    text = (tmp_path / "docs" / "omniglot.md").read_text(encoding="utf-8")
    assert sections(text) == [
        *("Findings", "How it was measured", "Results", "As published and tuned", "A longer-trained new model"),
        "What the papers claim",
        *("Comparison with the papers' tables", "Orders", "Merges"),
        "Without training",
        *("Loss, rho, mining and temperature", "Gap between subgroups", "Costs"),
    ]
    for line in (
        "# Omniglot, extended class",
        "| seeds | 0, 1, 2 |",
        "| gallery items | 1,936 |",
        "| date | 2026-11-21 |",
        "| machine | two cores \\| no GPU |",
        "| versions | ray_backfill 0.1.0, numpy 2.4.6 |",
        "    make reproduce",
        "![mAP while the gallery is backfilled, mean over seeds](omniglot.png)",
        "| rm | 50.0 ± 0.0 | 70.0 ± 0.0 | 100.0 ± 0.0 | 40.0 ± 0.0 | 60.0 ± 0.0 | 0.0 ± 0.0 | 5.0 ± 0.0 |",
        "- fct_side: no side information",
        "| rm | 40.0 ± 0.0 | 50.0 ± 0.0 | 35.0 ± 0.0 | 45.0 ± 0.0 | 50.0 ± 0.0 | 100.0 ± 0.0 | 40.0 ± 0.0 | 60.0 ± 0.0 "
        "| heads.lr 0.003, heads.loss.hard_mining True |",
        "| rm | 55.0 | 75.0 | 125.0 | 45.0 | 65.0 | 0.0 | 5.0 |",
        "| classifier_score order | 2 | rm naive | csls | classifier_score | 45.0 ± 0.0 | 75.0 ± 0.0 | 100.0 ± 0.0 "
        "| 75.0 ± 0.0 |",
        "| fastfill | sigma | 20.0 ± 0.0 | 10.0 ± 0.0 | 8.0 ± 0.0 | 5.0 ± 0.0 | 67 % | 80 % |",
        "| rm | new | 0 | 0 | 0 | 0 | 2.0 G | new | 0 |",
    ):
        assert line in text.splitlines()
    assert FINDINGS in text
    assert "Here: the best of 8 settings for each method" in text
    assert "for 40 epochs (seed 0)." in text
    assert "| better, above, below | interval above 0, and effect at least e | interval below e |" in text
    assert "2,000 draws over queries and Student's t of the means of 3 seeds" in text
    assert "The least effect e that counts is 0.5 points." in text
    assert "\n\n\n" not in text


def test_every_table_is_a_table(tmp_path: Path) -> None:
    """Each row has as many cells as its header; each block stands between empty lines, or it would not be a table."""
    write_page(page_of(tmp_path), tmp_path / "omniglot.md")
    blocks = (tmp_path / "omniglot.md").read_text(encoding="utf-8").replace(FINDINGS, "").split("\n\n")
    found = [block.splitlines() for block in blocks if "|---|" in block]
    assert len(found) == 17
    for lines in found:
        assert all(line.startswith("|") and line.endswith("|") for line in lines)
        assert re.fullmatch(r"\|(---\|)+", lines[1])
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1


def test_each_claim_has_a_row(tmp_path: Path) -> None:
    write_page(page_of(tmp_path), tmp_path / "omniglot.md")
    lines = (tmp_path / "omniglot.md").read_text(encoding="utf-8").splitlines()
    for claim in CLAIMS:
        (line,) = [x for x in lines if x.startswith((f"| {claim.text} |", f"| {claim.text} ({claim.note}) |"))]
        assert line.endswith(("| holds |", "| **does not hold** |", "| not distinguishable |", "| not measured |"))
    assert (
        "| Full RM is better than RM naive | RM, table 1 | AUC +10.0 points [10.0, 10.0]; seeds +10.0, +10.0, +10.0 "
        "| holds |"
    ) in lines


def test_one_seed_and_nothing_else(tmp_path: Path) -> None:
    runs = (SeedRun(7, write_seed(tmp_path / "s", {Case("bct", ORDER): flat(0.4)}, versions={}, left_out=[])),)
    page = PageInput("Small", "Few.", runs, "make reproduce", "today", "here")
    write_page(page, tmp_path / "small.md")
    text = (tmp_path / "small.md").read_text(encoding="utf-8")
    assert sections(text) == [
        "How it was measured",
        "Results",
        "What the papers claim",
        "Comparison with the papers' tables",
    ]
    assert "| bct | 40.0 | 60.0 | 50.0 | 40.0 | 40.0 | 0.0 | 5.0 |" in text
    assert "one seed" in text
    assert "one seed says nothing about other seeds" in text
    assert "nan" not in text.lower()
    assert "None" not in text


def test_the_same_page_twice(tmp_path: Path) -> None:
    page = page_of(tmp_path)
    for name in ("a", "b"):
        write_page(page, tmp_path / name / "omniglot.md")
    for file in ("omniglot.md", "omniglot.png"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_a_page_that_cannot_be_made_leaves_the_old_one(tmp_path: Path) -> None:
    page = page_of(tmp_path)
    write_page(page, tmp_path / "docs" / "omniglot.md")
    before = {p.name: p.read_bytes() for p in (tmp_path / "docs").iterdir()}
    bad = [
        ({"ablation": tmp_path / "none.parquet"}, "is missing"),
        ({"findings": tmp_path / "none.md"}, "cannot be read"),
        ({"kendall_tau": (0.6,)}, "1 values of kendall_tau for 3 runs"),
        ({"order": "margin"}, "no run has margin order; there are: random, classifier_score, sigma"),
    ]
    for change, message in bad:
        with pytest.raises(InputError, match=message):
            write_page(dataclasses.replace(page, **change), tmp_path / "docs" / "omniglot.md")  # type: ignore[arg-type]
    assert {p.name: p.read_bytes() for p in (tmp_path / "docs").iterdir()} == before


def test_figure_draws_means_and_bands(tmp_path: Path) -> None:
    case = Case("rm", ORDER)
    runs = runs_of(tmp_path, {case: Made(0.40, 0.60)}, {case: Made(0.44, 0.60)})
    figure = curves_figure(runs, ("old", "rm", "not_run"), ORDER, ("mAP",))
    assert figure is not None
    plot = figure.axes[0]
    lines = {line.get_color(): np.asarray(line.get_ydata()) for line in plot.lines}
    assert len(lines) == 2
    assert any(np.allclose(y, [100 * (0.42 + t * 0.18) for t in T]) for y in lines.values())
    # vertices of the band: (t, value); 40 and 44 at t = 0 have the standard deviation 2 sqrt(2) about 42
    bands = [np.asarray(c.get_paths()[0].vertices, dtype=np.float64) for c in plot.collections]
    (band,) = [b for b in bands if b[:, 1].max() > 50]
    at_start = band[band[:, 0] == 0, 1]
    assert (at_start.min(), at_start.max()) == pytest.approx((42 - 8**0.5, 42 + 8**0.5))


def test_figure_of_nothing(tmp_path: Path) -> None:
    assert curves_figure(runs_of(tmp_path, {}), ("rm",), ORDER, ("mAP",)) is None


def test_figure_of_seeds_at_different_moments(tmp_path: Path) -> None:
    folders = [write_seed(tmp_path / f"seed-{s}", {Case("rm", ORDER): flat(0.4)}) for s in range(2)]
    curves = pd.read_parquet(tmp_path / "seed-1" / "curves.parquet")
    curves[curves.t != 0.25].to_parquet(tmp_path / "seed-1" / "curves.parquet")
    runs = read_runs(SeedRun(s, folder) for s, folder in enumerate(folders))
    with pytest.raises(InputError, match="different moments"):
        curves_figure(runs, ("rm",), ORDER, ("mAP",))


def test_picture_is_a_picture(tmp_path: Path) -> None:
    write_page(page_of(tmp_path), tmp_path / "omniglot.md")
    with Image.open(tmp_path / "omniglot.png") as picture:
        assert picture.format == "PNG"
        assert picture.width == 1350
