"""Parts of the splits of a data set: what one actor embeds and writes at a time."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.core.parquet import open_checked
from ray_backfill.images.source import ImageSource
from ray_backfill.learn.training.backbone_loop import training_rows
from ray_backfill.workers.settings import EmbedSettings

BROKEN = b"broken_images"  # metadata of a part: JSON list of [id, reason]


@dataclass(frozen=True)
class Part:
    """Rows start .. stop - 1 of a split (see ``split_rows``), stored in one file, and one for each further view."""

    split: str
    number: int
    start: int
    stop: int
    views: int = 1

    def __len__(self) -> int:
        return self.stop - self.start

    def paths(self, folder: Path) -> list[Path]:
        """The file of the images themselves, then those of further views. By name they are sorted view after view."""
        part, views = f"part-{self.number:06d}.parquet", folder / f"{self.split}_views.parquet"
        return [
            folder / f"{self.split}.parquet" / part,
            *(views / f"view-{i:03d}-{part}" for i in range(1, self.views)),
        ]


def split_rows(
    source: ImageSource, split: str, train_classes: list[int], only: Sequence[int] = ()
) -> NDArray[np.int64]:  # fmt: skip
    """The rows of a split that are embedded: for the train split those of ``train_classes``, otherwise all.

    only: ids of the gallery items to embed, instead of all splits. Raises InputError if there is none of some id.
    """
    items = source.items(split)
    if only:
        lacking = np.setdiff1d(only, items.ids_N)
        if len(lacking):
            raise InputError(
                f"the {split} lacks {len(lacking):,} listed ids, such as {lacking[0]}; use the same images"
            )
        return np.flatnonzero(np.isin(items.ids_N, only))
    return training_rows(items.labels_N, train_classes) if split == "train" else np.arange(len(items))


def split_parts(
    source: ImageSource, train_classes: list[int], settings: EmbedSettings, only: Sequence[int] = ()
) -> Iterator[Part]:  # fmt: skip
    """Divide the rows to embed into parts. only: see ``split_rows``."""
    size = settings.part_rows
    for split in ("gallery",) if only else source.splits:
        n_rows = len(split_rows(source, split, train_classes, only))
        views = settings.views if split == "train" else 1
        for number, start in enumerate(range(0, n_rows, size)):
            yield Part(split, number, start, min(start + size, n_rows), views)


def collect_broken(folder: Path, parts: list[Part]) -> pa.Table:
    """All broken images as a table (split, id, reason); checks that every row of every part is accounted for."""
    found: list[dict[str, Any]] = []
    for part in parts:
        metadata = [open_checked(path).metadata for path in part.paths(folder)]
        broken = json.loads(metadata[0].metadata[BROKEN])
        for path, of_file in zip(part.paths(folder), metadata, strict=True):
            if of_file.num_rows + len(broken) != len(part):
                raise RuntimeError(f"{path} has lost rows: {of_file.num_rows} + {len(broken)} broken")
        found += [{"split": part.split, "id": image_id, "reason": reason} for image_id, reason in broken]
    return pa.Table.from_pylist(found, pa.schema({"split": pa.string(), "id": pa.int64(), "reason": pa.string()}))
