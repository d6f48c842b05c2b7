"""Live drills with and without injected faults: each ends in the same state as an undisturbed one."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import ray
import torch

from ray_backfill.compare.resolve import resolve
from ray_backfill.core.errors import InputError
from ray_backfill.core.stages import read_json
from ray_backfill.data.folder import StoredSplit, read_folder
from ray_backfill.data.write import vector_column, write_parquet
from ray_backfill.drill import run as drills
from ray_backfill.drill.jobs import FromImages
from ray_backfill.drill.journal import Journal, Started, Throttled, TrafficRestarted, of_type
from ray_backfill.drill.parts import Embedded, part_path
from ray_backfill.drill.ray import driver as driving
from ray_backfill.drill.ray.driver import Driver
from ray_backfill.drill.ray.embedding import _without_useless, embed_again
from ray_backfill.drill.settings import ChurnSettings, ThrottleSettings, TrafficSettings
from ray_backfill.drill.shard import read_answers
from ray_backfill.engine.index import IndexSettings
from ray_backfill.images.datasets import open_images
from ray_backfill.images.datasets.image_folder import Settings
from ray_backfill.learn.models.backbones import BackboneInfo, load_backbone, pixels_to_float, save_backbone
from ray_backfill.learn.training.settings import BackboneSettings, FitSettings
from ray_backfill.workers.settings import Context, EmbedActors
from tests.cluster.drill._drill import (
    EVALUATION,
    ITEMS,
    SETTINGS,
    Finished,
    assert_as_replayed,
    assert_nothing_lost,
    looking_at_the_end,
    run,
    with_traffic,
    write_folder,
)
from tests.images.datasets._pictures import drawing, write_tree

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.usefixtures("ray_session")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory, ray_session: None) -> Finished:
    with pytest.MonkeyPatch.context() as monkeypatch:
        return run(data, tmp_path_factory.mktemp("undisturbed"), monkeypatch)


def test_live_quality_is_that_of_the_replay(data: Path, undisturbed: Finished) -> None:
    assert_as_replayed(data, undisturbed)
    checkpoints = undisturbed.table("checkpoints")
    assert checkpoints.new_items.tolist() == [i * ITEMS // 7 for i in range(8)]
    assert (checkpoints.old_items + checkpoints.new_items == ITEMS).all()
    assert (checkpoints[["old_recall", "new_recall"]].stack().dropna() == 1).all()
    assert checkpoints[["unanswered", "violations", "retried"]].to_numpy().sum() == 0
    assert {side for side, _ in undisturbed.served.values()} == {"new"}
    assert sorted(undisturbed.served) == list(range(ITEMS))
    assert (undisturbed.folder / "report.html").exists()


def test_a_finished_drill_is_not_run_again(data: Path, undisturbed: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (undisturbed.folder / "journal.jsonl").read_bytes()
    run(data, undisturbed.folder.parent, monkeypatch)
    assert (undisturbed.folder / "journal.jsonl").read_bytes() == before


def test_missing_tables_and_reports_of_a_finished_drill_are_made_again(
    data: Path, undisturbed: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Path(shutil.copytree(undisturbed.folder.parent, tmp_path / "out"))
    before = read_json(out / "live" / "manifest.json")
    for missing in (["report.html"], ["quality.parquet", "timeline.parquet"]):
        for name in missing:
            (out / "live" / name).unlink()
        again = run(data, out, monkeypatch)
        assert all((out / "live" / name).exists() for name in missing)
    pd.testing.assert_frame_equal(again.table("quality"), undisturbed.table("quality"))
    after = read_json(out / "live" / "manifest.json")
    assert (after["finished"], after["timings_s"]["drill"]) == (True, before["timings_s"]["drill"])
    assert (out / "live" / "journal.jsonl").read_bytes() == (undisturbed.folder / "journal.jsonl").read_bytes()


class Faults:
    """Injects faults before some operations of a drill. Each fault is over by the next checkpoint at the latest."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def __call__(self, driver: Driver, number: int) -> None:
        faults = {
            1: self.kill_embedding_actor,
            3: self.cut_part,
            4: self.kill_pacer,
            5: self.kill_writing_shard,
            7: self.kill_traffic_actor,
            8: self.deliver_twice,
            11: self.kill_searching_shard,
            12: self.cut_applied_part,
        }
        if number in faults:
            faults[number](driver, number)
            self.done.append(faults[number].__name__)

    def kill_embedding_actor(self, driver: Driver, number: int) -> None:
        alive = [actor for actor in driver.embedding.actors() if actor["State"] == "ALIVE"]
        os.kill(alive[0]["Pid"], signal.SIGKILL)
        deadline = time.monotonic() + 60
        while not any(actor["NumRestarts"] and actor["State"] == "ALIVE" for actor in driver.embedding.actors()):
            assert time.monotonic() < deadline, "no other actor embeds"
            time.sleep(0.1)

    def kill_pacer(self, driver: Driver, number: int) -> None:
        ray.kill(driver.embedding.pacer, no_restart=False)

    def kill_traffic_actor(self, driver: Driver, number: int) -> None:
        ray.kill(driver.traffic.actors[0])
        while not (driver.traffic.senders[0].incarnation and driver.traffic.recent_ms(5.0)):
            driver.traffic.look_after()
            time.sleep(0.1)

    def cut_part(self, driver: Driver, number: int) -> None:
        path = wait_for_part(driver, number)
        path.write_bytes(path.read_bytes()[:200])

    def cut_applied_part(self, driver: Driver, number: int) -> None:
        """No shard reads the part again, but the driver does before it ends."""
        part_path(driver.job.folder, 0).write_bytes(b"")

    def kill_writing_shard(self, driver: Driver, number: int) -> None:
        wait_for_part(driver, number)
        driver.shards.actors[0].apply.remote(number + 1)
        ray.kill(driver.shards.actors[0], no_restart=False)

    def deliver_twice(self, driver: Driver, number: int) -> None:
        """Embeds and writes the same part again, and applies it several times, late and out of order."""
        wait_for_part(driver, number).unlink()
        embed_again(number, driver.job.embed)
        for _ in range(2):
            driver.shards.apply(number + 1)
            driver.shards.apply(1)

    def kill_searching_shard(self, driver: Driver, number: int) -> None:
        queries = np.ones((512, 8), np.float32), np.ones((512, 12), np.float32)
        for _ in range(4):
            driver.shards.actors[1].search.remote(*queries, 10, np.zeros(512, np.int64))
        ray.kill(driver.shards.actors[1], no_restart=False)
        time.sleep(1.0)


def wait_for_part(driver: Driver, number: int) -> Path:
    path = part_path(driver.job.folder, number)
    while not path.exists():
        time.sleep(0.05)
    return path


@pytest.fixture(scope="module")
def faults() -> Faults:
    return Faults()


@pytest.fixture(scope="module")
def disturbed(data: Path, undisturbed: Finished, faults: Faults, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A drill with all faults. It embeds slowly, so that an actor that is killed is still needed."""
    settings = replace(with_traffic(rate_per_s=40.0), throttle=ThrottleSettings(items_per_s=15.0))
    with pytest.MonkeyPatch.context() as monkeypatch:
        return run(data, tmp_path_factory.mktemp("disturbed"), monkeypatch, settings, faults)


def test_faults_leave_no_trace_in_what_is_served(disturbed: Finished, faults: Faults, undisturbed: Finished) -> None:
    """Actors killed while embedding, writing and asked; parts cut before and after they were applied, and one twice.

    A checkpoint lies between most of them, and each has the counts and the quality of the undisturbed drill.
    """
    assert len(faults.done) == 8
    assert_nothing_lost(disturbed, undisturbed)


@pytest.mark.parametrize(
    ("kind", "times"),
    [
        ("embedding actor died", 1),
        ("pacer restarted", 1),
        ("part rebuilt", 2),
        ("shard restarted", 2),
        ("traffic actor restarted", 1),
    ],
)
def test_every_fault_is_told(disturbed: Finished, kind: str, times: int) -> None:
    incidents = disturbed.table("incidents")
    assert (incidents.kind == kind).sum() == times, incidents


def test_a_bad_part_is_kept_aside(disturbed: Finished) -> None:
    kept = sorted(path.name for path in (disturbed.folder / "parts").glob("*.bad"))
    assert kept == ["part-000000.bad", "part-000003.bad"]


def test_the_traffic_goes_on_in_another_incarnation(disturbed: Finished) -> None:
    (restarted,) = of_type(Journal(disturbed.folder).entries(), TrafficRestarted)
    assert (restarted.leg, restarted.actor, restarted.incarnation) == (0, 0, 1)
    files = sorted(path.name for path in (disturbed.folder / "events").iterdir())
    own = [name for name in files if name.startswith("leg-000-000.1-")]
    assert own
    assert files[-len(own) :] == own, "and nobody else may write any more"
    later = pd.concat([pd.read_parquet(disturbed.folder / "events" / name) for name in own])
    assert later.scheduled_s.min() > restarted.elapsed_s
    assert later.is_answered.all()
    queries, second = disturbed.table("timeline").queries, int(restarted.elapsed_s) + 1
    counted = later[(later.scheduled_s >= second) & ~later.is_warm_up].queries.sum()
    assert queries[second:].sum() == counted > 0, "and the table counts them all"


def test_queries_that_met_a_dead_shard_were_asked_again(disturbed: Finished) -> None:
    checkpoints = disturbed.table("checkpoints")
    assert checkpoints.retried.sum() > 0
    assert checkpoints.unanswered.sum() == 0


OF_TENANT = replace(EVALUATION, filter="tenant")


@pytest.mark.heavy
def test_live_quality_of_a_tenant_is_that_of_the_replay(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_as_replayed(data, run(data, tmp_path, monkeypatch, evaluation=OF_TENANT), OF_TENANT)


@pytest.mark.heavy
def test_a_query_finds_items_of_its_tenant(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while items are inserted and deleted."""
    churn = ChurnSettings(inserts=60, deletes=50)
    settings = replace(SETTINGS, churn=churn, new_index=IndexSettings("Flat"))
    drill = run(data, tmp_path / "churn", monkeypatch, settings, evaluation=OF_TENANT)
    quality, checkpoints = drill.table("quality"), drill.table("checkpoints")
    np.testing.assert_allclose(quality.live, quality.exact, atol=1e-6)
    assert (checkpoints[["old_recall", "new_recall"]].stack().dropna() > 0.999).all()
    assert checkpoints[["unanswered", "violations"]].to_numpy().sum() == 0
    folder = read_folder(data)
    assert folder.queries is not None
    of_item, of_query = folder.gallery.texts("tenant"), folder.queries.texts("tenant")
    for moment in checkpoints.moment:
        item = read_answers(drill.folder, moment)
        assert (of_item[item] == of_query[:, None])[item >= 0].all()
        assert (item >= 0).all(), "each tenant has more items than an answer"
    with pytest.raises(InputError, match="the graph 'HNSW8'"):
        run(data, tmp_path / "graph", monkeypatch, replace(SETTINGS, old_index=IndexSettings("HNSW8")), None, OF_TENANT)


def test_churn_and_rollback(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a shard that dies while queries have a short deadline, and a throttle with an unreachable target."""
    settings = replace(
        with_traffic(deadline_s=0.2),
        churn=ChurnSettings(inserts=20, deletes=15, rollback_at=0.5),
        throttle=ThrottleSettings(items_per_s=150.0, p99_ms=0.01),
    )
    monkeypatch.setattr(driving, "_CONTROL_S", 0.2)
    faults = Faults()

    def meddle(driver: Driver, number: int) -> None:
        if number == 6:
            faults.kill_searching_shard(driver, number)

    drill = run(data, tmp_path, monkeypatch, settings, meddle)
    assert of_type(Journal(drill.folder).entries(), Throttled)[-1].items_per_s < 150 * 0.8
    quality, checkpoints = drill.table("quality"), drill.table("checkpoints")
    assert (quality.live == quality.exact).all(), "quality of the gallery as it was at that moment"
    assert checkpoints.unanswered.sum() > 0, "counted, and nobody got the answer of a part of the gallery:"
    assert (checkpoints.violations == 0).all()
    sizes = checkpoints.old_items + checkpoints.new_items
    assert (sizes == ITEMS - 20 + checkpoints.inserted - checkpoints.deleted).all()
    assert checkpoints.inserted.max() > 0
    assert checkpoints.deleted.max() > 0
    assert checkpoints.phase.tolist() == ["backfill"] * 5 + ["rollback"]
    assert checkpoints.new_items.tolist()[-1] == 0
    assert {side for side, _ in drill.served.values()} == {"old"}
    assert "rollback" in set(drill.table("incidents").kind)


def test_a_killed_driver_is_continued(
    data: Path, undisturbed: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(SETTINGS, throttle=ThrottleSettings(items_per_s=60.0))
    arguments = shlex.split(f"""
        --data {data} --out {tmp_path} --metrics mAP@10 CMC@1 --orders random --merges raw --points 8
        --actors.number 2 --actors.cpus 0.5 --live.method rm_naive --live.part-items 30 --live.quiet-s 0
        --live.traffic.rate-per-s 20 --live.traffic.warm-up-s 0 --live.traffic.deadline-s 600
        --live.throttle.items-per-s 60
    """)
    # A separate driver in the same Ray: everything that it started must end with it.
    environment = os.environ | {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    driver = subprocess.Popen(
        [sys.executable, "jobs/drill.py", *arguments], env=environment, cwd=ROOT, stderr=subprocess.PIPE
    )
    journal = Journal(tmp_path / "live")
    deadline = time.monotonic() + 120
    while journal.applied() < 3 and time.monotonic() < deadline:
        assert driver.poll() is None, driver.communicate()[1].decode()[-2000:]
        time.sleep(0.05)
    driver.kill()
    driver.wait()
    applied = journal.applied()
    assert 3 <= applied < 15, "it was killed on the way"
    with journal.path.open("ab") as file:
        file.write(b'{"kind": "appl')
    part_path(tmp_path / "live", 1).write_bytes(b"PAR1")  # a file was damaged as well
    drill = run(data, tmp_path, monkeypatch, settings)
    assert_nothing_lost(drill, undisturbed)
    assert drill.table("incidents").kind.tolist() == ["part rebuilt", "driver restarted"]
    assert [entry.leg for entry in of_type(journal.entries(), Started)] == [0, 1]


@pytest.mark.heavy
def test_an_image_that_broke_keeps_its_old_embedding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real images and a real network; one image has become unreadable when its turn comes."""
    tree = {f"{split}/c{i % 4}/{i}.png": drawing(i) for split in ("train", "gallery", "queries") for i in range(24)}
    source = Settings(str(write_tree(tmp_path / "images", tree)), image_size=16)
    gallery = open_images(source).items("gallery")
    info = BackboneInfo(BackboneSettings(dim=6, width=4), 3, 16, [0, 1, 2, 3])
    torch.manual_seed(0)
    save_backbone(tmp_path / "new", info.build(), info)
    rng = np.random.default_rng(0)
    for name, models in (("gallery", ("old",)), ("queries", ("old", "new"))):
        columns = {m: vector_column(rng.normal(size=(24, 6)).astype(np.float32)) for m in models}
        write_parquet(tmp_path / "before" / f"{name}.parquet", pa.table(
            {"id": gallery.ids_N, "label": gallery.labels_N} | columns
        ))  # fmt: skip
    broken = tmp_path / "images" / "gallery" / "c1" / "5.png"
    broken.write_bytes(broken.read_bytes()[:60])
    images = FromImages(
        source, {"new": tmp_path / "new"}, StoredSplit(tmp_path / "before" / "gallery.parquet"), batch=5
    )
    evaluation = replace(EVALUATION, methods=("rm_naive",))
    settings = replace(SETTINGS, part_items=7, traffic=TrafficSettings(rate_per_s=0))
    with looking_at_the_end(monkeypatch) as served:
        before = read_folder(tmp_path / "before", gallery_needs=("old",))
        comparison = resolve(before, evaluation.named, FitSettings(), to_come=("new",))
        context = Context(tmp_path / "out", actors=EmbedActors(number=1, cpus=0.5))
        folder = drills.run_resolved(comparison, comparison.methods[-1], images, FitSettings(), settings, context, {})
    drill = Finished(folder, served)
    assert sorted(served) == list(range(24)), "it is still served"
    (kept,) = [position for position, (side, _) in served.items() if side == "old"]
    assert open_images(source).read("gallery", np.array([kept])).broken
    checkpoints, quality = drill.table("checkpoints"), drill.table("quality")
    assert checkpoints.kept_old.tolist()[-1] == 1
    assert (checkpoints.old_items + checkpoints.new_items == 24).all()
    assert (quality.live == quality.exact).all()
    assert drill.table("incidents").detail.tolist() == [f"item {kept}"]
    # The others have the network's embeddings of their pixels.
    pixels = open_images(source).read("gallery", np.arange(24)).pixels_BSSC
    with torch.inference_mode():
        expected = load_backbone(tmp_path / "new")[0].embed(pixels_to_float(torch.from_numpy(pixels))).numpy()
    for position, (side, vector) in served.items():
        if side == "new":
            np.testing.assert_allclose(np.frombuffer(vector, np.float32), expected[position], rtol=1e-4, atol=1e-5)


def test_what_cannot_be_run_is_said_at_once(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hungry = replace(SETTINGS, old_index=IndexSettings("IVF512,Flat"))
    with pytest.raises(InputError, match="512"):  # the train split has 200 items
        run(data, tmp_path, monkeypatch, hungry)
    with pytest.raises(InputError, match="'offline' backfills nothing"):
        run(data, tmp_path, monkeypatch, replace(SETTINGS, method="offline"))
    with pytest.raises(InputError, match="needs ranks over the whole gallery"):
        run(data, tmp_path, monkeypatch, evaluation=replace(EVALUATION, merges=("rrf",)))
    assert not (tmp_path / "live").exists(), "nothing is claimed by what could not be run"


def test_whole_rankings_are_cut_for_a_service() -> None:
    _, evaluation = drills.check_drill(replace(EVALUATION, metrics=("mAP", "CMC@1", "mAP@100")), SETTINGS)
    assert evaluation.metrics == ("mAP@100", "CMC@1")


def test_models_embed_nothing_for_a_filter_that_their_items_lack(tmp_path: Path) -> None:
    nothing: Any = None
    with pytest.raises(InputError, match="--filter needs a folder of embeddings"):
        drills.drill_models(
            {}, nothing, nothing, replace(EVALUATION, filter="tenant"), FitSettings(), SETTINGS, Context(tmp_path)
        )


def test_an_embedding_that_nothing_compares_with_counts_as_broken() -> None:
    vectors = np.array([[1, 0], [0, 0], [np.nan, 1], [0, 2]], np.float32)
    found = Embedded(np.array([4, 7, 1, 9]), {"new": vectors}, ((3, "cut"),))
    for zero_is_broken, kept in ((True, [4, 9]), (False, [4, 7, 9])):
        good = _without_useless(found, zero_is_broken)
        assert good.positions.tolist() == kept
        assert sorted([*kept, *good.broken_positions]) == [1, 3, 4, 7, 9]
        assert len(good.vectors["new"]) == len(kept)
