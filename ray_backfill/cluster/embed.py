"""Streams images through embedding actors by Ray Data: one decode for both models, parts of Parquet as the result.

The rows of a split are cut into parts of a fixed size. An actor decodes and embeds one part at a time and writes it
itself, whole or not at all; so a finished part is never embedded twice, whatever dies in between, and only a few
numbers travel through Ray.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray.data
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from ray_backfill.cluster.session import placed, session
from ray_backfill.datasets import ImageSource, open_source
from ray_backfill.datasets._ahead import read_ahead
from ray_backfill.errors import require_positive
from ray_backfill.files import read_json
from ray_backfill.models.backbones import pixels_to_float
from ray_backfill.models.checkpoints import load_backbone
from ray_backfill.stages import begin_stage, finish_stage
from ray_backfill.store import vector_column, write_parquet
from ray_backfill.training.backbone_loop import training_rows

_BROKEN = b"broken_images"  # metadata of a part: JSON list of [id, reason]


@dataclass(frozen=True)
class EmbedSettings:
    """How a gallery is embedded."""

    # Images a part file: what is lost, at most, for each actor when a run is stopped.
    part_rows: int = 8192
    # Images a forward pass.
    batch: int = 256

    def __post_init__(self) -> None:
        require_positive(self, "part_rows", "batch")


@dataclass(frozen=True)
class EmbedActors:
    """Where embedding runs. If the cluster has GPUs, each actor gets one, and there are no more actors than GPUs."""

    # Embedding actors.
    number: int = 2
    # CPUs an actor; as many threads decode images.
    cpus: float = 1.0

    def __post_init__(self) -> None:
        require_positive(self, "number", "cpus")


@dataclass(frozen=True)
class _Part:
    """Rows start .. stop - 1 of a split (of ``split_rows``), which end in one file."""

    split: str
    number: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def path(self, folder: Path) -> Path:
        return folder / f"{self.split}.parquet" / f"part-{self.number:06d}.parquet"


@dataclass(frozen=True)
class _Job:
    """What every actor gets: paths and settings, no weights."""

    data: Any
    old: str
    new: str
    folder: str
    train_classes: list[int]
    settings: EmbedSettings
    threads: int
    on_gpu: bool


def embed_stage(
    folder: Path,
    data: Any,
    old: Path,
    new: Path,
    train_classes: list[int],
    settings: EmbedSettings,
    actors: EmbedActors,
) -> Path:
    """Embed all splits of a data set by both backbones into a folder of the data contract (see ``store``).

    data: the ``Settings`` of a source. old, new: folders of trained backbones. train_classes: the train split holds
    the images of these classes only (those of the new model: heads learn from them). folder: on storage that all
    nodes share. Broken images are left out and listed in ``broken.parquet``.

    Raises:
        InputError: the folder belongs to other settings or weights, or the cluster is too small.
    """
    source = open_source(data)
    wanted = {
        "data": source.fingerprint(),
        "train_classes": train_classes,
        "old": _identity(old),
        "new": _identity(new),
        "embed": asdict(settings),
    }
    if begin_stage(folder, "embeddings", wanted):
        return folder
    parts = list(_parts(source, train_classes, settings.part_rows))
    missing = [part for part in parts if not part.path(folder).exists()]
    total, todo = (sum(len(part) for part in some) for some in (parts, missing))
    if missing:
        with (
            session(),
            tqdm(total=total, initial=total - todo, desc="embed", unit=" images", dynamic_ncols=True) as bar,
        ):
            number, on_gpu = placed(actors.number, actors.cpus, "--actors", spare_cpus=1)
            threads = max(1, int(actors.cpus))
            job = _Job(data, str(old), str(new), str(folder), train_classes, settings, threads, on_gpu)
            for done in _run(missing, job, min(number, len(missing)), actors.cpus):
                bar.update(done)
    broken = _collect_broken(folder, parts)
    write_parquet(folder / "broken.parquet", broken)
    for leftover in folder.glob("*/.*.tmp"):
        leftover.unlink()
    finish_stage(folder, {"images": total - len(broken), "broken_images": len(broken)})
    return folder


def _identity(backbone: Path) -> dict[str, Any]:
    """What a backbone is: the settings it was trained by, and the weights that came out."""
    weights = hashlib.blake2b((backbone / "model.safetensors").read_bytes(), digest_size=12).hexdigest()
    return read_json(backbone / "manifest.json")["settings"] | {"weights": weights}


def _run(parts: list[_Part], job: _Job, actors: int, cpus: float) -> Iterator[int]:
    """Embed the parts; yields the number of images of each finished one."""
    finished = ray.data.from_items([asdict(part) for part in parts], override_num_blocks=len(parts)).map_batches(
        _Embedder,
        fn_constructor_kwargs={"job": job},
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=actors),
        num_cpus=cpus,
        num_gpus=1 if job.on_gpu else 0,
    )
    for row in finished.iter_rows():
        yield int(row["images"])


class _Embedder:
    """One actor: both models and the source stay loaded; each call embeds and writes parts."""

    def __init__(self, job: _Job) -> None:
        self._job, self._source = job, open_source(job.data)
        self._device = torch.device("cuda" if job.on_gpu else "cpu")
        torch.set_num_threads(job.threads)
        self._old = load_backbone(Path(job.old))[0].to(self._device)
        self._new = load_backbone(Path(job.new))[0].to(self._device)

    def __call__(self, batch: dict[str, NDArray[Any]]) -> dict[str, NDArray[np.int64]]:
        images = []
        for split, *numbers in zip(*(batch[field.name] for field in fields(_Part)), strict=True):
            part = _Part(str(split), *map(int, numbers))
            write_parquet(part.path(Path(self._job.folder)), self._embed(part))
            images.append(len(part))
        return {"images": np.asarray(images)}

    def _embed(self, part: _Part) -> pa.Table:
        split, size = part.split, self._job.settings.batch
        items = self._source.items(split)
        rows = split_rows(self._source, split, self._job.train_classes)[part.start : part.stop]
        batches = [rows[i : i + size] for i in range(0, len(rows), size)]
        kept_rows, vectors, broken = [], [], []
        for of_batch, pixels in read_ahead(self._source, split, batches, self._job.threads):
            kept = np.setdiff1d(np.arange(len(of_batch)), list(pixels.broken))
            broken += [[int(items.ids_N[of_batch[i]]), reason] for i, reason in pixels.broken.items()]
            kept_rows.append(of_batch[kept])
            if len(kept):
                vectors.append(self._forward(pixels.pixels_BSSC[kept]))
        rows = np.concatenate(kept_rows)
        empty = tuple(np.empty((0, n), np.float32) for n in (1, 1, 1))
        old, new, score = (np.concatenate(column) for column in zip(*vectors, strict=True)) if vectors else empty
        columns = {
            "id": pa.array(items.ids_N[rows]),
            "old": vector_column(old),
            "new": vector_column(new),
            "label": pa.array(items.labels_N[rows]),
            "old_score": pa.array(score.ravel()),
        }
        if items.groups_N is not None:
            columns["group"] = pa.array(items.groups_N[rows])
        return pa.table(columns).replace_schema_metadata({_BROKEN: json.dumps(broken)})

    def _forward(self, pixels_BSSC: NDArray[np.uint8]) -> tuple[NDArray[np.float32], ...]:
        """(B, d_old), (B, d_new) embeddings and (B,) top probability of the old classifier."""
        with torch.inference_mode():
            pixels = pixels_to_float(torch.from_numpy(pixels_BSSC).to(self._device))
            old, logits = self._old(pixels)
            score = logits.softmax(1).amax(1)
            return tuple(tensor.cpu().numpy() for tensor in (old, self._new.embed(pixels), score))


def split_rows(source: ImageSource, split: str, train_classes: list[int]) -> NDArray[np.int64]:
    """The rows of a split that are embedded: of the train split those of ``train_classes``, else all."""
    items = source.items(split)
    return training_rows(items.labels_N, train_classes) if split == "train" else np.arange(len(items))


def _parts(source: ImageSource, train_classes: list[int], part_rows: int) -> Iterator[_Part]:
    for split in source.splits:
        n_rows = len(split_rows(source, split, train_classes))
        for number, start in enumerate(range(0, n_rows, part_rows)):
            yield _Part(split, number, start, min(start + part_rows, n_rows))


def _collect_broken(folder: Path, parts: list[_Part]) -> pa.Table:
    """All broken images as a table (split, id, reason); checks that every row of every part is accounted for."""
    found: list[tuple[str, int, str]] = []
    for part in parts:
        metadata = pq.read_metadata(part.path(folder))
        broken = json.loads(metadata.metadata[_BROKEN])
        if metadata.num_rows + len(broken) != len(part):
            raise RuntimeError(f"{part.path(folder)} has lost rows: {metadata.num_rows} + {len(broken)} broken")
        found += [(part.split, image_id, reason) for image_id, reason in broken]
    columns = list(zip(*found, strict=True)) or [(), (), ()]
    types = {"split": pa.string(), "id": pa.int64(), "reason": pa.string()}
    return pa.table({name: pa.array(column, kind) for (name, kind), column in zip(types.items(), columns, strict=True)})
