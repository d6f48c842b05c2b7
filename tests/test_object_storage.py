"""Every command and call that takes a path does the same on a disk and in object storage: the same bytes in every file.

A ``World`` is a folder, on a disk or in a bucket, in which the steps run one after the other. Each step reads and
writes only there, and what a step wrote is compared with what it wrote on the disk.
"""

import json
import os
import pickle
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pyarrow.parquet as pq
import pytest

import ray_backfill as rb
from ray_backfill.api import _running
from ray_backfill.core.copies import cache_folder
from ray_backfill.core.errors import InputError
from ray_backfill.core.store_path import in_store, path_of
from ray_backfill.core.stores import open_bucket
from ray_backfill.encode.items import SPLITS, ItemSettings, ItemSources
from ray_backfill.encode.stage import embed_two
from ray_backfill.images.listing import list_images
from tests.command import Command, Ended
from tests.images.datasets._pictures import plain
from tests.object_store import client_variables, new_bucket
from tests.pipeline.test_simulate import SERVICE, WORDS
from tests.power import _models
from tests.power.test_power_cuts import _SAID

METHODS = "--methods rm_naive procrustes_gallery"
SIMULATE = f"simulate --data {{root}}/data --metrics nDCG@10 --points 3 {METHODS}"
FLEET = "workers: [{number: 2, items_per_s: 10, dollars_per_hour: 3.6}]\n"
# What Python says of times, versions and where it ran.
TIMES = (*_SAID, "fingerprint")


def vectors(rows: int, seed: int) -> dict[str, Any]:
    """A split of 6 classes, with texts."""
    rng, centre = np.random.default_rng(seed), np.random.default_rng(99).normal(size=(6, 8))
    label = np.arange(rows) % 6
    words = np.array([" ".join(WORDS[rng.choice(12, 3, replace=False)]) for _ in range(rows)])
    old, new = (centre[label] + noise * rng.normal(size=(rows, 8)) for noise in (1.2, 0.9))
    return {"id": np.array([f"{rows}-{row}" for row in range(rows)]), "text": words, "old": old, "new": new,
            "label": label}  # fmt: skip


def npy(array: np.ndarray) -> bytes:
    """What ``np.save`` writes."""
    file = BytesIO()
    np.save(file, array)
    return file.getvalue()


def write_inputs(root: Path) -> None:
    """What users bring, by calls that take a path, and by plain writes."""
    gallery, queries = vectors(60, 0), vectors(24, 1)
    rb.write_folder(str(root / "data"), gallery, queries, vectors(90, 2))
    broken = {name: values.copy() for name, values in gallery.items()} | {"id": np.arange(60)}
    broken["old"][3] = 0
    rb.write_folder(root / "broken", broken, {**queries, "id": np.arange(24)})
    nothing_new = {name: values for name, values in gallery.items() if name != "new"}
    rb.write_folder(root / "before", nothing_new, queries)
    lines = [f"{query} 0 {gallery['id'][row]} 1" for query, row in zip(queries["id"], range(24), strict=True)]
    (root / "qrels.txt").write_text("\n".join(lines) + "\n")
    (root / "service.yaml").write_text(SERVICE)
    pairs = [f"{q},{i},{int(x == y)}" for q, x in zip(queries["id"], queries["label"], strict=True)
             for i, y in zip(gallery["id"], gallery["label"], strict=True)]  # fmt: skip
    (root / "scores.csv").write_text("\n".join(["query,item,score", *pairs]) + "\n")
    (root / "fleet.yaml").write_text(FLEET)
    for split, columns in (("gallery", gallery), ("queries", queries)):
        for name in ("old", "new", "label"):
            (root / f"{split}_{name}.npy").write_bytes(npy(columns[name]))
    (root / "ids.npy").write_bytes(npy(np.arange(60)))
    texts = [{"id": f"i{row}", "text": f"word{row % 5} word{row % 7}", "label": str(row % 5)} for row in range(60)]
    (root / "texts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in texts))
    for row in range(40):
        (root / "images" / f"class{row % 4}").mkdir(parents=True, exist_ok=True)
        (root / "images" / f"class{row % 4}" / f"{row:02d} a+b.png").write_bytes(plain((row * 6, 255 - row * 6, 9)))
    rows = [f"class{row % 4}/{row:02d} a+b.png,{row % 4}" for row in range(40)]
    (root / "images" / "list.csv").write_text("\n".join(["path,label", *rows]) + "\n")


def embed_texts(root: Path) -> None:
    items = ItemSettings(draw_queries=6, draw_train=12, part_rows=8)
    rb.embed(_models.old, _models.new, out=root / "texts_run", texts=root / "texts.jsonl", items=items)


def colours(images: Sequence[Any]) -> np.ndarray:
    return np.array([np.asarray(image, np.float32).reshape(-1, 3).mean(0) for image in images])


def brightness(images: Sequence[Any]) -> np.ndarray:
    return np.array([[np.asarray(image, np.float32).mean(), 1.0] for image in images], np.float32)


def embed_images(root: Path) -> None:
    items = ItemSettings(draw_queries=6, draw_train=12, part_rows=8)
    rb.embed(colours, brightness, out=root / "images_run", images=str(root / "images"), items=items)


def embed_listed_images(root: Path) -> None:
    items = ItemSettings(draw_queries=6, draw_train=12, part_rows=8)
    rb.embed(colours, brightness, out=root / "listed_run", images=str(root / "images" / "list.csv"), items=items)


def judge(root: Path) -> None:
    rb.judge(root / "sheet.csv", root / "data")


def new_vectors_of_the_sample(root: Path) -> None:
    listed = pq.read_table(os.fspath(root / "before" / "sample.parquet"))["id"].to_pylist()
    gallery = vectors(60, 0)
    row = {name: i for i, name in enumerate(gallery["id"])}
    rb.write_folder(root / "sampled", {"old": gallery["new"][[row[name] for name in listed]]} | {
        "new": gallery["new"][[row[name] for name in listed]], "id": np.array(listed)})  # fmt: skip


# A command or a call -> what it writes. Later ones may read what earlier ones wrote.
STEPS: dict[str, tuple[str | Callable[[Path], None], tuple[str, ...]]] = {
    "inputs": (write_inputs, ("data", "broken", "before")),
    "simulate": (f"{SIMULATE} --out {{root}}/run", ("run",)),
    "simulate again": (f"{SIMULATE} --out {{root}}/run", ("run",)),
    "simulate one method more": (f"{SIMULATE} ridge_gallery --out {{root}}/run", ("run",)),
    "simulate other settings": (f"{SIMULATE} --out {{root}}/run --points 5 --overwrite", ("run",)),
    "simulate without broken rows": (
        f"simulate --data {{root}}/broken --metrics CMC@1 --points 3 {METHODS} --out {{root}}/mended --drop-broken",
        ("mended",),
    ),
    "simulate with qrels": (f"{SIMULATE} --out {{root}}/judged --truth qrels {{root}}/qrels.txt", ("judged",)),
    "simulate behind a service": (f"{SIMULATE} --out {{root}}/behind --service {{root}}/service.yaml", ("behind",)),
    "simulate arrays": (
        "simulate --old-gallery {root}/gallery_old.npy --new-gallery {root}/gallery_new.npy "
        "--old-queries {root}/queries_old.npy --new-queries {root}/queries_new.npy --gallery-labels "
        f"{{root}}/gallery_label.npy --query-labels {{root}}/queries_label.npy --points 3 {METHODS} "
        "--out {root}/arrays",
        ("arrays",),
    ),
    "simulate --judge": (f"{SIMULATE} --out {{root}}/unused --judge {{root}}/asked.csv", ("asked.csv",)),
    "judge": (judge, ("sheet.csv",)),
    "fit": (f"fit --data {{root}}/data {METHODS} ridge_gallery --out {{root}}/fits", ("fits",)),
    "report": ("report {root}/run", ("run",)),
    "report lists": ("report {root}/run --run {root}/half.trec --method rm_naive --at 50%", ("half.trec",)),
    "report JSON": (f"{SIMULATE} --out {{root}}/run --points 5 --json", ("run",)),
    "export": ("export {root}/run --method procrustes_gallery --to {root}/upgrade", ("upgrade",)),
    "export again": ("export {root}/run --method procrustes_gallery --to {root}/upgrade", ("upgrade",)),
    "plan": ("plan {root}/run --fleet {root}/fleet.yaml --out {root}/plan", ("plan",)),
    "plan in the run": ("plan {root}/run", ("run",)),
    "doctor": ("doctor {root}/broken", ()),
    "doctor of a table": ("doctor {root}/data/gallery.parquet --json", ()),
    "import": ("import --gallery {root}/data/gallery.parquet --out {root}/imported", ("imported",)),
    "import again": ("import --gallery {root}/data/gallery.parquet --out {root}/imported", ("imported",)),
    "import over it": (
        "import --gallery {root}/broken/gallery.parquet --out {root}/imported --overwrite --drop-broken",
        ("imported",),
    ),
    "import arrays": (
        "import --gallery id={root}/ids.npy,old={root}/gallery_old.npy,new={root}/gallery_new.npy --out {root}/of_npy",
        ("of_npy",),
    ),
    "sample": ("sample {root}/before --budget 30", ("before/sample.parquet",)),
    "embed the sample": (new_vectors_of_the_sample, ("sampled",)),
    "forecast": (
        f"forecast {{root}}/before --new {{root}}/sampled/gallery.parquet --out {{root}}/ahead {METHODS} --points 3",
        ("ahead",),
    ),
    "report of a forecast": ("report {root}/ahead", ("ahead",)),
    "embed texts": (embed_texts, ("texts_run",)),
    "embed texts again": (embed_texts, ("texts_run",)),
    "embed images": (embed_images, tuple(f"images_run/embeddings/{split}.parquet" for split in SPLITS)),
    "embed listed images": (embed_listed_images, tuple(f"listed_run/embeddings/{split}.parquet" for split in SPLITS)),
}


IN_EVERY_SUITE = ("inputs", "simulate", "simulate again")


@dataclass
class World:
    """A root in which steps run, and what each of them printed and left."""

    root: Path
    command: Command
    ended: dict[str, Ended] = field(default_factory=dict)
    left: dict[str, dict[str, Any]] = field(default_factory=dict)

    def after(self, name: str) -> None:
        """Run all steps up to this one that have not run yet."""
        for step, (what, written) in STEPS.items():
            if step not in self.ended:
                try:
                    if callable(what):
                        what(self.root)
                        self.ended[step] = Ended(0, "", "")
                    else:
                        self.ended[step] = self.command(*(word.format(root=self.root) for word in what.split()))
                except Exception as error:  # told by the test of this step
                    import traceback

                    self.ended[step] = Ended(1, "", "".join(traceback.format_exception(error)))
                self.left[step] = {path: data for place in written for path, data in self._files(place).items()}
            if step == name:
                return

    def _files(self, place: str) -> dict[str, Any]:
        top = self.root / place
        files = [top] if top.is_file() else [path for path in top.rglob("*") if path.is_file()]
        found = {}
        for path in files:
            name = "/".join(path.parts[len(self.root.parts) :])
            if path.suffix in (".html", ".png") or path.name in (".lock", ".key.json"):
                continue
            found[name] = self._comparable(name, path.read_bytes())
        return found

    def _comparable(self, name: str, data: bytes) -> Any:
        """Bytes as they are; JSON without times, and with one name for the root."""
        if name.endswith(".json"):
            text = data.decode().replace(str(self.root), "ROOT")
            return json.loads(text, object_hook=_without_times)
        if name.endswith("README.md"):
            return data.replace(str(self.root).encode(), b"ROOT")
        if name.endswith("SHA256SUMS"):  # all but those of files that name the run
            return b"".join(line for line in data.splitlines(True) if not re.search(rb"README|\.json", line))
        return data


def _without_times(value: dict[str, Any]) -> dict[str, Any]:
    return {name: inner for name, inner in value.items() if name not in TIMES}


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> World:
    root = tmp_path_factory.mktemp("disk") / "deep er"
    root.mkdir()
    return World(root, None)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def store_world(s3_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    variables = client_variables(s3_server, tmp_path_factory.mktemp("copies"))
    open_bucket.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield World(path_of(f"s3://{new_bucket(s3_server)}") / "deep er", None)  # type: ignore[arg-type]
    open_bucket.cache_clear()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.full] * (name not in IN_EVERY_SUITE)) for name in STEPS]
)
def test_a_step_leaves_the_same_bytes(name: str, store_world: World, disk: World, command: Command) -> None:
    for world in (store_world, disk):
        world.command = command
        world.after(name)
    there, here = store_world.ended[name], disk.ended[name]
    assert (there.code, here.code) == (0, 0), there.err + here.err
    wrong = [path for path in sorted(store_world.left[name].keys() | disk.left[name].keys())
             if store_world.left[name].get(path) != disk.left[name].get(path)]  # fmt: skip
    assert not wrong
    assert disk.left[name] or not STEPS[name][1]
    # Addresses are those that users know.
    assert str(os.environ["RAY_BACKFILL_CACHE"]) not in there.out + there.err
    assert not re.search(r"\bs3:/(?!/)", there.out + there.err)
    assert said(there, store_world) == said(here, disk)


def said(ended: Ended, world: World) -> str:
    """What a command printed, without times and the width of its columns."""
    text = re.sub(r"[\s\u2500-\u257f]+", " ", ended.out)
    return re.sub(r"\d+(\.\d+)? ?(s|ms|min)\b", "", text.replace(str(world.root), "ROOT"))


@pytest.mark.parametrize("recipe", ["image_folder", "manifest"])
def test_images_of_recipes_are_the_same(recipe: str, store_world: World, disk: World, command: Command) -> None:
    """A folder is listed by the store, and images are read one by one: no copies are made."""
    opened = {}
    for world in (store_world, disk):
        world.command = command
        world.after("inputs")
        root = str(world.root / "images") + ("/list.csv" if recipe == "manifest" else "")
        module = import_module(f"ray_backfill.images.datasets.{recipe}")
        source = module.open_images(module.Settings(root=root, image_size=8))
        rows = np.arange(len(source.items("gallery")))
        pixels = source.read("gallery", rows)
        assert not pixels.broken
        opened[world.root] = (source.names("gallery", rows), pixels.pixels_BSSC.tolist(), vars(source.items("train")))
        assert source.fingerprint() == module.open_images(module.Settings(root=root, image_size=8)).fingerprint()
    assert str(opened[store_world.root]) == str(opened[disk.root])
    assert not list(cache_folder().rglob("*a+b.png"))


def test_another_image_is_noticed(store_world: World, command: Command) -> None:
    store_world.command = command
    store_world.after("inputs")
    root = store_world.root / "copy"
    for name in ("a/1.png", "a/2?.png", "b/1 %20.png", "b/2.png", ".hidden/1.png", "b/notes.txt"):
        (root / name).write_bytes(plain((1, 2, 3)))
    before = list_images(str(root))
    assert [before.name(i) for i in range(len(before))] == ["a/1.png", "a/2?.png", "b/1 %20.png", "b/2.png"]
    assert before.remote
    sent = pickle.loads(pickle.dumps(before))
    assert {sent.read(i) for i in range(len(sent))} == {plain((1, 2, 3))}
    digest = before.digest()
    (root / "b/2.png").write_bytes(plain((1, 2, 4)))  # as long
    assert list_images(str(root)).digest() != digest
    digests = set()
    for colour in (3, 4):
        content = BytesIO()
        with zipfile.ZipFile(content, "w") as archive:
            archive.writestr("a/1.png", plain((1, 2, colour)))
        (store_world.root / "images.zip").write_bytes(content.getvalue())
        digests.add(list_images(f"{store_world.root}/images.zip").digest())
    assert len(digests) == 2
    (root / "empty/notes.txt").write_bytes(b"")
    with pytest.raises(InputError, match=rf"empty class in {root}: no images in 'empty'"):
        list_images(str(root))


# A file that is damaged or missing, and the command that meets it.
DAMAGED = {
    "bad/gallery.parquet": "simulate --data {root}/bad --out {root}/unused",
    "bad/gallery.parquet/": "doctor {root}/bad",
    "bad.yaml": "simulate --data {root}/data --service {root}/bad.yaml --out {root}/unused",
    "bad_fleet.yaml": "plan {root}/data --fleet {root}/bad_fleet.yaml",
    "bad.npy": "simulate --old-gallery {root}/bad.npy --new-gallery {root}/gallery_new.npy --out {root}/unused",
    "bad.csv": "import --gallery {root}/bad.csv --out {root}/unused",
    "bad.faiss": "import --gallery {root}/bad.faiss --out {root}/unused",
    "bad.tar": "embed --old python:tests.power._models:old --new python:tests.power._models:new "
    "--images {root}/bad.tar --out {root}/unused",
    "qrels.bin": "simulate --data {root}/data --truth qrels {root}/qrels.bin --out {root}/unused",
}


@pytest.mark.parametrize("file", DAMAGED)
def test_errors_name_addresses(file: str, store_world: World, command: Command) -> None:
    store_world.command = command
    store_world.after("inputs")
    path = store_world.root / file.rstrip("/")
    path.write_bytes(b"\xff\x00PAR1 no such thing" * 9)
    ended = command(*(word.format(root=store_world.root) for word in DAMAGED[file].split()))
    if file != "bad/gallery.parquet/":  # the doctor's findings
        assert ended.code == 2
        assert ended.err.startswith("error: ")
        assert ended.err.count("\n") == 1
    assert str(cache_folder()) not in ended.out + ended.err
    assert not re.search(r"\bs3:/(?!/)", ended.out + ended.err)
    assert file.startswith("bad_fleet") or str(path).replace(" ", "") in (ended.out + ended.err).replace(" ", "")


def test_what_a_resumed_embedding_reads(store_world: World, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """On another machine, where nothing is copied: the ends of finished parts. Most parts have more bytes."""
    store_world.command = command
    store_world.after("inputs")
    weights = np.random.default_rng(0).normal(size=(2, 256, 384)).astype(np.float32)
    models = {}
    for name, weight in zip(("old", "new"), weights, strict=True):

        def model(texts: Sequence[str], weight: Any = weight) -> Any:
            return np.array([weight[np.frombuffer(text.encode(), np.uint8)].sum(0) for text in texts])

        model.__qualname__ = name
        models[name] = model
    texts = store_world.root.parent / "many.jsonl"
    texts.write_text("".join(json.dumps({"id": row, "text": f"text {row}"}) + "\n" for row in range(6000)))
    out = store_world.root / "read_again"

    def embed() -> None:
        settings, sources = ItemSettings(draw_queries=100, draw_train=250), ItemSources("text", str(texts))
        with _running(out, "rb.embed(...)", {}, False) as context:
            embed_two(context, models, sources, settings)

    embed()
    assert in_store(out)
    sizes = out.sizes()
    last = max(path for path in sizes if "embeddings/gallery" in str(path))
    last.unlink()
    monkeypatch.setenv("RAY_BACKFILL_CACHE", str(Path(cache_folder()).with_name("another machine")))
    real, bytes_of = obstore.get, dict[str, int]()

    def get(store: Any, key: str, **more: Any) -> Any:
        got = real(store, key, **more)
        bytes_of[key] = bytes_of.get(key, 0) + got.range[1] - got.range[0]
        return got

    monkeypatch.setattr(obstore, "get", get)
    embed()
    embedded = {path.key: size for path, size in sizes.items() if "/part-" in str(path) and path != last}
    again = sum(bytes_of.get(key, 0) for key in embedded)
    print(f"{again:,} of {sum(embedded.values()):,} bytes: {again / sum(embedded.values()):.2%}")
    assert again <= 0.01 * sum(embedded.values())
    assert {path: size for path, size in out.sizes().items() if "manifest" not in path.name} == {
        path: size for path, size in sizes.items() if "manifest" not in path.name
    }
