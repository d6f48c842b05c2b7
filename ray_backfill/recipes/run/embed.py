"""Streams images through embedding actors with Ray Data: one decode for all models, Parquet part files as the result.

The rows of a split are divided into parts of a fixed size. An actor decodes and embeds one part at a time and writes
it atomically. So a finished part is never embedded twice, whatever fails in between, and only a few numbers travel
through Ray. Further views of train images are made from the same decoded pixels and stored in files of their own.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import task
from ray_backfill.core.runkey import RunKey
from ray_backfill.core.schema import open_checked
from ray_backfill.core.stages import begin_stage, finish_stage, is_finished, read_json, remove_halves
from ray_backfill.core.store_path import path_of
from ray_backfill.data.write import vector_column, write_parquet
from ray_backfill.images.datasets import open_images
from ray_backfill.images.reading import DecodeTimes, read_ahead, require_readable
from ray_backfill.learn.models.backbones import embedding, load_backbone, pixels_to_float
from ray_backfill.learn.training.backbone_loop import training_rows
from ray_backfill.learn.training.batches import Work, feeding, own_view, total
from ray_backfill.learn.training.settings import BackboneTraining
from ray_backfill.recipes import EmbedSettings
from ray_backfill.recipes.run.backbones import backbone_identity
from ray_backfill.workers.decoders import source_for
from ray_backfill.workers.session import embedded_parts, placed, session
from ray_backfill.workers.settings import EmbedActors, number_of, threads_of
from ray_backfill.workers.watch import BROKEN, EMBEDDED, Watch

_BROKEN = b"broken_images"  # metadata of a part: JSON list of [id, reason]
_Outputs = dict[str, NDArray[Any]]  # of a batch or a part: column -> (B,) or (B, d)


@dataclass(frozen=True)
class EmbedPart:
    """Rows start .. stop - 1 of the embedded ones of a split, stored in one file, and one for each further view."""

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


@dataclass(frozen=True)
class EmbedRequest:
    """What to embed, as paths and settings without weights.

    data: the ``Settings`` of a source. models: name -> folder of a trained backbone, including "old" and "new"; each
    becomes a column of vectors. train_classes: only images of these classes (those of the new model) become the train
    split. training: of the new model; its augmentation and its seed make the views. gallery_models: models that embed
    the gallery, including "old"; None: all. only: ids of the gallery items to embed, instead of all splits.
    """

    data: Any
    models: Mapping[str, Path]
    train_classes: list[int]
    training: BackboneTraining
    settings: EmbedSettings
    gallery_models: Sequence[str] | None = None
    only: Sequence[int] = ()

    def key(self) -> RunKey:
        """What determines the embeddings."""
        wanted: dict[str, Any] = {
            "data": open_images(self.data).fingerprint(),
            "train_classes": self.train_classes,
            "models": {name: backbone_identity(path) for name, path in self.models.items()},
            "embed": asdict(self.settings),
        }
        if self.only:
            wanted["only"] = list(self.only)
        if self.settings.views > 1:
            wanted["views"] = {"augmentation": asdict(self.training.augmentation), "seed": self.training.seed}
        if self.gallery_models is not None:
            wanted["gallery_models"] = list(self.gallery_models)
        return RunKey("embeddings", wanted)

    def rows(self, split: str) -> NDArray[np.int64]:
        """The rows of a split that are embedded. Raises InputError if the gallery lacks an id of ``only``."""
        items = open_images(self.data).items(split)
        if self.only:
            lacking = np.setdiff1d(self.only, items.ids_N)
            if len(lacking):
                raise InputError(
                    f"the {split} lacks {len(lacking):,} listed ids, such as {lacking[0]}; use the same images"
                )
            return np.flatnonzero(np.isin(items.ids_N, self.only))
        return training_rows(items.labels_N, self.train_classes) if split == "train" else np.arange(len(items))

    def parts(self) -> Iterator[EmbedPart]:
        """The rows to embed, divided into parts."""
        size = self.settings.part_rows
        for split in ("gallery",) if self.only else open_images(self.data).splits:
            n_rows = len(self.rows(split))
            views = self.settings.views if split == "train" else 1
            for number, start in enumerate(range(0, n_rows, size)):
                yield EmbedPart(split, number, start, min(start + size, n_rows), views)


def embed_stage(folder: Path, request: EmbedRequest, actors: EmbedActors, overwrite: bool = False) -> Path:
    """Embed all splits of a data set with all models into a folder of the data contract (see ``data.folder``).

    The old classifier adds its top probability (``old_score``), entropy in nats (``old_entropy``), lead of the first
    class over the second (``old_margin``) and label of the first class (``old_class``). The new classifier is stored as
    ``classifier.parquet`` (label, weight, bias). Broken images are left out and listed in ``broken.parquet``. Further
    views of the train images (``settings.views`` in all), random but equal for all models: ``train_views.parquet``.

    folder: on storage that all nodes share. overwrite: replace other embeddings.

    Raises:
        InputError: The folder belongs to other settings or weights, the cluster is too small, or none of some sampled
            images of a split can be read.
    """
    key = request.key()
    if _holds_more(folder, key) or begin_stage(folder, key, overwrite):
        return folder
    parts = list(request.parts())
    there = set(folder.glob("*/*.parquet"))
    missing = [part for part in parts if not there.issuperset(part.paths(folder))]
    images = sum(len(part) for part in parts)
    facts: dict[str, Any] = {}
    if missing:
        require_readable(open_images(request.data))
        with session():
            number, on_gpu = placed(actors)
            job = _ImagesJob(request, str(folder), threads_of(actors), on_gpu, actors.decode_cpus)
            pool, works = replace(actors, number=min(number, len(missing))), list[Work]()
            left = sum(len(part) for part in missing)
            since, fed = time.perf_counter(), None
            with closing(Watch()) as watch, task("embed", images, "images", done=images - left) as bar:
                for row in embedded_parts(_ImageEmbedder, job, [asdict(part) for part in missing], pool, on_gpu):
                    works.append(Work(**row))
                    bar.advance(works[-1].images)
                    watch.count(EMBEDDED, works[-1].images - works[-1].broken)
                    watch.count(BROKEN, works[-1].broken)
                    fed = feeding(total(works), job.decoders, on_gpu, job.lent)
                    if fed:
                        bar.note(f"{fed.limit}-bound")
                if fed:
                    bar.note(fed.sentence())
            if fed:
                rate = round(left / (time.perf_counter() - since), 1)
                facts = {"feeding": {"actors": number_of(pool), "images_per_s": rate} | fed.facts()}
    broken: list[dict[str, Any]] = []
    for part in parts:  # every row of every part must be accounted for
        metadata = [open_checked(path).metadata for path in part.paths(folder)]
        of_part = json.loads(metadata[0].metadata[_BROKEN])
        for path, of_file in zip(part.paths(folder), metadata, strict=True):
            if of_file.num_rows + len(of_part) != len(part):
                raise RuntimeError(f"{path} has lost rows: {of_file.num_rows} + {len(of_part)} broken")
        broken += [{"split": part.split, "id": image_id, "reason": reason} for image_id, reason in of_part]
    types = pa.schema({"split": pa.string(), "id": pa.int64(), "reason": pa.string()})
    write_parquet(folder / "broken.parquet", pa.Table.from_pylist(broken, types))
    write_parquet(folder / "classifier.parquet", _classifier(request.models["new"]))
    remove_halves(folder)
    finish_stage(folder, {"images": images - len(broken), "broken_images": len(broken)} | facts)
    return folder


def _classifier(backbone: Path) -> pa.Table:
    """A backbone's classifier as plain data; for a cosine classifier, normalised weights and bias 0."""
    network, info = load_backbone(backbone)
    weight_Cd, bias = network.classifier.weight.detach(), network.classifier.bias
    if network.cosine_scale is not None:
        weight_Cd = F.normalize(weight_Cd, dim=1)
    bias_C = torch.zeros(len(weight_Cd)) if bias is None else bias.detach()
    return pa.table(
        {
            "label": pa.array(info.classes, pa.int64()),
            "weight": vector_column(weight_Cd.numpy()),
            "bias": pa.array(bias_C.numpy()),
        }
    )


def _holds_more(folder: Path, wanted: RunKey) -> bool:
    """Whether the folder is finished and contains the embeddings of these models, and possibly of others."""
    if not is_finished(folder):
        return False
    manifest, models = read_json(folder / "manifest.json"), wanted.settings["models"]
    settings = manifest["settings"]
    there = {name: identity for name, identity in settings.get("models", {}).items() if name in models}
    return not wanted.difference(manifest | {"settings": settings | {"models": there}})


@dataclass(frozen=True)
class _ImagesJob:
    """Input of every actor. threads: own ones. lent: further CPUs, on any node, that decode for it."""

    request: EmbedRequest
    folder: str
    threads: int
    on_gpu: bool
    lent: int = 0

    @property
    def decoders(self) -> int:
        """Number of batches' shares that are decoded at a time."""
        return self.threads + self.lent


class _ImageEmbedder:
    """One actor: the models and the source stay loaded; each call embeds and writes a part."""

    def __init__(self, job: _ImagesJob) -> None:
        request = self._request = job.request
        self._job, self._source = job, source_for(request.data, job.threads, job.lent)
        self._device = torch.device("cuda" if job.on_gpu else "cpu")
        torch.set_num_threads(job.threads)
        self._models = {name: load_backbone(path)[0].to(self._device) for name, path in request.models.items()}
        self._old_classes = torch.tensor(load_backbone(request.models["old"])[1].classes, device=self._device)

    def __call__(self, part: dict[str, Any]) -> dict[str, Any]:
        try:
            return asdict(self._make(EmbedPart(**part))) | {"problem": ""}
        except InputError as error:
            return asdict(Work()) | {"problem": str(error)}

    def _make(self, part: EmbedPart) -> Work:
        """Embed a part and write it; returns the work done."""
        decoding, started, started_cpu = DecodeTimes(), time.perf_counter(), time.process_time()
        tables = self._embed(part, decoding)
        embedded, embedded_cpu = time.perf_counter(), time.thread_time()
        for path, table in zip(part.paths(path_of(self._job.folder)), tables, strict=True):
            write_parquet(path, table)
        return Work(
            images=len(part),
            broken=len(part) - len(tables[0]),
            model_s=embedded - started - decoding.wait_s,
            write_s=time.perf_counter() - embedded,
            write_cpu_s=time.thread_time() - embedded_cpu,
            cpu_s=time.process_time() - started_cpu,
            **asdict(decoding),
        )

    def _embed(self, part: EmbedPart, decoding: DecodeTimes) -> list[pa.Table]:
        """The tables of a part's files."""
        split, size = part.split, self._request.settings.batch
        items = self._source.items(split)
        rows = self._request.rows(split)[part.start : part.stop]
        batches = [rows[i : i + size] for i in range(0, len(rows), size)]
        kept_rows, outputs, broken = [], [], []
        of_views: list[list[_Outputs]] = [[] for _ in range(1, part.views)]
        models = (self._request.gallery_models if split == "gallery" else None) or tuple(self._models)
        for of_batch, pixels in read_ahead(self._source, split, batches, self._job.decoders, decoding):
            kept = np.setdiff1d(np.arange(len(of_batch)), list(pixels.broken))
            broken += [[int(items.ids_N[of_batch[i]]), reason] for i, reason in pixels.broken.items()]
            kept_rows.append(of_batch[kept])
            if len(kept):
                outputs.append(self._forward(pixels.pixels_BSSC[kept], models))
                for view, of_view in enumerate(of_views, 1):
                    of_view.append(self._forward_view(pixels.pixels_BSSC[kept], items.ids_N[of_batch[kept]], view))
        rows = np.concatenate(kept_rows)
        if not outputs:  # all images are broken: no rows, but the same columns as the other parts
            size_1 = np.zeros((1, self._source.image_size, self._source.image_size, self._source.channels), np.uint8)
            outputs = [{name: values[:0] for name, values in self._forward(size_1, models).items()}]
            of_views = [[{name: outputs[0][name] for name in models}] for _ in of_views]
        ids = {"id": pa.array(items.ids_N[rows])}
        columns = ids | {"label": pa.array(items.labels_N[rows])} | self._columns(outputs)
        for name, numbers_N in (("group", items.groups_N), ("camera", items.cameras_N)):
            if numbers_N is not None:
                columns[name] = pa.array(numbers_N[rows])
        if items.positives_N is not None:
            columns["positives"] = items.positives_N.take(pa.array(rows))
        if (names := self._source.names(split, rows)) is not None:
            columns["name"] = pa.array(names, pa.string())
        table = pa.table(columns).replace_schema_metadata({_BROKEN: json.dumps(broken)})
        return [table, *(pa.table(ids | self._columns(of_view)) for of_view in of_views)]

    def _columns(self, outputs: Sequence[_Outputs]) -> dict[str, pa.Array]:
        """The outputs of all batches, joined: embeddings as vectors in the store's number format."""
        columns, dtype = {}, self._request.settings.dtype
        for name in outputs[0]:
            values = np.concatenate([output[name] for output in outputs])
            columns[name] = vector_column(values.astype(dtype)) if values.ndim == 2 else pa.array(values)
        return columns

    def _forward(self, pixels_BSSC: NDArray[np.uint8], models: Sequence[str]) -> _Outputs:
        """(B, d) embeddings of these models by name, including "old", and (B,) outputs of the old classifier."""
        with embedding():
            pixels = pixels_to_float(torch.from_numpy(pixels_BSSC).to(self._device))
            old, logits = self._models["old"](pixels)
            columns = {"old": old}
            columns |= {name: self._models[name].embed(pixels) for name in models if name != "old"}
            p_BC = logits.softmax(1)
            top_B2 = p_BC.topk(2, dim=1)
            columns["old_score"] = top_B2.values[:, 0]
            columns["old_entropy"] = torch.special.entr(p_BC).sum(1)
            columns["old_margin"] = top_B2.values[:, 0] - top_B2.values[:, 1]
            columns["old_class"] = self._old_classes[top_B2.indices[:, 0]]
            return {name: tensor.cpu().numpy() for name, tensor in columns.items()}

    def _forward_view(self, pixels_BSSC: NDArray[np.uint8], ids_B: NDArray[np.int64], view: int) -> _Outputs:
        """(B, d) embeddings of a further view of these images by every model."""
        how = self._request.training
        with embedding():
            pixels = pixels_to_float(torch.from_numpy(pixels_BSSC).to(self._device))
            changed = own_view(pixels, how.augmentation, ids_B, view, how.seed)
            return {name: model.embed(changed).cpu().numpy() for name, model in self._models.items()}
