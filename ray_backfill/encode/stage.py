"""Embeds the items of a user with two models into a folder of the data contract. Finished parts are never done again.

Each part of the items becomes one part of the embeddings, written atomically by an actor. The key of the stage holds
what determines both models: hashes of weights and configuration, and the options of their specs. The vectors of five
fixed probes are kept in probes.json, and every actor compares its own model with them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import say, step
from ray_backfill.core.runkey import RunKey
from ray_backfill.core.schema import open_checked
from ray_backfill.core.stages import begin_stage, finish_stage, read_json, remove_halves, write_json
from ray_backfill.data.write import write_parquet
from ray_backfill.encode.encoder import Device, Model, same_model
from ray_backfill.encode.items import items_fingerprint
from ray_backfill.encode.kinds import load_model
from ray_backfill.encode.part import EncodeRequest, Rows, broken_in
from ray_backfill.workers.settings import EmbedActors


def embed_items(folder: Path, request: EncodeRequest, actors: EmbedActors, overwrite: bool = False) -> Path:
    """Embed all items with both models, or what is left of them; returns the folder.

    Items that cannot be read or are empty are left out and listed in ``broken.parquet``.

    Raises:
        InputError: A model cannot be loaded, fails, or is another one than that of the finished parts.
    """
    models = _loaded(request)
    identities = {name: model.identity() for name, model in models.items()}
    if len({str(identity) for identity in identities.values()}) < len(identities):
        raise InputError("--old and --new are the same model; there is no upgrade")
    key = RunKey("encoded", {"modality": request.modality, "models": identities}, _made_from(request))
    if begin_stage(folder, key, overwrite):
        return folder
    probes = _checked_probes(folder, models)
    del models  # the actors load their own
    parts = request.parts()
    missing = [(split, path) for split, path in parts if not (folder / f"{split}.parquet" / path.name).exists()]
    sizes = {path: open_checked(path).metadata.num_rows for _, path in parts}
    facts: dict[str, Any] = {}
    if missing:
        from ray_backfill.encode.ray import embed_parts

        facts = embed_parts(folder, request, missing, sizes, probes, actors)
    broken = [row for split, path in parts for row in broken_in(folder / f"{split}.parquet" / path.name, split)]
    columns = {name: pa.array([row[name] for row in broken], pa.string()) for name in ("split", "id", "reason")}
    write_parquet(folder / "broken.parquet", pa.table(columns))
    remove_halves(folder)
    total = sum(sizes.values())
    if broken:
        say(f"{len(broken):,} of {total:,} items were left out: {broken[0]['id']}: {broken[0]['reason']}")
    finish_stage(folder, {"items": total - len(broken), "broken_items": len(broken)} | facts)
    return folder


def _made_from(request: EncodeRequest) -> dict[str, str]:
    return {"items": items_fingerprint(request.items)}


def _loaded(request: EncodeRequest) -> dict[str, Model]:
    found = {}
    for name, spec in request.models.items():
        with step(f"load the {name} model"):
            found[name] = load_model(spec, request.modality, Device())
    return found


def _checked_probes(folder: Path, models: Mapping[str, Model]) -> dict[str, Rows]:
    """The vectors of the probes by each model, which are those of the parts that are there already."""
    file = folder / "probes.json"
    found = {name: [[round(float(x), 6) for x in row] for row in model.probes()] for name, model in models.items()}
    if not file.exists():
        write_json(file, found)
        return found
    recorded = read_json(file)
    for name, rows in found.items():
        if not same_model(np.asarray(rows, np.float32), recorded[name]):
            raise InputError(
                f"the {name} model gives other vectors than when {folder} was begun; use the same model, or --overwrite"
            )
    return found
