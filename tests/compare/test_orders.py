"""Orders of a simulation: those of the gallery, and those that belong to a method."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from numpy.typing import NDArray

from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.fitted import FittedMaps
from ray_backfill.compare.manifest import traits_of
from ray_backfill.compare.orders import resolve_orders, store_sigma
from ray_backfill.core.errors import InputError
from ray_backfill.data.folder import EmbeddingFolder, read_folder
from ray_backfill.data.write import vector_column, write_parquet
from ray_backfill.engine.orders import GalleryColumns, find_order
from ray_backfill.engine.systems import UpgradePair
from ray_backfill.learn.methods import Embeddings, Method, find_methods
from ray_backfill.learn.models.apply import Affine, FittedMap, save_network
from ray_backfill.learn.papers.fastfill import fit_classifier
from ray_backfill.learn.papers.fct import Transform
from ray_backfill.learn.papers.orthogonal import JointMaps
from ray_backfill.learn.training.settings import ClassificationSettings

RNG = np.random.default_rng(0)
Vector = NDArray[np.float64]


def folder_of(path: Path, rows: int = 30, **more: object) -> EmbeddingFolder:
    columns = {
        "id": np.arange(rows),
        "old": vector_column(RNG.normal(size=(rows, 4)).astype(np.float32)),
        "new": vector_column(RNG.normal(size=(rows, 6)).astype(np.float32)),
        "label": np.arange(rows) % 3,
    }
    write_parquet(path / "gallery.parquet", pa.table(columns | more))
    return read_folder(path)


@pytest.fixture
def maps(tmp_path: Path) -> FittedMaps:
    """Untrained maps: what they say is arbitrary, but each says something else."""
    torch.manual_seed(0)
    weight = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    made: dict[str, FittedMap] = {
        "fastfill": Transform((4,), 6, 8, uncertainty=True),
        "fastfill_l2_u": Transform((4,), 6, 8, uncertainty=True),
        "fct": Transform((4,), 6, 8),
        "ridge_gallery": Affine(weight, np.zeros(6, np.float32)),
    }
    for name, network in made.items():
        save_network(tmp_path / "maps" / name, network)
    return FittedMaps({name: tmp_path / "maps" / name for name in made})


Order = Callable[..., list[int]]


def order_of(
    folder: EmbeddingFolder, name: str, maps: FittedMaps | None = None, loss: ClassificationSettings | None = None
) -> Order:
    """A method's order of this name, from the methods that have a network here, old and rm_naive."""
    maps = maps or FittedMaps()
    methods = find_methods(("old", "rm_naive", *maps.folders))
    for each in methods:
        if each.has_sigma and name == "sigma":
            store_sigma(folder, each, maps)
    named = replace(Evaluation(methods=(), orders=(name,)).named, methods=tuple(methods))
    orders = resolve_orders(folder, named, loss or ClassificationSettings())
    return lambda method, pair=None: orders.of(find_methods((method,))[0], maps, pair)[name].tolist()


def method(name: str) -> Method:
    return find_methods((name,))[0]


def test_sigma_is_stored_and_each_method_follows_its_own(tmp_path: Path, maps: FittedMaps) -> None:
    folder = folder_of(tmp_path)
    order = order_of(folder, "sigma", maps)
    found = {name: order(name) for name in (*maps.folders, "rm_naive")}
    for name in ("fastfill", "fastfill_l2_u"):
        network = maps.of(method(name))
        with torch.no_grad():
            log_variance = network.log_variance(network(torch.from_numpy(folder.gallery.old))).numpy()
        assert found[name] == np.argsort(-log_variance, kind="stable").tolist()
        stored = pq.read_table(maps.folders[name] / "sigma.parquet")
        np.testing.assert_allclose(stored["sigma"].to_numpy(), np.exp(log_variance / 2), rtol=1e-5)
    assert found["fastfill"] != found["fastfill_l2_u"]
    assert found["rm_naive"] == found["fct"] == found["fastfill"]  # no uncertainty of their own


def test_a_users_sigma_serves_whoever_has_none(tmp_path: Path) -> None:
    sigma = np.linspace(0, 1, 30)
    assert order_of(folder_of(tmp_path, sigma=sigma), "sigma")("rm_naive") == list(range(29, -1, -1))


def test_the_oracle_knows_how_wrong_each_stand_in_is(tmp_path: Path, maps: FittedMaps) -> None:
    folder = folder_of(tmp_path)
    order = order_of(folder, "oracle_loss", maps)
    e = Embeddings(folder.gallery.vectors, folder.gallery.vectors)
    found = {}
    for name in ("ridge_gallery", "fct", "fastfill"):
        pair = method(name).pair(e, maps.of(method(name)))
        a, b = pair.backward.gallery.astype(np.float64), pair.forward.gallery.astype(np.float64)
        loss = 1 - (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
        found[name] = order(name)
        assert found[name] == np.argsort(-loss.astype(np.float32), kind="stable").tolist()
        assert order(name, pair) == found[name]
    assert order("rm_naive") == found["fastfill"]


def with_train(path: Path, classifier: bool = False) -> EmbeddingFolder:
    """A folder with 24 labelled train items of three classes and, if asked for, a classifier of the new model."""
    new = RNG.normal(size=(24, 6)).astype(np.float32)
    columns = {"id": np.arange(24), "old": vector_column(RNG.normal(size=(24, 4)).astype(np.float32))}
    write_parquet(
        path / "train.parquet", pa.table(columns | {"new": vector_column(new), "label": np.arange(24) % 3 + 5})
    )
    if classifier:
        weight, bias = RNG.normal(size=(3, 6)).astype(np.float32), np.array([0.0, 2.0, -1.0], np.float32)
        table = pa.table({"label": [5, 6, 7], "weight": vector_column(weight), "bias": bias})
        write_parquet(path / "classifier.parquet", table)
    return folder_of(path)


def mapped(folder: EmbeddingFolder, name: str, maps: FittedMaps, split: str = "gallery") -> UpgradePair:
    """The pair that a method makes of a split."""
    table = folder.gallery if split == "gallery" else folder.train
    assert table is not None
    return method(name).pair(Embeddings(table.vectors, table.vectors), maps.of(method(name)))


def cosine(a: Vector, b: Vector) -> float:
    return float(a @ b / math.sqrt(float(a @ a) * float(b @ b)))


def test_the_distance_to_the_closest_new_class_mean_is_that_of_the_mapped_item(
    tmp_path: Path, maps: FittedMaps
) -> None:
    folder = with_train(tmp_path)
    torch.manual_seed(1)
    save_network(tmp_path / "maps" / "lambda_orthogonal", JointMaps(4, 6, strict=False).eval())
    maps = FittedMaps({**maps.folders, "lambda_orthogonal": tmp_path / "maps" / "lambda_orthogonal"})
    order = order_of(folder, "mapped_class_mean_distance", maps)
    found = {}
    assert folder.train is not None
    label = folder.train.label
    assert label is not None
    for name in ("fct", "ridge_gallery", "fastfill", "lambda_orthogonal"):  # the last maps new embeddings, too
        served = mapped(folder, name, maps, "train").forward.gallery.astype(np.float64)
        means = [np.mean([v for v, c in zip(served, label, strict=True) if c == wanted], 0) for wanted in (5, 6, 7)]
        pair = mapped(folder, name, maps)
        distance = [1 - max(cosine(v, mean) for mean in means) for v in pair.backward.gallery.astype(np.float64)]
        found[name] = order(name)
        assert found[name] == sorted(range(30), key=lambda i: -distance[i])
        assert order_of(folder, "mapped_class_mean_distance", maps)(name, pair) == found[name]
    assert order("rm_naive") == found["fastfill"]
    assert len(set(map(tuple, found.values()))) == 4


def test_the_new_models_classifier_looks_at_the_mapped_item(tmp_path: Path, maps: FittedMaps) -> None:
    folder = with_train(tmp_path, classifier=True)
    known = folder.classifier
    assert known is not None
    for loss in (ClassificationSettings(), ClassificationSettings("arcface", arcface_scale=3.0)):
        order = order_of(folder, "mapped_least_confidence", maps, loss)
        for name in ("fct", "ridge_gallery"):
            top = []
            for h in mapped(folder, name, maps).backward.gallery.astype(np.float64):
                if loss.classification == "softmax":
                    logits = [h @ w + b for w, b in zip(known.weight, known.bias, strict=True)]
                else:
                    logits = [3.0 * cosine(h, w) for w in known.weight]
                top.append(max(math.exp(z) for z in logits) / sum(math.exp(z) for z in logits))
            assert order(name) == sorted(range(30), key=lambda i: top[i])


def test_without_a_classifier_one_is_fitted_on_the_train_split(tmp_path: Path, maps: FittedMaps) -> None:
    folder = with_train(tmp_path)
    assert folder.classifier is None
    assert folder.train is not None
    assert folder.train.label is not None
    fitted = fit_classifier(folder.train.new, folder.train.label, ClassificationSettings())
    logits = mapped(folder, "fct", maps).backward.gallery.astype(np.float64) @ fitted.weight.T + fitted.bias
    top = (np.exp(logits) / np.exp(logits).sum(1, keepdims=True)).max(1)
    assert order_of(folder, "mapped_least_confidence", maps)("fct") == np.argsort(top, kind="stable").tolist()


def test_orders_by_mapped_items_read_no_new_embedding_of_the_gallery(tmp_path: Path, maps: FittedMaps) -> None:
    """A drill from images makes its order before the new model has embedded the gallery."""
    folder = with_train(tmp_path)
    before = replace(folder, gallery=replace(folder.gallery, vectors={"old": folder.gallery.old}))
    for name in ("mapped_class_mean_distance", "mapped_least_confidence"):
        assert order_of(before, name, maps)("fct") == order_of(folder, name, maps)("fct")


def test_what_no_method_gives_is_named(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    for name, remedy in (
        ("sigma", "fastfill"),
        ("oracle_loss", "predicts new gallery embeddings"),
        ("class_mean_distance", "train split"),
        ("mapped_class_mean_distance", "a train split with labels, and a method that predicts"),
        ("mapped_least_confidence", "classifier or a train split with labels, and a method that predicts"),
    ):
        with pytest.raises(InputError, match=remedy):
            order_of(folder, name)


def test_class_means_come_from_the_train_split(tmp_path: Path) -> None:
    train = {"id": np.arange(6), "old": vector_column(np.repeat(np.eye(4, dtype=np.float32)[:3], 2, axis=0))}
    more = {"new": vector_column(np.ones((6, 6), np.float32)), "label": np.repeat([5, 7, 9], 2)}
    write_parquet(tmp_path / "train.parquet", pa.table(train | more))
    folder = folder_of(tmp_path)
    unit = folder.gallery.old / np.linalg.norm(folder.gallery.old, axis=1, keepdims=True)
    expected = np.argsort(unit[:, :3].max(axis=1), kind="stable")
    assert order_of(folder, "class_mean_distance")("rm_naive") == expected.tolist()


def test_an_order_needs_labels_if_the_gallery_has_nothing_else_for_it() -> None:
    old = RNG.normal(size=(4, 2)).astype(np.float32)
    orders = [find_order(name) for name in ("centroid_cosine", "random", "class_mean_distance")]
    label, old_class = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    for columns, needing in (
        ({"label": label}, {"centroid_cosine"}),
        ({"label": label, "old_class": old_class}, set()),
    ):
        found = traits_of((), orders, (), GalleryColumns(old, columns)).orders
        assert {name for name, traits in found.items() if traits.needs_labels} == needing
