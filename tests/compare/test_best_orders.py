"""Each method's best order that needs no labels of the gallery, against the random order."""

from pathlib import Path
from typing import Any

import pytest

from ray_backfill.compare.report import Results, html, read_results
from ray_backfill.compare.selection import best_orders
from tests.compare.report.folder import manifest_of, write_results
from tests.compare.report.page import Page

ORDERS = ("oracle_loss", "labelled", "sigma", "random", "late")  # each costs one point more than the one before


def results_of(folder: Path, orders: tuple[str, ...] = ORDERS, **manifest: Any) -> Results:
    """Results in which the order "labelled" needs labels of the gallery."""
    with manifest_of(write_results(folder, orders=orders, merges=("raw", "csls"), **manifest)) as facts:
        facts["traits"]["orders"].get("labelled", {})["needs_labels"] = True
    return read_results(folder)


def test_neither_oracles_nor_labels(tmp_path: Path) -> None:
    found = best_orders(results_of(tmp_path))
    assert [(f.row.method, *f.row.variant, f.random.order) for f in found] == [
        (name, "sigma", "raw", "random") for name in ("rm", "bct", "rm_naive")
    ]
    first = found[0]
    assert first.lead is not None
    assert (first.row.auc, first.random.auc, first.lead.value) == pytest.approx((0.51, 0.50, 0.01))
    assert (first.lead.low, first.lead.high) == pytest.approx((-0.01, 0.03))


def test_random_can_be_the_best(tmp_path: Path) -> None:
    found = best_orders(results_of(tmp_path, ("random", "sigma")))
    assert [(f.row.order, f.lead) for f in found] == [("random", None)] * 3


def test_nothing_to_compare_with(tmp_path: Path) -> None:
    assert best_orders(results_of(tmp_path / "a", ("sigma", "late"))) == []
    assert best_orders(results_of(tmp_path / "b", ("random", "oracle_loss"))) == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"evaluation": {"permutations": 10}}, "the mean over 10 permutations."), ({}, "one permutation, which may be")],
)
def test_the_page_shows_them(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    shown = Page(html.render(results_of(tmp_path, settings=settings)))
    heads = ["method", "best label-free order", "average", "average in random order", "difference", "95 % interval"]
    assert heads in shown.rows
    assert ["full RM", "sigma", "51.0", "50.0", "1.0", "\u22121.0 to 3.0"] in shown.rows
    assert words in shown.text
    assert "best label-free" not in Page(html.render(results_of(tmp_path / "one", ("sigma", "late")))).text
