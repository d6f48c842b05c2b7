"""Embedding on real Ray actors: the right vectors, broken images left out, finished parts never touched again."""

import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import scipy
import torch

from ray_backfill.cli import run_job
from ray_backfill.core.errors import InputError
from ray_backfill.core.runkey import RunKey
from ray_backfill.core.stages import begin_stage, finish_stage, is_finished, read_json, write_json
from ray_backfill.data.folder import EmbeddingFolder, read_folder, read_table
from ray_backfill.data.truth import ground_truth
from ray_backfill.images.class_split import Divided, Protocol
from ray_backfill.images.datasets import image_folder, landmarks, manifest, open_images
from ray_backfill.learn.models.backbones import BackboneInfo, load_backbone, pixels_to_float, save_backbone
from ray_backfill.learn.training.batches import augment, own_view
from ray_backfill.learn.training.settings import Augmentation, BackboneSettings, BackboneTraining
from ray_backfill.recipes import EmbedSettings
from ray_backfill.recipes.run import embed
from ray_backfill.recipes.run.embed import EmbedPart, EmbedRequest, embed_stage
from ray_backfill.workers.settings import EmbedActors
from tests.images.datasets._pictures import noisy_jpeg, plain, write_tree
from tests.images.datasets._published_more import small_gldv2, small_market

IMAGES = landmarks.Settings(image_size=16, landmarks=4, train_images=40, gallery_images=25, queries=8)
DIVIDED = Divided(IMAGES, Protocol(validation=0.2))
SETTINGS = EmbedSettings(part_rows=10, batch=4, views=3)
TRAINING = BackboneTraining(seed=5, augmentation=Augmentation(flip=True, colour=0.2))


def backbone(folder: Path, seed: int, dim: int, cosine_scale: float | None = None) -> Path:
    """An untrained network, saved as a finished stage."""
    torch.manual_seed(seed)
    info = BackboneInfo(BackboneSettings(dim=dim, width=4), 3, 16, classes=[4, 7], cosine_scale=cosine_scale)
    begin_stage(folder, RunKey("backbone", {"seed": seed}))
    save_backbone(folder, info.build().eval(), info)
    finish_stage(folder)
    return folder


@pytest.mark.usefixtures("ray_session")
def test_vectors_scores_and_labels_are_those_of_the_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, bct = (backbone(tmp_path / name, i, 6 + 2 * i) for i, name in enumerate(("old", "new", "bct")))
    models = {"old": old, "new": new, "bct": bct}
    out = embed_stage(tmp_path / "e", EmbedRequest(DIVIDED, models, [0, 2], TRAINING, SETTINGS), EmbedActors(number=2))
    folder, source = read_folder(out), open_images(DIVIDED)
    assert folder.queries is not None
    assert folder.train is not None
    validation = read_table(out / "validation.parquet")
    tables = {"gallery": folder.gallery, "queries": folder.queries, "train": folder.train, "validation": validation}
    for split, table in tables.items():
        rows = EmbedRequest(DIVIDED, models, [0, 2], TRAINING, SETTINGS).rows(split)
        np.testing.assert_array_equal(table.id, source.items(split).ids_N[rows])
        np.testing.assert_array_equal(table.label, source.items(split).labels_N[rows])
        pixels = pixels_to_float(torch.from_numpy(source.read(split, rows).pixels_BSSC))
        with torch.no_grad():
            embedding, logits = load_backbone(old)[0](pixels)
            np.testing.assert_allclose(table.old, embedding.numpy(), atol=1e-5)
            np.testing.assert_allclose(table.new, load_backbone(new)[0].embed(pixels).numpy(), atol=1e-5)
            columns = pq.read_table(out / f"{split}.parquet")
            third = np.stack(columns["bct"].to_numpy())
            np.testing.assert_allclose(third, load_backbone(bct)[0].embed(pixels).numpy(), atol=1e-5)
        p = scipy.special.softmax(logits.numpy().astype(np.float64), axis=1)
        np.testing.assert_allclose(table.numbers["old_score"], p.max(1), atol=1e-5)
        np.testing.assert_allclose(columns["old_entropy"], scipy.stats.entropy(p, axis=1), atol=1e-5)
        np.testing.assert_allclose(columns["old_margin"], p.max(1) - p.min(1), atol=1e-5)  # of two classes
        np.testing.assert_array_equal(columns["old_class"], np.array([4, 7])[p.argmax(1)])
    classifier, weights = pq.read_table(out / "classifier.parquet"), load_backbone(new)[0].classifier
    assert classifier["label"].to_pylist() == [4, 7]
    np.testing.assert_array_equal(np.stack(classifier["weight"].to_numpy()), weights.weight.detach())
    np.testing.assert_array_equal(classifier["bias"], weights.bias.detach())
    assert set(folder.train.label.tolist() if folder.train.label is not None else []) == {0, 2}
    assert len(list((out / "gallery.parquet").glob("part-*.parquet"))) == 3

    _views_are_those_of_each_image_alone(folder, models)
    _resume_without_one_part(out, models, monkeypatch)
    # Who needs fewer of the models finds them there; another model is another folder.
    monkeypatch.setattr(embed, "embedded_parts", None)
    fewer = EmbedRequest(DIVIDED, {"old": old, "new": new}, [0, 2], TRAINING, SETTINGS)
    assert embed_stage(out, fewer, EmbedActors()) == out
    with pytest.raises(InputError, match="belongs to a run with other settings"):
        embed_stage(out, replace(fewer, models={"old": new, "new": new}), EmbedActors())


def _resume_without_one_part(out: Path, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the run had been stopped before one part was written: that part is made again, and no other."""
    before = read_folder(out).fingerprint()
    write_json(out / "manifest.json", read_json(out / "manifest.json") | {"finished": False})
    lost = out / "gallery.parquet" / "part-000001.parquet"
    lost.unlink()
    (out / "train_views.parquet" / "view-002-part-000000.parquet").unlink()
    (out / "gallery.parquet" / f".{lost.name}.12.tmp").write_bytes(b"half a part")
    made_again = {out / "train.parquet" / "part-000000.parquet"}  # with the views of the same images
    times = {path: path.stat().st_mtime_ns for path in set(out.glob("*/part-*.parquet")) - made_again}
    embed_stage(out, EmbedRequest(DIVIDED, models, [0, 2], TRAINING, SETTINGS), EmbedActors(number=2))
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert lost.exists()
    assert not list(out.glob("*/.*.tmp"))
    assert read_folder(out).fingerprint() == before

    monkeypatch.setattr(embed, "embedded_parts", None)  # a finished stage starts nothing
    embed_stage(out, EmbedRequest(DIVIDED, models, [0, 2], TRAINING, SETTINGS), EmbedActors(number=2))
    for training, settings, words in (
        (TRAINING, replace(SETTINGS, batch=5), r"embed\.batch: 4 there, 5 requested"),
        (TRAINING, replace(SETTINGS, views=2), r"embed\.views: 3 there, 2 requested"),
        (replace(TRAINING, seed=6), SETTINGS, r"views\.seed: 5 there, 6 requested"),
    ):
        with pytest.raises(InputError, match=words):
            embed_stage(out, EmbedRequest(DIVIDED, models, [0, 2], training, settings), EmbedActors(number=2))


def _views_are_those_of_each_image_alone(folder: EmbeddingFolder, models: dict[str, Path]) -> None:
    """Whatever batch, part and actor it was in; and all models see the same ones."""
    assert folder.train is not None
    source, networks = open_images(DIVIDED), {name: load_backbone(models[name])[0] for name in ("old", "new")}
    rows = EmbedRequest(DIVIDED, models, [0, 2], TRAINING, SETTINGS).rows("train")
    pixels = pixels_to_float(torch.from_numpy(source.read("train", rows).pixels_BSSC))
    assert {name: len(views) for name, views in folder.train_views.items()} == {"old": 2, "new": 2}
    for view in (1, 2):
        for item in range(len(rows)):
            changed = own_view(pixels[[item]], TRAINING.augmentation, folder.train.id[[item]], view, seed=TRAINING.seed)
            for name, network in networks.items():
                with torch.no_grad():
                    alone = network.embed(changed)[0].numpy()
                stored = folder.train_views[name][view - 1, item]
                np.testing.assert_allclose(stored, alone, atol=1e-5)
                assert np.abs(stored - folder.train.vectors[name][item]).max() > 1e-3
    first, second = folder.train_views["old"]
    assert np.abs(first - second).max() > 1e-3


@pytest.mark.full
def test_a_view_is_the_augmentation_with_numbers_of_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers are drawn in the order of a training step."""
    pixels = torch.rand(1, 3, 8, 8)
    wanted = own_view(pixels, TRAINING.augmentation, np.array([-7]), 1, 5)
    rng = np.random.default_rng([5, 1, 2**64 - 7])
    monkeypatch.setattr(torch, "rand", lambda *shape, device: torch.from_numpy(np.array(rng.random(shape), np.float32)))
    torch.testing.assert_close(augment(pixels, TRAINING.augmentation), wanted, rtol=0, atol=0)


@pytest.mark.full
def test_more_views_only_add_files(tmp_path: Path) -> None:
    """With one view, the augmentation is no part of the key."""
    for i, name in enumerate(("old", "new")):
        backbone(tmp_path / name, i, 6)
    threads, files = torch.get_num_threads(), {}
    for views in (1, 2):
        out, settings = tmp_path / f"e{views}", replace(IN_PARTS, views=views)
        job = job_alone(out, tmp_path, settings)
        actor = embed._ImageEmbedder(job)
        for part in job.request.parts():
            actor._make(part)
        files[views] = {str(path.relative_to(out)): path.read_bytes() for path in out.glob("*/*")}
    torch.set_num_threads(threads)
    assert set(files[2]) - set(files[1]) == {"train_views.parquet/view-001-part-000000.parquet"}
    assert all(files[2][name] == content for name, content in files[1].items())
    wanted = request_alone(tmp_path, replace(IN_PARTS, views=1)).key().settings
    assert set(wanted) == {"data", "train_classes", "models", "embed"}


def test_a_cosine_classifier_is_kept_as_directions(tmp_path: Path) -> None:
    table = embed._classifier(backbone(tmp_path, 0, 6, cosine_scale=64.0))
    weight = np.stack(table["weight"].to_numpy())
    np.testing.assert_allclose(np.linalg.norm(weight, axis=1), 1, rtol=1e-6)
    assert table["bias"].to_pylist() == [0, 0]


@pytest.mark.usefixtures("ray_session")
def test_a_broken_image_is_listed_and_costs_no_other_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {f"{name}/{i}.jpg": noisy_jpeg() for name in ("cats", "dogs") for i in range(10)}
    write_tree(tmp_path / "images", files | {"dogs/3.jpg": noisy_jpeg()[:300]})
    images = image_folder.Settings(root=str(tmp_path / "images"), image_size=16)
    old, new = backbone(tmp_path / "old", 0, 6), backbone(tmp_path / "new", 1, 8)
    models = {"old": old, "new": new}
    out = embed_stage(tmp_path / "e", EmbedRequest(images, models, [0, 1], TRAINING, SETTINGS), EmbedActors(number=1))
    broken = pq.read_table(out / "broken.parquet").to_pylist()
    assert len(broken) == 1
    folder = read_folder(out)
    assert folder.train is not None
    assert len(folder.gallery) + len(folder.train) == 19
    assert folder.train_views["old"].shape == (2, len(folder.train), 6), "its views are left out, too"
    assert broken[0]["id"] not in np.concatenate([folder.gallery.id, folder.train.id])
    assert broken[0]["reason"]
    # Names are those of the images that are left.
    source, table = open_images(images), pq.read_table(out / "gallery.parquet")
    left = np.flatnonzero(np.isin(source.items("gallery").ids_N, table["id"]))
    assert table["name"].to_pylist() == source.names("gallery", left)
    manifest = read_json(out / "manifest.json")
    assert manifest["broken_images"] == 1
    assert manifest["feeding"]["bottleneck"].startswith("CPU only, ")
    assert manifest["feeding"]["decode_images_per_s_per_cpu"] > 0
    assert sum(manifest["feeding"]["cpu_shares"].values()) == pytest.approx(1, abs=0.01)
    assert manifest["feeding"]["bottleneck"] in capsys.readouterr().err
    assert is_finished(out)


def test_cameras_positives_and_names_arrive(tmp_path: Path) -> None:
    """By an actor's own hand, without Ray: what a source tells of its images stands in the columns."""
    settings = EmbedSettings(part_rows=2, batch=4)  # more than one part a split
    old, new = backbone(tmp_path / "old", 0, 6), backbone(tmp_path / "new", 1, 8)
    for images in (small_market(tmp_path / "market"), small_gldv2(tmp_path / "gldv2")):
        source, classes = open_images(images), np.unique(open_images(images).items("train").labels_N).tolist()
        request = EmbedRequest(images, {"old": old, "new": new}, classes, TRAINING, settings)
        out = tmp_path / f"e-{source.fingerprint()['dataset']}"
        actor = embed._ImageEmbedder(embed._ImagesJob(request, str(out), threads=1, on_gpu=False))
        for part in request.parts():
            actor(asdict(part))
        folder = read_folder(out)
        assert folder.queries is not None
        for split, table in (("gallery", folder.gallery), ("queries", folder.queries)):
            items, rows = source.items(split), np.arange(len(source.items(split)))
            np.testing.assert_array_equal(table.camera, items.cameras_N)
            assert pq.read_table(table.path)["name"].to_pylist() == source.names(split, rows)
            lists = None if table.positives is None else [row.tolist() for row in table.positives]
            assert lists == (None if items.positives_N is None else items.positives_N.to_pylist())
        assert ground_truth(folder).n_queries == len(source.items("queries"))


_EMBED_ALONE = """
import sys
from pathlib import Path
from tests.cluster.test_embed import job_alone
from ray_backfill.recipes.run import embed
job = job_alone(Path(sys.argv[1]), Path(sys.argv[2]))
actor = embed._ImageEmbedder(job)
print("ready", flush=True)
for part in job.request.parts():
    actor._make(part)
"""
MANY = landmarks.Settings(image_size=16, landmarks=4, train_images=40, gallery_images=600, queries=8)
IN_PARTS = EmbedSettings(part_rows=40, batch=4, views=2)


def request_alone(backbones: Path, settings: EmbedSettings = IN_PARTS) -> EmbedRequest:
    """To embed ``MANY``."""
    return EmbedRequest(MANY, {name: backbones / name for name in ("old", "new")}, [0, 2], TRAINING, settings)


def job_alone(folder: Path, backbones: Path, settings: EmbedSettings = IN_PARTS) -> embed._ImagesJob:
    """What an actor gets that embeds ``MANY``."""
    return embed._ImagesJob(request_alone(backbones, settings), str(folder), threads=1, on_gpu=False)


@pytest.mark.heavy
@pytest.mark.usefixtures("ray_session")
def test_a_run_killed_at_a_random_moment_is_continued_to_the_same_bytes(tmp_path: Path) -> None:
    for i, name in enumerate(("old", "new")):
        backbone(tmp_path / name, i, 6 + 2 * i)
    request = request_alone(tmp_path)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    threads = torch.get_num_threads()
    actor = embed._ImageEmbedder(job_alone(whole, tmp_path))  # in this process, without Ray
    since = time.perf_counter()
    for part in request.parts():
        actor._make(part)
    took = time.perf_counter() - since
    torch.set_num_threads(threads)  # an actor takes as many as it has CPUs

    begin_stage(killed, request.key())
    command = [sys.executable, "-c", _EMBED_ALONE, str(killed), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(float(np.random.default_rng().uniform(0, took)))
        child.kill()
    there = {path: path.read_bytes() for path in killed.glob("*/*part-*.parquet") if not path.name.startswith(".")}
    for path in there:
        assert pq.read_metadata(path).num_rows > 0, "a part is there whole or not at all"
    embed_stage(killed, request, EmbedActors(number=2))
    assert {path: path.read_bytes() for path in there} == there
    for path in whole.glob("*/*part-*.parquet"):
        assert (killed / path.relative_to(whole)).read_bytes() == path.read_bytes()
    files = sum(len(part.paths(killed)) for part in request.parts())
    assert len(list(killed.glob("*/*"))) == files, "and nothing else is left"


@pytest.mark.heavy
@pytest.mark.usefixtures("ray_session")
def test_only_listed_gallery_items_are_embedded(tmp_path: Path) -> None:
    for i, name in enumerate(("old", "new")):
        backbone(tmp_path / name, i, 6 + 2 * i)
    request, actors = request_alone(tmp_path, replace(IN_PARTS, views=1)), EmbedActors(number=1)
    whole = read_table(embed_stage(tmp_path / "whole", request, actors) / "gallery.parquet")
    only = sorted(int(each) for each in whole.id[[3, 77, 78, 400]])
    folder = embed_stage(tmp_path / "some", replace(request, only=only), actors)
    some = read_table(folder / "gallery.parquet")
    assert some.id.tolist() == only
    rows = [whole.id.tolist().index(each) for each in only]
    assert np.allclose(some.new, whole.new[rows], atol=1e-5)
    assert not (folder / "queries.parquet").exists()
    with pytest.raises(InputError, match="overwrite"):
        embed_stage(tmp_path / "some", replace(request, only=only[:2]), actors)
    with pytest.raises(InputError, match="lacks 1 listed ids, such as 999999"):
        embed_stage(tmp_path / "other", replace(request, only=[*only, 999_999]), actors)


def test_half_precision_halves_the_store_and_keeps_three_digits(tmp_path: Path) -> None:
    for i, name in enumerate(("old", "new")):
        backbone(tmp_path / name, i, 6 + 2 * i)
    part, tables = EmbedPart("gallery", 0, 0, 20), {}
    threads = torch.get_num_threads()
    for dtype in ("float32", "float16"):
        job = job_alone(tmp_path / dtype, tmp_path, replace(SETTINGS, dtype=dtype))
        embed._ImageEmbedder(job)._make(part)
        tables[dtype] = read_table(part.paths(tmp_path / dtype)[0])
    torch.set_num_threads(threads)
    assert tables["float16"].old.dtype == tables["float16"].new.dtype == np.float16
    assert tables["float32"].old.dtype == np.float32
    for name in ("old", "new"):
        np.testing.assert_array_equal(
            tables["float16"].vectors[name], tables["float32"].vectors[name].astype(np.float16)
        )
        np.testing.assert_allclose(
            tables["float16"].vectors[name], tables["float32"].vectors[name], rtol=1e-3, atol=1e-6
        )


@pytest.mark.usefixtures("ray_session")
def test_a_store_that_an_actor_cannot_open_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tree(tmp_path, {f"{i}.png": plain((i, i, i)) for i in range(4)})
    lines = [f"{i}.png,{i % 2},{split}" for i, split in enumerate(("train", "train", "gallery", "gallery"))]
    text = "\n".join(["path,label,split", *lines, "s3://bucket/5.png,1,gallery"])
    (tmp_path / "m.csv").write_text(text)
    data = manifest.Settings(str(tmp_path / "m.csv"), image_size=16)
    models = {name: backbone(tmp_path / name, 0, 4) for name in ("old", "new")}

    def main() -> None:
        embed_stage(tmp_path / "e", EmbedRequest(data, models, [0, 1], TRAINING, SETTINGS), EmbedActors(number=1))

    with pytest.raises(SystemExit):
        run_job(main)
    assert "error: s3://bucket/: no credentials; set AWS_ACCESS_KEY_ID" in capsys.readouterr().err
