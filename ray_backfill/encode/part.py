"""Embeds one part of the items: reads it, leaves out what cannot be embedded, and makes the table of its embeddings."""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ray_backfill.core.schema import open_checked
from ray_backfill.data.columns import part_files
from ray_backfill.data.write import vector_column
from ray_backfill.encode.encoder import TEXT, Model
from ray_backfill.encode.items import SPLITS
from ray_backfill.encode.spec import Spec

_BROKEN = b"broken_items"  # metadata of a part: JSON list of [id, reason]

# Vectors as plain numbers.
Rows = list[list[float]]


@dataclass(frozen=True)
class EncodeRequest:
    """What to embed. items: folder of ``write_items``. models: column -> spec, "old" and "new". of_gallery: those that
    embed the gallery; none: all.
    """

    items: Path
    modality: str
    models: Mapping[str, Spec]
    of_gallery: tuple[str, ...] = ()

    def models_of(self, split: str) -> tuple[str, ...]:
        """The columns of vectors of a split."""
        return self.of_gallery if split == "gallery" and self.of_gallery else tuple(self.models)

    def parts(self) -> list[tuple[str, Path]]:
        """Split and file of each part of the items."""
        return [
            (split, path)
            for split in SPLITS if (self.items / f"{split}.parquet").is_dir()
            for path in part_files(self.items / f"{split}.parquet")
        ]  # fmt: skip


def embed_part(items: Path, split: str, models: Mapping[str, Model], threads: int = 1) -> pa.Table:
    """The table of a part. items: its file. models: used before, so that their dimensions are known. Raises
    InputError if a model fails.
    """
    table = pq.read_table(items)
    contents, broken = contents_of(table, threads)
    kept = np.array([i for i in range(len(table)) if i not in broken], np.int64)
    side = "query" if split == "queries" else "document"
    given = [contents[i] for i in kept]
    columns = {name: table[name].take(pa.array(kept)) for name in table.column_names if name != "image"}
    columns |= {name: vector_column(model.embed(given, side)) for name, model in models.items()}
    listed = [[str(table["id"][i].as_py()), why] for i, why in broken.items()]
    return pa.table(columns).replace_schema_metadata({_BROKEN: json.dumps(listed)})


def broken_in(part: Path, split: str) -> list[dict[str, str]]:
    """The items that a finished part left out."""
    listed = json.loads(open_checked(part).metadata.metadata[_BROKEN])
    return [{"split": split, "id": item, "reason": reason} for item, reason in listed]


def contents_of(table: pa.Table, threads: int) -> tuple[Sequence[Any], dict[int, str]]:
    """What the models take, and the rows that are broken, with the reason."""
    if TEXT in table.column_names:
        texts = table["text"].to_pylist()
        return texts, {i: "its text is empty" for i, text in enumerate(texts) if not text or not text.strip()}
    with ThreadPoolExecutor(threads) as pool:
        opened = list(pool.map(_opened, table["image"].to_pylist()))
    return opened, {i: each for i, each in enumerate(opened) if isinstance(each, str)}


def _opened(path: str) -> Any:
    """A PIL image in RGB, upright, what is transparent in white; or why there is none."""
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as image:
            upright = ImageOps.exif_transpose(image)
            if upright.mode.startswith("I"):  # 16 bits, of which convert would keep the lowest 8
                upright = Image.fromarray((np.asarray(upright).astype(np.float64) / 257).clip(0, 255).astype(np.uint8))
            if upright.mode == "F":
                return "its numbers are floating-point, whose range nobody knows; store it with 8 or 16 bits"
            if "A" in upright.getbands() or "transparency" in upright.info:
                on_white = Image.new("RGBA", upright.size, "white")
                on_white.alpha_composite(upright.convert("RGBA"))
                upright = on_white
            return upright.convert("RGB")
    except Exception as error:  # PIL raises many kinds for broken files
        return f"{type(error).__name__}: {error}"[:200]
