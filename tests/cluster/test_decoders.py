"""CPUs of other nodes decode for an actor: the same bytes, also where one of these nodes dies."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ray_backfill.core.errors import InputError
from ray_backfill.core.stages import read_json
from ray_backfill.images.datasets import landmarks, open_images
from ray_backfill.learn.models.backbones import BackboneInfo
from ray_backfill.learn.training.backbone_loop import train_backbone
from ray_backfill.learn.training.settings import BackboneSettings, BackboneTraining
from ray_backfill.recipes import EmbedSettings
from ray_backfill.recipes.run import embed
from ray_backfill.recipes.run.embed import EmbedRequest
from ray_backfill.workers.decoders import source_for
from ray_backfill.workers.settings import EmbedActors
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


@pytest.mark.cluster
def test_a_node_that_decodes_dies_and_the_bytes_are_the_same(tmp_path: Path) -> None:
    for i, name in enumerate(("old", "new")):
        backbone(tmp_path / name, i, 6 + 2 * i)
    (told := tmp_path / "told").mkdir()
    threads, alone = torch.get_num_threads(), tmp_path / "alone"
    actor = embed._Embedder(embed._Job(request_for(tmp_path), str(alone), threads=1, on_gpu=False))
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
    assert feeding["decoded_by_lent_cpus"] > 0.3
    assert feeding["cpus_per_device"] == 4
    assert "lent CPUs decoded" in said


@pytest.mark.usefixtures("ray_session")
def test_a_training_with_lent_cpus_is_the_same(tmp_path: Path) -> None:
    data = Settings(str(tmp_path), replace(IMAGES, train_images=64))
    info = BackboneInfo(BackboneSettings(dim=6, width=4), 3, 16, classes=[0, 1, 2, 3])
    training = BackboneTraining(epochs=1, batch=32, seed=3)
    rows = np.arange(64)
    networks = [
        train_backbone(source_for(data, 1, lent), rows, info, training, threads=1 + lent).network for lent in (0, 2)
    ]
    one, other = (network.state_dict() for network in networks)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert list(tmp_path.iterdir()), "no task decoded"


@pytest.mark.usefixtures("ray_session")
def test_an_error_of_the_images_keeps_its_type(tmp_path: Path) -> None:
    source = source_for(Settings(str(tmp_path), IMAGES, fails=True), 0, 1)
    with pytest.raises(InputError, match=r"^no credentials$"):
        source.read("gallery", np.arange(3))
    source = source_for(Settings(str(tmp_path), IMAGES), 0, 1)
    pixels = source.read("gallery", np.arange(3))
    assert pixels.lent_cpu_s is not None
    np.testing.assert_array_equal(pixels.pixels_BSSC, open_images(IMAGES).read("gallery", np.arange(3)).pixels_BSSC)


def test_only_recipes_decode_on_other_nodes() -> None:
    with pytest.raises(InputError, match=r"--actors.decode-cpus is for the images of a recipe"):
        EmbedActors(decode_cpus=1).require_own_decoders()
    with pytest.raises(InputError, match="decode"):
        EmbedActors(decode_cpus=-1)
