"""Slices of the queries: which groups a column makes, and what the tables say of each."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from ray_backfill.compare.analyses.slices import SliceRow, slice_tables
from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.replay import judge
from ray_backfill.compare.run import evaluate_folder
from ray_backfill.core.errors import InputError
from ray_backfill.core.schema import frame
from ray_backfill.data.folder import read_folder
from ray_backfill.data.query_groups import Slice, resolve_slices
from ray_backfill.data.truth import ground_truth
from ray_backfill.engine.replay import Curve
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.workers.settings import Context
from tests.compare.folder import write_split


def slices_of(folder: Path, *columns: str, rows: int = 12, **values: Any) -> list[Slice]:
    write_split(folder / "queries.parquet", rows, 1000, **values)
    found = read_folder(folder)
    return list(resolve_slices(found, columns, ground_truth(found)))


def members(found: Slice) -> dict[str, list[int]]:
    return {name: np.flatnonzero(found.of_query == i).tolist() for i, name in enumerate(found.groups)}


def test_text_and_flags_make_a_group_for_each_value(folder: Path) -> None:
    lang = ["de", "en", None, "de", "", "en", "de", "en", "de", "fr", "fr", "de"]
    head = [True, False, None] * 4
    first, second = slices_of(folder, "lang", "head", lang=pa.array(lang), head=pa.array(head))
    assert (first.column, second.column) == ("lang", "head")
    assert members(first) == {
        "(empty)": [4], "de": [0, 3, 6, 8, 11], "en": [1, 5, 7], "fr": [9, 10], "(none)": [2]
    }  # fmt: skip
    assert members(second) == {"false": [1, 4, 7, 10], "true": [0, 3, 6, 9], "(none)": [2, 5, 8, 11]}


def test_few_numbers_are_names_in_their_order_and_many_are_cut_at_quartiles(folder: Path) -> None:
    few = [2, 10, 2, 10, 10, 10, 2, 2, 10, 10, 2, 2]
    many = np.array([5.0, 1, 2, np.nan, 4, 11, 6, 7, 8, 9, 10, 3])
    first, second = slices_of(folder, "few", "many", few=few, many=many)
    assert members(first) == {"2": [0, 2, 6, 7, 10, 11], "10": [1, 3, 4, 5, 8, 9]}
    assert second.groups == (
        "1 to 3 (quarter 1 of 4)", "4 to 6 (quarter 2 of 4)", "7 to 9 (quarter 3 of 4)", "10 to 11 (quarter 4 of 4)",
        "(none)",
    )  # fmt: skip
    assert [len(rows) for rows in members(second).values()] == [3, 3, 3, 2, 1]
    assert members(second)["(none)"] == [3]


def test_numbers_keep_the_digits_that_tell_them_apart(folder: Path) -> None:
    days = pa.array([20240101.0, 20240102.0, None] * 4)
    shares = [0.1234567, 0.1234568, 0.5] * 4
    users = pa.array([2**60 + i for i in range(12)], pa.uint64())
    first, second, third = slices_of(folder, "day", "share", "user", day=days, share=shares, user=users)
    assert first.groups == ("20240101", "20240102", "(none)")
    assert second.groups == ("0.1234567", "0.1234568", "0.5")
    assert third.groups[0] == f"{2**60} to {2**60 + 2} (quarter 1 of 4)"
    assert [len(rows) for rows in members(third).values()] == [3, 3, 3, 3]


def test_a_value_that_is_called_like_a_group_of_ours_is_quoted(folder: Path) -> None:
    names = ["(none)", None, "(other)", ""] * 3
    (found,) = slices_of(folder, "lang", lang=pa.array(names))
    assert members(found) == {
        "(empty)": [3, 7, 11],
        '"(none)"': [0, 4, 8],
        '"(other)"': [2, 6, 10],
        "(none)": [1, 5, 9],
    }


def test_the_twenty_largest_values_have_groups_and_the_rest_is_one(folder: Path) -> None:
    names = [f"n{i:02d}" for i in range(30)]
    rows = names + [name for name in names if int(name[1:]) % 3]  # of 30 names, 20 come twice
    (found,) = slices_of(folder, "name", rows=50, name=rows)
    assert found.groups == (*(name for name in names if int(name[1:]) % 3), "(other)")
    assert [rows[i] for i in members(found)["(other)"]] == [name for name in names if int(name[1:]) % 3 == 0]


def test_the_column_group_is_the_default_and_its_numbers_are_names(folder: Path) -> None:
    assert slices_of(folder) == []
    (found,) = slices_of(folder, group=np.arange(12) * 7)
    assert found.column == "group"
    assert found.groups == tuple(str(7 * i) for i in range(12))


def test_bad_columns_are_refused_with_what_there_is(folder: Path) -> None:
    with pytest.raises(InputError, match=r"queries.parquet has no column 'tongue'; it has: id, old, new, label, lang"):
        slices_of(folder, "tongue", lang=["de"] * 12)
    with pytest.raises(InputError, match="--slices: column 'old' must hold text, numbers or true/false values"):
        slices_of(folder, "old")


def test_parts_of_different_types_are_refused(folder: Path, tmp_path: Path) -> None:
    write_split(tmp_path / "a.parquet", 6, 1000, lang=["de"] * 6)
    write_split(tmp_path / "b.parquet", 6, 2000, lang=[1] * 6)
    (folder / "queries.parquet").unlink()
    for name in "ab":
        (folder / "queries.parquet").mkdir(exist_ok=True)
        (tmp_path / f"{name}.parquet").rename(folder / "queries.parquet" / f"{name}.parquet")
    found = read_folder(folder)
    with pytest.raises(InputError, match=r"column 'lang' of .* holds text and integers in different files"):
        resolve_slices(found, ("lang",), ground_truth(found))


def test_the_tables_tell_what_happens_to_each_group() -> None:
    """Group a, 40 queries: falls by 0.2 below old at t = 1/2. Group b: rises. Group c: 3 queries, all lost."""
    group = np.repeat([0, 1, 2], [40, 40, 3])
    old = np.full((83, 3), 0.5)
    own = np.empty((83, 3))
    own[:] = np.array([[0.5, 0.3, 0.6], [0.5, 0.7, 0.9], [0.0, 0.0, 0.0]])[group]
    own[:40] += np.where(np.arange(40) % 2, 0.01, -0.01)[:, None]
    t = np.array([0, 0.5, 1])
    right = np.zeros((83, 3), bool)
    curves = {
        (name, "random", "raw"): judge([Curve(t, {"mAP": values}, right, np.arange(83), 0)], 1)
        for name, values in (("old", old), ("rm_naive", own))
    }
    points, rows = slice_tables(curves, ["mAP"], [Slice("g", ("a", "b", "c"), group)], margin=0.005)
    table = frame(SliceRow, rows)
    found = table[table.method == "rm_naive"].set_index("group")
    assert found.queries.to_dict() == {"a": 40, "b": 40, "c": 3}
    assert found.stays_at_old.to_dict() == {"a": "no", "b": "yes", "c": "undecided"}
    np.testing.assert_allclose(found.lowest_vs_old, [-0.2, 0, -0.5], atol=1e-12)
    np.testing.assert_allclose(found.lowest_at, [0.5, 0, 0])
    for name, values in {"start": [0.5, 0.5, 0], "end": [0.6, 0.9, 0], "change": [0.1, 0.4, 0]}.items():
        np.testing.assert_allclose(found[name], values, atol=1e-12)
    assert (found.slice == "g").all()
    # Every query of a has one and the same change; how far it is from old varies by 0.01 from query to query.
    np.testing.assert_allclose([found.change_low["a"], found.change_high["a"]], 0.1)
    spread = 0.01 / np.sqrt(40)
    assert -0.2 - 3 * spread < found.lowest_vs_old_low["a"] < -0.2 - 1.5 * spread
    assert -0.2 + 1.5 * spread < found.lowest_vs_old_high["a"] < -0.2 + 3 * spread
    gap = points[(points.method == "rm_naive") & (points.group == "(gap)")]
    np.testing.assert_allclose(gap.value, [0.5, 0.7, 0.9])


def test_a_run_writes_the_slices_that_were_asked_for(folder: Path, tmp_path: Path) -> None:
    write_split(folder / "queries.parquet", 12, 1000, lang=["de", "en"] * 6, device=["phone"] * 12)
    evaluation = Evaluation(methods=("rm_naive",), orders=("random",), metrics=("mAP",), slices=("lang", "device"))

    def run(evaluation: Evaluation) -> pd.DataFrame:
        out = evaluate_folder(folder, evaluation, FitSettings(), Context(tmp_path / "out"))
        return pd.read_parquet(out / "slices.parquet")

    assert set(zip(*run(evaluation)[["slice", "group"]].to_numpy().T, strict=True)) == {
        ("lang", "de"), ("lang", "en"), ("device", "phone")
    }  # fmt: skip
    page = (tmp_path / "out" / "results" / "report.html").read_text()
    assert "By device" in page
    assert "too few to judge" in page
    with pytest.raises(InputError, match="slices: "):
        run(replace(evaluation, slices=("lang",)))


def test_dictionaries_and_large_strings_are_text(folder: Path) -> None:
    values = pa.array(["x", "y"] * 6)
    first, second = slices_of(
        folder, "a", "b", a=values.dictionary_encode(), b=values.cast(pa.large_string())
    )  # fmt: skip
    assert members(first) == members(second) == {"x": list(range(0, 12, 2)), "y": list(range(1, 12, 2))}
