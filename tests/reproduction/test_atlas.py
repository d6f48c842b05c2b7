"""The atlas: embeddings joined to upgrades, classical features, and what rules of choice lose, worked out by hand."""

import dataclasses
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from PIL import Image
from scipy.stats import ConstantInputWarning

from ray_backfill.core.errors import InputError
from ray_backfill.data.folder import read_folder
from ray_backfill.encode.encoder import TEXT
from ray_backfill.encode.items import ItemSources
from reproduction.atlas import comparison
from reproduction.atlas.collections import COLLECTIONS, Collection, drawn_rows
from reproduction.atlas.comparison import METHODS, ORDERS, PAIRS, TRAIN, Upgrade, compare, forecast
from reproduction.atlas.embeddings import embed_collection, join, map_gallery
from reproduction.atlas.models import MODELS, AtlasModel, models_of
from reproduction.atlas.page import PageFacts, write_page
from reproduction.atlas.predictors import linear_cka, predictability
from reproduction.atlas.rules import decided, halves, mean_regrets, other_collection, other_models, regrets
from reproduction.atlas.tuned import Tuning, contrast, pairs_of, tuned
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


def test_two_models_of_a_collection_become_an_upgrade(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ORDER_METHODS", "FORECAST_METHODS"):  # FCT would be trained on Ray
        monkeypatch.setattr(comparison, name, ("rm_naive", "relaxed_gallery", "slerp", "ridge_gallery"))
    collection = Collection("animals", TEXT, _prepare, "animals")
    models = {"small": _model("small", _models.old), "large": _model("large", _models.New())}
    folders = embed_collection(collection, models, tmp_path, tmp_path / "out")
    assert embed_collection(collection, models, tmp_path, tmp_path / "out") == folders
    joined = join(tmp_path / "joined", folders["small"], folders["large"], 50)
    folder = read_folder(joined)
    assert folder.queries is not None
    assert folder.train is not None
    assert (len(folder.gallery), len(folder.queries), len(folder.train)) == (89, 59, 39), "the empty text is left out"
    assert folder.gallery.id.tolist() == [row for row in range(90) if row != 3]
    texts = [json.loads(line)["text"] for line in (tmp_path / "out/animals/source/gallery.jsonl").open()]
    kept = [text for text in texts if text]
    np.testing.assert_array_equal(folder.gallery.old, _models.old(kept))
    np.testing.assert_array_equal(folder.gallery.new, _models.New()(kept, "document"))
    found = compare(
        Upgrade("animals", "small", "large"), joined, tmp_path / "run", ("offline", "cascade@5", "ridge_gallery")
    )
    random = found[found["order"] == "random"]
    raw = random[(random["merge"] == "raw") & (random["method"] == "ridge_gallery")].set_index("fold")
    folds = raw.loc[list("0123456789")]
    assert raw["queries"].to_dict() == {"": 59} | {fold: 6 - (fold == "9") for fold in "0123456789"}
    assert raw.loc["", "auc"] == pytest.approx(np.average(folds["auc"], weights=folds["queries"]))
    assert set(raw.index[raw["old_auc"].notna()]) == {""}
    offline = random[random["method"] == "offline"].set_index(["merge", "fold"])
    with_csls = random[(random["method"] == "ridge_gallery") & (random["merge"] == "csls")].set_index("fold")
    for merge, rows in (("raw", raw), ("csls", with_csls)):
        each = offline.loc[merge]
        assert each.loc["", "auc"] == pytest.approx(rows.loc["", "old_auc"])
        assert each.loc["", "auc"] == pytest.approx(np.average(each.loc[folds.index, "auc"], weights=folds["queries"]))
        assert each.loc["", "end"] == pytest.approx(rows.loc["", "new_auc"])
    assert offline.loc[("csls", ""), "auc"] != pytest.approx(offline.loc[("raw", ""), "auc"], abs=1e-3)
    curves = pd.read_parquet(tmp_path / "run" / "results" / "summary.parquet")
    own = curves[(curves["method"] == "ridge_gallery") & (curves["merge"] == "raw")].iloc[0]
    assert own["auc"] == pytest.approx(raw.loc["", "auc"])
    assert np.trapezoid(raw["curve"].to_dict()[""], dx=0.01) == pytest.approx(own["auc"])
    cascade = random[(random["method"] == "cascade@5") & (random["fold"] == "")].set_index("merge").loc["raw"]
    summed = curves[(curves["method"] == "cascade@5") & (curves["merge"] == "raw")].iloc[0]
    assert cascade["auc"] == pytest.approx(summed["auc"], abs=1e-12)
    ordered = found[found["order"] != "random"]
    assert set(ordered["order"]) == set(ORDERS) - {"random"}
    assert {"rm_naive", "ridge_gallery"} <= set(ordered["method"])
    foretold = forecast(Upgrade("animals", "small", "large"), joined, tmp_path / "run")
    assert {"offline", "ridge_gallery"} < set(foretold["method"])
    assert foretold["auc"].between(0, 1).all()
    assert forecast(Upgrade("animals", "small", "large"), joined, tmp_path / "run").equals(foretold)
    some = read_folder(join(tmp_path / "fewer", folders["small"], folders["large"], 20)).train
    assert some is not None
    assert len(some) == 20
    assert set(map(bytes, some.old)) < set(map(bytes, folder.train.old))
    fewer = compare(
        Upgrade("animals", "small", "large", 20), tmp_path / "fewer", tmp_path / "run20", ("ridge_gallery",)
    )
    assert set(fewer["order"]) == {"random"}
    assert set(fewer["train"]) == {20}
    another = embed_collection(collection, models | {"large": _model("large", _models.old)}, tmp_path, tmp_path / "out")
    renewed = read_folder(join(joined, another["small"], another["large"], 50))
    np.testing.assert_array_equal(renewed.gallery.new, renewed.gallery.old)
    part = folders["large"] / "gallery.parquet" / "part-000000.parquet"
    pq.write_table(pq.read_table(part).slice(1), part)
    with pytest.raises(ValueError, match="have embedded other items of the gallery"):
        join(tmp_path / "again", folders["small"], folders["large"], 50)


def test_a_chain_begins_with_a_mapped_gallery(tmp_path: Path) -> None:
    collection = Collection("animals", TEXT, _prepare, "animals")
    models = {"small": _model("small", _models.old), "large": _model("large", _models.New())}
    folders = embed_collection(collection, models, tmp_path, tmp_path / "out")
    chained = map_gallery(tmp_path / "chained", folders["small"], folders["large"])
    folder = read_folder(join(tmp_path / "joined", chained, folders["large"], 50))
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


def test_queries_are_taken_out_of_a_gallery_without_them() -> None:
    drawn = drawn_rows({"train": 2904, "gallery": 1936})
    assert {split: source for split, (source, _) in drawn.items()} == {
        "gallery": "gallery", "queries": "gallery", "train": "train", "tune": "train",
    }  # fmt: skip
    rows = {split: own for split, (_, own) in drawn.items()}
    assert {split: len(own) for split, own in rows.items()} == {
        "gallery": 1436, "queries": 500, "train": 2000, "tune": 904,
    }  # fmt: skip
    assert sorted([*rows["gallery"], *rows["queries"]]) == list(range(1936))
    assert sorted([*rows["train"], *rows["tune"]]) == list(range(2904))
    drawn = drawn_rows({"train": 30000, "gallery": 9000, "queries": 1000})
    assert [len(drawn[split][1]) for split in ("gallery", "queries", "train", "tune")] == [4000, 500, 2000, 2000]
    assert drawn["queries"][0] == "queries"


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


def _curves(aucs: dict[tuple[str, str, str], dict[str, dict[str, float]]], queries: int = 10) -> pd.DataFrame:
    """aucs: (collection, old, new) -> half, or "" for all queries -> method -> AUC, with the raw merge."""
    folds = {"a": list("02468"), "b": list("13579")}
    return pd.DataFrame(
        {
            "collection": c, "old": o, "new": n, "train": TRAIN, "fold": fold, "method": method, "order": "random",
            "merge": "raw", "auc": auc, "queries": queries, "learned": True, "curve": np.linspace(auc, auc, 11),
        }
        for (c, o, n), parts in aucs.items()
        for part, methods in parts.items()
        for fold in folds.get(part, [part])
        for method, auc in methods.items()
    )  # fmt: skip


ONE, TWO, THREE = ("c", "x", "y"), ("d", "x", "y"), ("d", "x", "z")
_HALVES = {
    ONE: {
        "a": {"offline": 0.50, "rm_naive": 0.52, "ridge_gallery": 0.56, "cascade@100": 0.9, "rm": 0.9},
        "b": {"offline": 0.51, "rm_naive": 0.58, "ridge_gallery": 0.55, "cascade@100": 0.9, "rm": 0.9},
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
BY_HAND = _curves(
    {
        key: own | {"": {name: (own["a"][name] + own["b"][name]) / 2 for name in own["a"]}}
        for key, own in _HALVES.items()
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
    assert found["c", "y", "hindsight", "b"] == pytest.approx(3), "on all queries ridge has 55.5, rank merge 55"
    foretold = pd.DataFrame(
        {
            "collection": "c",
            "old": "x",
            "new": "y",
            "fold": "forecast",
            "order": "random",
            "method": method,
            "merge": "raw",
            "auc": auc,
        }
        for method, auc in (("offline", 0.7), ("rm_naive", 0.6), ("new", 0.9))
    )
    both = regrets(pd.concat([BY_HAND, foretold]), other_collection)
    found = both.set_index(["collection", "new", "rule", "half"])["regret"]
    assert found["c", "y", "forecast", "b"] == pytest.approx(7), "it says to switch"
    assert found["c", "y", "seen", "b"] == pytest.approx(3), "as before"
    assert ("d", "y", "forecast", "a") not in found.index, "there is none"
    best = BY_HAND.assign(merge=BY_HAND["merge"].where(BY_HAND["method"] == "offline", "best"))
    unlearned = best.assign(learned=best["method"] != "ridge_gallery")
    for curves, regret in ((best, 3), (unlearned, 0)):
        found = regrets(curves, other_collection).set_index(["collection", "new", "rule", "half"])["regret"]
        assert found["c", "y", "report", "b"] == pytest.approx(regret), "it recommends nothing that did not learn"
    found = regrets(best, other_collection).set_index(["collection", "new", "rule", "half"])["regret"]
    assert found["c", "y", "report", "a"] == pytest.approx(4), "half b says rank merge"
    assert found["c", "y", "report_all", "a"] == pytest.approx(0), "all queries say ridge"
    # Rank merge has chosen CSLS, and old alone with CSLS is better than it in both halves: 60 against 52 and 58.
    twice = best[best["method"] == "rm_naive"].assign(merge="csls")
    alone = best[best["method"] == "offline"].assign(merge="csls", auc=best["auc"] + 0.1)
    little = alone.assign(auc=alone["auc"] - 0.09)
    for further, chosen in (
        ([twice, alone], ("offline", "csls")),
        ([twice, little], ("rm_naive", "best")),
        ([alone], ("rm_naive", "best")),
    ):
        rows = regrets(pd.concat([best, *further]), other_collection).query("rule == 'report' and collection == 'c'")
        assert tuple(rows.set_index("half").loc["a", ["method", "merge"]]) == chosen
    with_rm = regrets(BY_HAND, other_collection, with_supervised=True)
    found = with_rm.set_index(["collection", "new", "rule", "half"])["regret"]
    assert found["c", "y", "seen", "b"] == 0
    assert found["c", "y", "ridge", "b"] == pytest.approx(35)


def test_halves_weigh_their_folds_by_queries() -> None:
    aucs = np.arange(10) / 10
    curves = _curves({ONE: {str(fold): {"offline": auc} for fold, auc in enumerate(aucs)}})
    curves["queries"] = [10, 10, 10, 10, 10, 10, 10, 10, 30, 10]
    found = halves(curves)["offline", "raw"]
    assert found[*ONE, "a"] == pytest.approx((0 + 0.2 + 0.4 + 0.6 + 3 * 0.8) / 7)
    assert found[*ONE, "b"] == pytest.approx(0.5)


def test_rules_differ_where_all_folds_say_so() -> None:
    rng = np.random.default_rng(0)
    noise = {name: rng.normal(0, 0.01, 10) for name in ("offline", "rm_naive")}
    for apart, is_decided in ((0.1, True), (0.0, False)):
        curves = _curves(
            {
                ONE: {
                    str(fold): {name: 0.3 + apart * (name == "rm_naive") + own[fold] for name, own in noise.items()}
                    for fold in range(10)
                }
                | {"": {"offline": 0.3, "rm_naive": 0.3 + apart}}
            }
        )
        found = regrets(curves, other_collection)
        assert decided(curves, found) == ({ONE} if is_decided else set())


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
                part: {method: old + gain * (new - old) for method, gain in methods.items()} for part in ("", "a", "b")
            }
            for names, (old, new) in aucs.items()
        }
    )
    both = [aucs[key] for key in zip(curves["collection"], curves["old"], curves["new"], strict=True)]
    curves = curves.assign(old_auc=[old for old, _ in both], new_auc=[new for _, new in both], metric="nDCG@10")
    curves = curves.assign(cka=0.5, old_low=-0.1, old_high=0.4, new_low=0.0, new_high=0.6, overlap=0.8)
    write_page(tmp_path / "atlas.md", curves, PageFacts("make atlas", "two cores", "today", "**Found.**\n"))
    page = (tmp_path / "atlas.md").read_text(encoding="utf-8")
    assert "collection: cranfield, nfcorpus." in page
    assert "4 upgrades have\n2 independent pairs of models, and 3 independent pairs of models and collections" in page
    assert "| cranfield | lsa | wordllama-256 | nDCG@10 | 10.0 | 30.0 | 0.50 | 40 | - | 75 | - | - | - |" in page
    # Rank merge loses (0.75 - 0.40) x the upgrade: 3.5, 7 and 1.4 points. The last upgrade is harmful: not to have it
    # is best, and rank merge loses 0.4 of its 2 points, ridge 0.75.
    assert re.search(r"\| rank merge \| 3\.1[78] \[", page)
    assert re.search(r"\| ridge \| 0\.3[78] \[", page)
    assert "| nfcorpus | wordllama-128 | wordllama-256 | nDCG@10 | 36.0 | 34.0 | 0.50 | - | - | - | - | - | - |" in page
    assert "free for academic use" in page
    assert "Not measured: it takes ten upgrades" in page
    assert "EfficientNet" not in page, "it was not used"
    # The regret of rank merge by collection, as above: (3.5 + 7) / 2 and (1.4 + 0.8) / 2. Where the new model is
    # better, it is never below the old one.
    assert re.search(r"\| `rm_naive` \| raw \| 3\.2 \| 5\.[23] \| 1\.1 \| 7\.0 \| 0 \| 0 % \|", page)
    assert (tmp_path / "atlas.png").stat().st_size > 10_000
    assert "Not measured." in page
    # With 600 train items, the chosen merge of ridge serves 1 point less than raw distances in one upgrade of four.
    fewer = curves.assign(train=600)
    is_own = (fewer["collection"] == "cranfield") & (fewer["old"] == "lsa")
    best = fewer.assign(merge="best", auc=fewer["auc"] - 0.01 * is_own)[fewer["method"] == "ridge_gallery"]
    write_page(tmp_path / "both.md", pd.concat([curves, fewer, best]), PageFacts("make atlas", "two cores", "today"))
    page = (tmp_path / "both.md").read_text(encoding="utf-8")
    assert "In 1 of 4 (25 %) of methods and upgrades, by more than 0.3 points:" in page
    assert "| cranfield | lsa | wordllama-256 | 600 | ridge_gallery | 25.0 | 24.0 |" in page
    assert re.search(r"\| ridge \| 0\.3[78] \[.*\], 75 % \| 0\.3[78] \[.*\], 75 % \|", page)
    tiny = curves.assign(new_auc=curves["old_auc"] + 0.005)
    write_page(tmp_path / "atlas.md", tiny, PageFacts("make atlas", "two cores", "today"))
    page = (tmp_path / "atlas.md").read_text(encoding="utf-8")
    assert "| cranfield | lsa | wordllama-256 | nDCG@10 | 10.0 | 10.5 | 0.50 | - | - | - | - | - | - |" in page


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
            "order": "random",
            "collection": np.array(["c", "d", "e", "f"])[np.arange(rows) % 4], "old": "x",
            "new": np.arange(rows).astype(str), "method": "ridge_gallery", "merge": "best", "fold": "",
            "old_auc": 0.2, "new_auc": new, "auc": 0.2 + (new - 0.2) * (1 + 0.3 * np.log(cka)), "cka": cka,
            "old_dim": rng.integers(50, 500, rows), "new_dim": 256,
            "items_per_dim": rng.uniform(1, 9, rows), "overlap": rng.uniform(0, 1, rows),
        }
    )  # fmt: skip
    with pytest.warns(ConstantInputWarning):
        found = predictability(curves, "ridge_gallery", "best")
    explained, rank = (found[name].to_dict() for name in ("explained", "rank"))
    assert explained["linear CKA between the models"] == pytest.approx(1)
    assert rank["linear CKA between the models"] == pytest.approx(1)
    assert explained["dimensions of the old model"] < 0.1, "it has nothing to do with the gain"
    # All have the same: it predicts the mean of the other collections, which is what it is compared with.
    assert explained["dimensions of the new model"] == pytest.approx(0)
    assert predictability(curves.head(9), "ridge_gallery", "best").empty


def test_a_newcomers_method_is_named_with_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    from reproduction.atlas.__main__ import _with_modules

    for name in ("RAY_BACKFILL_PLUGINS", "PYTHONPATH"):
        monkeypatch.setenv(name, "")
    assert _with_modules(("ridge_query", "mine:their_map")) == ("ridge_query", "their_map")
    assert os.environ["RAY_BACKFILL_PLUGINS"] == "mine,"
    assert str(Path.cwd()) in os.environ["PYTHONPATH"]


def test_partners_are_of_the_same_class_or_text() -> None:
    labelled = [(f"{label}{i}", label) for label in "xyz" for i in range(4)] + [("alone", "w")]
    found = pairs_of(labelled, 30)
    assert len(found) == 30
    assert all(item[0] == partner[0] == label and item != partner for item, partner, label in found)
    assert pairs_of(labelled, 30) == found
    texts = [("One fish. Two fish. Red fish", None), ("No sentence at all", None)]
    for sentence, rest, place in pairs_of(texts, 5):
        assert place == 0
        assert sorted([sentence, *rest.split(". ")]) == ["One fish", "Red fish", "Two fish"]
    assert pairs_of(texts[1:], 5) == []


def test_a_tuned_model_brings_partners_together_and_is_kept(tmp_path: Path) -> None:
    import torch

    rng = np.random.default_rng(0)
    centres = rng.normal(size=(6, 16))
    items = [
        {"text": " ".join(map(str, centres[row % 6] + 2 * rng.normal(size=16))), "label": row % 6} for row in range(90)
    ]
    source = tmp_path / "tune.jsonl"
    source.write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")
    torch.manual_seed(0)
    network = torch.nn.Linear(16, 8)

    def embed(texts: Any) -> Any:
        return network(torch.tensor([[float(word) for word in text.split()] for text in texts]))

    def apart() -> float:
        """Mean cosine of items of one class less that of all items."""
        with torch.no_grad():
            vectors = torch.nn.functional.normalize(embed([str(item["text"]) for item in items]), dim=1)
        cosines, label = (vectors @ vectors.T).numpy(), np.array([item["label"] for item in items])
        return float(cosines[label[:, None] == label].mean() - cosines.mean())

    made: list[int] = []
    before, weights = apart(), network.weight.detach().clone()
    contrast(network, embed, [(items[0]["text"], items[1]["text"], "one class")] * 24, Tuning(24, 12, 0.02))
    assert torch.cosine_similarity(weights, network.weight, dim=1).min() > 1 - 1e-6, "nothing to keep apart"

    def make(pairs: Any, to: Path) -> None:
        contrast(network, embed, pairs, tuning)
        made.append(len(pairs))
        (to / "weights").write_text("w", encoding="utf-8")

    tuning = Tuning(pairs=480, batch=12, rate=0.02)
    folder = tuned(tmp_path / "model", source, tuning, "base", make)
    assert made == [480]
    assert apart() > before + 0.1
    assert tuned(folder, source, tuning, "base", make) == folder
    assert made == [480], "it was there"
    source.write_text(source.read_text(encoding="utf-8").replace('"label": 5', '"label": 4'), encoding="utf-8")
    tuned(folder, source, tuning, "base", make)
    assert made == [480, 480], "other items"


def test_an_upgrade_that_is_measured_again_replaces_its_rows_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reproduction.atlas import __main__ as command

    (tmp_path / "cranfield").mkdir()
    (tmp_path / "banking77").mkdir()
    value, pages = [0.1], list[pd.DataFrame]()

    def measured(collection: Collection, upgrades: list[Upgrade], *_: Any) -> Iterator[pd.DataFrame]:
        for upgrade in upgrades:
            row = {**dataclasses.asdict(upgrade), "auc": value[0], "cores": 2, "date": "2026-11-26"}
            yield pd.DataFrame([row, row])

    monkeypatch.setattr(command, "_measure", measured)
    monkeypatch.setattr(command, "check_packages", lambda _: None)
    monkeypatch.setattr(command, "write_page", lambda _, curves, facts: pages.append(curves.assign(by=facts.command)))
    page = tmp_path / "docs" / "atlas.md"
    job = command.AtlasJob(data_root=tmp_path, out=tmp_path / "run", page=page, only=("banking77",))
    page.parent.mkdir()
    command.run_atlas(job)
    command.run_atlas(dataclasses.replace(job, only=("cranfield",)))
    value[0] = 0.2
    command.run_atlas(dataclasses.replace(job, only=("cranfield",)))
    pairs = 3 * len(PAIRS[TEXT])  # with three numbers of train items
    assert pages[-1]["collection"].to_list() == ["cranfield"] * 2 * pairs + ["banking77"] * 2 * pairs
    assert pages[-1]["auc"].to_list() == [0.2] * 2 * pairs + [0.1] * 2 * pairs
    value[0] = 0.3
    command.run_atlas(dataclasses.replace(job, only=("cranfield/lsa_minilm", "banking77/glove_minilm_600")))
    again = pages[-1][pages[-1]["auc"] == 0.3]
    assert again[["collection", "old", "new", "train"]].drop_duplicates().to_numpy().tolist() == [
        ["cranfield", "lsa", "minilm", 1950], ["banking77", "glove", "minilm", 600],
    ]  # fmt: skip
    assert len(again) == 4
    assert len(pages[-1]) == len(pages[-2])
    command.run_atlas(command.AtlasJob(page=page))
    pd.testing.assert_frame_equal(pages[-1], pages[-2])
    assert pages[-1]["by"].iloc[0].endswith("--only cranfield banking77")
    chain = "banking77/wordllama-64>wordllama-256_minilm"
    part = dataclasses.replace(job, page=page.with_name("part.md"), only=(chain, "cranfield"))
    command.run_atlas(part)
    assert pages[-1]["by"].iloc[0].endswith(f"--only cranfield '{chain}'"), "not to be redirected by a shell"
    with pytest.raises(InputError, match=r"no collection or upgrade 'cranfield/minilm_glove'; there are: cranfield"):
        command.run_atlas(dataclasses.replace(job, only=("cranfield/minilm_glove",)))
    with pytest.raises(InputError, match="to write the page from; measure it with --data-root"):
        command.run_atlas(command.AtlasJob(out=tmp_path / "nothing"))
