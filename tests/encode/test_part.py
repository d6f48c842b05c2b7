"""Images as models get them, and parts of which nothing is left."""

import errno
import gc
import os
import weakref
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from ray_backfill.core.errors import InputError
from ray_backfill.core.store_path import path_of
from ray_backfill.encode import part
from ray_backfill.encode.encoder import IMAGE, TEXT, Device
from ray_backfill.encode.kinds import load_model, parse_spec
from ray_backfill.encode.models.python import model_of
from ray_backfill.encode.part import attempt, broken_in, contents_of, embed_part
from tests.encode import _models
from tests.faulty_store import Faults


def opened(path: Path, image: Image.Image, **how: Any) -> Any:
    image.save(path, **how)
    contents, broken = contents_of(pa.table({"image": [str(path)]}), 1)
    return broken.get(0) or np.asarray(contents[0])


def test_images_are_rgb_of_eight_bits(tmp_path: Path) -> None:
    ramp = np.linspace(0, 65535, 64, dtype=np.uint16).reshape(8, 8)
    found = opened(tmp_path / "deep.png", Image.fromarray(ramp))
    np.testing.assert_allclose(found[..., 0], ramp / 257, atol=1)
    clear = opened(tmp_path / "clear.png", Image.new("RGBA", (4, 4), (9, 9, 9, 0)))
    assert (clear == 255).all(), "what is transparent is white"
    solid = opened(tmp_path / "solid.png", Image.new("LA", (4, 4), (9, 255)))
    assert (solid == 9).all()
    floats = opened(tmp_path / "f.tif", Image.fromarray(np.ones((4, 4), np.float32)))
    assert "floating-point" in floats


def test_a_part_of_which_nothing_is_left_is_empty(tmp_path: Path) -> None:
    model = load_model(parse_spec("python:tests.encode._models:old"), TEXT, Device())
    model.probes()
    pq.write_table(pa.table({"id": ["a", "b"], "text": [" ", None]}), tmp_path / "in.parquet")
    table = embed_part(tmp_path / "in.parquet", "gallery", {"old": model})
    assert table.num_rows == 0
    assert table["old"].type.list_size == _models.old(["a"]).shape[1]
    pq.write_table(table, tmp_path / "out.parquet")
    assert [row["id"] for row in broken_in(pq.read_metadata(tmp_path / "out.parquet"), "gallery")] == ["a", "b"]


def test_a_batch_of_images_is_in_memory_not_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of 2,000 photographs of 12 megapixels would need 72 GB."""
    rows = 60
    for row in range(rows):
        Image.new("RGB", (8, 8), (row, 0, 0)).save(tmp_path / f"{row}.png")
    (tmp_path / "7.png").write_bytes(b"broken")
    items = {"id": range(rows), "image": [str(tmp_path / f"{row}.png") for row in range(rows)]}
    pq.write_table(pa.table(items), tmp_path / "in.parquet")
    opened: list[weakref.ref[Any]] = []
    most, open_image = 0, part._opened

    def watched(place: Any) -> Any:
        image = open_image(place)
        if not isinstance(image, str):
            opened.append(weakref.ref(image))
        return image

    def look(images: list[Any]) -> Any:
        nonlocal most
        gc.collect(0)
        most = max(most, sum(image() is not None for image in opened))
        return np.array([image.getpixel((0, 0)) for image in images])

    monkeypatch.setattr(part, "_opened", watched)

    models = {}
    for name, batch in (("old", 4), ("new", 10)):
        models[name] = model_of(look, IMAGE)
        models[name].spec = replace(models[name].spec, batch=batch)
    table = embed_part(tmp_path / "in.parquet", "gallery", models)
    assert table["id"].to_pylist() == [row for row in range(rows) if row != 7]
    assert [vector[0] for vector in table["old"].to_pylist()] == table["id"].to_pylist()
    assert table["old"].equals(table["new"])
    assert 10 <= most <= 30, "one batch with the models, one beside, one that waits"


def test_what_may_pass_is_no_broken_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("RGB", (2, 2)).save(tmp_path / "a.png")
    table = pa.table({"image": [str(tmp_path / "a.png")]})

    def fails(*_: Any) -> Any:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Image, "open", fails)
    with pytest.raises(InputError, match=r"a\.png cannot be read now: Input/output error; fix that, then run again"):
        contents_of(table, 1)


@pytest.mark.parametrize("s3_server", ["moto"], indirect=True)
def test_a_store_that_does_not_answer_makes_no_broken_images(store: str, faults: Faults) -> None:
    images = [path_of(store) / name for name in ("red.png", "gone.png", "no.png")]
    images[2].write_bytes(b"no picture")
    content = BytesIO()
    Image.new("RGB", (2, 2), "red").save(content, "PNG")
    images[0].write_bytes(content.getvalue())
    table = pa.table({"image": list(map(str, images))})
    opened, broken = contents_of(table, 2)
    assert opened[0].getpixel((0, 0)) == (255, 0, 0)
    assert list(broken) == [1, 2]
    assert broken[1].startswith("FileNotFoundError")
    assert broken[2] == f"UnidentifiedImageError: cannot identify image file '{images[2]}'"
    for fault in ("denied", "reset"):
        faults.always(fault)
        with pytest.raises(InputError, match=r"red\.png: (no answer to use|the store refuses this)"):
            contents_of(table.slice(0, 1), 2)


def test_the_item_without_a_finite_vector_is_named(tmp_path: Path) -> None:
    def sometimes(texts: list[str]) -> Any:
        return [[np.nan if text == "bad" else 1.0, 2.0] for text in texts]

    table = pa.table({"id": [f"i{row}" for row in range(9)], "text": ["a", "longer", "bad", *"bcdefg"]})
    pq.write_table(table, tmp_path / "in.parquet")
    with pytest.raises(InputError, match="not finite for item i2; fix the model, or leave that item out"):
        embed_part(tmp_path / "in.parquet", "gallery", {"old": model_of(sometimes, TEXT)})


def test_the_third_death_at_the_same_items_is_the_last(tmp_path: Path) -> None:
    def dies(name: str) -> int:
        if (child := os.fork()) == 0:
            with attempt(tmp_path / "marks", name, f"items {name}") as mark:
                mark.write_text("loaded python:m:new")
                os._exit(3)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    for _ in range(2):
        with attempt(tmp_path / "marks", "a", "items a"):  # a success in between is another process
            assert dies("a") == dies("b") == 3
    assert dies("a") == 3
    with pytest.raises(InputError, match="3 processes died at items a, while each loaded python:m:new; mend the model"):
        attempt(tmp_path / "marks", "a", "items a").__enter__()
    for error in (SystemExit, KeyboardInterrupt, InputError):
        with pytest.raises(error), attempt(tmp_path / "marks", "b", "items b"):
            raise error
    assert len(list((tmp_path / "marks").glob("b.*"))) == 2, "who can say why is not dead"
