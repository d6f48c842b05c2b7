"""Numbers of the tables, checked by hand or by plain loops."""

import json
import math
import statistics
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ray_backfill.compare.analyses.costs import CostRow
from ray_backfill.core.errors import InputError
from ray_backfill.core.schema import frame, write_table
from ray_backfill.page.numbers import amount
from reproduction import page_tables
from reproduction.markdown import PageTable
from reproduction.names import grouped, listed
from reproduction.published import FF_TABLE_5, RM_TABLE_1
from reproduction.runs import Case, SeedRun, read_runs
from reproduction.spread import mean_and_spread
from reproduction.training_free import best_training_free
from tests.reproduction.folder import NAN, ORDER, Made, flat, runs_of, write_seed

BEST, LEAD = "best label-free order", "its difference, 95 % interval over seeds"


def row(table: PageTable | None, first: str) -> dict[str, str]:
    """Cells of the row that starts so, by column."""
    assert table is not None
    (found,) = [r for r in table.rows if r[0] == first]
    return dict(zip(table.header, found, strict=True))


def test_mean_and_spread_is_that_of_the_statistics_module() -> None:
    values = [0.412, 0.437, 0.405]
    text = f"{100 * statistics.mean(values):.1f} ± {100 * statistics.stdev(values):.1f}"
    assert mean_and_spread(np.array(values)) == text
    assert mean_and_spread(np.array([*values, np.nan])) == f"{text} (3 of 4 seeds)"
    assert mean_and_spread(np.array([0.412])) == "41.2"
    assert mean_and_spread(np.array([np.nan, np.nan])) == "–"


def test_main_table(tmp_path: Path) -> None:
    case = Case("rm", ORDER)
    runs = runs_of(tmp_path, {case: Made(0.40, 0.50)}, {case: Made(0.42, 0.54, 0.01)})
    # AUC: 45.0; and the second line's points 42, 45, 48, 47, 54 by the trapezoid rule: 47.0
    found = row(page_tables.main_table(runs, ORDER), "rm")
    assert found == {
        "": "rm",
        "AUC mAP": "46.0 ± 1.4",
        "AUC CMC@1": "66.0 ± 1.4",
        "gain": "80.0 ± 7.1",  # (45 - 30) / 20 and (47 - 30) / 20
        "M_0": "41.0 ± 1.4",
        "M_1": "52.0 ± 2.8",
        "largest fall": "0.5 ± 0.7",
        "negative flips vs old, max": "5.0 ± 0.0",
    }


def test_main_table_has_groups_and_only_what_was_run_in_that_order(tmp_path: Path) -> None:
    made = {Case(m, ORDER): flat(0.4) for m in ("ridge_query", "rm", "bct", "mine")} | {
        Case("fct", "random"): flat(0.4)
    }
    table = page_tables.main_table(runs_of(tmp_path, made), ORDER)
    assert table is not None
    assert [r[0] for r in table.rows] == [
        *("*References*", "old", "new", "offline", "*A new backbone*", "bct"),
        *("*Rank merge*", "rm", "*Adapters*", "ridge query", "*Others*", "mine"),
    ]


def test_a_method_that_one_seed_lacks(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, {Case("rm", ORDER): flat(0.4)}, {Case("bct", ORDER): flat(0.4)})
    assert row(page_tables.main_table(runs, ORDER), "rm")["AUC mAP"] == "40.0 (1 of 2 seeds)"


def test_orders_the_best_is_bold_but_never_an_oracle(tmp_path: Path) -> None:
    made = {Case("rm", o): flat(v) for o, v in (("oracle_loss", 0.6), ("random", 0.4), (ORDER, 0.45))}
    runs = runs_of(tmp_path, made | {Case("bct", ORDER): flat(0.3)}, made)
    table = page_tables.orders_table(runs)
    assert table is not None
    assert table.header == ("", "random", ORDER, "oracle_loss (oracle)")
    assert table.rows == (("rm", "40.0", "**45.0**", "60.0"),)  # bct was run in one order: nothing to compare


def test_merges(tmp_path: Path) -> None:
    made = {Case("rm", ORDER, m): flat(v) for m, v in (("raw", 0.4), ("csls", 0.5), ("logistic", 0.45))}
    table = page_tables.merges_table(runs_of(tmp_path, made | {Case("rm", "random", "rrf"): flat(0.9)}), ORDER)
    assert table is not None
    assert table.header == ("", "raw", "logistic", "csls")
    assert table.rows == (("rm", "40.0", "45.0", "**50.0**"),)


def test_one_order_and_one_merge_give_no_tables(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, {Case("rm", ORDER): flat(0.4)})
    assert page_tables.orders_table(runs) is None
    assert page_tables.merges_table(runs, ORDER) is None
    assert page_tables.against_random(runs) is None


def test_against_random_is_paired_by_seed(tmp_path: Path) -> None:
    seeds = [
        {Case("rm", "random"): flat(0.4), Case("rm", "sigma"): flat(0.42), Case("bct", "random"): flat(0.4)}
        | {Case("bct", "sigma"): flat(bct), Case("fct", "sigma"): flat(0.9)}
        for bct in (0.38, 0.41)
    ]
    table = page_tables.against_random(runs_of(tmp_path, *seeds))
    assert row(table, "rm") == {"": "rm", BEST: "sigma", LEAD: "+2.0 (+2.0 to +2.0)", "sigma": "+2.0, 2 of 2"}
    assert row(table, "bct") == {"": "bct", BEST: "random", LEAD: "–", "sigma": "−0.5, 1 of 2"}
    assert row(table, "*better in every seed*")["sigma"] == "1 of 2 methods"


def test_the_best_order_is_no_oracle_and_needs_no_labels(tmp_path: Path) -> None:
    areas = {"random": 0.40, "sigma": 0.42, "entropy": 0.43, "centroid_cosine": 0.5, "oracle_loss": 0.6}
    seeds = [
        {Case("rm", o): flat(v + (0.005 * seed if o == "entropy" else 0)) for o, v in areas.items()}
        for seed in range(3)
    ]
    runs = runs_of(tmp_path, *seeds)
    assert row(page_tables.against_random(runs), "rm")[BEST] == "centroid_cosine"
    for seed in range(3):
        path = tmp_path / f"seed-{seed}" / "manifest.json"
        manifest = json.loads(path.read_text())
        manifest["traits"]["orders"]["centroid_cosine"]["needs_labels"] = True
        path.write_text(json.dumps(manifest))
    runs = read_runs(SeedRun(seed, tmp_path / f"seed-{seed}") for seed in range(3))
    found = row(page_tables.against_random(runs), "rm")
    # 3.0, 3.5 and 4.0 points: standard deviation 0.5, t of 2 degrees of freedom 4.303
    half = 4.303 * 0.5 / math.sqrt(3)
    assert (found[BEST], found[LEAD]) == ("entropy", f"+3.5 (+{3.5 - half:.1f} to +{3.5 + half:.1f})")


def test_training_free(tmp_path: Path) -> None:
    made = {
        Case("rm", ORDER): flat(0.50),
        Case("rm_naive", ORDER): flat(0.36),
        Case("ridge_gallery", ORDER, "csls"): flat(0.45),
        # better, but not allowed: trained, calibrated with labels, an oracle, an order out of a trained map
        Case("residual_mlp_query", ORDER): flat(0.60),
        Case("ridge_gallery", ORDER, "isotonic"): flat(0.60),
        Case("ridge_gallery", "oracle_loss"): flat(0.60),
        Case("ridge_gallery", "sigma"): flat(0.60),
    }
    runs = runs_of(tmp_path, made, made)
    found = best_training_free(runs, runs.orders)
    assert found is not None
    assert found.best == Case("ridge_gallery", ORDER, "csls")
    assert found.tried == 2
    assert found.share_S == pytest.approx([0.75, 0.75])  # gains of 75 % and 100 %


def test_training_free_without_full_rm_or_without_candidates(tmp_path: Path) -> None:
    found = best_training_free(runs_of(tmp_path / "a", {Case("rm_naive", ORDER): flat(0.36)}), (ORDER,))
    assert found is not None
    assert np.isnan(found.share_S).all()
    assert best_training_free(runs_of(tmp_path / "b", {Case("rm", ORDER): flat(0.5)}), (ORDER,)) is None


def test_beside_the_papers(tmp_path: Path) -> None:
    line = Made(0.40, 0.50, 0.02)  # points 40, 42.5, 45, 43, 50: trapezoid 43.9, plain mean 44.1
    made = {Case("rm", ORDER): line, Case("fastfill", "sigma"): line}
    runs = runs_of(tmp_path, made)
    rm = row(page_tables.beside_published(runs, RM_TABLE_1, ORDER), "RM")
    assert (rm["here: AUC mAP"], rm["here: AUC CMC@1"], rm["ImageNet-1K"]) == ("43.9", "63.9", "53.4 / 68.1 / 110 %")
    ablation = page_tables.beside_published(runs, FF_TABLE_5, ORDER)
    assert ablation.rows[-1] == ("l2 + disc + uncertainty", "sigma", "44.1", "64.1", "44.84 / 66.49")
    assert ablation.rows[0] == ("l2", "random", "–", "–", "40.47 / 62.80")


def test_ablation(tmp_path: Path) -> None:
    rows = [
        {"loss": "mcl", "rho": True, "mining": m, "tau": 0.1, "auc": a, "gain": 1.1, "start": 0.4, "end": 0.6}
        for m, a in ((True, 0.50), (True, 0.52), (False, 0.40))
    ]
    rows.append(rows[0] | {"loss": "rqt", "tau": float("nan"), "auc": 0.3})  # no temperature in this loss
    pd.DataFrame(rows).to_parquet(tmp_path / "ablation.parquet")
    assert page_tables.ablation_table(tmp_path / "ablation.parquet").rows == (
        ("mcl", "yes", "no", "0.1", "40.0", "110.0", "40.0", "60.0", "1"),
        ("mcl", "yes", "yes", "0.1", "51.0 ± 1.4", "110.0 ± 0.0", "40.0 ± 0.0", "60.0 ± 0.0", "2"),
        ("rqt", "yes", "yes", "–", "30.0", "110.0", "40.0", "60.0", "1"),
    )


def test_ablation_that_lacks_a_column(tmp_path: Path) -> None:
    pd.DataFrame({"loss": ["mcl"]}).to_parquet(tmp_path / "ablation.parquet")
    with pytest.raises(InputError, match="lacks the column rho, mining, tau"):
        page_tables.ablation_table(tmp_path / "ablation.parquet")
    with pytest.raises(InputError, match="is missing"):
        page_tables.ablation_table(tmp_path / "none.parquet")


def test_subgroups(tmp_path: Path) -> None:
    case = Case("fastfill", "sigma")
    gaps = {case: (0.20, 0.10, 0.08, 0.06, 0.05)}
    table = page_tables.subgroup_table(runs_of(tmp_path, {case: flat(0.4)}, gaps=gaps))
    assert table == PageTable(
        ("", "order", "t = 0", "t = 0.25", "t = 0.5", "t = 1", "closed at t = 0.25", "closed at t = 0.5"),
        # 10 and 12 of the 15 points that the upgrade closes
        (("fastfill", "sigma", "20.0", "10.0", "8.0", "5.0", "67 %", "80 %"),),
    )


def test_subgroups_at_moments_that_were_not_replayed(tmp_path: Path) -> None:
    case = Case("fastfill", "sigma")
    gaps = {case: (0.20, 0.10, 0.06, 0.03)}
    runs = runs_of(tmp_path, {case: flat(0.4)}, gaps=gaps, gap_moments=(0.0, 0.2, 0.3, 1.0))
    table = page_tables.subgroup_table(runs)
    assert table is not None
    assert table.header[2:6] == ("t = 0", "t = 0.25 (mean of 0.2 and 0.3)", "t = 0.5 (read at 0.3)", "t = 1")
    assert table.rows[0][2:6] == ("20.0", "8.0", "6.0", "3.0")


def test_the_share_of_the_gap_that_is_closed_is_that_of_the_means_over_seeds(tmp_path: Path) -> None:
    case, other = Case("fastfill", "sigma"), Case("fct", "random")
    seeds = []
    for seed, gap in enumerate(((0.20, 0.10, 0.08, 0.06, 0.10), (0.11, 0.03, 0.02, 0.06, 0.10))):
        made = {case: flat(0.4), other: flat(0.4)}
        gaps = {case: gap, other: (0.1, 0.0, 0.0, 0.0, 0.1)}
        seeds.append(SeedRun(seed, write_seed(tmp_path / f"gaps-{seed}", made, gaps=gaps)))
    table = page_tables.subgroup_table(read_runs(seeds))
    # means 15.5, 6.5, 5.0, 10.0: 9 and 10.5 of 5.5 points; by seeds they would be 100 and 800 per cent
    assert row(table, "fastfill")["closed at t = 0.25"] == "164 %"
    assert row(table, "fastfill")["closed at t = 0.5"] == "191 %"
    assert row(table, "fct")["closed at t = 0.5"] == "–"  # nothing is closed in the end


def test_no_subgroups(tmp_path: Path) -> None:
    assert page_tables.subgroup_table(runs_of(tmp_path, {})) is None


def test_costs(tmp_path: Path) -> None:
    folder = write_seed(tmp_path / "seed-0", {Case("rm", ORDER): flat(0.4)}, backbones=BACKBONES)
    assert page_tables.costs_table(read_runs([SeedRun(0, folder)])) is None
    rows = [
        CostRow(m, m, models, 1.8e9, 132_864, 131_072, 0, 12_345, "new", NAN)
        for m, models in (("rm", "new"), ("rm_naive", "old + new"))
    ]
    write_table(folder / "costs.parquet", frame(CostRow, rows))
    runs = read_runs([SeedRun(0, folder)])
    table = page_tables.costs_table(runs)
    assert table is not None
    assert table.rows == (
        ("rm_naive", "old + new", "1.8 G", "131.1 k", "132.9 k", "0", "12.3 k", "new", "–"),
        ("rm", "new", "1.8 G", "131.1 k", "132.9 k", "0", "12.3 k", "new", "–"),
    )
    models = page_tables.backbones_table(runs)
    assert models is not None
    assert models.rows == (("old", "11.2 M", "1.8 G", "2.0 P", "1.5"),)


BACKBONES = {"old": {"parameters": 11.2e6, "macs": 1.8e9, "training_flops": 2e15, "seconds": 90}}


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (999, "999"), (1e3, "1.0 k"), (1.8e9, "1.8 G"), (2.5e16, "25.0 P")]
)
def test_amounts(number: float, text: str) -> None:
    assert amount(number) == text


def test_lists_of_methods() -> None:
    assert listed(["mine", "rm", "low_rank_query", "old", "rm"]) == ("old", "rm", "low_rank_query", "mine")
    assert list(grouped(["fct"])) == ["Maps old to new"]


def test_seeds_that_do_not_belong_together(tmp_path: Path) -> None:
    a, b = write_seed(tmp_path / "a", {}), write_seed(tmp_path / "b", {}, primary_metric="CMC@1")
    with pytest.raises(InputError, match="at least one seed"):
        read_runs([])
    with pytest.raises(InputError, match="given twice"):
        read_runs([SeedRun(0, a), SeedRun(1, tmp_path / "b" / ".." / "a")])
    with pytest.raises(InputError, match="given twice"):
        read_runs([SeedRun(0, a), SeedRun(0, b)])
    with pytest.raises(InputError, match="primary metric"):
        read_runs([SeedRun(0, a), SeedRun(1, b)])
