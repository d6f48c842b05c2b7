"""Results show themselves: a few lines, a table in a notebook, figures by name, comparisons of methods."""

from pathlib import Path
from typing import get_args

import pandas as pd
import pytest

from ray_backfill.compare.report import FigureName, Results, read_results
from ray_backfill.compare.report.figures import FIGURES
from ray_backfill.core.errors import InputError
from tests.compare.report.folder import METHODS, many_methods, write_results


@pytest.fixture
def several(tmp_path: Path) -> Results:
    return read_results(write_results(tmp_path, orders=("score", "random", "oracle_loss"), merges=("raw", "csls")))


def test_a_few_lines_and_a_table(tmp_path: Path, several: Results) -> None:
    results = read_results(write_results(tmp_path / "one"))
    assert repr(results).startswith(
        "Results: 5 methods, 1 order, 1 merge, 2 metrics\nMerge online with full RM: users get 23.0 points"
    )
    assert repr(several).startswith("Results: 5 methods, 3 orders, 2 merges, 2 metrics\n")
    html = results._repr_html_()
    assert html.startswith("<p><b>mAP while the gallery is backfilled, in per cent</b></p>\n<table")
    assert "<td>53.0</td>" in html
    assert html.endswith(f"<p>{results.verdict}</p>")
    title = "<b>bold</b>"
    marked = write_results(tmp_path / "marked", METHODS | {"rm": (title, *METHODS["rm"][1:])})
    assert title not in read_results(marked)._repr_html_()


def test_it_prints_what_the_command_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    read_results(write_results(tmp_path)).show()
    said = capsys.readouterr().out
    assert "│ full RM" in said
    assert "Merge online with full RM: users get 23.0 points" in said


def test_tables_of_numbers_are_those_of_the_folder(tmp_path: Path) -> None:
    results = read_results(write_results(tmp_path))
    pd.testing.assert_frame_equal(results.summary, pd.read_parquet(tmp_path / "summary.parquet"))
    stored = pd.read_parquet(tmp_path / "curves.parquet").reset_index(drop=True)
    pd.testing.assert_frame_equal(results.frame, stored)


def test_a_run_may_be_named_by_its_own_folder(tmp_path: Path) -> None:
    write_results(tmp_path / "run" / "results")
    assert read_results(tmp_path / "run").methods == read_results(str(tmp_path / "run" / "results")).methods
    with pytest.raises(InputError, match=r"no results folder at .*nowhere"):
        read_results(str(tmp_path / "nowhere"))


def test_figures_are_drawn_by_name(tmp_path: Path, several: Results) -> None:
    assert get_args(FigureName) == tuple(FIGURES)
    for kind in ("curves", "gain", "orders", "flips"):
        png, shown = several.plot(kind)._repr_png_()  # type: ignore[attr-defined]
        assert png.startswith(b"\x89PNG")
        assert shown == {"width": 900}
    assert len(several.plot().axes) == 2 * 4
    with pytest.raises(InputError, match="these results have nothing for the figure 'subgroups'"):
        several.plot("subgroups")
    with pytest.raises(InputError, match="unknown figure 'pie'; known: curves, gain"):
        several.plot("pie")  # type: ignore[arg-type]


def test_the_best_method_is_compared_with_all_others_the_closest_first(tmp_path: Path) -> None:
    compared = read_results(write_results(tmp_path)).compare()
    assert compared.title == "full RM: average mAP minus that of others, in per cent"
    assert compared.frame.other.tolist() == ["new", "BCT", "RM naive", "old"]
    assert compared.frame.iloc[1].tolist() == (
        ["BCT", 0.53, 0.35, pytest.approx(0.18), pytest.approx(0.16), pytest.approx(0.20), "better"]
    )
    text = repr(compared).splitlines()
    assert text[1].split() == ["other", "average", "other", "average", "difference", "95", "%", "interval", "verdict"]
    assert text[3].split() == ["BCT", "53.0", "35.0", "+18.00", "+16.00", "to", "+20.00", "better"]
    assert "<td>+16.00 to +20.00</td>" in compared._repr_html_()


def test_methods_are_compared_by_name_metric_order_and_merge(several: Results) -> None:
    one = several.compare("bct", "rm", "old", metric="CMC@1", order="random", merge="csls")
    assert one.title == "BCT (random order, csls merge): average CMC@1 minus that of others, in per cent"
    assert one.frame[["other", "order", "merge", "verdict"]].to_numpy().tolist() == [
        ["full RM", "random", "csls", "worse"],
        ["old", "–", "–", "better"],
    ]
    own = several.compare("rm", "rm").frame  # itself in other orders and merges, but not in an order that peeks
    assert own[["order", "merge"]].to_numpy().tolist() == [["score", "csls"], ["random", "raw"]]
    assert "oracle_loss †" in several.compare("rm", order="oracle_loss").frame.order.tolist()


@pytest.mark.parametrize(
    ("names", "wanted", "message"),
    [
        (("magic",), {}, "no row for magic, mAP; known: old, new, rm_naive, rm, bct, mAP, CMC@1, score, random"),
        ((), {"metric": "mAP@7"}, "no row for mAP@7; known"),
        (("rm",), {"order": "magic"}, "no row for rm, mAP, magic order; known"),
        (("rm",), {"merge": "magic"}, "no row for rm, mAP, magic merge; known"),
        (("rm", "magic"), {}, "do not compare rm with magic in mAP; their methods: old, new, rm_naive, rm, bct"),
    ],
)
def test_what_was_not_compared_is_named(
    names: tuple[str, ...], wanted: dict[str, str], message: str, several: Results
) -> None:
    with pytest.raises(InputError, match=message):
        several.compare(*names, **wanted)


def test_the_moments_at_which_others_are_better(tmp_path: Path) -> None:
    results = read_results(write_results(tmp_path))
    assert results.crossings("bct").to_numpy().tolist() == [
        ["rm", "score", "raw", 0.0, 1.0, pytest.approx(0.2)],
        ["rm_naive", "score", "raw", 0.0, 0.0, pytest.approx(0.05)],
        ["rm_naive", "score", "raw", 1.0, 1.0, pytest.approx(0.05)],
    ]
    best = results.crossings()
    assert best.columns.tolist() == ["method", "order", "merge", "start", "end", "lead"]
    assert best.empty
    with pytest.raises(InputError, match="no row for magic, mAP; known: old, new"):
        results.crossings("magic")


def test_some_of_the_methods(several: Results) -> None:
    some = several.only("bct", "rm_naive")
    assert some.methods == ("old", "new", "rm_naive", "bct")
    assert set(some.frame.method) == set(some.summary.method) == set(some.methods)
    assert some.verdict.startswith("Merge online with BCT")
    assert several.only().methods == ("old", "new")
    assert len(several.methods) == 5
    with pytest.raises(InputError, match="these results have no method magic; known: old, new, rm_naive, rm, bct"):
        several.only("magic")


def test_a_single_method_was_compared_with_nothing(tmp_path: Path) -> None:
    results = read_results(write_results(tmp_path, {"old": many_methods()["old"]}))
    with pytest.raises(InputError, match="do not compare old with anything in mAP"):
        results.compare("old")
