"""What is exported serves queries without this package, torch and Ray, as the replay does."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import ray_backfill as rb
from ray_backfill.compare.reopen import method_called, reopened
from ray_backfill.compare.report import read_data
from ray_backfill.compare.results import Variant
from ray_backfill.data.folder import read_folder
from ray_backfill.engine.lists import RankedLists
from ray_backfill.engine.merges import Merge, all_merges
from ray_backfill.engine.merges.csls import References
from ray_backfill.engine.replay.first import lists_at
from ray_backfill.export.graph import Graph
from ray_backfill.export.service import why_not
from ray_backfill.learn.methods import Embeddings, Method, all_methods
from ray_backfill.learn.sides import SIDES, Sides
from tests.compare.folder import labelled
from tests.contracts.test_methods import METHODS, draw, fit_once, fitted

__all__ = ["fitted"]
# Distances are computed in float32 and in another order of summation.
BOUND = 1e-5
SHARES, K = (0.0, 0.3, 1.0), 15
SERVED = ("rm_naive", "ridge_gallery", "ridge_query", "slerp", "local_gallery", "convex", "common_prefix", "fct")


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
@pytest.mark.parametrize("has_csls", [False, True])
def test_graphs_give_the_vectors_of_our_maps(
    method: Method, has_csls: bool, tmp_path: Path, fitted: dict[str, Any]
) -> None:
    if why_not(method):
        return
    network = fit_once(method, fitted)[0] if method.fit else None
    vectors = draw(method, 30, 3)
    dims = {model: of.shape[1] for model, of in vectors.items()}
    plain = Sides(method, network, Merge("raw"), "cosine", dims)
    pair = method.pair(Embeddings(vectors, vectors), network)
    of_backward, of_forward = (
        References(side.query.astype(np.float32), side.gallery.astype(np.float32))
        for side in (pair.backward, pair.forward)
    )
    references = of_backward, of_forward
    merge = Merge("csls", references=references if has_csls else None)
    sides = replace(plain, merge=merge)
    backward, forward = sides.queries(vectors)
    expected = {"queries_backward": backward, "queries_forward": forward}
    expected |= {f"items_{name}": sides.gallery(name, vectors) for name in SIDES}
    for file, vector in expected.items():
        graph, is_query = Graph(dims, network), file.startswith("queries")
        place = file.endswith("forward")
        side, of_side = method.sides[place], references[place]
        value, dim = graph.add(side.query if is_query else side.gallery)
        assert dim == plain.dim(SIDES[place])
        if has_csls:
            value = graph.with_csls(value, of_side.gallery if is_query else of_side.query, is_query)
        graph.write(tmp_path / f"{file}.onnx", value, {"export": "0"})
        session = onnxruntime.InferenceSession(tmp_path / f"{file}.onnx")
        given = {model.name: vectors[model.name] for model in session.get_inputs()}
        (computed,) = session.run(["vector"], given)
        np.testing.assert_allclose(computed, vector, rtol=0, atol=BOUND * max(1.0, float(np.abs(vector).max())))


def test_what_cannot_be_exported_is_a_quarter_of_the_recommended_methods_at_most() -> None:
    recommended = [method for method in all_methods().values() if method.is_recommended]
    refused = [method.name for method in recommended if why_not(method)]
    assert 4 * len(refused) <= len(recommended), refused


def test_the_page_names_all_that_cannot_be_exported() -> None:
    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")
    table = page.split("| method | why |")[1].split("\n\n")[0]
    for method in all_methods().values():
        assert (f"`{method.name.replace('@100', '@K')}`" in table) == bool(why_not(method)), method.name


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("export")
    gallery, queries, train = (labelled(rows, 5, seed, 6, 9) for rows, seed in ((240, 1), (30, 2), (200, 3)))
    rb.write_folder(place / "data", gallery, queries, train)
    merges = tuple(all_merges())
    rb.simulate(place / "data", methods=(*SERVED, "offline", "cascade@20", "instant"), merges=merges, out=place / "run",
                orders=("random", "class_mean_distance", "oracle_loss"), points=3, metrics="nDCG@10")  # fmt: skip
    return place / "run"


def serve(run: Path, folders: Iterable[Path], tmp_path: Path) -> dict[str, list[list[list[str]]]]:
    site = tmp_path / "site"
    site.mkdir()
    for name in ("numpy", "numpy.libs", "onnxruntime", "flatbuffers", "packaging", "google"):
        (site / name).symlink_to(Path(np.__file__).parents[1] / name)
    folder = read_folder(run.parent / "data")
    queries = folder.queries or folder.gallery
    arrays: dict[str, Any] = {f"gallery/{model}": vectors for model, vectors in folder.gallery.vectors.items()}
    arrays |= {f"query/{model}": vectors for model, vectors in queries.vectors.items()}
    np.savez(tmp_path / "data.npz", id=folder.gallery.id.astype(str), shares=SHARES, k=K, **arrays)
    paths = [Path(__file__).with_name("serve.py"), site, tmp_path / "data.npz", tmp_path / "answers.json", *folders]
    done = subprocess.run([sys.executable, "-I", "-S", *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads((tmp_path / "answers.json").read_text()))


def replayed(run: Path, method: str, variant: Variant, distance: str) -> tuple[list[RankedLists], Merge, list[str]]:
    """All items of each query at each share, as the replay ranks them, and their ids."""
    finished = read_data(run)
    comparison = reopened(finished, run / "results", variant)
    chosen = method_called(comparison, method)
    pair, truth = comparison.pair(chosen), comparison.truth
    (order,), (merge,) = comparison.orders_of(chosen, pair).values(), comparison.merges_of(chosen).values()
    n, rows = pair.n_gallery, np.arange(truth.n_queries)
    lists = [lists_at(pair, truth, rows, order, int(share * n), n, distance, merge) for share in SHARES]
    return lists, merge, comparison.folder.gallery.id.astype(str).tolist()


def assert_served_as_replayed(
    run: Path, pairs: list[tuple[str, str]], tmp_path: Path, distance: str = "cosine"
) -> None:
    folders = {}
    for method, merge in pairs:
        to = tmp_path / f"{method}-{merge}"
        folders[method, merge] = rb.export(run, to, method=method, merge=merge, order="random")
    answers = serve(run, folders.values(), tmp_path)
    for (method, name), folder in folders.items():
        lists, fitted_merge, ids = replayed(run, method, Variant("random", name), distance)
        for share, ranked, served in zip(SHARES, lists, answers[str(folder)], strict=True):
            flags = ranked.is_forward.ravel()
            near = [
                fitted_merge.scores((ranked.distance + shift).ravel().astype(np.float32), flags)
                for shift in (-BOUND, BOUND)
            ]
            slack = np.maximum(near[1] - near[0], fitted_merge.by_rank).reshape(ranked.item.shape)[:, :K].max(axis=1)
            for query, listed in enumerate(served):
                score = dict(zip((ids[item] for item in ranked.item[query]), ranked.score[query], strict=True))
                got = np.array([score[item] for item in listed])
                assert len(set(listed)) == K
                assert (np.abs(got - ranked.score[query, :K]) <= slack[query]).all(), (method, name, share, query)
            same = np.mean(
                [listed == [ids[item] for item in of[:K]] for listed, of in zip(served, ranked.item, strict=True)]
            )
            assert same > 0.8, "and nearly all lists are the same"


def test_the_lines_of_the_readme_serve_as_the_replay_does(run: Path, tmp_path: Path) -> None:
    merges = [name for name in all_merges() if name != "best"]
    pairs = [(method, merges[place % len(merges)]) for place, method in enumerate(SERVED) if method != "convex"]
    assert_served_as_replayed(run, [*pairs, ("rm_naive", "csls"), ("ridge_gallery", "best")], tmp_path)


@pytest.mark.parametrize("distance", ["l2", "inner_product"])
def test_other_distances(distance: str, run: Path, tmp_path: Path) -> None:
    merges = ("raw", "quantile", "rrf")
    methods = ("rm_naive", "ridge_gallery")
    out = tmp_path / "run"
    rb.simulate(
        run.parent / "data", methods=methods, merges=merges, out=out, points=3, metrics="nDCG@10", distance=distance
    )
    shutil.copytree(run.parent / "data", tmp_path / "data")
    assert_served_as_replayed(out, [(method, merge) for method in methods for merge in merges], tmp_path, distance)


@pytest.mark.parametrize("merge", ["raw", "rrf"])
def test_a_gallery_that_queries_itself_passes_its_own_check(merge: str, tmp_path: Path) -> None:
    rb.write_folder(tmp_path / "data", labelled(150, 5, 1, 6, 9))
    run, methods = tmp_path / "run", ("rm_naive", "slerp")
    rb.simulate(tmp_path / "data", methods=methods, merges=merge, out=run, points=3, metrics="nDCG@10")
    export = rb.export(run, tmp_path / "upgrade", method="rm_naive")
    (answers,) = serve(run, [export], tmp_path).values()
    ids = read_folder(tmp_path / "data").gallery.id.astype(str).tolist()
    for share, lists in zip(SHARES, answers, strict=True):
        lines = ({"query": query, "items": items} for query, items in zip(ids, lists, strict=True))
        (tmp_path / "answers.jsonl").write_text("\n".join(map(json.dumps, lines)))
        words = [str(export / "check.py"), str(tmp_path / "answers.jsonl"), "--backfilled", f"{share:.0%}"]
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
        assert (done.returncode, "100.0%" in done.stdout) == (0, True), done


@pytest.mark.heavy  # the lines of the README are tried with each method and each merge, not with all pairs
@pytest.mark.parametrize("merge", all_merges())
def test_every_merge_with_every_method(run: Path, merge: str, tmp_path: Path) -> None:
    methods = [method for method in SERVED if method != "convex" or merge == "raw"]
    assert_served_as_replayed(run, [(method, merge) for method in methods], tmp_path)
