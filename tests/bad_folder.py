"""A small folder of embeddings, and ways to spoil it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ray_backfill.data.write import vector_column, write_parquet

Change = Callable[[Path], None]
RNG = np.random.default_rng(0)
GALLERY, QUERIES, TRAIN = 24, 8, 24
ROWS = {"gallery": GALLERY, "queries": QUERIES, "train": TRAIN}


def vectors(rows: int, dims: int) -> np.ndarray:
    return RNG.normal(size=(rows, dims)).astype(np.float32)


SPLITS: dict[str, dict[str, Any]] = {
    split: {
        "id": np.arange(rows) + first,
        "old": vectors(rows, 4),
        "new": vectors(rows, 6),
        "label": np.arange(rows) % 4,
    }
    for (split, rows), first in zip(ROWS.items(), (0, 100, 200), strict=True)
}

VIEWS: dict[str, Any] = {
    "id": np.tile(SPLITS["train"]["id"], 2), "old": vectors(2 * TRAIN, 4), "new": vectors(2 * TRAIN, 6)
}  # fmt: skip


def write_split(folder: Path, split: str, columns: dict[str, Any]) -> None:
    write_parquet(folder / f"{split}.parquet", table_of(columns))


def table_of(columns: dict[str, Any]) -> pa.Table:
    """Arrays of two dimensions are vectors; anything else is taken as it is."""
    is_vectors = {name: isinstance(v, np.ndarray) and v.ndim == 2 for name, v in columns.items()}
    return pa.table({name: vector_column(v) if is_vectors[name] else pa.array(v) for name, v in columns.items()})


def with_columns(split: str, **columns: Any) -> Change:
    """Replace columns of a split; None removes one."""

    def change(folder: Path) -> None:
        kept = {name: values for name, values in (SPLITS[split] | columns).items() if values is not None}
        write_split(folder, split, kept)

    return change


def with_row(split: str, column: str, row: Any) -> Change:
    """Replace row 3 of an embedding."""
    values = SPLITS[split][column].copy()
    values[3] = row
    return with_columns(split, **{column: values})


def all_of(*changes: Change) -> Change:
    def change(folder: Path) -> None:
        for each in changes:
            each(folder)

    return change


def without(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


def with_bytes(name: str, change: Callable[[bytes], bytes]) -> Change:
    """Damage a file on disk."""

    def damage(folder: Path) -> None:
        (folder / name).write_bytes(change((folder / name).read_bytes()))

    return damage


def half(whole: bytes) -> bytes:
    return whole[: len(whole) // 2]


def flipped(whole: bytes) -> bytes:
    """200 bytes in the pages changed."""
    damaged = bytearray(whole)
    for at in np.random.default_rng(1).integers(4, len(whole) * 2 // 3, 200):
        damaged[at] ^= 85
    return bytes(damaged)


def with_file(name: str, text: str = "") -> Change:
    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)

    return change


def with_folder(name: str) -> Change:
    return lambda folder: (folder / name).mkdir()


def in_parts(split: str, **second: Any) -> Change:
    """The split as two parts; the second has other columns."""

    def change(folder: Path) -> None:
        (folder / f"{split}.parquet").unlink()
        half_of = ROWS[split] // 2
        parts = [{name: v[:half_of] for name, v in SPLITS[split].items()}]
        parts += [{name: v[half_of:] for name, v in SPLITS[split].items()} | second]
        for number, part in enumerate(parts):
            write_split(folder / f"{split}.parquet", f"part-{number}", part)

    return change


def twice(folder: Path) -> None:
    table = pq.read_table(folder / "gallery.parquet")
    pq.write_table(table.append_column("label", table["label"]), folder / "gallery.parquet")


def with_classifier(**columns: Any) -> Change:
    whole = {"label": np.arange(4), "weight": vectors(4, 6), "bias": np.zeros(4, np.float32)} | columns
    return lambda folder: write_split(folder, "classifier", {n: v for n, v in whole.items() if v is not None})


def with_views(**columns: Any) -> Change:
    """Two further views of each train item; None removes a column."""
    kept = {name: values for name, values in (VIEWS | columns).items() if values is not None}
    return lambda folder: write_split(folder, "train_views", kept)


def empty(split: str) -> pa.Table:
    return table_of(SPLITS[split]).slice(0, 0)


def leaked() -> dict[str, Any]:
    return {name: values[:8] for name, values in SPLITS["gallery"].items()} | {"label": np.arange(8)}
