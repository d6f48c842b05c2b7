"""The merge that is chosen for a method, against every single one on items that the choice has not seen."""

import itertools

import numpy as np
import pytest

import ray_backfill as rb
from ray_backfill.engine.merges import BEST, all_merges, best, fit_merge
from ray_backfill.engine.merges.best import MergeTrial, both_distances, choose_fitted, precision_of

SINGLE = ("raw", "quantile", "zscore", "isotonic", "csls")


def pair_of(label: np.ndarray, seed: int, offset: float, same: bool = False) -> rb.UpgradePair:
    """Two models of the same classes. offset: of the old one along one axis, which narrows its cosines."""
    rng = np.random.default_rng(seed)
    made = []
    for d, noise, constant in ((16, 1.5, offset), (24, 1.0, 0.0)):
        centres = np.random.default_rng(d).normal(size=(label.max() + 1, d))
        vectors = centres[label] + noise * rng.normal(size=(len(label), d))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors[:, 0] += constant
        made.append(rb.RetrievalSystem(vectors.astype(np.float32), vectors.astype(np.float32)))
    return rb.UpgradePair(made[0], made[0] if same else made[1])


LABEL = np.arange(600) % 30


def area(pair: rb.UpgradePair, merge: rb.Merge) -> float:
    truth = rb.GroundTruth.from_labels(LABEL, LABEL, exclude_self=True)
    return rb.replay(pair, truth, np.random.default_rng(3).permutation(len(LABEL)), 11, merge=merge).auc("mAP")


@pytest.mark.parametrize("label", [LABEL, None], ids=["labels", "no labels"])
def test_a_narrow_model_is_not_merged_raw(label: np.ndarray | None) -> None:
    train, service = pair_of(LABEL, 0, 4.0), pair_of(LABEL, 1, 4.0)
    chosen = fit_merge(BEST, train, label, "cosine")
    assert chosen.name != "raw"
    single = {
        name: area(service, fit_merge(name, train, label, "cosine"))
        for name in SINGLE
        if label is not None or not all_merges()[name].needs_labels
    }
    assert area(service, chosen) > single["raw"] + 0.05
    assert area(service, chosen) > max(single.values()) - 0.02


@pytest.mark.parametrize(
    ("merge", "distance"),
    [*itertools.product(("raw", "isotonic"), ("cosine", "l2", "inner_product")), ("csls", "cosine")],
)
def test_a_trial_measures_what_a_replay_measures(distance: str, merge: str) -> None:
    """The mean over its orders."""
    label = LABEL[:150]  # all of them are queries
    pair = pair_of(label, 2, 0.5)
    places = [np.random.default_rng(seed).permutation(150) for seed in (5, 6)]
    is_right = (label[:, None] == label) & ~np.eye(150, dtype=bool)
    fitted = fit_merge(merge, pair_of(LABEL, 0, 0.5), LABEL, distance)
    truth = rb.GroundTruth.from_labels(label, label, exclude_self=True)
    orders = {str(number): np.argsort(place) for number, place in enumerate(places)}
    curves = rb.replay(pair, truth, orders, 3, ("mAP", "CMC@1"), distance, merge=fitted)
    for metric, depth in (("mAP", 150), ("CMC@1", 1)):
        expected = np.mean([curve.auc(metric) for curve in curves.values()])
        trial = MergeTrial(pair, distance, both_distances(pair, distance, 150), is_right, depth, places)
        assert precision_of(trial, fitted) == pytest.approx(expected, abs=1e-4 if merge == "isotonic" else 1e-5)


@pytest.mark.parametrize("offset", [0.0, 4.0])
def test_fitted_merges_are_judged_as_they_are(offset: float) -> None:
    """The best on unseen items by a replay is chosen, and raw distances are no candidate where they do not compare."""
    label = LABEL[:150]
    train, unseen = pair_of(LABEL, 0, offset), pair_of(label, 1, offset)
    fitted = {name: fit_merge(name, train, LABEL, "cosine") for name in SINGLE}
    truth = rb.GroundTruth.from_labels(label, label, exclude_self=True)
    orders = {str(seed): np.random.default_rng(seed).permutation(150) for seed in range(20)}
    areas = {
        name: np.mean([c.auc("CMC@1") for c in rb.replay(unseen, truth, orders, 3, "CMC@1", merge=merge).values()])
        for name, merge in fitted.items()
        if name != "raw" or not offset
    }
    assert areas[choose_fitted(fitted, unseen, label, "cosine", 0)] > max(areas.values()) - 0.01
    assert choose_fitted({"raw": rb.RAW}, unseen, label, "cosine", 0) == ("quantile" if offset else "raw")
    few = pair_of(label[:15], 1, offset)
    assert choose_fitted(fitted, few, label[:15], "cosine", 0) == ("quantile" if offset else "raw")


@pytest.mark.parametrize(("wins", "offset", "name"), [(5, 0, "quantile"), (3, 0, "raw"), (3, 4, "quantile")])
def test_the_mean_over_four_divisions_decides(
    monkeypatch: pytest.MonkeyPatch, wins: int, offset: float, name: str
) -> None:
    """But raw distances are never chosen where the two models' do not compare."""
    halves = iter([{"raw": 0.5, "quantile": 0.6 if half >= 8 - wins else 0.4} for half in range(8)])
    monkeypatch.setattr(best, "_of_half", lambda *_: next(halves))
    fits = {name: all_merges()[name].fit for name in ("raw", "quantile")}
    assert best.choose(fits, pair_of(LABEL, 0, offset), None, "cosine", 0) == name
    assert not list(halves)


def test_a_merge_is_judged_on_items_that_it_was_not_fitted_on(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted: list[set[float]] = []
    judged: list[set[float]] = []

    def fit(train: rb.UpgradePair | None, label: np.ndarray | None, distance: str, seed: int) -> rb.Merge:
        assert train is not None
        fitted.append(set(train.backward.gallery[:, 1].tolist()))
        return rb.RAW

    def precision(trial: MergeTrial, merge: rb.Merge) -> float:
        judged.append(set(trial.pair.backward.gallery[:, 1].tolist()))
        return 0.5

    monkeypatch.setattr(best, "precision_of", precision)
    best.choose({"raw": fit}, pair_of(LABEL, 0, 0.0), LABEL, "cosine", 0)
    for own, other in zip(fitted[:8], judged, strict=True):
        assert len(own) == len(other) == 300
        assert not own & other


def test_raw_distances_stay_where_no_merge_is_better() -> None:
    """Of one system that serves before and after, every score map gives the same ranking."""
    assert fit_merge(BEST, pair_of(LABEL, 0, 0.0, same=True), LABEL, "l2").name == "raw"


def test_raw_distances_stay_without_enough_items() -> None:
    assert fit_merge(BEST, None, None, "cosine").name == "raw"
    few = LABEL[:20]
    assert fit_merge(BEST, pair_of(few, 0, 0.0), few, "cosine").name == "raw"
    assert fit_merge(BEST, pair_of(few, 0, 4.0), few, "cosine").name == "quantile", "but not where they do not compare"


def test_labels_of_one_class_do_not_stop_the_choice() -> None:
    assert fit_merge(BEST, pair_of(LABEL, 0, 4.0), np.zeros(600, int), "cosine").name in SINGLE


def test_the_choice_does_not_depend_on_chance() -> None:
    train = pair_of(LABEL, 0, 4.0)
    assert fit_merge(BEST, train, LABEL, "cosine").name == fit_merge(BEST, train, LABEL, "cosine").name
