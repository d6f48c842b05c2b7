"""The atlas: embeddings joined to upgrades, classical features, and what rules of choice lose, worked out by hand."""

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from PIL import Image
from scipy.stats import ConstantInputWarning

from ray_backfill.data.folder import read_folder
from ray_backfill.encode.encoder import TEXT
from ray_backfill.encode.items import ItemSources
from reproduction.atlas.collections import COLLECTIONS, Collection
from reproduction.atlas.comparison import METHODS, PAIRS, Upgrade, compare, forecast
from reproduction.atlas.embeddings import embed_collection, join, map_gallery
from reproduction.atlas.models import MODELS, AtlasModel, models_of
from reproduction.atlas.page import PageFacts, write_page
from reproduction.atlas.predictors import linear_cka, predictability
from reproduction.atlas.rules import mean_regrets, other_collection, other_models, regrets
from tests.encode import _models

ANIMALS = ["cat", "dog", "bird", "fish", "horse", "cow"]


def _prepare(data: Path, to: Path) -> ItemSources:
    rng = np.random.default_rng(0)
    paths = {}
    for split, rows in (("gallery", 90), ("queries", 60), ("train", 40)):
        texts = [f"{ANIMALS[row % 6]} {' '.join(rng.choice(ANIMALS, 4))}" for row in range(rows)]
        texts[3] = ""
        lines = (json.dumps({"text": text, "label": ANIMALS[row % 6]}) + "\n" for row, text in enumerate(texts))
        paths[split] = to / f"{split}.jsonl"
        to.mkdir(parents=True, exist_ok=True)
        paths[split].write_text("".join(lines), encoding="utf-8")
    return ItemSources(TEXT, *map(str, paths.values()))


def _model(name: str, call: Any) -> AtlasModel:
    from ray_backfill.encode.models.python import model_of

    return AtlasModel(name, TEXT, name, lambda items: model_of(call, TEXT), name)


def test_two_models_of_a_collection_become_an_upgrade(tmp_path: Path) -> None:
    collection = Collection("animals", TEXT, _prepare, "animals")
    models = {"small": _model("small", _models.old), "large": _model("large", _models.New())}
    folders = embed_collection(collection, models, tmp_path, tmp_path / "out")
    assert embed_collection(collection, models, tmp_path, tmp_path / "out") == folders
    joined = join(tmp_path / "joined", folders["small"], folders["large"])
    folder = read_folder(joined)
    assert folder.queries is not None
    assert folder.train is not None
    assert (len(folder.gallery), len(folder.queries), len(folder.train)) == (89, 59, 39), "the empty text is left out"
    assert folder.gallery.id.tolist() == [row for row in range(90) if row != 3]
    texts = [json.loads(line)["text"] for line in (tmp_path / "out/animals/source/gallery.jsonl").open()]
    kept = [text for text in texts if text]
    np.testing.assert_array_equal(folder.gallery.old, _models.old(kept))
    np.testing.assert_array_equal(folder.gallery.new, _models.New()(kept, "document"))
    found = compare(Upgrade("animals", "small", "large"), joined, tmp_path / "run", ("offline", "ridge_gallery"))
    raw = found[(found["merge"] == "raw") & (found["method"] == "ridge_gallery")].set_index("half")
    assert raw["queries"].to_dict() == {"": 59, "a": 30, "b": 29}
    auc = raw["auc"].to_dict()
    assert auc[""] == pytest.approx((30 * auc["a"] + 29 * auc["b"]) / 59)
    old, new = (found[found["method"] == name].set_index("half")["auc"] for name in ("old", "new"))
    assert raw["old_auc"].to_dict() == old.to_dict()
    assert raw["new_auc"].to_dict() == new.to_dict()
    offline = found[(found["method"] == "offline") & (found["half"] == "")].iloc[0]
    assert offline["auc"] == offline["old_auc"]
    curves = pd.read_parquet(tmp_path / "run" / "results" / "summary.parquet")
    own = curves[(curves["method"] == "ridge_gallery") & (curves["merge"] == "raw")].iloc[0]
    assert own["auc"] == pytest.approx(auc[""])
    foretold = forecast(Upgrade("animals", "small", "large"), joined, tmp_path / "run")
    assert {"offline", "ridge_gallery"} < set(foretold["method"])
    assert foretold["auc"].between(0, 1).all()
    assert forecast(Upgrade("animals", "small", "large"), joined, tmp_path / "run").equals(foretold)
    another = embed_collection(collection, models | {"large": _model("large", _models.old)}, tmp_path, tmp_path / "out")
    renewed = read_folder(join(joined, another["small"], another["large"]))
    np.testing.assert_array_equal(renewed.gallery.new, renewed.gallery.old)
    part = folders["large"] / "gallery.parquet" / "part-000000.parquet"
    pq.write_table(pq.read_table(part).slice(1), part)
    with pytest.raises(ValueError, match="have embedded other items of the gallery"):
        join(tmp_path / "again", folders["small"], folders["large"])


def test_a_chain_begins_with_a_mapped_gallery(tmp_path: Path) -> None:
    collection = Collection("animals", TEXT, _prepare, "animals")
    models = {"small": _model("small", _models.old), "large": _model("large", _models.New())}
    folders = embed_collection(collection, models, tmp_path, tmp_path / "out")
    chained = map_gallery(tmp_path / "chained", folders["small"], folders["large"])
    folder = read_folder(join(tmp_path / "joined", chained, folders["large"]))
    assert folder.queries is not None
    np.testing.assert_array_equal(folder.queries.old, folder.queries.new)
    assert folder.gallery.old.shape == folder.gallery.new.shape
    old, new = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (folder.gallery.old, folder.gallery.new))
    assert (old * new).sum(1).mean() > 0.99, "so few words have an exact map"
    assert (folder.gallery.old != folder.gallery.new).any(), "but the second model has embedded queries only"


def test_what_is_named_is_there() -> None:
    from ray_backfill.learn.methods import find_methods

    find_methods(METHODS)
    for modality, pairs in PAIRS.items():
        assert {name for pair in pairs for each in pair for name in each.split(">")} <= set(models_of(modality))
        assert len(set(pairs)) == len(pairs)
    upgrades = sum(len(PAIRS[collection.modality]) for collection in COLLECTIONS)
    assert upgrades >= 30
    assert len({model.name for model in MODELS}) == len(MODELS)


def test_classical_features_of_simple_images(tmp_path: Path) -> None:
    features = {name: models_of("image")[name].load(tmp_path) for name in ("hog", "colours")}
    half = np.zeros((64, 64, 3), np.uint8)
    half[:, 32:] = (255, 0, 100)
    colours = features["colours"].embed([Image.fromarray(half)], "query")[0]
    assert colours[0] ** 2 == pytest.approx(0.5)
    assert colours[3 * 16 + 0 * 4 + 1] ** 2 == pytest.approx(0.5)
    assert (colours > 0).sum() == 2
    ramp = np.broadcast_to(np.arange(64, dtype=np.uint8) * 2, (64, 64))
    of_cells = [
        features["hog"].embed([Image.fromarray(each).convert("RGB")], "query")[0].reshape(7, 7, 4, 9)
        for each in (ramp, ramp.T)
    ]
    # All gradients of the first point right (angle 0), of the second down (90 degrees, between the bins 4 and 5).
    assert (of_cells[0][..., 0] > 0.4).all()
    assert (of_cells[0][..., 1:] < 1e-4).all()
    assert (of_cells[1][..., 4:6] > 0.3).all()
    assert (np.delete(of_cells[1], (4, 5), axis=-1) < 1e-4).all()


def _curves(aucs: dict[tuple[str, str, str], dict[str, dict[str, float]]]) -> pd.DataFrame:
    """aucs: (collection, old, new) -> half -> method -> AUC, with the raw merge."""
    return pd.DataFrame(
        {"collection": c, "old": o, "new": n, "half": half, "method": method, "merge": "raw", "auc": auc}
        for (c, o, n), halves in aucs.items()
        for half, methods in halves.items()
        for method, auc in methods.items()
    )


ONE, TWO, THREE = ("c", "x", "y"), ("d", "x", "y"), ("d", "x", "z")
BY_HAND = _curves(
    {
        ONE: {
            "a": {"offline": 0.50, "rm_naive": 0.52, "ridge_gallery": 0.56, "cascade@100": 0.9},
            "b": {"offline": 0.51, "rm_naive": 0.58, "ridge_gallery": 0.55, "cascade@100": 0.9},
        },
        TWO: {
            "a": {"offline": 0.30, "rm_naive": 0.40, "ridge_gallery": 0.35},
            "b": {"offline": 0.30, "rm_naive": 0.40, "ridge_gallery": 0.36},
        },
        THREE: {
            "a": {"offline": 0.60, "ridge_gallery": 0.50},
            "b": {"offline": 0.60, "ridge_gallery": 0.50},
        },
    }
)


def test_regrets_by_hand() -> None:
    found = regrets(BY_HAND, other_collection).set_index(["collection", "new", "rule", "half"])["regret"]
    # Upgrade one: the best is ridge in half a (56), rank merge in half b (58). What is best in a is judged in b.
    assert found["c", "y", "seen", "b"] == pytest.approx(3)
    assert found["c", "y", "seen", "a"] == pytest.approx(4)
    assert found["c", "y", "switch", "a"] == pytest.approx(6)
    assert found["c", "y", "ridge", "b"] == pytest.approx(3)
    # In the other collection the mean regret of rank merge is 0 (one upgrade has none), of switching (10 + 0) / 2.
    # It is not known of all upgrades there, so it cannot be chosen: ridge loses (5 + 4 + 10 + 10) / 4 = 7.25.
    assert found["c", "y", "elsewhere", "b"] == pytest.approx(7)
    # The other way round, only upgrade one teaches: ridge loses (0 + 3) / 2, rank merge (4 + 0) / 2.
    assert found["d", "y", "elsewhere", "a"] == pytest.approx(5)
    assert found["d", "z", "elsewhere", "a"] == pytest.approx(10)
    assert ("d", "z", "rank_merge", "a") not in found.index
    foretold = pd.DataFrame(
        {"collection": "c", "old": "x", "new": "y", "half": "forecast", "method": method, "merge": "raw", "auc": auc}
        for method, auc in (("offline", 0.7), ("rm_naive", 0.6), ("new", 0.9))
    )
    both = regrets(pd.concat([BY_HAND, foretold]), other_collection)
    found = both.set_index(["collection", "new", "rule", "half"])["regret"]
    assert found["c", "y", "forecast", "b"] == pytest.approx(7), "it says to switch"
    assert found["c", "y", "seen", "b"] == pytest.approx(3), "as before"
    assert ("d", "y", "forecast", "a") not in found.index, "there is none"


def test_other_models_are_those_of_other_families() -> None:
    one = ("c", "lsa", "wordllama-256")
    assert not other_models(one, ("d", "lsa", "wordllama-64")), "truncations of one model"
    assert not other_models(one, ("d", "wordllama-128", "lsa"))
    assert other_models(one, ("c", "lsa", "minilm"))
    assert not other_models(("c", "wordllama-64>wordllama-256", "minilm"), ("c", "wordllama-256", "minilm"))
    assert not other_models(("c", "hog>lite0-96", "lite1-128"), ("d", "lite0-128", "lite1-128"))


def test_mean_regrets_and_their_intervals() -> None:
    found = regrets(BY_HAND, other_collection)
    of_switch = mean_regrets(found).to_dict("index")["switch"]
    assert of_switch["regret"] == pytest.approx(((6 + 7) / 2 + 10 + 0) / 3)
    assert of_switch["largest"] == pytest.approx(10)
    assert of_switch["upgrades"] == 3
    assert of_switch["low"] < of_switch["regret"] < of_switch["high"]
    same = mean_regrets(found.assign(regret=2.5))
    np.testing.assert_allclose(same[["regret", "low", "high"]], 2.5)


def test_the_page_counts_what_is_independent(tmp_path: Path) -> None:
    aucs = {
        ("cranfield", "wordllama-64", "wordllama-256"): (0.20, 0.30),
        ("cranfield", "lsa", "wordllama-256"): (0.10, 0.30),
        ("nfcorpus", "wordllama-64", "wordllama-256"): (0.30, 0.34),
        ("nfcorpus", "wordllama-128", "wordllama-256"): (0.36, 0.34),
    }
    methods = {"offline": 0.0, "rm_naive": 0.4, "ridge_gallery": 0.75, "fct": 0.7}
    curves = _curves(
        {
            names: {
                half: {method: old + gain * (new - old) for method, gain in methods.items()} for half in ("", "a", "b")
            }
            for names, (old, new) in aucs.items()
        }
    )
    both = [aucs[key] for key in zip(curves["collection"], curves["old"], curves["new"], strict=True)]
    curves = curves.assign(old_auc=[old for old, _ in both], new_auc=[new for _, new in both], metric="nDCG@10")
    write_page(tmp_path / "atlas.md", curves, PageFacts("make atlas", "two cores", "today", "**Found.**\n"))
    page = (tmp_path / "atlas.md").read_text(encoding="utf-8")
    assert "collection: cranfield, nfcorpus." in page
    assert "4 upgrades have\n2 independent pairs of models, and 3 independent pairs of models and collections" in page
    assert "| cranfield | lsa | wordllama-256 | nDCG@10 | 10.0 | 30.0 | 40 | - | 75 | - | - |" in page
    # Rank merge loses (0.75 - 0.40) x the upgrade: 3.5, 7 and 1.4 points. The last upgrade is harmful: not to have it
    # is best, and rank merge loses 0.4 of its 2 points, ridge 0.75.
    assert re.search(r"\| rank merge \| 3\.1[78] \[", page)
    assert re.search(r"\| ridge \| 0\.3[78] \[", page)
    assert "| nfcorpus | wordllama-128 | wordllama-256 | nDCG@10 | 36.0 | 34.0 | - | - | - | - | - |" in page
    assert "free for academic use" in page
    assert "Not measured: it takes ten upgrades" in page
    assert "EfficientNet" not in page, "it was not used"


def test_linear_cka() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 6)).astype(np.float32)
    turned = 3 * x @ np.linalg.qr(rng.normal(size=(6, 6)))[0] + 5
    assert linear_cka(x, turned.astype(np.float32)) == pytest.approx(1, abs=1e-5)
    # As Kornblith et al. define it by kernels: tr(K H L H) / sqrt(tr(K H K H) tr(L H L H)).
    y = (x[:, :3] + rng.normal(size=(200, 3))).astype(np.float32)
    h = np.eye(200) - 1 / 200
    k_NN, l_NN = h @ (x @ x.T) @ h, h @ (y @ y.T) @ h
    kernels = (k_NN * l_NN).sum() / np.sqrt((k_NN**2).sum() * (l_NN**2).sum())
    assert linear_cka(x, y) == pytest.approx(kernels, rel=1e-4)


def test_what_is_foretold_is_tried_on_other_collections() -> None:
    rng = np.random.default_rng(0)
    rows = 40
    cka, new = rng.uniform(0.1, 0.9, rows), rng.uniform(0.3, 0.6, rows)
    curves = pd.DataFrame(
        {
            "collection": np.array(["c", "d", "e", "f"])[np.arange(rows) % 4], "old": "x",
            "new": np.arange(rows).astype(str), "method": "ridge_gallery", "merge": "best", "half": "",
            "old_auc": 0.2, "new_auc": new, "auc": 0.2 + (new - 0.2) * (1 + 0.3 * np.log(cka)), "cka": cka,
            "old_dim": rng.integers(50, 500, rows), "new_dim": 256,
            "items_per_dim": rng.uniform(1, 9, rows),
        }
    )  # fmt: skip
    with pytest.warns(ConstantInputWarning):
        found = predictability(curves)
    explained, rank = (found[name].to_dict() for name in ("explained", "rank"))
    assert explained["linear CKA between the models"] == pytest.approx(1)
    assert rank["linear CKA between the models"] == pytest.approx(1)
    assert explained["dimensions of the old model"] < 0.1, "it has nothing to do with the gain"
    # All have the same: it predicts the mean of the other collections, which is what it is compared with.
    assert explained["dimensions of the new model"] == pytest.approx(0)
    assert predictability(curves.head(9)).empty


def test_a_newcomers_method_is_named_with_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    from reproduction.atlas.__main__ import _with_modules

    for name in ("RAY_BACKFILL_PLUGINS", "PYTHONPATH"):
        monkeypatch.setenv(name, "")
    assert _with_modules(("ridge_query", "mine:their_map")) == ("ridge_query", "their_map")
    assert os.environ["RAY_BACKFILL_PLUGINS"] == "mine,"
    assert str(Path.cwd()) in os.environ["PYTHONPATH"]
