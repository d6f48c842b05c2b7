"""The actors that embed parts of items, by Ray Data."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from time import time
from typing import Any

import ray.data

from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import task
from ray_backfill.data.write import write_parquet
from ray_backfill.encode.encoder import Device, same_model
from ray_backfill.encode.kinds import load_model
from ray_backfill.encode.part import EncodeRequest, Rows, embed_part
from ray_backfill.workers.session import placed, session
from ray_backfill.workers.settings import EmbedActors, number_of, threads_of


@dataclass(frozen=True)
class _Job:
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

    total = sum(sizes.values())
    left = sum(sizes[path] for _, path in missing)
    with session(), task("embed", total, f"{request.modality}s", done=total - left) as bar:
        number, on_gpu = placed(actors)
        number = min(number, len(missing))
        device = Device("cuda" if on_gpu else "cpu", threads_of(actors), number)
        job = _Job(str(folder), request, probes, device, sys.path)
        began, first = time(), inf
        for done in _run(job, missing, replace(actors, number=number)):
            bar.advance(done["items"])
            first = min(first, done["began"])
        rate = left / max(time() - first, 1e-9)
    facts = {"actors": number, "items": left, "items_per_s": round(rate, 1), "start_s": round(first - began, 1)}
    return {"embedding": facts}


def _run(job: _Job, missing: list[tuple[str, Path]], actors: EmbedActors) -> Iterator[dict[str, Any]]:
    """Embed the parts; yields what each finished part took. Raises the InputError of an actor."""
    ray.data.DataContext.get_current().enable_progress_bars = False
    rows = [{"split": split, "path": str(path)} for split, path in missing]
    finished = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
        _Embedder,
        fn_constructor_kwargs={"job": job},
        compute=ray.data.ActorPoolStrategy(size=number_of(actors)),
        num_cpus=actors.cpus,
        num_gpus=actors.gpus if job.device.name == "cuda" else 0,
    )
    for row in finished.iter_rows():
        if problem := row.pop("problem"):
            raise InputError(problem)
        yield row


class _Embedder:
    """One actor: the models stay loaded; each call embeds and writes a part."""

    def __init__(self, job: _Job) -> None:
        import sys

        sys.path[:0] = [each for each in job.path if each not in sys.path]
        self._job, self._problem = job, ""
        try:
            request = job.request
            self._models = {n: load_model(spec, request.modality, job.device) for n, spec in request.models.items()}
            for name, model in self._models.items():
                if not same_model(model.probes(), job.probes[name]):
                    raise InputError(f"the {name} model gives other vectors in an actor than here; use one model")
        except InputError as error:  # Ray would start the actor again and again
            self._problem = str(error)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        began, split, path = time(), row["split"], Path(row["path"])
        try:
            if self._problem:
                raise InputError(self._problem)
            models = {name: self._models[name] for name in self._job.request.models_of(split)}
            table = embed_part(path, split, models, self._job.device.threads)
            write_parquet(Path(self._job.folder) / f"{split}.parquet" / path.name, table)
        except InputError as error:  # Ray Data would wrap it in a long traceback and lose its type
            return {"items": 0, "began": began, "problem": str(error)}
        return {"items": len(table), "began": began, "problem": ""}
