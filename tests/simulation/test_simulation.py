"""From a folder of embeddings to tables: truth, orders, what is left out, what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import ray_backfill as rb
from ray_backfill.errors import InputError
from ray_backfill.files import read_json
from ray_backfill.methods import find_methods
from ray_backfill.replay import Curve
from ray_backfill.simulation import Evaluation, Run, replay_methods, simulate
from ray_backfill.simulation.folder import ground_truth, make_orders
from ray_backfill.simulation.tables import tabulate
from ray_backfill.store import read_folder, vector_column, write_parquet

RUN = Run(command="test")
CLASSES = 6


def vectors(labels: np.ndarray, d: int, noise: float, seed: int) -> np.ndarray:
    centres = np.random.default_rng(9).normal(size=(CLASSES, 8))[:, :d]
    return (centres[labels] + noise * np.random.default_rng(seed).normal(size=(len(labels), d))).astype(np.float32)


def write_split(path: Path, rows: int, first_id: int, **more: Any) -> None:
    labels = np.arange(rows) % CLASSES
    columns = {
        "id": np.arange(first_id, first_id + rows),
        "old": vector_column(vectors(labels, 4, 1.0, first_id)),
        "new": vector_column(vectors(labels, 8, 0.6, first_id + 1)),
        "label": labels,
    } | more
    write_parquet(path, pa.table({k: v for k, v in columns.items() if v is not None}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_split(tmp_path / "data" / "gallery.parquet", 60, 0, old_score=np.linspace(1, 0, 60))
    write_split(tmp_path / "data" / "queries.parquet", 12, 1000)
    return tmp_path / "data"


EVALUATION = Evaluation(methods=("rm_naive", "offline"), orders=("random", "classifier_score"), points=5)


def run_on(folder: Path, out: Path, evaluation: Evaluation = EVALUATION, run: Run = RUN) -> Path:
    data = read_folder(folder)
    return simulate(data, data.fingerprint(), out, evaluation, {}, run)


def test_tables_hold_what_the_curves_say(folder: Path, tmp_path: Path) -> None:
    out = run_on(folder, tmp_path / "out", run=Run("test", left_out={"rm": "no train split"}))
    curves, summary = pd.read_parquet(out / "curves.parquet"), pd.read_parquet(out / "summary.parquet")
    assert summary.method.drop_duplicates().tolist() == ["old", "new", "rm_naive", "offline"]
    data = read_folder(folder)
    assert data.queries is not None
    pair = rb.UpgradePair(
        rb.RetrievalSystem(data.queries.old, data.gallery.old), rb.RetrievalSystem(data.queries.new, data.gallery.new)
    )
    truth = rb.GroundTruth.from_labels(np.arange(12) % CLASSES, np.arange(60) % CLASSES)
    order = np.arange(60)[::-1]  # old_score falls along the gallery
    curve = rb.replay(pair, truth, order, points=5)
    key = (curves.method == "rm_naive") & (curves.order == "classifier_score")
    np.testing.assert_allclose(curves[key & (curves.metric == "mAP")].value, curve.values("mAP"), rtol=1e-12)
    flips = curves[key & (curves.metric == "negative_flips")].value
    np.testing.assert_allclose(flips, curve.negative_flips())
    row = summary[(summary.method == "rm_naive") & (summary.order == "classifier_score") & (summary.metric == "mAP")]
    old, new = curve.values("mAP")[[0, -1]]
    assert row.auc.item() == pytest.approx(curve.auc("mAP"))
    assert row.gain.item() == pytest.approx((curve.auc("mAP") - old) / (new - old))
    assert row.starts_at_old.item()
    assert row.ends_at_new.item()
    both_ends = summary[(summary.method.isin(["old", "new"])) & (summary.metric == "mAP")]
    assert set(both_ends.gain.round(9)) == {0.0, 1.0}
    manifest = read_json(out / "manifest.json")
    assert manifest["left_out"] == {"rm": "no train split"}
    assert manifest["finished"]
    assert {p.name for p in out.iterdir()} == {
        "curves.parquet", "summary.parquet", "differences.parquet", "curves.png", "report.html", "manifest.json"
    }  # fmt: skip


def test_flags_and_flips_tell_a_bad_upgrade_from_a_good_one(folder: Path, tmp_path: Path) -> None:
    """The new model is the worse one here: a finished backfill ends below {old, old} and above nothing."""
    data = read_folder(folder)
    assert data.queries is not None
    swapped = replace(
        data,
        gallery=replace(data.gallery, old=data.gallery.new, new=data.gallery.old),
        queries=replace(data.queries, old=data.queries.new, new=data.queries.old),
    )
    methods = find_methods(("old", "new", "rm_naive"))
    truth, order = ground_truth(swapped), {"o": np.arange(60)}
    curves = replay_methods(swapped, truth, methods, order, EVALUATION, {})
    half = Curve(
        curves["rm_naive", "o"].t,
        {"mAP": curves["rm_naive", "o"].per_query["mAP"] / 2},
        np.zeros_like(curves["rm_naive", "o"].top1_correct),
        curves["rm_naive", "o"].scored,
        0,
    )
    tables = tabulate(methods, curves | {("rm_naive", "o"): half}, ["mAP"])
    table = tables.curves
    row = tables.summary.set_index("method").loc["rm_naive"]
    assert not row.starts_at_old
    assert not row.ends_at_new
    assert not row.monotone
    assert row.largest_fall > 0
    lost = table[(table.method == "rm_naive") & (table.metric == "negative_flips_vs_old")].value
    np.testing.assert_allclose(lost, curves["old", "o"].top1_correct[:, 0].mean())  # every right answer is lost
    own = table[(table.method == "rm_naive") & (table.metric == "negative_flips")].value
    assert not own.any()  # it had none to lose


def test_differences_and_intervals_come_from_the_same_draws(folder: Path, tmp_path: Path) -> None:
    out = run_on(folder, tmp_path / "out")
    summary, differences = pd.read_parquet(out / "summary.parquet"), pd.read_parquet(out / "differences.parquet")
    data = read_folder(folder)
    truth, methods = ground_truth(data), EVALUATION.find_methods()
    orders = make_orders(data.gallery, EVALUATION.orders, 0)
    curves = replay_methods(data, truth, methods, orders, EVALUATION, {})
    mine, offline = curves["rm_naive", "random"], curves["offline", "random"]
    row = differences.query(
        "method == 'rm_naive' and order == 'random' and other_method == 'offline' and metric == 'mAP'"
    )
    assert len(row) == 1
    assert tuple(row[["difference", "low", "high"]].iloc[0]) == pytest.approx(mine.difference(offline, "mAP"))
    row = summary.query("method == 'rm_naive' and order == 'random' and metric == 'mAP'")
    assert tuple(row[["auc_low", "auc_high"]].iloc[0]) == pytest.approx(mine.auc_interval("mAP"))
    gain = mine.gain_interval("mAP", curves["old", "random"], curves["new", "random"])
    assert tuple(row[["gain_low", "gain_high"]].iloc[0]) == pytest.approx(gain)
    pairs = differences[["method", "order", "other_method", "other_order"]].drop_duplicates()
    assert len(pairs) == 4 * 2 * (3 + 1)  # each of 4 methods in 2 orders: 3 others, and the other order
    assert ((pairs.method == pairs.other_method) | (pairs.order == pairs.other_order)).all()


def test_subgroups_are_the_curves_of_their_queries(folder: Path, tmp_path: Path) -> None:
    group = np.array(["f", "m", "m", "f", "m", "m"] * 2)
    write_split(folder / "queries.parquet", 12, 1000, group=group)
    table = pd.read_parquet(run_on(folder, tmp_path / "out") / "subgroups.parquet")
    data = read_folder(folder)
    truth, orders = ground_truth(data), make_orders(data.gallery, ("random",), 0)
    curve = replay_methods(data, truth, EVALUATION.find_methods(), orders, EVALUATION, {})["rm_naive", "random"]
    own = table[(table.method == "rm_naive") & (table.order == "random") & (table.metric == "mAP")]
    f, m, gap = (own[own.group == g].value.to_numpy() for g in ("f", "m", "(gap)"))
    np.testing.assert_allclose(f, curve.per_query["mAP"][group == "f"].mean(axis=0))
    np.testing.assert_allclose(m, curve.per_query["mAP"][group == "m"].mean(axis=0))
    np.testing.assert_allclose(gap, np.abs(f - m))
    assert own.groupby("group").queries.first().to_dict() == {"f": 4, "m": 8, "(gap)": 12}


def test_the_same_run_is_reused_and_another_refused(folder: Path, tmp_path: Path) -> None:
    out = run_on(folder, tmp_path / "out")
    before = (out / "curves.parquet").stat().st_mtime_ns
    run_on(folder, out)
    assert (out / "curves.parquet").stat().st_mtime_ns == before
    with pytest.raises(InputError, match=r"evaluation.points: 5 there, 6 asked"):
        run_on(folder, out, Evaluation(EVALUATION.methods, EVALUATION.orders, points=6))
    write_split(folder / "queries.parquet", 12, 2000)
    with pytest.raises(InputError, match=r"another run \(data: "):
        run_on(folder, out)


def test_a_half_written_result_is_made_again(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(folder: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("ray_backfill.simulation.write_report", stop)
        with pytest.raises(KeyboardInterrupt):
            run_on(folder, tmp_path / "out")
    assert not read_json(tmp_path / "out" / "manifest.json")["finished"]
    out = run_on(folder, tmp_path / "out")
    assert (out / "report.html").exists()


def test_without_queries_the_gallery_queries_itself(folder: Path) -> None:
    (folder / "queries.parquet").unlink()
    truth = ground_truth(read_folder(folder))
    assert truth.n_queries == 60
    assert truth.ignored_of(7).tolist() == [7]
    assert truth.positives_of(7).tolist() == [i for i in range(60) if i % CLASSES == 1 and i != 7]


def test_positives_and_ignored_items_by_id(folder: Path) -> None:
    positives = [[3, 5]] * 11 + [[59]]
    write_split(folder / "queries.parquet", 12, 1000, label=None, positives=positives, ignored=[[0]] + [[]] * 11)
    truth = ground_truth(read_folder(folder))
    assert truth.positives_of(0).tolist() == [3, 5]
    assert truth.ignored_of(0).tolist() == [0]
    assert truth.positives_of(11).tolist() == [59]
    write_split(folder / "queries.parquet", 12, 1000, label=None, positives=[[3]] * 11 + [[77]])
    with pytest.raises(InputError, match=r"queries\.parquet, column 'positives', row 11: the gallery has no id 77"):
        ground_truth(read_folder(folder))


def test_an_item_that_queries_itself_is_never_its_own_answer(folder: Path) -> None:
    (folder / "queries.parquet").unlink()
    write_split(folder / "gallery.parquet", 60, 0, label=None, positives=[[(i + 6) % 60] for i in range(60)])
    truth = ground_truth(read_folder(folder))
    assert truth.ignored_of(9).tolist() == [9]
    assert truth.positives_of(9).tolist() == [15]


def test_a_camera_on_one_side_only_is_refused(folder: Path) -> None:
    write_split(folder / "gallery.parquet", 60, 0, camera=np.zeros(60, int))
    with pytest.raises(InputError, match="column 'camera' is in only one of"):
        ground_truth(read_folder(folder))


def test_cameras_and_names_as_labels(folder: Path) -> None:
    names = np.array(["a", "b", "c", "d", "e", "f"])
    cameras = {"camera": np.arange(60) % 2, "label": names[np.arange(60) % CLASSES]}
    write_split(folder / "gallery.parquet", 60, 0, **cameras)
    write_split(folder / "queries.parquet", 12, 1000, camera=np.zeros(12, int), label=names[np.arange(12) % CLASSES])
    truth = ground_truth(read_folder(folder))
    assert truth.ignored_of(0).tolist() == list(range(0, 60, 6))  # all of class a stand before camera 0
    assert truth.positives_of(1).tolist() == list(range(1, 60, 6))


def test_what_does_not_fit_is_named(folder: Path) -> None:
    write_split(folder / "queries.parquet", 12, 1000, label=np.array([0, 1, 2, 99] * 3))
    with pytest.raises(InputError, match=r"3 queries have a label that .* lacks, first 99 in row 3"):
        ground_truth(read_folder(folder))
    truth = ground_truth(read_folder(folder), refuse_unknown_labels=False)
    assert truth.skipped.tolist() == [3, 7, 11]
    assert truth.positives_of(2).tolist() == list(range(2, 60, 6))
    write_split(folder / "queries.parquet", 12, 1000, label=None, positives=[[]] * 12)
    with pytest.raises(InputError, match=r"no query of .* has a right answer"):
        ground_truth(read_folder(folder))
    write_split(folder / "queries.parquet", 12, 1000, label=["x"] * 12)
    with pytest.raises(InputError, match="labels are int64 in"):
        ground_truth(read_folder(folder))
    write_split(folder / "queries.parquet", 12, 1000, label=None)
    with pytest.raises(InputError, match=r"queries\.parquet has no column 'label'; add it, or give"):
        ground_truth(read_folder(folder))
    with pytest.raises(InputError, match="needs the gallery column 'order_score'"):
        make_orders(read_folder(folder).gallery, ("given",), seed=0)
    for bad in (
        Evaluation(methods=("rn",)),
        Evaluation(metrics=("acc",)),
        Evaluation(metrics=()),
        Evaluation(orders=()),
    ):
        with pytest.raises(InputError):
            bad.check()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"merges": ("csls",)}, "unknown merge 'csls'; known: raw"),
        ({"merges": ()}, "one merge"),
        ({"points": 1 << 17}, "at most 65536"),
    ],
)
def test_impossible_evaluations_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(EVALUATION, **change).check()


def test_flips_have_intervals(folder: Path, tmp_path: Path) -> None:
    curves = pd.read_parquet(run_on(folder, tmp_path / "out") / "curves.parquet")
    assert curves[["value", "low", "high"]].notna().all().all()
    lost = curves[curves.metric == "positive_flips"]
    assert (lost.low <= lost.value + 1e-12).all()
    assert (lost.high >= lost.value - 1e-12).all()
    assert (lost.high > lost.low).any()
