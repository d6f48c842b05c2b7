"""Missing or contradictory input is named in one line; valid input is read unchanged."""

import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ray_backfill.compare.analyses import all_tables
from ray_backfill.compare.report import print_table, read_results, write_report
from ray_backfill.compare.results import Variant
from ray_backfill.core.errors import InputError
from ray_backfill.core.schema import YES, columns
from tests.compare.report.folder import METHODS, made_traits, manifest_of, write_costs, write_results


def change(path: Path, edit: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    """Rewrite a table of a results folder."""
    edit(pd.read_parquet(path)).to_parquet(path)


def test_reads_rows_curves_and_manifest(tmp_path: Path) -> None:
    results = read_results(write_results(tmp_path))
    assert results.methods == tuple(METHODS)
    assert results.metrics == ("mAP", "CMC@1")
    row = results.panel("CMC@1", Variant("score", "raw"))[3]
    assert (row.title, row.auc, row.start, row.never_falls) == ("full RM", 0.73, 0.6000000000000001, "yes")
    line = results.line(row, "mAP")
    assert line is not None
    assert line.value.tolist() == [0.40, 0.55, 0.62]
    best = results.best()
    assert best is not None
    assert best.method == "rm"


@pytest.mark.parametrize("name", ["curves.parquet", "summary.parquet", "manifest.json"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    (write_results(tmp_path) / name).unlink()
    with pytest.raises(InputError, match=f"{name} is missing: run simulate again"):
        print_table(tmp_path)


@pytest.mark.parametrize(
    ("name", "column"),
    [(f"{name}.parquet", column) for name in ("curves", "summary", "costs") for column in columns(all_tables()[name])],
)
def test_a_missing_column_is_named_in_one_line(tmp_path: Path, name: str, column: str) -> None:
    write_costs(write_results(tmp_path))
    change(tmp_path / name, lambda frame: frame.drop(columns=column))
    with pytest.raises(InputError, match=f"{name} lacks the column {column}: ") as caught:
        write_report(tmp_path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("name", ["curves.parquet", "summary.parquet"])
def test_a_table_without_rows_or_of_another_kind_is_refused(tmp_path: Path, name: str) -> None:
    write_results(tmp_path)
    change(tmp_path / name, lambda frame: frame.iloc[:0])
    with pytest.raises(InputError, match=f"{name} has no rows"):
        read_results(tmp_path)
    (tmp_path / name).write_text("method,order\n")
    with pytest.raises(InputError, match=f"{name} cannot be read as Parquet"):
        read_results(tmp_path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", r"manifest\.json cannot be read as JSON"),
        ("[]", "must hold a JSON object"),
        ('{"settings": {"format": 10}, "primary_metric": "mAP"}', "lacks the key traits: run simulate again with this"),
    ],
)
def test_a_broken_manifest_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    (write_results(tmp_path) / "manifest.json").write_text(text)
    with pytest.raises(InputError, match=problem):
        read_results(tmp_path)


@pytest.mark.parametrize("settings", [{}, {"format": 9}, {"format": 99}, {"format": None}, "none", None])
def test_results_of_another_format_are_refused_in_one_line(tmp_path: Path, settings: Any) -> None:
    """Whatever else their files lack: the manifest is read first."""
    with manifest_of(write_results(tmp_path)) as manifest:
        del manifest["traits"]
        manifest["settings"] = settings
    change(tmp_path / "summary.parquet", lambda frame: frame.rename(columns={"gain": "gain_vs_raw"}))
    with pytest.raises(InputError, match=r"^.*manifest\.json was made by an.* version .* 10 now; run .* --overwrite$"):
        read_results(tmp_path)


def test_facts_of_another_shape_are_refused_in_one_line(tmp_path: Path) -> None:
    write_results(tmp_path, left_out={"fct": "needs a train table"})
    with pytest.raises(InputError, match=r"was written by another version .*: run simulate again with this version$"):
        read_results(tmp_path)


@pytest.mark.parametrize(("kind", "name"), [("method", "bct"), ("order", "score"), ("merge", "raw")])
def test_what_the_manifest_says_nothing_of_is_named(tmp_path: Path, kind: str, name: str) -> None:
    traits = asdict(made_traits(METHODS, ("score",), ("raw",)))
    del traits[f"{kind}s"][name]
    write_results(tmp_path, traits=traits)
    with pytest.raises(InputError, match=f"has no traits of the {kind} {name}, which summary.parquet lists"):
        read_results(tmp_path)


def test_tables_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    write_results(tmp_path, primary_metric="mAP@100")
    with pytest.raises(InputError, match="no rows for the primary metric 'mAP@100'"):
        read_results(tmp_path)
    write_results(tmp_path)
    change(tmp_path / "curves.parquet", lambda frame: frame[frame["method"] != "bct"])
    with pytest.raises(InputError, match="no curve for bct, score order, raw merge, mAP"):
        read_results(tmp_path)


def test_with_several_orders_old_and_new_are_listed_once(tmp_path: Path) -> None:
    results = read_results(write_results(tmp_path, orders=("score", "random")))
    listed = [(row.method, row.variant.order) for row in results.table("mAP")]
    own = ["rm_naive", "rm", "bct"]
    assert listed == [("old", "score"), ("new", "score"), *((m, o) for o in ("score", "random") for m in own)]
    assert [row.method for row in results.panel("mAP", Variant("random", "raw"))] == list(METHODS)


def test_costs_are_read_where_they_are(tmp_path: Path) -> None:
    assert read_results(write_results(tmp_path)).costs == ()
    costs = read_results(write_costs(tmp_path)).costs
    assert [cost.method for cost in costs] == list(METHODS)
    assert costs[3].title == "full RM"
    assert costs[3].query_parameters == 132_900
    assert math.isnan(costs[3].query_backbone_macs)


def test_curves_and_differences_keep_their_keys(tmp_path: Path) -> None:
    folder = write_results(tmp_path, orders=("a", "b"), merges=("raw", "csls"))
    results = read_results(folder)
    curves = pd.read_parquet(folder / "curves.parquet")
    assert len(results.lines) == len(curves) // 3
    change(folder / "curves.parquet", lambda frame: frame.sample(frac=1, random_state=0))
    shuffled = read_results(folder)
    assert set(shuffled.lines) == set(results.lines)
    for key, line in results.lines.items():
        assert line.t.tolist() == [0.0, 0.5, 1.0]
        assert shuffled.lines[key].value.tolist() == line.value.tolist()
    for record in pd.read_parquet(folder / "differences.parquet").to_dict("records"):
        own = (record["method"], Variant(record["order"], record["merge"]))
        other = (record["other_method"], Variant(record["other_order"], record["other_merge"]))
        assert results.differences[own, other, record["metric"]].value == record["difference"]


def test_offline_depends_on_no_order(tmp_path: Path) -> None:
    offline = ("offline", (0.3, 0.3, 0.5), 0.6, 0.4, 1.5, YES, 0.0, YES, YES, 0.0)
    results = read_results(write_results(tmp_path, METHODS | {"offline": offline}, ("oracle_loss", "a")))
    best = results.best()
    assert best is not None
    assert best.method == "offline"
    assert results.best_variant == Variant("a", "raw")
