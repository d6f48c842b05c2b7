"""The Python face: names loaded on first use, folders from arrays, and simulate as the command runs it."""

import ast
import subprocess
import sys
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import ray_backfill as rb
from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.core.stages import read_json
from ray_backfill.engine.merges import all_merges
from ray_backfill.engine.orders import all_orders
from ray_backfill.learn.methods import all_methods

ROOT = Path(__file__).parents[1]
FORMULAS = ("rm_naive", "least_squares_gallery")


def python(code: str) -> str:
    """What the code prints in a process of its own."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def columns(items: int, seed: int) -> dict[str, Any]:
    rng, label = np.random.default_rng(seed), np.arange(items) % 6
    signal = np.random.default_rng(9).normal(size=(6, 8))[label]
    old = signal[:, :4] + rng.normal(size=(items, 4))
    return {"old": old, "new": (signal + 0.6 * rng.normal(size=(items, 8))).astype(np.float16), "label": label}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("face") / "data"
    return rb.write_folder(path, gallery=columns(60, 1), queries=columns(12, 2), train=columns(40, 3))


def test_the_table_the_imports_for_type_checkers_and_all_agree() -> None:
    table = rb._MODULE_OF
    tree = ast.parse((ROOT / "ray_backfill" / "__init__.py").read_text())
    block = next(n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")
    imported = {a.name: n.module for n in block.body if isinstance(n, ast.ImportFrom) for a in n.names}
    assert imported == table
    assert sorted(rb.__all__) == sorted(table)
    assert set(rb.__all__) < set(dir(rb))
    for name in rb.__all__:
        assert getattr(rb, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'all_orders'"):
        rb.all_orders  # type: ignore[attr-defined]  # noqa: B018


def test_importing_loads_nothing() -> None:
    heavy = ("numpy", "pandas", "pyarrow", "numba", "scipy", "matplotlib", "tqdm", "torch", "ray")
    assert python(f"import sys, ray_backfill; print([name for name in {heavy} if name in sys.modules])") == "[]"


def test_subpackages_do_not_hide_the_functions_of_their_names() -> None:
    code = """
import ray_backfill.forecast
import ray_backfill as rb
print([type(each).__name__ for each in (rb.methods, rb.orders, rb.merges, rb.replay, rb.forecast)])"""
    assert python(code) == str(["function"] * 5)


def test_tables_of_names_and_results_are_read_without_what_trains_and_draws() -> None:
    heavy = ("torch", "ray", "matplotlib")
    code = "import sys, ray_backfill as rb; rb.methods(), rb.orders(), rb.merges(), rb.read_results, rb.simulate"
    assert python(f"{code}; print([name for name in {heavy} if name in sys.modules])") == "[]"


def test_arrays_become_a_folder_of_the_data_contract(tmp_path: Path) -> None:
    gallery = columns(6, 1) | {"popularity": [3, 1, 2, 6, 5, 4]}
    frame = pd.DataFrame({"id": list("ab"), "group": ["x", "y"]})
    queries: dict[str, Any] = {**frame, "old": [[1.0] * 4] * 2, "new": columns(2, 2)["new"], "positives": [[0, 1], []]}
    path = rb.write_folder(str(tmp_path / "a" / "data"), gallery, queries)
    data = rb.read_folder(str(path))
    assert data.train is None
    assert data.queries is not None
    assert data.gallery.id.tolist() == [0, 1, 2, 3, 4, 5]
    np.testing.assert_array_equal(data.gallery.old, gallery["old"].astype(np.float32))
    assert (str(data.gallery.old.dtype), str(data.gallery.new.dtype)) == ("float32", "float16")
    assert data.gallery.numbers["popularity"].tolist() == gallery["popularity"]
    assert data.queries.id.tolist() == ["a", "b"]
    assert data.queries.group is not None
    assert data.queries.positives is not None
    assert [row.tolist() for row in data.queries.positives] == [[0, 1], []]
    assert repr(data) == f"Embeddings in {path}: 6 gallery, 2 queries; dimensions: old 4, new 8"
    of_frame = pd.DataFrame({"old": list(gallery["old"]), "new": list(gallery["new"]), "label": gallery["label"]})
    assert rb.read_folder(rb.write_folder(tmp_path / "b", of_frame)).gallery.old.shape == (6, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"new": None}, "gallery: no column 'new'; it has: old, label"),
        ({"label": [1, 2]}, "gallery: column 'label' has 2 rows, 'old' has 6"),
        ({"old": np.ones(6)}, r"gallery: column 'old' must have two dimensions, one row an item; got shape \(6,\)"),
        (
            {"label": np.ones((6, 2, 2))},
            r"column 'label' must have one value an item, or vectors; got shape \(6, 2, 2\)",
        ),
        (
            {"old": [[1.0], [1.0, 2.0]] * 3},
            "gallery: column 'old' cannot be made a numpy array: its rows have diff",
        ),
        ({"old": [["a"]] * 6}, "gallery: column 'old' cannot be written: could not convert string"),
        ({"positives": [1] * 6}, "gallery: column 'positives' must have a list of gallery ids for each query"),
        ({"old": np.full((6, 2), np.nan)}, r"data/gallery.parquet, column 'old': NaN or infinite values in row 0"),
        ({"id": [1, 1, 2, 3, 4, 5]}, r"data/gallery.parquet, column 'id': duplicate ids 1; drop them"),
        (
            {"label": [0.5] * 6},
            "data/gallery.parquet, column 'label' must hold integers or text, not fractions",
        ),
    ],
)
def test_what_is_no_folder_of_embeddings_is_refused_and_nothing_is_written(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    gallery = {name: values for name, values in (columns(6, 1) | change).items() if values is not None}
    with pytest.raises(rb.InputError, match=message) as error:
        rb.write_folder(tmp_path / "data", gallery)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_tensors_frames_lists_and_categories_become_a_folder(tmp_path: Path) -> None:
    given = columns(6, 1)
    wanted = rb.read_folder(rb.write_folder(tmp_path / "a", given)).fingerprint()
    forms: list[dict[str, Any]] = [
        {"old": torch.tensor(given["old"], requires_grad=True), "new": torch.tensor(given["new"])},
        {"old": pd.DataFrame(given["old"]), "new": list(given["new"]), "label": pd.Series(given["label"])},
        {"old": given["old"].tolist(), "label": pd.Categorical(given["label"])},
        {"new": [torch.tensor(row) for row in given["new"]], "label": given["label"].tolist()},
        {"old": pd.Series(list(given["old"])), "label": given["label"].astype(np.float64)},
    ]
    for number, form in enumerate(forms):
        assert rb.read_folder(rb.write_folder(tmp_path / str(number), given | form)).fingerprint() == wanted
    named = given | {"label": pd.Categorical(["cat", "dog"] * 3), "positives": [torch.tensor([1, 2]), [], (3,)] * 2}
    gallery = rb.read_folder(rb.write_folder(tmp_path / "named", named)).gallery
    assert gallery.label is not None
    assert gallery.label.tolist() == ["cat", "dog"] * 3
    assert gallery.positives is not None
    assert [row.tolist() for row in gallery.positives[:3]] == [[1, 2], [], [3]]
    with pytest.raises(rb.InputError, match="gallery must be columns by name, such as a dict with 'old' and 'new'"):
        rb.write_folder(tmp_path / "array", given["old"])


def test_splits_are_replaced_together(tmp_path: Path) -> None:
    path = rb.write_folder(tmp_path / "data", columns(6, 1), train=columns(6, 2))
    assert len(rb.read_folder(rb.write_folder(path, columns(7, 1), train=columns(8, 2))).gallery) == 7
    with pytest.raises(rb.InputError, match=r"data holds train.parquet, which this call does not replace"):
        rb.write_folder(path, columns(5, 1))
    assert sorted(file.name for file in path.iterdir()) == ["gallery.parquet", "train.parquet"]
    (tmp_path / "file").touch()
    with pytest.raises(rb.InputError, match=r"file is a file; give a folder"):
        rb.write_folder(tmp_path / "file", columns(5, 1))


def test_simulate_gives_the_tables_of_the_command_and_reuses_its_run(folder: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        *("-m", "ray_backfill", "simulate"),
        "--data",
        str(folder),
        "--out",
        str(tmp_path / "job"),
    ]
    more = ["--methods", *FORMULAS, "--metrics", "mAP", "--points", "5"]
    said = subprocess.run([*command, *more], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert said.returncode == 0, said.stderr
    results = rb.simulate(folder, out=str(tmp_path / "face"), methods=FORMULAS, metrics="mAP", points=5)
    for table in ("curves", "summary", "differences", "costs"):
        of_job, of_face = (pd.read_parquet(tmp_path / out / "results" / f"{table}.parquet") for out in ("job", "face"))
        pd.testing.assert_frame_equal(of_job, of_face)
    pd.testing.assert_frame_equal(results.frame, pd.read_parquet(tmp_path / "job" / "results" / "curves.parquet"))
    pd.testing.assert_frame_equal(results.summary, pd.read_parquet(tmp_path / "job" / "results" / "summary.parquet"))
    made = (tmp_path / "job" / "results" / "curves.parquet").stat().st_mtime_ns
    again = rb.simulate(rb.read_folder(folder), out=tmp_path / "job", methods=FORMULAS, metrics=["mAP"], points=5)
    assert (tmp_path / "job" / "results" / "curves.parquet").stat().st_mtime_ns == made
    assert again.methods == results.methods == ("old", "new", *FORMULAS)
    assert rb.read_results(str(tmp_path / "job")).verdict == rb.read_results(tmp_path / "job" / "results").verdict
    assert "simulate" in read_json(tmp_path / "job" / "results" / "manifest.json")["command"]


@pytest.mark.full
def test_sample_and_forecast_give_the_tables_of_the_commands(tmp_path: Path) -> None:
    gallery = columns(400, 1)
    new = gallery.pop("new")
    data = rb.write_folder(tmp_path / "data", gallery, columns(40, 2), columns(40, 3))
    chosen = rb.sample(data, 100, seed=3)
    assert len(chosen) == 100
    np.savez(tmp_path / "new.npz", id=chosen.id.to_numpy(), new=new[chosen.id])
    command = [sys.executable, "-m", "ray_backfill"]
    for words in (
        ["sample", str(data), "--budget", "100", "--seed", "3", "--out", str(tmp_path / "sample.parquet")],
        ["forecast", str(data), "--new", str(tmp_path / "new.npz"), "--methods", *FORMULAS, "--points", "3",
         "--out", str(tmp_path / "job")],
    ):  # fmt: skip
        said = subprocess.run([*command, *words], capture_output=True, text=True, cwd=tmp_path, check=False)
        assert said.returncode == 0, said.stderr
    pd.testing.assert_frame_equal(chosen, pd.read_parquet(tmp_path / "sample.parquet"))
    found = rb.forecast(data, tmp_path / "new.npz", out=tmp_path / "python", methods=FORMULAS, points=3)
    assert (tmp_path / "python" / "forecast" / "report.html").exists()
    pd.testing.assert_frame_equal(found.summary, pd.read_parquet(tmp_path / "job" / "forecast" / "summary.parquet"))
    pd.testing.assert_frame_equal(found.frame, pd.read_parquet(tmp_path / "job" / "forecast" / "curves.parquet"))
    assert "RM naive" in found._repr_html_()
    assert len(rb.sample(data, add=20)) == 120
    with pytest.raises(rb.InputError, match="add=N"):
        rb.sample(data)
    with pytest.raises(rb.InputError, match=r"has no column 'new'.*; ray-backfill sample and forecast need few"):
        rb.simulate(data, methods="rm_naive")


def test_a_folder_without_right_answers_is_compared_by_what_the_new_model_finds(tmp_path: Path) -> None:
    """As one that ``embed`` made of texts without labels."""
    splits = [{name: each for name, each in columns(40, seed).items() if name != "label"} for seed in (1, 2)]
    rb.write_folder(tmp_path / "data", *splits)
    results = rb.simulate(tmp_path / "data", methods="rm_naive", points=3)
    asked = rb.simulate(tmp_path / "data", methods="rm_naive", points=3, truth="new-top1")
    assert "recall@10" in set(results.frame["metric"])
    pd.testing.assert_frame_equal(results.summary, asked.summary)
    other = rb.simulate(tmp_path / "data", methods="rm_naive", points=3, truth="new-top10", metrics="recall@10")
    start = [each.summary.query("metric == 'recall@10' and method == 'old'")["auc"].iloc[0] for each in (asked, other)]
    assert start[0] != start[1], "what was asked for counts"


def test_judgements_of_arrays_say_which_model_is_better(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    label, centre = np.arange(360) % 12, np.random.default_rng(1).normal(size=(12, 16))
    new, old = (centre[label] + noise * rng.normal(size=(360, 16)) for noise in (0.4, 2.5))
    arrays: dict[str, Any] = {"old": (old[:60], old[60:]), "new": (new[:60], new[60:])}
    assert "Judge 50 queries first (rb.judge, an hour" in str(rb.simulate(**arrays, methods="rm_naive", points=3))
    sheet = rb.judge(tmp_path / "sheet.csv", **arrays)
    asked = pd.read_csv(sheet)
    asked["right"] = (label[asked["query"]] == label[60 + asked["item"]]).astype(int)
    asked.to_csv(sheet, index=False)
    judged = rb.simulate(**arrays, methods="rm_naive", points=3, truth=("judged", str(sheet)))
    assert "The new model is better by 60 judged queries" in str(judged)
    with pytest.raises(rb.InputError, match="is there already"):
        rb.judge(sheet, **arrays)


def test_cutoffs_are_translated_and_what_they_show_is_counted(folder: Path, tmp_path: Path) -> None:
    """Against plain numpy: all pairs of {old, old} before, of both systems at t = 0.5, of {new, new} at the end."""
    options: dict[str, Any] = {"methods": "rm_naive", "merges": ["raw", "quantile", "rrf"], "points": 3}
    results = rb.simulate(folder, out=tmp_path, cutoffs=0.5, **options)
    table = pd.read_parquet(tmp_path / "results" / "cutoffs.parquet")
    assert set(table["merge"]) == {"raw", "quantile"}
    assert [each.words for each in results.manifest.left_out] == ["cut-offs by the rrf merge"]
    data, done = rb.read_folder(folder), rb.make_order("random", rb.GalleryColumns(np.zeros((60, 1)), {}), 0)[:30]
    assert data.queries is not None
    right = np.asarray(data.queries.label)[:, None] == np.asarray(data.gallery.label)

    def cosine(model: str) -> np.ndarray:
        assert data.queries is not None
        sides = (vectors.vectors[model].astype(np.float64) for vectors in (data.queries, data.gallery))
        query, gallery = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in sides)
        return query @ gallery.T

    rows = table[(table.method == "rm_naive") & (table["merge"] == "quantile")].sort_values("t").to_dict("records")
    is_done = np.isin(np.arange(60), done)
    for row, is_new in zip(rows, (np.zeros(60, bool), is_done, np.ones(60, bool)), strict=True):
        assert row["backward_cutoff"] == 0.5 != row["forward_cutoff"]
        for suffix, limit in (("", row["forward_cutoff"]), ("_unchanged", 0.5)):
            shown = np.where(is_new, cosine("new") >= limit, cosine("old") >= 0.5)
            assert row[f"results{suffix}"] == pytest.approx(shown.sum(axis=1).mean())
            assert row[f"precision{suffix}"] == pytest.approx((shown & right).sum() / shown.sum())
            assert row[f"recall{suffix}"] == pytest.approx((shown & right).sum() / right.sum())
        assert row["precision_before"] == rows[0]["precision"]
    assert {row.cutoff for row in rb.read_results(tmp_path).cutoffs} == {0.5}
    more = rb.simulate(folder, out=tmp_path, cutoffs=[0.7], **options)
    assert {row.cutoff for row in more.cutoffs} == {0.5, 0.7}, "further cut-offs extend the results"
    made = (tmp_path / "results" / "cutoffs.parquet").stat().st_mtime_ns
    rb.simulate(folder, out=tmp_path, **options)
    assert (tmp_path / "results" / "cutoffs.parquet").stat().st_mtime_ns == made
    assert "How should score cut-offs change?" in (tmp_path / "results" / "report.html").read_text()


def test_embeddings_may_lie_in_the_folder_of_the_run(tmp_path: Path) -> None:
    data = rb.write_folder(tmp_path / "embeddings", columns(30, 1))
    results = rb.simulate(data, out=tmp_path, methods="rm_naive", points=3)
    assert results.manifest.command == f"rb.simulate({str(data)!r}, ...)"
    assert (tmp_path / "results" / "report.html").exists()


def test_without_a_folder_nothing_is_left(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    results = rb.simulate(folder, methods="offline", orders="random", merges="rrf", metrics="CMC@5", points=3)
    assert results.metrics == ("CMC@5",)
    assert list(tmp_path.iterdir()) == []


def test_its_defaults_are_those_of_the_command() -> None:
    defaults = {name: parameter.default for name, parameter in signature(rb.simulate).parameters.items()}
    for name, default in vars(Evaluation.of_folder()).items():
        assert default in (defaults[name], (defaults[name],)), name


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"data": np.ones((3, 2))}, "data must be a folder of embeddings, not ndarray; rb.write_folder"),
        ({"data": "nowhere"}, "nowhere is not a folder; give a folder that contains gallery.parquet"),
        ({"methods": "magic"}, "unknown method 'magic'; known: old, new"),
        ({"orders": "magic"}, "unknown order 'magic'"),
        ({"merges": "magic"}, "unknown merge 'magic'"),
        ({"metrics": "mAP@0"}, "unknown metric 'mAP@0'"),
        ({"metrics": ()}, "at least one of each: --metrics"),
        ({"distance": "hamming"}, "unknown distance 'hamming'"),
        ({"points": 1}, "--points must be at least 2"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
        ({"shards": -1}, "must not be negative"),
        ({"orders": "popularity"}, "order 'popularity' needs the gallery column 'popularity'"),
        ({"out": __file__}, "is a file; give a folder"),
    ],
)
def test_wrong_settings_are_told_in_one_sentence(
    wrong: dict[str, Any], message: str, folder: Path, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {"data": folder, "out": tmp_path / "out", "methods": "rm_naive"}
    with pytest.raises(rb.InputError, match=message) as error:
        rb.simulate(**asked | wrong)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_folder_of_another_run_is_refused(folder: Path, tmp_path: Path) -> None:
    rb.simulate(folder, out=tmp_path, methods="rm_naive", points=3)
    with pytest.raises(rb.InputError, match=r"run with other settings \(evaluation.points: 3 there, 4 requested\)"):
        rb.simulate(folder, out=tmp_path, methods="rm_naive", points=4)


def test_plugins_are_listed_with_what_they_need() -> None:
    for table, known in ((rb.methods(), all_methods()), (rb.orders(), all_orders()), (rb.merges(), all_merges())):
        assert list(table.index) == list(known)
        assert {"title", "needs", "source"} < set(table.columns)
    needs = rb.methods().needs
    assert needs["rm_naive"] == "both models, old and new, for each query"
    assert needs["offline"] == ""
    assert needs["rm"] == "train items with labels"
    assert needs["fct_side"] == "train items, embeddings of a further model, side"
    assert rb.orders().needs["centroid_cosine"] == "gallery column 'old_class' or gallery column 'label'"
    assert rb.orders().is_oracle["oracle_loss"]
    assert rb.merges().needs["csls"] == "train items"
    assert rb.merges().distances.to_dict() == dict.fromkeys(all_merges(), "any") | {"csls": "cosine"}


@pytest.mark.parametrize("kind", [str, Path])
def test_object_storage_needs_credentials_wherever_a_path_is_given(
    kind: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    uri = kind("s3://bucket/x")
    for call in (
        lambda: rb.simulate(uri),
        lambda: rb.simulate(folder, out=uri),
        lambda: rb.sample(uri, 5),
        lambda: rb.sample(folder, 5, out=uri),
        lambda: rb.forecast(uri),
        lambda: rb.forecast(folder, out=uri),
        lambda: rb.forecast(folder, sample=uri),
        lambda: rb.read_folder(uri),
        lambda: rb.read_results(uri),
        lambda: rb.write_folder(uri, gallery=columns(60, 1)),
    ):
        with pytest.raises(rb.InputError, match="s3://bucket/: no credentials; set AWS_ACCESS_KEY_ID"):
            call()
    assert list(tmp_path.iterdir()) == []


def test_methods_are_listed_with_the_references_first_then_by_paper() -> None:
    """Tables of a run and the marks of plugins follow this order; a module may hold several papers."""
    names = list(rb.methods().index)
    assert names[:3] == ["old", "new", "offline"]
    assert names.index("bct") < names.index("fastfill") < names.index("fct") < names.index("ract") < names.index("rqt")
