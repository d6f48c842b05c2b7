"""Every method, found by itself: it fits, its pair replays, and meets the ends that its systems promise."""

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import ray_backfill as rb
from ray_backfill.core.errors import InputError
from ray_backfill.learn.expressions import Evaluator, dim_of, from_json, macs_of, maps_of, stored_models, to_json
from ray_backfill.learn.methods import FAMILIES, Embeddings, Method, all_backbones, all_methods
from ray_backfill.learn.models import apply
from ray_backfill.learn.models.apply import (
    FittedMap,
    FormulaMap,
    load_network,
    macs,
    named_map,
    save_network,
    transform,
    weights_of,
)
from ray_backfill.learn.training.fit import TrainSet
from ray_backfill.learn.training.settings import FitSettings, HeadTraining, TransformTraining
from tests.contracts import one_of_each

# old has 4 dimensions, new 6 and less noise; whatever else a method needs has 5.
DIMS = {"old": 4, "new": 6}
SETTINGS = FitSettings(
    heads=HeadTraining(epochs=15, classes=5, items=4, lr=1e-2),
    transforms=TransformTraining(epochs=15, batch=20, lr=1e-2, hidden=16),
)
METHODS = one_of_each(all_methods().values(), lambda m: (type(m.fit), m.is_reference, bool(m.recalls)))
FITTED = one_of_each((m for m in all_methods().values() if m.fit), lambda m: type(m.fit))


def draw(method: Method, rows: int, seed: int) -> dict[str, np.ndarray]:
    """Embeddings of rows of 5 classes in turn, for each model that the method needs."""
    centres = np.random.default_rng(0).normal(size=(5, 6))
    rng = np.random.default_rng(seed)
    return {
        name: (centres[np.arange(rows) % 5][:, : DIMS.get(name, 5)] + (1.0 if name == "old" else 0.5) * rng.normal(
            size=(rows, DIMS.get(name, 5)))).astype(np.float32)
        for name in method.models
    }  # fmt: skip


@pytest.fixture(scope="module")
def fitted() -> dict[str, tuple[FittedMap, list[float]]]:
    """Each method's network and its loss after each epoch, as far as they were asked for."""
    return {}


def fit_once(method: Method, fitted: dict[str, tuple[FittedMap, list[float]]]) -> tuple[FittedMap, list[float]]:
    assert method.fit is not None
    if method.name not in fitted:
        losses: list[float] = []
        data = TrainSet(draw(method, 40, 1), np.arange(40) % 5)
        fitted[method.name] = (
            method.fit.fit(data, SETTINGS, "cosine", on_epoch=lambda _, loss: losses.append(loss)).network,
            losses,
        )
    return fitted[method.name]


def is_plain(model: str, system: rb.RetrievalSystem, e: Embeddings) -> bool:
    """Whether it is this model's plain system, with the embeddings as they are stored."""
    return system.query is e.query[model] and system.gallery is e.gallery[model]


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_every_method_replays(method: Method, fitted: dict[str, tuple[FittedMap, list[float]]]) -> None:
    network = fit_once(method, fitted)[0] if method.fit else None
    e = Embeddings(draw(method, 10, 2), draw(method, 40, 3))
    pair = method.pair(e, network)
    truth = rb.GroundTruth.from_labels(np.arange(10) % 5, np.arange(40) % 5)
    curve = rb.replay(pair, truth, np.arange(40), points=3)
    assert np.isfinite(curve.values("mAP")).all()
    if pair.switch == "only_backfilled":
        assert not curve.values("mAP")[0], "nothing can be found"
    for end, system in [(0, pair.backward), (-1, pair.forward)]:
        if end == 0 and pair.switch == "only_backfilled":
            continue
        alone = rb.replay(rb.UpgradePair(system, system), truth, np.arange(40), points=2)
        assert curve.values("mAP")[end] == pytest.approx(alone.values("mAP")[0])
    serves_one = pair.backward is pair.forward and pair.switch == "progressively"
    assert method.is_reference == (serves_one or (pair.switch == "at_end" and not method.recalls))
    assert pair.switch == "at_end" or not method.recalls
    for side, system in ((method.backward, pair.backward), (method.forward, pair.forward)):
        assert side.plain == next((x for x in method.models if is_plain(x, system, e)), "")
    if method.aligned:
        assert pair.backward.gallery.shape == pair.forward.gallery.shape


class Counted(np.ndarray):
    """Weights; ``macs`` of all matrix products that they and their results are in."""

    macs = 0

    def __array_ufunc__(self, ufunc: np.ufunc, method: Any, *inputs: Any, **kwargs: Any) -> Any:
        plain = [np.asarray(value) for value in inputs]
        if ufunc is np.matmul:
            Counted.macs += plain[0].size * plain[1].shape[1]
        if "out" in kwargs:
            kwargs["out"] = tuple(map(np.asarray, kwargs["out"]))
        found = getattr(ufunc, method)(*plain, **kwargs)
        return found.view(Counted) if isinstance(found, np.ndarray) else found


def macs_counted(network: FittedMap, *vectors: np.ndarray) -> int:
    """Multiply-accumulates of a map for these items, counted while they are computed."""
    if isinstance(network, FormulaMap):
        Counted.macs = 0
        arrays = {name: getattr(network, name).view(Counted) for name in network.arrays}
        replace(cast("Any", network), **arrays)(*(of.astype(np.float64) for of in vectors))
        return Counted.macs
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(*map(torch.from_numpy, vectors))
    return counter.get_total_flops() // 2


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_models_dimensions_and_costs_follow_from_the_expressions(
    method: Method, fitted: dict[str, tuple[FittedMap, list[float]]]
) -> None:
    network = fit_once(method, fitted)[0] if method.fit else None
    e = Embeddings(draw(method, 10, 2), draw(method, 40, 3))
    dims, pair = {name: DIMS.get(name, 5) for name in method.models}, method.pair(e, network)
    for side, system in ((method.backward, pair.backward), (method.forward, pair.forward)):
        for expression, vectors in ((side.query, system.query), (side.gallery, system.gallery)):
            assert dim_of(expression, dims, network) == vectors.shape[1]
            assert from_json(json.loads(json.dumps(to_json(expression)))) == expression
            assert set(stored_models(expression)) <= set(method.models)
            for applied in maps_of(expression):
                inputs = [Evaluator(e.gallery, network, dims)(inner) for inner in applied.of]
                counted = macs_counted(named_map(network, applied.name), *inputs)
                assert counted == 40 * macs(named_map(network, applied.name))
    once = {applied.name for side in method.sides for applied in maps_of(side.query)}
    assert macs_of(network, *(side.query for side in method.sides)) == sum(macs(named_map(network, n)) for n in once)


@dataclass(eq=False)
class Scaled(FormulaMap):
    """A map of another distribution: factors times the vector."""

    factor_d: np.ndarray

    kind, arrays = "scaled", {"factor_d": "factor"}

    @property
    def shape(self) -> dict[str, Any]:
        return {}

    def output_dim(self, *dims: int) -> int:
        return dims[0]

    def __call__(self, *vectors_Bd: np.ndarray) -> np.ndarray:
        return np.asarray(vectors_Bd[0] * self.factor_d)


def test_another_distribution_has_maps_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_network(tmp_path, Scaled(np.full(3, 2, np.float32)))
    with pytest.raises(InputError, match="unknown kind 'scaled'; install the plugin that has it, or train it again"):
        load_network(tmp_path)
    monkeypatch.setattr(apply, "rows_from_outside", {"MAPS": [Scaled]}.get)
    np.testing.assert_array_equal(transform(load_network(tmp_path), np.ones((2, 3), np.float32)), np.full((2, 3), 2.0))


@pytest.mark.parametrize(
    "value",
    [{}, {"model": 3}, {"model": "new", "more": 1}, {"map": "A", "of": []}, {"prefix": {}, "like": "old"}, "new"],
)
def test_no_other_json_is_an_expression(value: Any) -> None:
    with pytest.raises(InputError, match="unknown expression"):
        from_json(value)


@pytest.mark.parametrize("method", FITTED, ids=lambda m: m.name)
def test_every_training_lowers_its_loss(method: Method, fitted: dict[str, tuple[FittedMap, list[float]]]) -> None:
    _, losses = fit_once(method, fitted)
    if not method.is_trained:  # a formula: tests/learn/methods/test_adapters.py
        return
    assert len(losses) == 15
    assert np.mean(losses[-3:]) < 0.9 * losses[0]


@pytest.mark.parametrize("method", FITTED, ids=lambda m: m.name)
def test_every_network_is_kept_and_found_again(
    method: Method, fitted: dict[str, tuple[FittedMap, list[float]]], tmp_path: Path
) -> None:
    network = fit_once(method, fitted)[0]
    save_network(tmp_path, network)
    again = load_network(tmp_path)
    e = Embeddings(draw(method, 10, 2), draw(method, 40, 3))
    for ours, theirs in [(method.pair(e, network), method.pair(e, again))]:
        np.testing.assert_array_equal(ours.backward.query, theirs.backward.query)
        np.testing.assert_array_equal(ours.backward.gallery, theirs.backward.gallery)
        np.testing.assert_array_equal(ours.forward.gallery, theirs.forward.gallery)
    assert method.fit is not None
    assert json.loads(json.dumps(method.fit.recorded(SETTINGS, "cosine")))["fit"]


@pytest.mark.parametrize("method", FITTED, ids=lambda m: m.name)
def test_a_stand_in_does_not_depend_on_what_it_stands_among(
    method: Method, fitted: dict[str, tuple[FittedMap, list[float]]]
) -> None:
    """Shards of a gallery give what the whole gives."""
    network = fit_once(method, fitted)[0]
    query, gallery = draw(method, 10, 2), draw(method, 40, 3)
    whole = method.pair(Embeddings(query, gallery), network)
    shard = method.pair(Embeddings(query, {name: v[7:19] for name, v in gallery.items()}), network)
    for side in ("backward", "forward"):
        np.testing.assert_array_equal(getattr(whole, side).gallery[7:19], getattr(shard, side).gallery)


@pytest.mark.parametrize("method", FITTED, ids=lambda m: m.name)
def test_trained_fits_alone_learn_from_further_views(
    method: Method, fitted: dict[str, tuple[FittedMap, list[float]]]
) -> None:
    """Views that equal the items give the same bits: batches, labels and pairs of both models are those of one view."""
    assert method.fit is not None
    alone, items = weights_of(fit_once(method, fitted)[0]), draw(method, 40, 1)
    same = {name: np.stack([vectors, vectors]) for name, vectors in items.items()}
    other = {
        name: vectors + np.float32(0.1) * np.arange(40, dtype=np.float32)[:, None] for name, vectors in same.items()
    }
    with_same, with_other = (
        weights_of(method.fit.fit(TrainSet(items, np.arange(40) % 5, views=views), SETTINGS, "cosine").network)
        for views in (same, other)
    )
    assert all(np.array_equal(values, with_same[name]) for name, values in alone.items())
    assert method.is_trained == any(not np.array_equal(values, with_other[name]) for name, values in alone.items())


def test_names_are_unique_and_say_their_source_and_family() -> None:
    methods = all_methods()
    assert len({m.title for m in methods.values()}) == len(methods)
    assert all(m.source and m.name == name for name, m in methods.items())
    assert {m.family for m in methods.values()} == set(FAMILIES)


@pytest.mark.parametrize("method", FITTED, ids=lambda m: m.name)
def test_a_fit_learns_from_models_of_its_method_by_options_that_there_are(method: Method) -> None:
    assert method.fit is not None
    assert set(method.fit.models) <= set(method.models)
    assert hasattr(SETTINGS, method.fit.option)
    assert method.is_trained == (
        method.fit.cost(dict.fromkeys(method.models, 4), 99, 9, SETTINGS, "cosine", 1).steps > 0
    )


def test_other_distributions_add_methods_and_backbones(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, kind = all_methods()["rm_naive"], all_backbones()["bct"]
    more = {"METHODS": [replace(ours, name="theirs")], "BACKBONES": [replace(kind, name="theirs")]}
    monkeypatch.setattr(sys.modules["ray_backfill.learn.methods"], "rows_from_outside", more.get)
    assert list(all_methods())[-1] == list(all_backbones())[-1] == "theirs"
