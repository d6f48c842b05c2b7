"""From a folder of embeddings to tables: truth, orders, what is left out, what is refused."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ray_backfill as rb
from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.replay import Curves, judge, replay_here
from ray_backfill.compare.resolve import resolve
from ray_backfill.compare.systems import System
from ray_backfill.compare.tables import LeftOut
from ray_backfill.compare.tabulate import tabulate
from ray_backfill.compare.write import Facts, write_results
from ray_backfill.core.errors import InputError
from ray_backfill.core.stages import read_json
from ray_backfill.data.folder import EmbeddingTable, read_folder
from ray_backfill.data.truth import ground_truth
from ray_backfill.data.write import write_parquet
from ray_backfill.engine import statistics as stats
from ray_backfill.engine.orders import high_first
from ray_backfill.engine.replay import Curve
from ray_backfill.learn.expressions import mapped, plain, side
from ray_backfill.learn.methods import find_methods
from ray_backfill.learn.training.settings import FitSettings
from tests.compare.folder import CLASSES, resolved, write_split

EVALUATION = Evaluation(methods=("rm_naive", "offline"), orders=("random", "classifier_score"), points=5)


def run_on(folder: Path, out: Path, evaluation: Evaluation = EVALUATION, left_out: tuple[LeftOut, ...] = ()) -> Path:
    comparison = resolved(folder, evaluation)
    return write_results(replace(comparison, left_out=left_out), out, Facts(command="test"))


def replay_all(folder: Path, evaluation: Evaluation = EVALUATION) -> Curves:
    return replay_here(resolved(folder, evaluation))


def replayed_by_hand(folder: Path, backward: str, forward: str, points: int) -> Curve:
    """The public replay of two models, in the order "classifier_score"."""
    data = read_folder(folder)
    assert data.queries is not None
    old, new = (
        rb.RetrievalSystem(data.queries.vectors[model], data.gallery.vectors[model]) for model in (backward, forward)
    )
    truth = rb.GroundTruth.from_labels(np.arange(12) % CLASSES, np.arange(60) % CLASSES)
    # old_score falls along the gallery
    return rb.replay(rb.UpgradePair(old, new), truth, np.arange(60)[::-1], points=points)


def test_tables_hold_what_the_curves_say(folder: Path, tmp_path: Path) -> None:
    out = run_on(folder, tmp_path / "out", left_out=(LeftOut("method", "rm", "no train split"),))
    curves, summary = pd.read_parquet(out / "curves.parquet"), pd.read_parquet(out / "summary.parquet")
    assert summary.method.drop_duplicates().tolist() == ["old", "new", "rm_naive", "offline"]
    curve = replayed_by_hand(folder, "old", "new", 5)
    key = (curves.method == "rm_naive") & (curves.order == "classifier_score")
    np.testing.assert_allclose(curves[key & (curves.metric == "mAP")].value, curve.values("mAP"), rtol=1e-12)
    flips = curves[key & (curves.metric == "negative_flips")].value
    np.testing.assert_allclose(flips, curve.negative_flips())
    row = summary[(summary.method == "rm_naive") & (summary.order == "classifier_score") & (summary.metric == "mAP")]
    old, new = curve.values("mAP")[[0, -1]]
    assert row.auc.item() == pytest.approx(curve.auc("mAP"))
    assert row.gain.item() == pytest.approx((curve.auc("mAP") - old) / (new - old))
    assert (row.starts_at_old.item(), row.ends_at_new.item(), row.moments.item()) == ("yes", "yes", 101)
    both_ends = summary[(summary.method.isin(["old", "new"])) & (summary.metric == "mAP")]
    assert set(both_ends.gain.round(9)) == {0.0, 1.0}
    manifest = read_json(out / "manifest.json")
    assert manifest["left_out"] == [{"kind": "method", "name": "rm", "reason": "no train split"}]
    assert manifest["finished"]
    assert {p.name for p in out.iterdir()} == {
        *("curves.parquet", "moments.parquet", "summary.parquet", "differences.parquet", "costs.parquet"),
        *("queries.parquet", "query_values.parquet", "flips.parquet", "shown.parquet"),
        *("curves.png", "report.html", "manifest.json", ".key.json"),
    }  # fmt: skip


def test_values_of_queries_are_what_the_means_are_made_of(folder: Path, tmp_path: Path) -> None:
    """With one query that has no answer, and unequal weights."""
    queries = pd.read_parquet(folder / "queries.parquet")
    queries["weight"] = np.where(queries.index % 2, 1.0, 4.0)
    queries.loc[2, "label"] = 99
    queries.to_parquet(folder / "queries.parquet")
    out = run_on(folder, tmp_path / "out", replace(EVALUATION, merges=("raw", "quantile")))
    scored, table = (pd.read_parquet(out / f"{name}.parquet") for name in ("queries", "query_values"))
    assert scored.row.tolist() == [i for i in range(12) if i != 2]
    assert scored.id.tolist() == queries.id.astype(str).drop(2).tolist()
    assert scored.weight.tolist() == [0.25 if i % 2 else 1.0 for i in scored.row]
    summary = pd.read_parquet(out / "summary.parquet").query("metric == 'mAP' and merge == 'raw'")
    assert len(summary) == 8
    for row in summary.itertuples():
        own = table[(table.method == row.method) & table.order.isin(["", row.order])]
        values = own.set_index("quantity")["values"]
        assert sorted(values.index) == ["auc", "end", "start"], "once where the order makes no difference"
        for quantity in values.index:
            assert values[quantity].dtype == np.float32
            mean = np.average(values[quantity], weights=scored.weight)
            assert mean == pytest.approx(getattr(row, quantity), abs=1e-6), (row.method, quantity)


def swap(table: EmbeddingTable) -> EmbeddingTable:
    return replace(table, vectors={"old": table.new, "new": table.old})


def test_flags_and_flips_tell_a_bad_upgrade_from_a_good_one(folder: Path, tmp_path: Path) -> None:
    """The new model is the worse one here: a finished backfill ends below {old, old} and above nothing."""
    data = read_folder(folder)
    assert data.queries is not None
    swapped = replace(data, gallery=swap(data.gallery), queries=swap(data.queries))
    methods = find_methods(("old", "new", "rm_naive"))
    how = Evaluation(methods=("rm_naive",), orders=("random",), points=5)
    curves = replay_here(resolve(swapped, how.named, FitSettings()))
    naive = curves["rm_naive", "random", "raw"].curve
    half = Curve(naive.t, {"mAP": naive.per_query["mAP"] / 2}, np.zeros_like(naive.top1_correct), naive.scored, 0)
    tables = tabulate(
        methods, {**curves, ("rm_naive", "random", "raw"): judge([half], 1)}, replace(EVALUATION, metrics=("mAP",))
    )
    table = tables["curves"]
    row = tables["summary"].set_index("method").loc["rm_naive"]
    assert (row.starts_at_old, row.ends_at_new, row.never_falls) == ("no", "no", "no")
    values = half.values("mAP")
    assert row.largest_fall == pytest.approx(max(values[i] - values[i:].min() for i in range(5)))
    assert row.gain != row.gain  # there is nothing to gain
    right_before = curves["old", "random", "raw"].top1_correct[:, 0].mean()
    assert (row.negative_flips_max, row.negative_flips_vs_old_max) == (0, pytest.approx(right_before))
    assert right_before > 0
    points = table[table.method == "rm_naive"].set_index("metric").value
    np.testing.assert_allclose(points["negative_flips_vs_old"], right_before)  # every right answer is lost
    assert not points["negative_flips"].any()  # it had none to lose


def test_milestones_have_intervals_and_flips_settle(folder: Path, tmp_path: Path) -> None:
    """Against plain loops over the moments of the public replay, and its bootstrap."""
    summary = pd.read_parquet(run_on(folder, tmp_path / "out") / "summary.parquet")
    row = summary.query("method == 'rm_naive' and order == 'classifier_score' and metric == 'mAP'").iloc[0]
    pairs = ("old", "old"), ("new", "new"), ("old", "new")
    of_old, of_new, own = (replayed_by_hand(folder, *pair, points=101) for pair in pairs)
    draws = [stats.bootstrap_means(curve.per_query["mAP"]) for curve in (of_old, of_new, own)]
    before, after, margin = draws[0][:, 0], draws[1][:, -1], EVALUATION.margin
    targets = {"passes_old_at": before - margin, "half_gain_at": (before + after) / 2, "passes_new_at": after - margin}
    for name, target in targets.items():
        lower = [stats.interval(draws[2][:, j] - target, 12)[0] for j in range(101)]
        settled = [j for j in range(101) if all(each >= -1e-12 for each in lower[j:])]
        high = own.t[settled[0]] if settled else np.inf
        assert row[f"{name}_high"] == high
        assert row[f"{name}_low"] <= (row[name] if row[name] == row[name] else np.inf) <= high
    right = of_old.top1_correct[:, 0] > 0
    lost = [(right & (own.top1_correct[:, j] == 0)).mean() for j in range(101)]
    finished = (right & (of_new.top1_correct[:, -1] == 0)).mean() + margin
    assert row.flips_as_new_at == own.t[next(j for j in range(101) if max(lost[j:]) <= finished + 1e-12)]
    assert 0 < row.half_gain_at_low < row.half_gain_at_high


def test_differences_and_intervals_come_from_the_same_draws(folder: Path, tmp_path: Path) -> None:
    out = run_on(folder, tmp_path / "out")
    summary, differences = pd.read_parquet(out / "summary.parquet"), pd.read_parquet(out / "differences.parquet")
    curves = replay_all(folder)
    mine, offline, old, new = (curves[name, "random", "raw"].curve for name in ("rm_naive", "offline", "old", "new"))
    row = differences.query(
        "method == 'rm_naive' and order == 'random' and other_method == 'offline' and metric == 'mAP'"
    )
    assert len(row) == 1
    assert tuple(row[["difference", "low", "high"]].iloc[0]) == pytest.approx(mine.difference(offline, "mAP"))
    row = summary.query("method == 'rm_naive' and order == 'random' and metric == 'mAP'")
    assert tuple(row[["auc_low", "auc_high"]].iloc[0]) == pytest.approx(mine.auc_interval("mAP"))
    gain = mine.gain_interval("mAP", old, new)
    assert tuple(row[["gain_low", "gain_high"]].iloc[0]) == pytest.approx(gain)
    own, other = (differences[[f"{side}method", f"{side}order", f"{side}merge"]].to_numpy() for side in ("", "other_"))
    assert len(own) == 2 * 4 * 2 * (3 + 1)  # of 2 metrics each of 4 methods in 2 orders: 3 others, and the other order
    assert ((own != other).sum(axis=1) == 1).all()


def test_merges_are_compared_with_each_other_and_with_the_references(folder: Path, tmp_path: Path) -> None:
    write_split(folder / "train.parquet", 60, 3000)
    evaluation = replace(EVALUATION, orders=("random",), merges=("raw", "quantile", "isotonic"))
    out = run_on(folder, tmp_path / "out", evaluation)
    summary, differences = pd.read_parquet(out / "summary.parquet"), pd.read_parquet(out / "differences.parquet")
    assert summary.groupby("method")["merge"].nunique().to_dict() == {"old": 1, "new": 1, "offline": 1, "rm_naive": 3}
    naive = summary[(summary.method == "rm_naive") & (summary.metric == "mAP")]
    assert naive.start.nunique() == naive.end.nunique() == 1  # merges that are monotone keep both ends
    assert naive.auc.nunique() > 1
    pairs = differences[(differences.method == "rm_naive") & (differences.metric == "mAP")]
    for _, rows in pairs.groupby("merge"):
        assert rows.other_method.value_counts().to_dict() == {"rm_naive": 2, "old": 1, "new": 1, "offline": 1}


def test_a_fusion_by_rank_is_replayed_beside_candidates(folder: Path) -> None:
    """It needs whole rankings, which metrics cut at k do not: the two are replayed apart, and nothing is lost."""
    evaluation = replace(EVALUATION, orders=("random",), merges=("raw", "rrf"), metrics=("CMC@1",))
    curves = replay_all(folder, evaluation)
    assert [key for key in curves if key[0] == "rm_naive"] == [("rm_naive", "random", m) for m in ("raw", "rrf")]
    whole = replay_all(folder, replace(evaluation, metrics=("mAP", "CMC@1")))
    for key, found in curves.items():
        np.testing.assert_array_equal(found.values["CMC@1"], whole[key].values["CMC@1"])


def test_subgroups_are_the_curves_of_their_queries(folder: Path, tmp_path: Path) -> None:
    group = np.array(["f", "m", "m", "f", "m", "m"] * 2)
    write_split(folder / "queries.parquet", 12, 1000, group=group)
    table = pd.read_parquet(run_on(folder, tmp_path / "out") / "subgroups.parquet")
    curve = replay_all(folder)["rm_naive", "random", "raw"].curve
    own = table[(table.method == "rm_naive") & (table.order == "random") & (table.metric == "mAP")]
    f, m, gap = (own[own.group == g].value.to_numpy() for g in ("f", "m", "(gap)"))
    np.testing.assert_allclose(f, curve.per_query["mAP"][group == "f"].mean(axis=0))
    np.testing.assert_allclose(m, curve.per_query["mAP"][group == "m"].mean(axis=0))
    np.testing.assert_allclose(gap, np.abs(f - m))
    assert own.groupby("group").queries.first().to_dict() == {"f": 4, "m": 8, "(gap)": 12}


def test_a_query_of_weight_3_is_worth_three_queries_in_every_table(folder: Path, tmp_path: Path) -> None:
    evaluation = replace(EVALUATION, metrics=("nDCG", "MRR@3"))
    group, times = np.array(["f", "m", "m", "f", "m", "m"] * 2), np.array([1, 3] * 6)
    write_split(folder / "queries.parquet", 12, 1000, group=group, weight=times / 2)
    weighted = run_on(folder, tmp_path / "weighted", evaluation)
    curve = replay_all(folder, evaluation)["rm_naive", "random", "raw"].curve
    queries = pq.read_table(folder / "queries.parquet").drop_columns("weight").take(np.repeat(np.arange(12), times))
    queries = queries.set_column(0, "id", pa.array(np.arange(1000, 1000 + len(queries))))
    write_parquet(folder / "queries.parquet", queries)
    repeated = run_on(folder, tmp_path / "repeated", evaluation)
    for name in ("curves", "summary", "moments", "differences", "subgroups"):
        own, other = (pd.read_parquet(out / f"{name}.parquet") for out in (weighted, repeated))
        # Limits are of different draws, and so is whether there is a gain.
        ends = ("low", "high", "at_once")
        numbers = [c for c in map(str, own.select_dtypes(float)) if not c.endswith(ends) and "gain" not in c]
        np.testing.assert_allclose(own[numbers], other[numbers], rtol=1e-9, atol=1e-12)
    # Limits come from the weighted queries, too.
    curves = pd.read_parquet(weighted / "curves.parquet")
    own = curves[(curves.method == "rm_naive") & (curves.order == "random")]
    flips = (1.0 - curve.top1_correct[:, :1]) * curve.top1_correct
    assert flips.any()
    for metric, values in (("nDCG", curve.per_query["nDCG"]), ("positive_flips", flips)):
        low, high = stats.interval(stats.bootstrap_means(values, curve.weights), len(curve.scored))
        np.testing.assert_allclose(own[own.metric == metric][["low", "high"]], np.stack([low, high], 1), atol=1e-12)
    assert read_json(weighted / "manifest.json")["data"]["queries_weighted_by"] == "weight"
    assert "queries_weighted_by" not in read_json(repeated / "manifest.json")["data"]


def test_the_largest_share_of_flips_is_weighted() -> None:
    top1 = np.array([[True, False], [True, True], [False, True]])
    values = {"CMC@1": top1.astype(np.float64)}
    curve = Curve(np.array([0.0, 1.0]), values, top1, np.arange(3), 0, weights=np.array([6.0, 1.0, 1.0]))
    found = judge([curve], 1)
    assert found.negative_flips().max() == pytest.approx(6 / 8)
    assert found.negative_flips(np.array([False, False, True])).max() == pytest.approx(1 / 8)


def test_a_half_written_result_is_made_again(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(folder: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("ray_backfill.compare.write.finish_stage", stop)
        with pytest.raises(KeyboardInterrupt):
            run_on(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists(), "results appear when they are complete"
    out = run_on(folder, tmp_path / "out")
    assert (out / "report.html").exists()


def test_positives_and_ignored_items_by_id(folder: Path) -> None:
    positives = [[3, 5]] * 11 + [[59]]
    write_split(folder / "queries.parquet", 12, 1000, label=None, positives=positives, ignored=[[0]] + [[]] * 11)
    truth = ground_truth(read_folder(folder))
    assert truth.positives_of(0).tolist() == [3, 5]
    assert truth.ignored_of(0).tolist() == [0]
    assert truth.positives_of(11).tolist() == [59]


def test_cameras_and_names_as_labels(folder: Path) -> None:
    names = np.array(["a", "b", "c", "d", "e", "f"])
    cameras = {"camera": np.arange(60) % 2, "label": names[np.arange(60) % CLASSES]}
    write_split(folder / "gallery.parquet", 60, 0, **cameras)
    write_split(folder / "queries.parquet", 12, 1000, camera=np.zeros(12, int), label=names[np.arange(12) % CLASSES])
    truth = ground_truth(read_folder(folder))
    assert truth.ignored_of(0).tolist() == list(range(0, 60, 6))  # all of class a stand before camera 0
    assert truth.positives_of(1).tolist() == list(range(1, 60, 6))


def test_what_does_not_fit_is_named(folder: Path) -> None:
    for more, message in (
        ({"label": None, "positives": [[]] * 12}, r"no query of .* has a right answer"),
        ({"label": None}, r"queries\.parquet has no column 'label'; add it, or give"),
    ):
        write_split(folder / "queries.parquet", 12, 1000, **more)
        with pytest.raises(InputError, match=message):
            ground_truth(read_folder(folder))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"merges": ("magic",)}, "unknown merge 'magic'; known: raw"),
        ({"merges": ("csls",), "distance": "l2"}, "csls merge supports only the cosine distance"),
        ({"merges": ()}, "one of each: .*--merges"),
        ({"points": 1 << 17}, "at most 65536"),
        ({"methods": ("rn",)}, "unknown method 'rn'"),
        ({"metrics": ("acc",)}, "acc"),
        ({"metrics": ()}, "one of each: --metrics"),
        ({"orders": ()}, "one of each: .*--orders"),
    ],
)
def test_impossible_evaluations_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(EVALUATION, **change).check()


def test_flips_have_intervals(folder: Path, tmp_path: Path) -> None:
    curves = pd.read_parquet(run_on(folder, tmp_path / "out") / "curves.parquet")
    assert curves[["value", "low", "high"]].notna().all().all()
    won = curves[curves.metric == "positive_flips"]
    assert won.value.between(won.low - 1e-12, won.high + 1e-12).all()
    assert (won.high > won.low).any()


def test_methods_share_systems() -> None:
    methods = find_methods(("old", "new", "rm_naive", "procrustes_gallery", "ridge_query"))
    old, new = System(plain("old")), System(plain("new"))
    assert [System.both_of(method) for method in methods] == [
        (old, old),
        (new, new),
        (old, new),
        (System(side("new", mapped("A", "old")), "procrustes_gallery"), new),
        (System(side(mapped("A", "new"), "old"), "ridge_query"), new),
    ]


def test_a_plugins_order_reads_its_own_column(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recency = np.random.default_rng(0).random(60)
    write_split(folder / "gallery.parquet", 60, 0, recency=recency)
    orders = (rb.Order("newest", "newest first", "", high_first("recency"), ("recency",)),)
    plugin = SimpleNamespace(ORDERS=orders)
    monkeypatch.setattr("ray_backfill.core.plugins._modules_from_outside", lambda: (plugin,))
    evaluation = replace(EVALUATION, orders=("newest",))
    comparison = resolved(folder, evaluation)
    assert comparison.orders.of_gallery["newest"].tolist() == np.argsort(-recency).tolist()
    write_results(comparison, tmp_path / "out", Facts(command="test"))
    for more, message in (
        ({"recency": recency[::-1]}, "different from the earlier run: "),
        ({"recency": ["today"] * 60}, "column 'recency' must hold numbers"),
        ({}, "order 'newest' needs the gallery column 'recency', which is missing"),
    ):
        write_split(folder / "gallery.parquet", 60, 0, **more)
        with pytest.raises(InputError, match=message):
            run_on(folder, tmp_path / "out", evaluation)
