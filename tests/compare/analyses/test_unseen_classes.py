"""What labels teach about classes that training has seen is told apart from what holds for others."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ray_backfill as rb
from ray_backfill.compare.analyses.unseen_classes import UnseenClasses, _row, section, sentence
from ray_backfill.data.folder import read_train
from ray_backfill.learn.methods import Embeddings, find_methods
from ray_backfill.learn.models.apply import load_network
from ray_backfill.learn.training.settings import FitSettings, HeadTraining

CLASSES, DIMS = 60, 48
IN_RAY = "ray_backfill.compare.fits.has_more_than_cpus"


def columns(n: int, seed: int, classes: slice = slice(None)) -> dict[str, Any]:
    """Classes are directions, and noise is in all directions alike: what labels teach is where the classes lie."""
    rng, world = np.random.default_rng(seed), np.random.default_rng(0)
    label = rng.choice(np.arange(CLASSES)[classes], n)
    signal = 1.2 * world.normal(size=(CLASSES, DIMS))[label]
    item = signal + rng.normal(size=(n, DIMS))
    old, new = item[:, :24] + rng.normal(size=(n, 24)), item + 0.5 * rng.normal(size=(n, DIMS))
    return {"old": old.astype(np.float32), "new": new.astype(np.float32), "label": label}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[rb.Results, Path]:
    path = tmp_path_factory.mktemp("unseen")
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(IN_RAY, lambda: False)
    data = rb.write_folder(path / "data", columns(800, 1), columns(100, 2), columns(2_400, 3))
    how: dict[str, Any] = {"metrics": "nDCG@10", "points": 3, "out": path / "out", "merges": "raw"}
    fits = replace(FitSettings.of_folder(), heads=HeadTraining(epochs=10))
    found = rb.simulate(data, fits=fits, methods=["rm_naive", "mcl", "ridge_gallery"], **how)
    monkeypatch.undo()
    return found, path


def test_a_method_that_learns_from_labels_is_judged_on_classes_that_it_has_not_seen(
    run: tuple[rb.Results, Path],
) -> None:
    results, path = run
    (row,) = results.table_of("unseen_classes")
    assert (row.method, row.metric) == ("mcl", "nDCG@10")
    assert row.unseen < row.seen
    assert row.low <= row.difference <= row.high < 0
    assert row.difference == pytest.approx(row.unseen - row.seen)
    assert row.gain == pytest.approx(row.unseen - row.old)
    said = sentence(results, "mcl")
    assert said.startswith("RM MCL learns from labels, and training has seen the classes of all queries. On classes ")
    apart = f"{100 * -row.difference:.1f} points lower (95 % interval {100 * -row.high:.1f} to {100 * -row.low:.1f})"
    assert f"{apart} than on classes that it has seen" in said
    assert said in (path / "out" / "results" / "report.html").read_text(encoding="utf-8")
    shown = section(results)
    assert shown is not None
    assert shown.said == [said]


def test_the_fits_saw_half_of_the_classes_each_and_are_replayed_on_the_right_ones(
    run: tuple[rb.Results, Path],
) -> None:
    results, path = run
    (row,) = results.table_of("unseen_classes")
    own = read_train(path / "data")
    assert own.train is not None
    assert own.train.label is not None
    assert own.validation is not None
    label: Any = own.validation.label
    halves = [path / "out" / "halves" / name for name in ("0", "1")]
    seen = [set(read_train(each).train.label.tolist()) for each in halves]  # type: ignore[union-attr]
    assert not seen[0] & seen[1]
    assert seen[0] | seen[1] == set(own.train.label.tolist())
    (method,) = find_methods(("mcl",))
    sums, count = {True: 0.0, False: 0.0}, 0
    for half, classes in enumerate(seen):
        items: Any = own.validation.take(np.flatnonzero(np.isin(label, sorted(classes))))
        truth = rb.GroundTruth.from_labels(items.label, items.label, exclude_self=True)
        order = np.random.default_rng(0).permutation(len(items))
        for is_seen, fitted in ((True, half), (False, 1 - half)):
            network = load_network(halves[fitted] / "maps" / "mcl")
            pair = method.pair(Embeddings(items.vectors, items.vectors), network)
            curve = rb.replay(pair, truth, order, points=11, metrics=["nDCG@10"])
            sums[is_seen] += curve.auc("nDCG@10") * len(curve.scored)
        count += len(curve.scored)
    assert row.queries == count
    # Another random order: the same to about a point.
    assert row.seen == pytest.approx(sums[True] / count, abs=0.015)
    assert row.unseen == pytest.approx(sums[False] / count, abs=0.015)


@pytest.mark.parametrize(
    ("methods", "asked"), [(["rm_naive", "ridge_gallery"], slice(None)), (["rm_naive", "mcl"], slice(50, 60))]
)
def test_nothing_is_fitted_again_without_need(
    methods: list[str], asked: slice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without such a method, or if some queries have classes that training has not seen."""
    monkeypatch.setattr(IN_RAY, lambda: False)
    data = rb.write_folder(tmp_path / "data", columns(400, 1), columns(60, 2, asked), columns(1_200, 3, slice(0, 55)))
    how: dict[str, Any] = {"metrics": "nDCG@10", "points": 3, "merges": "raw", "out": tmp_path / "out"}
    fits = replace(FitSettings.of_folder(), heads=HeadTraining(epochs=1))
    results = rb.simulate(data, methods=methods, fits=fits, **how)
    assert not results.table_of("unseen_classes")
    assert not (tmp_path / "out" / "halves").exists()


def test_limits_are_over_classes() -> None:
    """Items of one class stand and fall together: four classes are four observations, however many items they have."""
    rng, class_Q = np.random.default_rng(0), np.arange(400) % 4
    of_class = np.array([0.0, 0.1, 0.2, 0.3])
    old, unseen = np.zeros(400), of_class[class_Q] + 0.001 * rng.normal(size=400)
    values = {("old", True): old, ("new", True): old, ("rm", True): old, ("rm", False): unseen}
    found: UnseenClasses = _row("rm", "mAP", values, class_Q)
    standard_error = of_class.std(ddof=1) / 2
    assert found.gain == pytest.approx(0.15, abs=1e-3)
    # Student's t with 3 degrees of freedom: 3.18 standard errors to either side, cut off by the largest mean.
    assert found.gain_high - found.gain_low == pytest.approx(min(2 * 3.18 * standard_error, 0.3), rel=0.1)
    assert (found.queries, found.classes) == (400, 4)
