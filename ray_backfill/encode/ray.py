"""The actors that embed parts of items, by Ray Data."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from time import time
from typing import Any

import pyarrow.parquet as pq
import ray.data  # sets levels of logs, so it is imported before a session sets them

from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import task
from ray_backfill.core.stages import remove_folder
from ray_backfill.core.store_path import path_of
from ray_backfill.data.identity import stating
from ray_backfill.data.write import write_parquet
from ray_backfill.encode.encoder import Device, Model, same_model
from ray_backfill.encode.kinds import load_model
from ray_backfill.encode.part import ATTEMPTS, EncodeRequest, Rows, attempt, embed_part
from ray_backfill.workers.session import embedded_parts, placed, session
from ray_backfill.workers.settings import EmbedActors, threads_of
from ray_backfill.workers.watch import BROKEN, EMBEDDED, Watch


@dataclass(frozen=True)
class _ItemsJob:
    """Input of every actor. path: ``sys.path`` of the driver, where modules of the user are found."""

    folder: str
    request: EncodeRequest
    probes: Mapping[str, Rows]
    device: Device
    path: list[str]


def embed_parts(
    folder: Path, request: EncodeRequest, missing: list[tuple[str, Path]], sizes: Mapping[Path, int],
    probes: Mapping[str, Rows], actors: EmbedActors,
) -> dict[str, Any]:  # fmt: skip
    """Embed the missing parts; returns facts for the manifest. sizes: number of items of every part."""
    import sys

    remove_folder(folder / ATTEMPTS)  # of an earlier command
    total = sum(sizes.values())
    left = sum(sizes[path] for _, path in missing)
    with session(), closing(Watch()) as watch, task("embed", total, f"{request.modality}s", total - left) as bar:
        number, on_gpu = placed(actors)
        number = min(number, len(missing))
        device = Device("cuda" if on_gpu else "cpu", threads_of(actors), number)
        job = _ItemsJob(str(folder), request, probes, device, sys.path)
        began, first = time(), inf
        parts = [{"split": split, "path": str(path)} for split, path in missing]
        for done in embedded_parts(_ItemEmbedder, job, parts, replace(actors, number=number), on_gpu):
            bar.advance(done["items"])
            watch.count(EMBEDDED, done["items"])
            watch.count(BROKEN, done["broken"])
            first = min(first, done["began"])
        rate = left / max(time() - first, 1e-9)
    facts = {"actors": number, "items": left, "items_per_s": round(rate, 1), "start_s": round(first - began, 1)}
    return {"embedding": facts}


class _ItemEmbedder:
    """One actor: each call embeds and writes a part. The first call loads the models, which stay: Ray would start a
    process that dies in its constructor again and again.
    """

    def __init__(self, job: _ItemsJob) -> None:
        import sys

        sys.path[:0] = [folder for folder in job.path if folder not in sys.path]
        self._job, self._models = job, dict[str, Model]()

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        began, split, path, folder = time(), row["split"], path_of(row["path"]), path_of(self._job.folder)
        try:
            if not self._models:
                self._load(folder / ATTEMPTS)
            began, models = time(), {name: self._models[name] for name in self._job.request.models_of(split)}
            ids = pq.read_table(path, columns=["id"])["id"]
            items = f"{len(ids)} items of the {split}, {ids[0]} to {ids[-1]} ({path.stem})"
            with attempt(folder / ATTEMPTS, f"{split}-{path.stem}", items) as mark:
                mark.write_text(f"embedded them with {' and '.join(str(model.spec) for model in models.values())}")
                table = embed_part(path, split, models, self._job.device.threads)
                table = stating(table, self._job.request.identities)
                write_parquet(folder / f"{split}.parquet" / path.name, table)
        except InputError as error:
            return {"items": 0, "broken": 0, "began": began, "problem": str(error)}
        return {"items": len(table), "broken": len(ids) - len(table), "began": began, "problem": ""}

    def _load(self, marks: Path) -> None:
        actor, request, models = ray.get_runtime_context().get_actor_id(), self._job.request, dict[str, Model]()
        with attempt(marks, f"actor-{actor}", "the start") as mark:  # an actor that is started again keeps its name
            for name, spec in request.models.items():
                mark.write_text(f"loaded {spec}")
                models[name] = load_model(spec, request.modality, self._job.device)
                if not same_model(models[name].probes(), self._job.probes[name]):
                    raise InputError(f"the {name} model gives other vectors in an actor than here; use one model")
        self._models = models
