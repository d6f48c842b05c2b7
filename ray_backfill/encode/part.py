"""Embeds one part of the items: reads it, leaves out what cannot be embedded, and makes the table of its embeddings."""

import errno
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.core.store_path import in_store, path_of
from ray_backfill.data.columns import part_files
from ray_backfill.data.write import vector_column
from ray_backfill.encode.encoder import TEXT, Model, by_length
from ray_backfill.encode.items import PLACE, SPLITS
from ray_backfill.encode.spec import Spec

# Metadata of a part: JSON list of [id, reason], and tokens by model that a paid service has read for it.
_BROKEN, TOKENS = b"broken_items", b"tokens"

# Processes that may die at the same items, and the folder, in that of the stage, of what they leave.
_DEATHS, ATTEMPTS = 3, ".attempts"

# Vectors as plain numbers.
Rows = list[list[float]]
KeyT = TypeVar("KeyT")
MadeT = TypeVar("MadeT")


@dataclass(frozen=True)
class EncodeRequest:
    """What to embed. items: folder of ``write_items``. models: column -> spec, "old" and "new". of_gallery: those that
    embed the gallery; none: all. identities: column -> what the parts state of its model.
    """

    items: Path
    modality: str
    models: Mapping[str, Spec]
    of_gallery: tuple[str, ...] = ()
    identities: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

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
    """The table of a part. items: its file. models: used before, so that their dimensions are known also where no item
    is left. A batch is read and prepared while the models embed the one before. Raises InputError if a model fails.
    """
    table = pq.read_table(items)
    order = by_length(table[TEXT].to_pylist() if TEXT in table.column_names else range(len(table)))
    size, side = max(model.size for model in models.values()), "query" if split == "queries" else "document"

    def prepared(rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], dict[str, Any], dict[int, str]]:
        contents, broken = contents_of(table.take(pa.array(rows)), threads)
        good = [i for i in range(len(rows)) if i not in broken]
        given = [contents[i] for i in good]
        batches = {name: model.prepare(given, side) for name, model in models.items()}
        return rows[good], batches, {int(rows[i]): why for i, why in broken.items()}

    before = {name: model.tokens for name, model in models.items()}
    vectors: dict[str, NDArray[np.float32]] = {}
    lost: dict[int, str] = {}
    for rows, batches, broken in _one_ahead(prepared, [order[i : i + size] for i in range(0, len(order), size)]):
        lost |= broken
        for name, model in models.items():
            of_batch = model.vectors(batches[name], side, [table["id"][int(row)] for row in rows])
            vectors.setdefault(name, np.zeros((len(table), of_batch.shape[1]), np.float32))[rows] = of_batch
    kept = np.array([i for i in range(len(table)) if i not in lost], np.int64)
    columns = {name: table[name].take(pa.array(kept)) for name in table.column_names if name not in PLACE}
    columns |= {name: vector_column(vectors[name][kept]) for name in models}
    listed = [[str(table["id"][i].as_py()), why] for i, why in sorted(lost.items())]
    tokens = {name: model.tokens - before[name] for name, model in models.items()}
    return pa.table(columns).replace_schema_metadata({_BROKEN: json.dumps(listed), TOKENS: json.dumps(tokens)})


def _one_ahead(make: Callable[[KeyT], MadeT], keys: Iterable[KeyT]) -> Iterator[MadeT]:
    """What is made of each key; the next is made in another thread meanwhile."""
    with ThreadPoolExecutor(1) as beside:
        waiting: list[Future[MadeT]] = []
        for key in keys:
            waiting.append(beside.submit(make, key))
            if len(waiting) > 1:
                yield waiting.pop(0).result()
        for last in waiting:
            yield last.result()


@contextmanager
def attempt(folder: Path, name: str, what: str) -> Iterator[Path]:
    """A block in which the process may die. Its mark, which is yielded and says what it did, then stays in ``folder``.

    Ray would start such a process for ever. name: of the items, unique in the folder. what: the same for a message.

    Raises:
        InputError: Three processes have died at these items.
    """
    if len(marks := list(folder.glob(f"{name}.*"))) >= _DEATHS:
        raise InputError(
            f"{len(marks)} processes died at {what}, while each {marks[0].read_text()}; mend the model or leave it more"
            " memory by a lower batch or --actors.number; the same command then continues"
        )
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / f"{name}.{uuid4().hex}"
    mark.write_text("started")
    try:
        yield mark
    finally:
        mark.unlink(missing_ok=True)


def broken_in(part: pq.FileMetaData, split: str) -> list[dict[str, str]]:
    """The items that a finished part left out."""
    listed = json.loads(part.metadata[_BROKEN])
    return [{"split": split, "id": item, "reason": reason} for item, reason in listed]


def tokens_of(part: pq.FileMetaData) -> dict[str, int]:
    """Tokens that paid services have read for a finished part, by model."""
    return dict(json.loads(part.metadata.get(TOKENS, b"{}")))


def contents_of(table: pa.Table, threads: int) -> tuple[Sequence[Any], dict[int, str]]:
    """What the models take, and the rows that are broken, with the reason."""
    if TEXT in table.column_names:
        texts = table["text"].to_pylist()
        return texts, {i: "its text is empty" for i, text in enumerate(texts) if not text or not text.strip()}
    with ThreadPoolExecutor(threads) as pool:
        places = table.select([name for name in PLACE if name in table.column_names]).to_pylist()
        opened = list(pool.map(_opened, places))
    return opened, {i: image for i, image in enumerate(opened) if isinstance(image, str)}


def _opened(place: Mapping[str, Any]) -> Any:
    """A PIL image in RGB, upright, what is transparent in white; or why there is none. place: columns of PLACE."""
    from PIL import Image, ImageOps

    file: Any = place["image"]
    try:
        if place.get("bytes"):  # inside of a shard
            with path_of(file).open("rb") as shard:
                shard.seek(place["offset"])
                file = BytesIO(shard.read(place["bytes"]))
        elif in_store(path := path_of(file)):
            file = BytesIO(path.read_bytes())
        with Image.open(file) as image:
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
    except (MemoryError, InputError):  # of a store: none of its images can be read now
        raise
    except Exception as error:  # PIL raises many kinds for broken files
        if isinstance(error, OSError) and error.errno not in (None, errno.ENOENT):
            raise InputError(
                f"{place['image']} cannot be read now: {error.strerror}; fix that, then run again"
            ) from error
        return f"{type(error).__name__}: {error}".replace(repr(file), repr(place["image"]))[:200]
