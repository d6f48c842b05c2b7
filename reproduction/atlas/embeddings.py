"""Embeds each collection once with each model, and joins any two models' columns to a folder for ``simulate``.

What was made with other settings, or by another version of a model's code, is replaced; all else is used again.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from ray_backfill.core.progress import say
from ray_backfill.core.runkey import RunKey, fingerprint
from ray_backfill.core.schema import read_checked
from ray_backfill.core.stages import begin_stage, finish_stage, read_json, write_json
from ray_backfill.data.columns import part_files
from ray_backfill.data.write import vector_column, vectors_of, write_parquet
from ray_backfill.encode.items import SPLITS, ItemSettings, write_items
from ray_backfill.encode.part import EncodeRequest
from ray_backfill.encode.stage import embed_items
from ray_backfill.learn.methods import find_methods
from ray_backfill.learn.models.apply import transform
from ray_backfill.learn.training.fit import TrainSet
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.workers.settings import EmbedActors
from reproduction.atlas.collections import Collection
from reproduction.atlas.models import AtlasModel

# Column of the vectors in a folder of one model.
_COLUMN = "new"
# Column of the queries of an upgrade, and its values, drawn at random.
FOLD, FOLDS = "fold", tuple("0123456789")
# Columns that are not taken over from the items: their contents.
_CONTENTS = ("text", "image", "offset", "bytes")


def embed_collection(
    collection: Collection, models: Mapping[str, AtlasModel], data: Path, out: Path
) -> dict[str, Path]:
    """Model -> folder of its embeddings, OUT/COLLECTION/models/MODEL. Finished parts are not done again.

    data: folder of the collections.
    """
    own = out / collection.name
    items = write_items(own / "items", collection.prepare(data, own / "source"), ItemSettings(), overwrite=True)
    folders = {}
    for name, model in models.items():
        say(f"{collection.name}: {model.explains}")
        loaded = model.load(items)
        request = EncodeRequest(items, collection.modality, {_COLUMN: loaded.spec})
        folders[name] = embed_items(own / "models" / name, request, EmbedActors(), True, {_COLUMN: loaded})
    return folders


def join(to: Path, old: Path, new: Path, train: int) -> Path:
    """The folder of an upgrade: the items that both models have embedded, with both vectors.

    old, new: folders of ``embed_collection`` of the same items. train: train items at most, drawn at random.
    """
    models = {name: _mark(folder) for name, folder in (("old", old), ("new", new))}
    key = RunKey("joined", {"folds": len(FOLDS), "train": train}, models)
    if begin_stage(to, key, overwrite=True):
        return to
    for split in SPLITS:
        left, table = (_read(folder / f"{split}.parquet") for folder in (old, new))
        if left["id"] != table["id"]:
            raise ValueError(f"{old} and {new} have embedded other items of the {split}")
        table = table.append_column("old", left[_COLUMN])
        if split == "train":
            table = table.take(np.sort(np.random.default_rng(0).permutation(len(table))[:train]))
        if split == "queries":
            drawn = np.random.default_rng(0).permutation(len(table)) % len(FOLDS)
            table = table.append_column(FOLD, pa.array(np.array(FOLDS)[drawn]))
        write_parquet(to / f"{split}.parquet", table)
    finish_stage(to, {})
    return to


def map_gallery(to: Path, first: Path, second: Path) -> Path:
    """The folder of a service that was upgraded by a map and never backfilled, as if it were one model.

    Queries are those of the second model, all other items those of the first, mapped by ridge: where a chain of three
    models begins. first, second: folders of ``embed_collection`` of the same items.
    """
    key = RunKey("mapped", {}, {name: _mark(folder) for name, folder in (("first", first), ("second", second))})
    if begin_stage(to, key, overwrite=True):
        return to
    (method,) = find_methods(("ridge_gallery",))
    assert method.fit is not None
    sides = (_read(folder / "train.parquet")[_COLUMN] for folder in (first, second))
    train = dict(zip(("old", "new"), map(vectors_of, sides), strict=True))
    network = method.fit.fit(TrainSet(train, None), FitSettings(), "cosine").network
    for split in SPLITS:
        table = _read((second if split == "queries" else first) / f"{split}.parquet")
        if split != "queries":
            mapped = vector_column(transform(network, vectors_of(table[_COLUMN])))
            table = table.set_column(table.column_names.index(_COLUMN), _COLUMN, mapped)
        write_parquet(to / f"{split}.parquet", table)
    write_json(to / "probes.json", {})
    finish_stage(to, {})
    return to


def _mark(folder: Path) -> str:
    """What a folder of embeddings holds: its settings, and the probes of its model."""
    return fingerprint(*(sorted(read_json(folder / name).items()) for name in ("manifest.json", "probes.json")))


def _read(split: Path) -> pa.Table:
    table = pa.concat_tables([read_checked(part).replace_schema_metadata() for part in part_files(split)])
    return table.drop_columns([name for name in _CONTENTS if name in table.column_names]).combine_chunks()
