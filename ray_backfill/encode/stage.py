"""Embeds the items of a user with two models into a folder of the data contract. Finished parts are never done again.

Each part of the items becomes one part of the embeddings, written atomically by an actor. The key of the stage holds
what determines both models: hashes of weights and configuration, and the options of their specs. The vectors of five
fixed probes are kept in probes.json, and every actor compares its own model with them.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow.parquet import FileMetaData

from ray_backfill.core import stages
from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import say, step, task
from ray_backfill.core.runkey import RunKey
from ray_backfill.core.schema import footers
from ray_backfill.core.streams import said_if_it_dies
from ray_backfill.data.folder import left_out_file
from ray_backfill.data.identity import content_of, stating
from ray_backfill.data.words import OF_MODELS, write_words
from ray_backfill.data.write import write_parquet
from ray_backfill.encode.bill import bill, estimate
from ray_backfill.encode.encoder import Device, Model, same_model
from ray_backfill.encode.items import ItemSettings, ItemSources, items_fingerprint, write_items
from ray_backfill.encode.kinds import load_model
from ray_backfill.encode.models.python import model_of
from ray_backfill.encode.part import ATTEMPTS, EncodeRequest, Rows, broken_in, embed_part
from ray_backfill.encode.spec import Spec
from ray_backfill.engine.replay import usable_cpus
from ray_backfill.workers.settings import Context, EmbedActors, number_of


def embed_two(
    context: Context, models: Mapping[str, Spec | Callable[..., Any]], sources: ItemSources, settings: ItemSettings,
    of_gallery: tuple[str, ...] = (),
) -> Path:  # fmt: skip
    """Read the items into OUT/items and embed them into OUT/embeddings. models: column -> spec, or a function of this
    process, which then embeds everything by itself. of_gallery: before a drill, the models that embed the gallery;
    the folder is then OUT/before.
    """
    items = write_items(context.out / "items", sources, settings, context.overwrite)
    given = {
        name: model if isinstance(model, Spec) else model_of(model, sources.modality) for name, model in models.items()
    }
    specs = {name: model if isinstance(model, Spec) else model.spec for name, model in given.items()}
    request = EncodeRequest(items, sources.modality, specs, of_gallery)
    here = None
    if not all(isinstance(model, Spec) for model in given.values()):
        device = Device("cpu", usable_cpus())
        here = {
            name: load_model(model, sources.modality, device) if isinstance(model, Spec) else model
            for name, model in given.items()
        }
    folder = context.out / ("before" if of_gallery else "embeddings")
    embed_items(folder, request, context.actors, context.overwrite, here)
    write_words(folder, OF_MODELS)
    return folder


def embed_items(
    folder: Path, request: EncodeRequest, actors: EmbedActors, overwrite: bool = False,
    here: Mapping[str, Model] | None = None,
) -> Path:  # fmt: skip
    """Embed all items with both models, or what is left of them; returns the folder.

    Items that cannot be read or are empty are left out and listed in ``broken.parquet``. here: models of this process,
    which embeds everything by itself; None: actors load those of the request.

    Raises:
        InputError: A model cannot be loaded, fails, or is another one than that of the finished parts.
    """
    actors.require_own_decoders()
    models = dict(here or {})
    for name, spec in request.models.items() if here is None else ():
        with step(f"load the {name} model"), _named_if_it_dies(str(spec)):
            models[name] = load_model(spec, request.modality, Device())
    number = 1 if here else number_of(actors)
    identities = {name: {"name": model.spec.recorded_name()} | model.identity() for name, model in models.items()}
    request = replace(request, identities=identities)
    key, announced, probes = _recognised(folder, request, models, overwrite, number)
    is_finished = stages.begin_stage(folder, key, overwrite)
    recorded = stages.read_json(folder / "probes.json") if (folder / "probes.json").exists() else probes
    if changed := [name for name, rows in probes.items() if not same_model(np.array(rows), recorded[name])]:
        if not overwrite:  # although the identity of the model is the same
            raise InputError(
                f"the {changed[0]} model gives other vectors than when {folder} was made; use the same one, or "
                "--overwrite"
            )
        stages.remove_folder(folder)
        is_finished = stages.begin_stage(folder, key)
    if is_finished:
        return folder
    stages.write_json(folder / "probes.json", probes)
    parts = request.parts()
    missing = _missing(folder, request)
    items = footers([path for _, path in parts])
    sizes = {path: footer.num_rows for (_, path), footer in zip(parts, items, strict=True)}
    total = sum(sizes.values())
    facts: dict[str, Any] = {}
    if missing != announced:  # the folder was not what it seemed
        estimate(request, missing, number)
    if missing and here is not None:
        done, names = total - sum(sizes[path] for _, path in missing), " or ".join(str(m.spec) for m in here.values())
        with task("embed", total, f"{request.modality}s", done=done) as bar, _named_if_it_dies(names):
            for split, path in missing:
                table = embed_part(path, split, {name: here[name] for name in request.models_of(split)})
                write_parquet(folder / f"{split}.parquet" / path.name, stating(table, identities))
                bar.advance(sizes[path])
    elif missing:
        from ray_backfill.encode.ray import embed_parts

        del models  # the actors load their own
        facts = embed_parts(folder, request, missing, sizes, probes, actors)
    made = footers([folder / f"{split}.parquet" / path.name for split, path in parts])
    broken = _list_broken(folder, [split for split, _ in parts], made)
    stages.remove_halves(folder)
    stages.remove_folder(folder / ATTEMPTS)  # also what a command has left that died at its last part
    if broken:
        first = f"{broken[0]['id']}: {broken[0]['reason']}"
        say(f"left out: {len(broken):,} of {total:,} items, such as {first}; all: {folder / 'broken.parquet'}")
    facts |= {"tokens": tokens} if (tokens := bill(made, request.models)) else {}
    stages.finish_stage(folder, {"items": total - len(broken), "broken_items": len(broken)} | facts)
    return folder


def _recognised(
    folder: Path, request: EncodeRequest, models: Mapping[str, Model], overwrite: bool, actors: int
) -> tuple[RunKey, list[tuple[str, Path]], dict[str, Rows]]:
    """The key of the stage, the parts whose cost was said, which is before anything is paid for, and the probes.

    Raises InputError for a folder of another run, and for two models that are the same.
    """
    identities = {name: content_of(model) for name, model in request.identities.items()}
    settings = {"modality": request.modality, "models": identities}
    settings |= {"of_gallery": list(request.of_gallery)} if request.of_gallery else {}
    key = RunKey("encoded", settings, {"items": items_fingerprint(request.items)})
    left = request.parts()
    try:
        stages.look_at_stage(folder, key)
        left = _missing(folder, request)
    except stages.OtherSettingsError:
        if not overwrite:
            raise
    estimate(request, left, actors)
    probes: dict[str, Rows] = {}
    for name, model in models.items():
        with _named_if_it_dies(str(model.spec)):
            probes[name] = [[round(float(x), 6) for x in row] for row in model.probes()]
    one, *others = models
    for other in others:  # two functions may differ in their vectors alone
        if identities[one] == identities[other] and same_model(np.array(probes[one]), probes[other]):
            raise InputError("--old and --new are the same model; there is no upgrade")
    return key, left, probes


def _missing(folder: Path, request: EncodeRequest) -> list[tuple[str, Path]]:
    whole = set(filter(stages.is_whole, folder.glob("*/*.parquet")))
    return [(split, path) for split, path in request.parts() if folder / f"{split}.parquet" / path.name not in whole]


def _list_broken(folder: Path, splits: Sequence[str], made: Sequence[FileMetaData]) -> list[dict[str, str]]:
    """What the parts, of these splits, left out. Writes broken.parquet, and for each split the list beside it, by which
    right answers that are left out are known.

    Raises InputError if nothing is left of a split.
    """
    names = ("split", "id", "reason")
    broken = [row for split, part in zip(splits, made, strict=True) for row in broken_in(part, split)]
    for split in set(splits):
        lost = [row for row in broken if row["split"] == split]
        if not sum(part.num_rows for of, part in zip(splits, made, strict=True) if of == split):
            raise InputError(f"none of the items of the {split} can be embedded: {lost[0]['reason']}")
        if lost:
            listed = {name: pa.array([row[name] for row in lost], pa.string()) for name in names[1:]}
            write_parquet(left_out_file(folder / f"{split}.parquet"), pa.table(listed))
    columns = {name: pa.array([row[name] for row in broken], pa.string()) for name in names}
    write_parquet(folder / "broken.parquet", pa.table(columns))
    return broken


def _named_if_it_dies(models: str) -> AbstractContextManager[None]:
    return said_if_it_dies(
        f"error: the model {models} ended this process, or took all memory; mend it and run the same command again"
    )
