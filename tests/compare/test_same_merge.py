"""A merge that changes what a single system finds: gains are relative to what users have, and its own part is told."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ray_backfill as rb
from ray_backfill.compare.report.verdict import Situation, find_situation, verdict
from ray_backfill.compare.results import Row
from ray_backfill.engine import statistics as stats


def with_hubs(items: int, seed: int) -> dict[str, np.ndarray]:
    """50 classes; every tenth item is a hub: close to the mean of all, and so to every query."""
    rng, label = np.random.default_rng(seed), np.arange(items) % 50
    signal = np.random.default_rng(0).normal(size=(50, 48))[label]
    hub = np.where(np.arange(items) % 10 == 3, 0.25, 1.0)[:, None]
    common = np.ones(48) * 1.5
    old = hub * (signal + 1.6 * rng.normal(size=(items, 48))) + common
    return {"old": old, "new": hub * (signal + 1.2 * rng.normal(size=(items, 48))) + common, "label": label}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> rb.Results:
    folder = tmp_path_factory.mktemp("hubs")
    rb.write_folder(folder / "data", with_hubs(1500, 1), with_hubs(300, 2), with_hubs(1000, 3))
    return rb.simulate(
        folder / "data", out=folder / "run", methods=("rm_naive", "ridge_gallery"), merges=("raw", "csls", "best"),
        metrics=("mAP",), orders=("random", "class_mean_distance"),
    )  # fmt: skip


def row_of(results: rb.Results, method: str, merge: str, order: str = "random") -> Row:
    (row,) = (row for row in results.rows if (row.method, row.merge, row.order) == (method, merge, order))
    return row


def alone(results: rb.Results, model: str) -> float:
    """mAP of {model, model} with csls, by the public replay."""
    folder = rb.read_folder(results.manifest.data["path"])
    assert folder.queries is not None
    assert folder.train is not None
    assert folder.queries.label is not None
    assert folder.gallery.label is not None
    train = rb.RetrievalSystem(folder.train.vectors[model], folder.train.vectors[model])
    system = rb.RetrievalSystem(folder.queries.vectors[model], folder.gallery.vectors[model])
    merge = rb.fit_merge("csls", rb.UpgradePair(train, train), None, "cosine")
    truth = rb.GroundTruth.from_labels(folder.queries.label, folder.gallery.label)
    curve = rb.replay(rb.UpgradePair(system, system), truth, "random", points=2, metrics="mAP", merge=merge)
    return float(curve.values("mAP")[0])


def test_a_gain_is_relative_to_what_users_have_and_its_references_are_rows(results: rb.Results) -> None:
    """Not to old and new with csls, which stand in no row."""
    csls, old, new = row_of(results, "rm_naive", "csls"), row_of(results, "old", "raw"), row_of(results, "new", "raw")
    assert (csls.old_auc, csls.new_auc) == pytest.approx((alone(results, "old"), alone(results, "new")), abs=2e-3)
    assert csls.old_auc > old.auc + 0.02, "hubs make csls worth something without any upgrade"
    assert csls.gain == pytest.approx(stats.gain(csls.auc, old.auc, new.auc))
    assert csls.gain_low < csls.gain < csls.gain_high
    assert {"gain_vs_raw"} & set(results.summary.columns) == set(), "one gain in a table"


def test_half_of_the_improvement_is_that_of_the_gain(results: rb.Results) -> None:
    csls = row_of(results, "rm_naive", "csls")
    trace = results.moments["rm_naive", csls.variant, "mAP"]
    half = (row_of(results, "old", "raw").auc + row_of(results, "new", "raw").auc) / 2
    below = np.flatnonzero(trace.value < half - 1e-12)
    assert csls.half_gain_at == (trace.t[below[-1] + 1] if len(below) else 0.0)
    assert csls.half_gain_at_low <= csls.half_gain_at <= csls.half_gain_at_high


def test_limits_against_old_allow_for_the_choice_among_orders(results: rb.Results, tmp_path: Path) -> None:
    """With a second order, the best of more curves is compared with the same old service."""
    one_order = rb.simulate(
        results.manifest.data["path"], out=tmp_path, methods=("rm_naive", "ridge_gallery"),
        merges=("raw", "csls", "best"), metrics=("mAP",), orders=("random",),
    )  # fmt: skip
    widths = []
    for found in (one_order, results):
        row, old = row_of(found, "rm_naive", "raw"), row_of(found, "old", "raw")
        alone, at_once = found.difference(row, old), found.difference(row, old, at_once=True)
        assert alone is not None
        assert at_once is not None
        assert at_once.high - at_once.low > alone.high - alone.low
        widths.append(at_once.high - at_once.low)
    assert widths[1] > 1.005 * widths[0]


def test_the_chosen_merge_is_judged_as_the_merge_that_it_is(results: rb.Results) -> None:
    best, csls = row_of(results, "rm_naive", "best"), row_of(results, "rm_naive", "csls")
    assert best.title == "RM naive + csls"
    assert (best.gain, best.old_auc) == (csls.gain, csls.old_auc)
    best, csls = row_of(results, "ridge_gallery", "best"), row_of(results, "ridge_gallery", "csls")
    assert best.title == "ridge, gallery + csls", "chosen on held-out items, which are few"
    assert (best.gain, best.old_auc) == (csls.gain, csls.old_auc)


def test_the_verdict_says_what_the_merge_does_alone(results: rb.Results) -> None:
    best = results.best()
    assert best is not None
    alone = f"Its merge alone gives the old service {100 * best.old_auc:.1f} %, without any upgrade."
    assert verdict(results).endswith(alone)


@pytest.mark.parametrize("share", [0.5, -0.5])
def test_what_the_old_service_reaches_by_the_merge_alone_is_no_reason_to_merge_online(
    results: rb.Results, share: float
) -> None:
    """A method with csls that is better than the old service or not, but not better than the old service with csls."""
    csls, old = row_of(results, "rm_naive", "csls"), row_of(results, "old", "raw")
    auc = old.auc + share * (csls.old_auc - old.auc)
    rows = tuple(
        replace(row, auc=auc, gain=-0.3) if (row.method, row.merge) == ("rm_naive", "csls") else row
        for row in results.rows
        if row.is_reference or (row.method, row.merge) == ("rm_naive", "csls")
    )
    found = replace(results, rows=rows)
    assert find_situation(found) is Situation.NOT_MIXED
    said = verdict(found)
    assert said.startswith(
        "Switch when the new index is complete: no method serves better than the old service with csls,"
    )
    assert f"against {100 * csls.old_auc:.1f} %, and {100 * old.auc:.1f} % without." in said


def test_references_have_no_row_with_a_merge(results: rb.Results) -> None:
    assert {row.merge for row in results.rows if row.method in ("old", "new")} == {"raw"}
