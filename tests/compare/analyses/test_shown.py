"""The queries that lose and gain most: which they are, and what a page shows of them."""

import base64
import io
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import ray_backfill as rb
from ray_backfill.compare.analyses.flips import FlipRow
from ray_backfill.compare.analyses.shown import ShownQuery, _decisive, clean, examples, told
from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.replay import Flips
from ray_backfill.compare.report import read_results
from ray_backfill.compare.run import evaluate_folder
from ray_backfill.core.schema import rows_of
from ray_backfill.data.folder import EmbeddingTable
from ray_backfill.data.write import vector_column, write_parquet
from ray_backfill.engine.lists import RankedLists
from ray_backfill.images.datasets import pictures
from ray_backfill.images.datasets.landmarks import Settings, open_images
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.workers.settings import Context
from tests.compare.folder import write_split

EVALUATION = Evaluation(methods=("offline", "rm_naive"), orders=("random", "given"), metrics=("CMC@1",))
ITEMS, QUERIES = 60, 90


def picture(colour: tuple[int, int, int]) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (300, 300), colour).save(out, "PNG")
    return out.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Vectors without sense, so that queries change often. Texts are hostile, every third image is missing."""
    data, rng = tmp_path / "data", np.random.default_rng(0)
    (data / "pictures").mkdir(parents=True)
    for i in range(0, ITEMS, 3):
        (data / "pictures" / f"{i}.png").write_bytes(picture((200, i, 0)))
    more: dict[str, dict[str, Any]] = {
        "gallery": {
            "text": [f"<script>alert({i})</script>" for i in range(ITEMS)],
            "image": [f"pictures/{i}.png" for i in range(ITEMS)],
            "order_score": np.arange(ITEMS)[::-1].copy(),
        },
        "queries": {
            "text": [f"q{i}\nsecond \u202eline" for i in range(QUERIES)], "image": [picture((0, 0, 200))] * QUERIES,
        },
    }  # fmt: skip
    for name, rows, first_id in (("gallery", ITEMS, 0), ("queries", QUERIES, 1000)):
        vectors = {model: vector_column(rng.normal(size=(rows, 4)).astype(np.float32)) for model in ("old", "new")}
        write_split(data / f"{name}.parquet", rows, first_id, **vectors, **more[name])
    return data


def test_the_worst_and_best_queries_are_shown_with_their_items(folder: Path, tmp_path: Path) -> None:
    out = evaluate_folder(folder, EVALUATION, FitSettings(), Context(tmp_path / "out"))
    shown, flips = pd.read_parquet(out / "shown.parquet"), pd.read_parquet(out / "flips.parquet")
    assert set(shown.method) == {"rm_naive"}
    (order,) = set(shown.order)
    values = pd.read_parquet(out / "query_values.parquet").set_index(["method", "order", "quantity"])["values"]
    ids = pd.read_parquet(out / "queries.parquet").id.to_numpy()
    gain = values["rm_naive", order, "auc"] - values["old", "", "auc"]
    for kind, ranked in (("worst", np.argsort(gain, kind="stable")), ("best", np.argsort(-gain, kind="stable"))):
        own = shown[shown.kind == kind]
        assert own["query"].tolist() == ids[ranked[:10]].tolist()
        assert (np.sign(own.auc - own.old) == (1 if kind == "best" else -1)).all()
        for row in rows_of(ShownQuery, own):
            is_own = (flips["query"] == row.query) & (flips.method == "rm_naive") & (flips.order == order)
            changes = rows_of(FlipRow, flips[is_own])
            assert row.changes == len(changes)
            decisive = [flip for flip in changes if flip.kind == ("lost" if kind == "worst" else "won")]
            assert row.query_text == f"q{int(row.query) - 1000} second line"
            assert 300 < len(row.query_image) < 2000
            found = (row.change, row.first, row.first_system, row.before, row.before_system)
            if not changes:
                assert found == ("",) * 5
                continue
            flip = (decisive or changes)[-1]
            assert found == (flip.kind, flip.first, flip.first_system, flip.before, flip.before_system)
            assert row.t == flip.t
            assert row.first_text == f"<script>alert({row.first})</script>"
            assert bool(row.first_image) == (int(row.first) % 3 == 0)
    assert (shown.change != "").sum() > 10


@pytest.mark.parametrize(
    "changed",
    [{}, {"orders": ("given", "random")}, {"merges": ("rrf",)}, {"merges": ("raw", "rrf")}],
    ids=["random first", "given first", "a merge alone", "two merges"],
)
def test_the_shown_queries_are_of_the_row_that_the_headline_is_about(
    folder: Path, tmp_path: Path, changed: dict[str, Any]
) -> None:
    how = replace(EVALUATION, methods=("rm_naive", "instant"), **changed)
    results = read_results(evaluate_folder(folder, how, FitSettings(), Context(tmp_path / "out")))
    best = results.best()
    assert best is not None
    assert not best.is_reference
    assert {row.key for row in results.shown} == {(best.method, best.order, best.merge)}
    assert told(results)[0].lower().startswith(f"{best.title}, {best.order} order".lower())
    assert all(bool(row.before) == (bool(row.change) and row.merge == "raw") for row in results.shown)
    lost = sum(row.change == "lost" for row in results.shown)
    assert results.manifest.first_results["lost"] >= lost > 0


def test_without_a_change_of_its_kind_the_last_one_is_told() -> None:
    unknown, is_lost = RankedLists.nothing(3, 1), np.array([True, True, False])
    flips = Flips(np.array([4, 4, 5]), np.array([1, 2, 3]), is_lost, unknown, unknown)
    assert [_decisive(flips, query, kind) for query, kind in ((4, "worst"), (4, "best"), (5, "worst"))] == [1, 1, 2]
    assert _decisive(flips, 6, "best") is None


def test_hostile_texts_are_escaped_in_the_page_and_images_are_embedded(folder: Path, tmp_path: Path) -> None:
    out = evaluate_folder(folder, EVALUATION, FitSettings(), Context(tmp_path / "out"))
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(" in page
    assert page.count("<script>") == 1  # the page's own
    assert page.count('<img class="thumb" src="data:image/jpeg;base64,') >= 20
    assert "What happened to whom?" in page


def test_without_texts_and_images_the_ids_are_shown(folder: Path, tmp_path: Path) -> None:
    for name in ("gallery", "queries"):
        table = pq.read_table(folder / f"{name}.parquet").drop_columns(["text", "image"])
        write_parquet(folder / f"{name}.parquet", table)
    out = evaluate_folder(folder, EVALUATION, FitSettings(), Context(tmp_path / "out"))
    shown = pd.read_parquet(out / "shown.parquet")
    assert (shown["query"] != "").all()
    for name in ("query_text", "query_image", "first_text", "first_image", "before_text", "before_image"):
        assert (shown[name] == "").all()


def test_single_rows_are_picked_from_parts_and_row_groups(tmp_path: Path) -> None:
    path = tmp_path / "split.parquet"
    path.mkdir()
    for part, (first, last) in enumerate(((0, 2500), (2500, 2500), (2500, 3200))):
        texts = pa.array([f"t{i}" for i in range(first, last)], pa.string())
        table = pa.table({"id": np.arange(first, last), "text": texts})
        pq.write_table(table, path / f"part-{part}.parquet", row_group_size=1000)
    rows = np.array([3199, 0, 999, 1000, 2499, 2500, 0])
    table = EmbeddingTable(path, np.arange(3200), {})
    assert table.pick("text", rows) == [f"t{i}" for i in rows]
    assert table.pick("nothing", rows) == [None] * 7
    assert table.pick("text", rows[:0]) == []


def test_texts_are_cut_to_one_line() -> None:
    assert clean("a\tb\x1b[31m\n c") == "a b [31m c"
    assert clean("x" * 500) == "x" * 159 + "\u2026"
    assert clean(None) == clean(7) == ""


def test_pictures_of_a_recipe_are_shown_with_an_example_of_each_kind(tmp_path: Path) -> None:
    """Rendered for the page; the folder has no column of images."""
    settings, rng = Settings(landmarks=12, train_images=60, gallery_images=200, queries=60), np.random.default_rng(0)
    source, splits = open_images(settings), {}
    for split in ("gallery", "queries"):
        items = source.items(split)
        old = rng.normal(size=(len(items), 8)) + np.eye(12)[items.labels_N][:, :8]
        vectors = {"old": old, "new": old + rng.normal(size=old.shape)}
        splits[split] = vectors | {"id": items.ids_N, "label": items.labels_N}
    data = rb.write_folder(tmp_path / "data", splits["gallery"], splits["queries"])
    how = replace(EVALUATION, orders=("random",))
    out = evaluate_folder(
        data, how, FitSettings(), Context(tmp_path / "out"), pictures=partial(pictures, settings)
    )  # fmt: skip
    results = read_results(out)
    row = next(row for row in results.shown if row.first)
    decoded = np.asarray(Image.open(io.BytesIO(base64.b64decode(row.query_image.partition(",")[2]))), np.float64)
    large = open_images(replace(settings, image_size=96))
    at = np.flatnonzero(large.items("queries").ids_N == int(row.query))
    assert np.abs(decoded - large.read("queries", at).pixels_BSSC[0]).mean() < 8, "but for JPEG, the rendered image"
    lost, won = examples(results)
    assert lost.sentence.startswith("A query that loses a right first result, at")
    assert won.sentence.startswith("A query that wins a right first result, at")
    assert all(str(thing).startswith('<img class="thumb"') for example in (lost, won) for _, thing in example.things)
    page = (out / "report.html").read_text(encoding="utf-8")
    assert lost.sentence.replace(" %", "\u00a0%") in page.split("<nav")[0]
    assert sum(map(len, re.findall(r"data:image/jpeg;base64,[^\"]*", page))) < 300_000
