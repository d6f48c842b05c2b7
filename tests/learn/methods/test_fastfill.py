"""FastFill without classifier.parquet: the fitted classifier is calibrated, and no scale of embeddings matters."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.data.folder import Classifier
from ray_backfill.learn.methods.fct import TransformFit
from ray_backfill.learn.models.apply import transform
from ray_backfill.learn.papers.fastfill import (
    fit_classifier,
    held_out,
    log_variances,
    spread,
    train_transform,
)
from ray_backfill.learn.training.fit import TrainSet
from ray_backfill.learn.training.settings import ClassificationSettings, TransformSettings, TransformTraining

Array = NDArray[np.float64]
HARD = ClassificationSettings(label_smoothing=0.0)
SMALL = TransformTraining(epochs=12, batch=64, hidden=32, lr=2e-3)


def blobs(
    per_class: int, noise: float, seed: int, n_classes: int = 20, dim: int = 16
) -> tuple[Array, NDArray[np.int64]]:
    """Items around class means of variance 1, shuffled. The means do not depend on the seed."""
    means = np.random.default_rng(99).normal(size=(n_classes, dim))
    rng = np.random.default_rng(seed)
    label = rng.permutation(np.repeat(np.arange(n_classes), per_class))
    return means[label] + noise * rng.normal(size=(len(label), dim)), label


def probabilities(classifier: Classifier, x: Array) -> Array:
    logits = x @ classifier.weight.astype(np.float64).T + classifier.bias
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def test_it_is_as_certain_as_it_is_right() -> None:
    """A regression on 20 items of each class alone is 12 points surer than it is right."""
    x, label = blobs(25, noise=1.2, seed=0)
    fresh, truth = blobs(100, noise=1.2, seed=1)
    p = probabilities(fit_classifier(x, label, HARD), fresh)
    accuracy, certainty = (p.argmax(1) == truth).mean(), p.max(1).mean()
    assert 0.4 < accuracy < 0.9
    assert certainty == pytest.approx(accuracy, abs=0.05)


def test_classes_learnt_by_heart_do_not_make_it_boundless() -> None:
    """Embeddings of length 28 whose classes are points, as of an over-fitted model: class means gave logits of 1e5."""
    x, label = blobs(12, noise=0.01, seed=0)
    x *= 28 / np.linalg.norm(x, axis=1).mean()
    for settings, most in ((ClassificationSettings(), 20), (HARD, 30)):
        found = fit_classifier(x, label, settings)
        logits = x @ found.weight.astype(np.float64).T + found.bias
        assert (found.label[logits.argmax(1)] == label).all()
        assert np.ptp(logits, axis=1).max() < most


@pytest.mark.parametrize("settings", [ClassificationSettings(), ClassificationSettings(classification="arcface")])
def test_a_scale_of_the_embeddings_is_one_of_its_weights(settings: ClassificationSettings) -> None:
    x, label = blobs(6, noise=0.5, seed=0)
    plain = fit_classifier(x, label, settings)
    for scale in (1e-2, 1e2):
        scaled = fit_classifier(scale * x, label, settings)
        np.testing.assert_allclose(scaled.weight * scale, plain.weight, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(scaled.bias, plain.bias, rtol=1e-3, atol=1e-3)


def test_every_class_keeps_an_item_to_learn_from() -> None:
    class_N = np.random.default_rng(0).permutation(np.repeat([0, 1, 2, 3], [1, 2, 9, 50]))
    held = held_out(class_N)
    assert np.bincount(class_N[held], minlength=4).tolist() == [0, 1, 1, 10]


@pytest.mark.parametrize("label", [np.arange(20), np.zeros(20, np.int64)])
def test_items_without_company_and_a_single_class_are_refused(label: NDArray[np.int64]) -> None:
    with pytest.raises(InputError, match="several classes with more than one item"):
        fit_classifier(np.random.default_rng(0).normal(size=(20, 3)), label, HARD)


def train_set(scale: float, new: Array, label: NDArray[np.int64], known: Classifier | None) -> TrainSet:
    """Old embeddings are rotated new ones with noise. The classifier of scaled embeddings has weights of 1 / scale."""
    rng = np.random.default_rng(5)
    old = new @ np.linalg.qr(rng.normal(size=(16, 16)))[0] + 0.3 * spread(new) * rng.normal(size=new.shape)
    fitting = known and Classifier(known.label, known.weight / np.float32(scale), known.bias)
    return TrainSet({"old": scale * old, "new": scale * new}, label, fitting)


@pytest.mark.parametrize("is_known", [True, False])
def test_fastfill_is_the_same_on_embeddings_of_any_scale(is_known: bool) -> None:
    new, label = blobs(10, noise=0.5, seed=0)
    known = fit_classifier(new, label, ClassificationSettings()) if is_known else None
    fit = TransformFit(disc=True, uncertainty=True)
    results: dict[float, tuple[NDArray[np.floating], NDArray[np.floating]]] = {}
    for scale in (1.0, 1e-2, 1e2):
        data = train_set(scale, new, label, known)
        network = train_transform(fit, data, SMALL).network
        h = transform(network, data.vectors["old"])
        results[scale] = h / scale, log_variances(h, network)
    for scale in (1e-2, 1e2):
        # Rounding grows with every step of the training.
        np.testing.assert_allclose(results[scale][0], results[1.0][0], atol=0.05)
        np.testing.assert_allclose(results[scale][1], results[1.0][1], atol=0.05)


def right_at_1(network: torch.nn.Module, old: Array, new: Array, label: NDArray[np.int64]) -> float:
    """Share of new queries whose closest h(old) by cosine, other than their own, is of their class."""
    h = transform(network, old)
    a, b = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (new, h))
    similar = a @ b.T
    np.fill_diagonal(similar, -np.inf)
    return float((label[similar.argmax(1)] == label).mean())


@pytest.mark.full
@pytest.mark.parametrize("length", [28.0, 1.0])
def test_without_a_classifier_fastfill_is_no_worse_than_fct(length: float) -> None:
    """The train split was learnt by heart: its items lie closer to their class means than those of the gallery."""
    means = blobs(1, noise=0.0, seed=0)[0]
    factor = length / np.linalg.norm(means, axis=1).mean()
    train_new, train_label = blobs(15, noise=0.05, seed=0)
    new, label = blobs(15, noise=0.6, seed=1)
    rotation = np.linalg.qr(np.random.default_rng(5).normal(size=(16, 16)))[0]
    rng = np.random.default_rng(6)
    old, train_old = ((x + 0.4 * rng.normal(size=x.shape)) @ rotation for x in (new, train_new))
    data = TrainSet({"old": factor * train_old, "new": factor * train_new}, train_label)
    right = {}
    for name, fit in (("fct", TransformFit()), ("fastfill", TransformFit(disc=True, uncertainty=True))):
        network = train_transform(fit, data, replace(SMALL, epochs=30)).network
        right[name] = right_at_1(network, factor * old, factor * new, label)
    assert right["fct"] > 0.5
    assert right["fastfill"] > right["fct"] - 0.1


def test_as_published_the_losses_are_plain() -> None:
    """Off, ``relative`` leaves the embeddings and the classification loss as they are: another map is learnt."""
    new, label = blobs(6, noise=0.5, seed=0)
    known = Classifier(np.arange(20), np.ones((20, 16), np.float32), np.zeros(20, np.float32))
    one = replace(SMALL, epochs=1)
    plain = replace(one, loss=TransformSettings(relative=False))
    data = train_set(10.0, new, label, known)
    size = [
        np.abs(transform(train_transform(TransformFit(disc=True), data, training).network, data.vectors["old"])).mean()
        for training in (one, plain)
    ]
    assert size[0] > 5 * size[1], "after one epoch, only relative losses have found the scale"
