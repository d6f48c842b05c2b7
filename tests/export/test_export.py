"""The files of an export: whole or not at all, described by a schema, with a check that finds a worse service."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import numpy as np
import onnx
import pandas as pd
import pytest
import safetensors
import safetensors.numpy

import ray_backfill as rb
from ray_backfill.engine.merges.csls import mean_nearest_cosine
from ray_backfill.learn.models.apply import load_network
from tests.command import Command
from tests.compare.folder import labelled

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("export")
    splits = [labelled(rows, 5, seed, 6, 9) for rows, seed in ((120, 1), (40, 2), (200, 3))]
    splits[1]["text"] = [f"query {row}" for row in range(40)]  # type: ignore[assignment]
    rb.write_folder(place / "data", splits[0], splits[1], splits[2], models={"old": "elder", "new": "younger"})
    methods = ("rm_naive", "ridge_gallery", "offline", "instant", "cascade@20")
    orders, merges = ("random", "class_mean_distance", "oracle_loss"), ("raw", "csls")
    how = {"points": 3, "metrics": "nDCG@10"}
    rb.simulate(place / "data", methods=methods, orders=orders, merges=merges, out=place / "run", **how)  # type: ignore[arg-type]
    return place / "run"


@pytest.fixture(scope="module")
def export(run: Path) -> Path:
    return rb.export(run, run.parent / "upgrade", method="ridge_gallery", merge="csls", order="class_mean_distance")


def test_the_schema_describes_it(export: Path) -> None:
    service = json.loads((export / "service.json").read_text())
    jsonschema.validate(service, json.loads((ROOT / "docs" / "schema" / "service.json").read_text()))
    assert service["during"]["query"] == {"embed": ["new"], "search": {"old": "backward", "new": "forward"}}
    assert service["prepare"] == {"map_stored_vectors": True, "embed": [], "inputs": ["old"]}
    assert service["way_back"] == ["old"]
    assert service["models"]["new"] == {"dimensions": 9, "identity": {"name": "younger"}}
    assert "`old` is elder" in (export / "README.md").read_text()
    assert service["sides"]["backward"]["item_macs"] == 6 * 9


def test_all_files_name_the_export_and_their_sums_hold(export: Path) -> None:
    mark = json.loads((export / "service.json").read_text())["export"]
    assert json.loads((export / "check.json").read_text())["export"] == mark
    for file in export.glob("*.onnx"):
        assert {prop.key: prop.value for prop in onnx.load(file).metadata_props}["export"] == mark
    with safetensors.safe_open(export / "references.safetensors", "numpy") as opened:
        assert opened.metadata()["export"] == mark
    assert subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=export, check=False).returncode == 0
    listed = {line.split("  ")[1] for line in (export / "SHA256SUMS").read_text().splitlines()}
    there = {str(file.relative_to(export)) for file in export.rglob("*") if file.is_file()}
    assert listed == there - {"SHA256SUMS"}


def test_order_scores_maps_and_csls_terms_are_those_of_the_run(export: Path, run: Path) -> None:
    order, gallery = pd.read_parquet(export / "order.parquet"), pd.read_parquet(run.parent / "data" / "gallery.parquet")
    assert order["rank"].tolist() == list(range(120))
    assert order["score"].is_monotonic_increasing
    assert sorted(order["id"]) == sorted(gallery["id"])
    pd.testing.assert_frame_equal(pd.read_csv(export / "order.csv"), order)
    kept = safetensors.numpy.load_file(run / "maps" / "ridge_gallery" / "model.safetensors")
    exported = load_network(export / "map").weights
    assert {name: array.tolist() for name, array in exported.items()} == {
        name: array.tolist() for name, array in kept.items()
    }
    references = safetensors.numpy.load_file(export / "references.safetensors")
    new = np.stack(list(gallery["new"]))
    terms = pd.read_parquet(export / "csls.parquet")
    np.testing.assert_allclose(terms["forward"], mean_nearest_cosine(new, references["forward.query"]), atol=1e-12)


def test_the_same_export_has_the_same_bytes(export: Path, run: Path, tmp_path: Path) -> None:
    again = rb.export(run, tmp_path / "again", method="ridge_gallery", merge="csls", order="class_mean_distance")
    assert (again / "SHA256SUMS").read_text() == (export / "SHA256SUMS").read_text()
    kept = {file: file.stat().st_mtime_ns for file in again.iterdir()}
    rb.export(run, again, method="ridge_gallery", merge="csls", order="class_mean_distance")
    assert {file: file.stat().st_mtime_ns for file in again.iterdir()} == kept
    with pytest.raises(rb.InputError, match="not this export"):
        rb.export(run, again, method="ridge_gallery", merge="raw")
    (again / "order.csv").write_text("id,rank,score")
    with pytest.raises(rb.InputError, match="not this export"):
        rb.export(run, again, method="ridge_gallery", merge="csls", order="class_mean_distance")


def check(export: Path, answers: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    line = [sys.executable, "-I", "-S", str(export / "check.py"), str(answers), *words]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def test_the_check_passes_the_replay_and_stops_a_worse_service(export: Path, run: Path, tmp_path: Path) -> None:
    queries = json.loads((export / "check.json").read_text())["queries"]
    assert queries[0]["text"].startswith("query ")
    curves = pd.read_parquet(run / "results" / "curves.parquet").set_index(["method", "merge", "order", "t", "metric"])
    half = curves["value"]["ridge_gallery", "csls", "class_mean_distance", 0.5, "nDCG@10"]
    assert np.mean([query["ndcg"][8] for query in queries]) == pytest.approx(half, abs=1e-12)

    def answered(name: str, lists: list[list[str]]) -> Path:
        file = tmp_path / f"{name}.jsonl"
        lines = ({"query": query["id"], "items": items} for query, items in zip(queries, lists, strict=True))
        file.write_text("\n".join(map(json.dumps, lines)))
        return file

    replayed = [query["items"][6] for query in queries]
    same = check(export, answered("same", replayed), "--backfilled", "0.3")
    assert (same.returncode, "100.0%" in same.stdout) == (0, True), same.stderr
    earlier = check(export, answered("earlier", [query["items"][0] for query in queries]), "--backfilled", "30%")
    assert earlier.returncode == 11
    worse = [["none", *items[:9]] if row < 8 else items for row, items in enumerate(replayed)]
    lower = check(export, answered("worse", worse), "--backfilled", "30%")
    assert (lower.returncode, "points lower" in lower.stdout) == (11, True)
    assert check(export, answered("worse", worse), "--backfilled", "30%", "--band", "50").returncode == 0
    others = answered("others", [[f"x{place}" for place in range(10)] for _ in queries])
    assert check(export, others, "--backfilled", "30%", "--band", "100").returncode == 11
    twice = answered("twice", [[items[0]] * 10 for items in replayed])
    few = tmp_path / "few.jsonl"
    few.write_text(json.dumps({"query": queries[0]["id"], "items": ["1"]}))
    for file, words in (
        (twice, ("--backfilled", "30%")),
        (few, ("--backfilled", "30%")),
        (tmp_path / "none", ("--backfilled", "0")),
        (few, ("--backfilled", "33%")),
        (few, ("--backfilled", "30%", "--band", "nan")),
    ):
        ended = check(export, file, *words)
        assert (ended.returncode, ended.stderr.count("\n")) == (2, 1), ended.stderr
    mixed = tmp_path / "mixed"
    shutil.copytree(export, mixed)
    shutil.copy(rb.export(run, tmp_path / "raw", method="ridge_gallery", merge="raw") / "check.json", mixed)
    assert "of two exports" in check(mixed, answered("same", replayed), "--backfilled", "30%").stderr


BAD = {
    "no run": ("{tmp}/none --method rm_naive", "no results folder"),
    "not a run": ("{tmp}/data --method rm_naive", "manifest.json is missing"),
    "no method": ("{tmp}/run --method", "--method"),
    "none given": ("{tmp}/run", "--method"),
    "typed wrong": ("{tmp}/run --method ridge_galery", "did you mean ridge_gallery"),
    "left out": ("{tmp}/run --method slerp", "unknown method"),
    "no such merge": ("{tmp}/run --method rm_naive --merge quantile", "unknown order and merge of rm_naive"),
    "no such order": ("{tmp}/run --method rm_naive --order lazy", "unknown order and merge of rm_naive"),
    "oracle": ("{tmp}/run --method ridge_gallery --order oracle_loss", "before the backfill"),
    "reference": ("{tmp}/run --method offline", "switch"),
    "old": ("{tmp}/run --method old", "switch"),
    "cascade": ("{tmp}/run --method cascade@20", "20 items for every query"),
    "instant": ("{tmp}/run --method instant", "search the new index alone"),
    "existing": ("{tmp}/run --method rm_naive --to {tmp}/data", "exists and is not this export"),
    "a file": ("{tmp}/run --method rm_naive --to {tmp}/data/gallery.parquet", "exists and is not this export"),
    "below a file": ("{tmp}/run --method rm_naive --to {tmp}/data/gallery.parquet/x", "gallery.parquet"),
    "object storage": ("s3://bucket/run --method rm_naive", "no credentials"),
    "two runs": ("{tmp}/run {tmp}/run --method rm_naive", "run"),
    "unknown option": ("{tmp}/run --method rm_naive --shards 2", "--shards"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_command_is_one_line_and_leaves_nothing(
    name: str, run: Path, export: Path, tmp_path: Path, command: Command
) -> None:
    words, said = BAD[name]
    if "--to" not in words:
        words += f" --to {tmp_path}/new"
    before = sorted(run.parent.iterdir())
    ended = command("export", *words.format(tmp=run.parent).split())
    assert ended.code == 2
    assert said in ended.error
    assert ended.error.count("\n") <= 1
    assert sorted(run.parent.iterdir()) == before
    assert not list(tmp_path.iterdir())


def changed(run: Path, tmp_path: Path, what: str) -> Path:
    """A copy of the run with something amiss."""
    copied = tmp_path / "copy"
    shutil.copytree(run.parent, copied)
    manifest = copied / "run" / "results" / "manifest.json"
    recorded = json.loads(manifest.read_text())
    recorded["data"]["path"] = str(copied / "data")
    if what == "unfinished":
        recorded["finished"] = False
    if what == "gone":
        recorded["data"]["path"] = str(tmp_path / "gone")
    manifest.write_text(json.dumps(recorded))
    if what == "others":
        gallery = pd.read_parquet(copied / "data" / "gallery.parquet")
        gallery["old"] = gallery["old"].iloc[::-1].to_numpy()
        gallery.to_parquet(copied / "data" / "gallery.parquet")
    if what == "another map":
        weights = copied / "run" / "maps" / "ridge_gallery" / "model.safetensors"
        arrays = {name: array[::-1].copy() for name, array in safetensors.numpy.load_file(weights).items()}
        safetensors.numpy.save_file(arrays, weights)
    if what == "map":
        (copied / "run" / "maps" / "ridge_gallery" / "model.safetensors").unlink()
    return copied / "run"


def test_a_run_and_its_data_can_be_moved_together(run: Path, export: Path, tmp_path: Path) -> None:
    shutil.copytree(run.parent, tmp_path / "moved")
    manifest = tmp_path / "moved" / "run" / "results" / "manifest.json"
    manifest.write_text(manifest.read_text().replace(str(run.parent), str(tmp_path / "gone")))
    again = rb.export(
        manifest.parents[1], tmp_path / "to", method="ridge_gallery", merge="csls", order="class_mean_distance"
    )
    assert (again / "order.csv").read_text() == (export / "order.csv").read_text()


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("unfinished", "again"),
        ("gone", "put them back"),
        ("others", "gallery"),
        ("map", "fitted map"),
        ("another map", "the maps give nDCG@10"),
    ],
)
def test_a_run_that_is_not_what_it_was_is_refused(
    what: str, said: str, run: Path, tmp_path: Path, command: Command
) -> None:
    ended = command("export", changed(run, tmp_path, what), "--method", "ridge_gallery", "--to", tmp_path / "new")
    assert (ended.code, said in ended.error, (tmp_path / "new").exists()) == (2, True, False), ended.error
