"""CPUs of other nodes decode for an actor: the same bytes, also where one of these nodes dies."""

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray
import torch

from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.core.errors import InputError
from ray_backfill.core.stages import read_json
from ray_backfill.drill.run import drill_folder
from ray_backfill.drill.settings import LiveSettings
from ray_backfill.encode.part import EncodeRequest
from ray_backfill.encode.stage import embed_items
from ray_backfill.images.datasets import landmarks, open_images
from ray_backfill.images.reading import DecodeTimes, read_ahead
from ray_backfill.learn.training.settings import BackboneSettings, BackboneTraining, FitSettings
from ray_backfill.recipes import EmbedSettings
from ray_backfill.recipes.run import embed
from ray_backfill.recipes.run.backbones import BackboneJob, train_backbone_stage
from ray_backfill.recipes.run.embed import EmbedRequest
from ray_backfill.workers import decoders
from ray_backfill.workers.decoders import source_for
from ray_backfill.workers.settings import Context, EmbedActors, Workers
from tests.cluster._nodes import started_nodes, wait_until
from tests.cluster._slow_images import Settings
from tests.cluster.test_embed import TRAINING, backbone

IMAGES = landmarks.Settings(image_size=16, landmarks=4, train_images=40, gallery_images=900, queries=8)
PARTS = EmbedSettings(part_rows=150, batch=50, views=2)
EMBED = """
import sys
from pathlib import Path
from tests.cluster.test_decoders import request_for
from ray_backfill.recipes.run.embed import embed_stage
from ray_backfill.workers.settings import EmbedActors
embed_stage(Path(sys.argv[2]), request_for(Path(sys.argv[1]), 0.02), EmbedActors(number=1, decode_cpus=3))
"""


def request_for(folder: Path, image_s: float = 0.0) -> EmbedRequest:
    """folder: of the backbones and of what the nodes tell."""
    models = {name: folder / name for name in ("old", "new")}
    return EmbedRequest(Settings(str(folder / "told"), IMAGES, image_s), models, [0, 2], TRAINING, PARTS)


@pytest.mark.heavy
@pytest.mark.cluster
def test_a_node_that_decodes_dies_and_the_bytes_are_the_same(tmp_path: Path) -> None:
    for i, name in enumerate(("old", "new")):
        backbone(tmp_path / name, i, 6 + 2 * i)
    (told := tmp_path / "told").mkdir()
    threads, alone = torch.get_num_threads(), tmp_path / "alone"
    actor = embed._ImageEmbedder(embed._ImagesJob(request_for(tmp_path), str(alone), threads=1, on_gpu=False))
    for part in request_for(tmp_path).parts():
        actor._make(part)
    torch.set_num_threads(threads)

    with started_nodes(3, 2) as nodes, nodes.start(EMBED, str(tmp_path), str(tmp_path / "out")) as driver:
        # Decoding takes 18 s of one CPU; the head's tasks, its own among them, are left alone.
        others = [node.node_id for node in nodes.cluster.list_all_nodes() if node.node_id != nodes.head]
        wait_until(lambda: any((told / each).exists() for each in others), 400, driver)
        victim = next(each for each in others if (told / each).exists())
        made = len(list(tmp_path.glob("out/*.parquet/part-*")))
        nodes.kill(victim)
        _, said = driver.communicate(timeout=400)
    assert driver.returncode == 0, said[-3000:]
    assert made < 7, "it was killed when everything was done"
    files = {path.relative_to(alone): path.read_bytes() for path in alone.glob("*/*.parquet")}
    assert len(files) == 7 + 2  # six parts of the gallery and the queries, the train split and its view
    assert all((tmp_path / "out" / name).read_bytes() == content for name, content in files.items())
    feeding = read_json(tmp_path / "out" / "manifest.json")["feeding"]
    assert feeding["decoded_elsewhere"] > 0.3
    assert feeding["cpus_per_device"] == 4
    assert "3 CPUs elsewhere decoded" in said


@pytest.mark.heavy
@pytest.mark.usefixtures("ray_session")
def test_a_training_with_cpus_elsewhere_is_the_same(tmp_path: Path) -> None:
    training = BackboneTraining(epochs=1, batch=32, seed=3, warmup_epochs=0)
    made = []
    for lent in (0, 2):
        (told := tmp_path / f"told{lent}").mkdir()
        data = Settings(str(told), replace(IMAGES, train_images=64))
        job = BackboneJob(f"model {lent}", data, [0, 1, 2, 3], BackboneSettings(dim=6, width=4), training)
        out = train_backbone_stage(tmp_path / f"model{lent}", job, Workers(number=1, decode_cpus=lent))
        made.append((out / "model.safetensors").read_bytes())
        assert any(told.iterdir()) == (lent > 0)
    assert made[0] == made[1]


@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("elsewhere", ["", "broken", "other", "fails"])
def test_what_another_process_cannot_read_is_read_here(tmp_path: Path, elsewhere: str) -> None:
    source = source_for(Settings(str(tmp_path), IMAGES, elsewhere=elsewhere), 1, 1)
    source._own.acquire()  # type: ignore[attr-defined]  # as if another thread read here
    threading.Timer(1.0, source._own.release).start()  # type: ignore[attr-defined]
    rows = np.arange(3)
    pixels = source.read("gallery", rows)
    np.testing.assert_array_equal(pixels.pixels_BSSC, open_images(IMAGES).read("gallery", rows).pixels_BSSC)
    assert not pixels.broken
    assert pixels.pixels_BSSC.flags.writeable
    assert (pixels.lent_cpu_s is None) == bool(elsewhere)


@pytest.mark.usefixtures("ray_session")
def test_without_a_free_cpu_images_are_read_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @ray.remote(num_cpus=ray.cluster_resources()["CPU"])
    class Everything:
        def is_there(self) -> bool:
            return True

    everything = Everything.remote()  # type: ignore[attr-defined]
    assert ray.get(everything.is_there.remote())
    asked: list[str] = []
    elsewhere = decoders._read_elsewhere

    def ask(data: Any, split: str, *rest: Any) -> Any:
        asked.append(split)
        return elsewhere.remote(data, split, *rest)

    monkeypatch.setattr(decoders, "_read_elsewhere", SimpleNamespace(remote=ask))
    monkeypatch.setattr(decoders, "_PATIENCE_S", 0.5)
    source, times = source_for(Settings(str(tmp_path), IMAGES), 1, 3), DecodeTimes()
    batches = [np.arange(i, i + 32) for i in range(0, 128, 32)]
    found = list(read_ahead(source, "gallery", batches, 4, times))
    assert 1 <= len(asked) <= 3, "each waiting thread asks once"
    assert [len(pixels.pixels_BSSC) for _, pixels in found] == [32] * 4
    assert (times.lent, times.decoded) == (0, 128)
    ray.kill(everything)


def test_an_error_of_the_images_keeps_its_type(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^no credentials$"):
        source_for(Settings(str(tmp_path), IMAGES, fails=True), 1, 1).read("gallery", np.arange(3))


def test_only_recipes_decode_elsewhere(tmp_path: Path) -> None:
    actors = EmbedActors(decode_cpus=1)
    message = r"--actors\.decode-cpus works with recipes only"
    with pytest.raises(InputError, match=message):
        drill_folder(tmp_path, Evaluation(), FitSettings(), LiveSettings(), Context(tmp_path / "out", actors=actors))
    with pytest.raises(InputError, match=message):
        embed_items(tmp_path, EncodeRequest(tmp_path, "text", {}), actors)
    with pytest.raises(InputError, match="decode-cpus must be finite and not negative"):
        EmbedActors(decode_cpus=-1)
