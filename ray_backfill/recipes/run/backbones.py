"""Trains a backbone with Ray Train: DDP, a checkpoint per epoch, resumed after a stop."""

import hashlib
import math
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ray_backfill.core.errors import InputError
from ray_backfill.core.job import TrainedEpoch, job_name, report
from ray_backfill.core.progress import Task, say, task
from ray_backfill.core.runkey import RunKey
from ray_backfill.core.stages import begin_stage, finish_stage, is_finished, read_json, remove_folder, write_json
from ray_backfill.core.store_path import path_of
from ray_backfill.images.datasets import open_images
from ray_backfill.images.source import ImageSource
from ray_backfill.learn.methods import all_backbones
from ray_backfill.learn.models.backbones import BackboneInfo, embed_macs, embed_parameters, load_backbone, save_backbone
from ray_backfill.learn.models.gather import rank_and_size
from ray_backfill.learn.training.backbone_loop import Epoch, images_per_worker, step_cost, train_backbone, training_rows
from ray_backfill.learn.training.batches import feeding
from ray_backfill.learn.training.objective import Classification, OldModel
from ray_backfill.learn.training.settings import BackboneSettings, BackboneTraining
from ray_backfill.workers.decoders import source_for
from ray_backfill.workers.gpus import smallest_gpu
from ray_backfill.workers.progress import sent_to, shown_in
from ray_backfill.workers.session import placed, session
from ray_backfill.workers.settings import Workers, number_of, threads_of
from ray_backfill.workers.trackers import tracked
from ray_backfill.workers.train import run_ddp

# Share of the time spent waiting for pixels above which it is reported.
_WAITS = 0.1
# Folder of Ray Train's checkpoints within the stage. They go when the network is there.
_STORAGE = ".ray"
_CHECKPOINT = RunKey("checkpoint")


@dataclass(frozen=True)
class BackboneJob:
    """What to train. title: for the terminal. data: the ``Settings`` of a source. classes: its classes to train on.

    kind: name of a ``BackboneKind``; empty: a plain classifier, as for old and new. old: folder of the trained old
    backbone, for kinds that need it.
    """

    title: str
    data: Any
    classes: list[int]
    backbone: BackboneSettings
    training: BackboneTraining
    kind: str = ""
    old: Path | None = None

    def key(self, source: ImageSource) -> RunKey:
        """What determines the trained network."""
        plain = {
            "data": source.fingerprint(),
            "classes": self.classes,
            "backbone": asdict(self.backbone),
            "training": asdict(self.training),
        }
        kind = {"kind": self.kind} if self.kind else {}
        old = {"old": backbone_identity(self.old)} if self.kind and self.old else {}
        return RunKey("backbone", plain | kind | old)


def train_backbone_stage(folder: Path, job: BackboneJob, workers: Workers, overwrite: bool = False) -> Path:
    """Train a backbone into ``folder``, on storage that all nodes share; does nothing if it is already there.

    overwrite: replace a backbone of other settings.

    Returns: the folder, for ``load_backbone``. Its manifest contains the ``history`` of the epochs, the
    ``training_flops`` of all workers, the cost of one embedding (``macs``, ``parameters``), and in ``feeding`` what
    limited the rate of the first worker.

    Raises:
        InputError: The folder belongs to other settings, or the data cannot be trained on.
    """
    source, training, title = open_images(job.data), job.training, job.title
    key = job.key(source)
    rows = training_rows(source.items("train").labels_N, job.classes)
    images_per_worker(len(rows), job.classes, training, number_of(workers))  # fail before the workers start
    if begin_stage(folder, key, overwrite):
        return folder
    name, to_tracker = job_name("train", folder.name), tracked(folder.parents[1], workers.log_to)
    with to_tracker, session(), task(f"train {title}", unit="steps") as shown, shown_in(shown) as board:
        number, on_gpu = placed(workers)
        if on_gpu:
            check_memory_of_gpus(job, source, len(rows), number)
        threads, lent = threads_of(workers), workers.decode_cpus
        config = {"job": job, "folder": str(folder), "threads": threads, "lent": lent, "board": board, "name": name}
        facts = run_ddp(_worker, config, replace(workers, number=number), name, folder / _STORAGE)
    if facts.get("feeding", {}).get("limit") == "decode":
        say(f"train {title}: {facts['feeding']['bottleneck']}")
    if not math.isfinite(facts["history"][-1]["loss"]):
        raise InputError(f"training the {title} diverged (its loss is not finite); lower its lr and give --overwrite")
    finish_stage(folder, facts)
    remove_folder(folder / _STORAGE)  # the checkpoints are no longer needed
    return folder


def info_of(job: BackboneJob, source: ImageSource) -> BackboneInfo:
    """What the backbone of a job will be."""
    size, scale = (source.channels, source.image_size), job.training.cosine_scale
    return BackboneInfo(job.backbone, *size, job.classes, cosine_scale=scale)


def check_memory_of_gpus(
    job: BackboneJob, source: ImageSource, n_rows: int, workers: int, old: BackboneInfo | None = None
) -> None:
    """Raise InputError if a batch does not fit into the memory of the smallest GPU.

    old: what the old backbone will be, for kinds that need it, if it is not trained yet.
    """
    training, kind = job.training, all_backbones().get(job.kind)
    if job.old:
        old = load_backbone(job.old)[1]
    info = info_of(job, source)
    images = images_per_worker(n_rows, job.classes, training, workers)
    cost = step_cost(info, training, images * workers, kind.objective if kind else Classification, old)
    needed, there = cost.gpu_bytes(images), smallest_gpu()
    if there and needed > there:
        fits = cost.images_in(there)
        remedy = "choose a smaller architecture"
        if fits > 1:
            smaller = f"lower its batch to {fits * workers:,} (BatchNorm then sees fewer images)"
            remedy = f"{smaller}, or use {-(-images * workers // fits)} GPUs"
        raise InputError(
            f"training the {job.title} needs about {needed / 1e9:.1f} GB on each GPU for {images:,} images at a time, "
            f"and the smallest has {there / 1e9:.1f} GB, for {fits:,}; {remedy}"
        )


def backbone_identity(folder: Path) -> dict[str, Any]:
    """The identity of a trained backbone: its training settings and a hash of its weights."""
    weights = hashlib.blake2b((folder / "model.safetensors").read_bytes(), digest_size=12).hexdigest()
    return read_json(folder / "manifest.json")["settings"] | {"weights": weights}


def whole_checkpoint(storage: Path, newest: str | None) -> Path | None:
    """The newest checkpoint of a training that is whole; None if there is none.

    Ray does not wait until a checkpoint is on the disk, so a power cut may empty the last ones. storage: their folder.
    newest: name of the last one that Ray knows, if any.
    """
    if newest and is_finished(storage / newest):
        return storage / newest
    return next((path for path in sorted(storage.glob("checkpoint_*"), reverse=True) if is_finished(path)), None)


def _worker(config: dict[str, Any]) -> dict[str, Any]:
    """Runs on every DDP worker; the first one reports progress."""
    with sent_to(config["board"], rank_and_size()[0] == 0), task("train", unit="steps") as shown:
        return _train(config, shown)


def _train(config: dict[str, Any], shown: Task) -> dict[str, Any]:
    """Train; rank 0 reports checkpoints and writes the finished network."""
    import ray.train.torch  # takes more than a second, and embedding actors import this module

    job: BackboneJob = config["job"]
    threads, lent = config["threads"], config["lent"]
    source, training = source_for(job.data, threads, lent), job.training
    info = info_of(job, source)
    rows = training_rows(source.items("train").labels_N, job.classes)
    is_first = rank_and_size()[0] == 0
    history: list[dict[str, float]] = []

    def on_epoch(epoch: Epoch) -> None:
        metrics = {"epoch": epoch.epoch, "loss": epoch.loss, "accuracy": epoch.accuracy, **epoch.shares}
        history.append(metrics)
        report(TrainedEpoch(path_of(config["folder"]), epoch.epoch, metrics | {"items_per_s": epoch.images_per_s}))
        if not is_first:
            ray.train.report(metrics)
            return
        with tempfile.TemporaryDirectory() as temporary:
            begin_stage(Path(temporary), _CHECKPOINT)
            epoch.save(Path(temporary))
            write_json(Path(temporary) / "history.json", {"epochs": history})
            finish_stage(Path(temporary))
            ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(temporary))
        waits = f", waits for pixels {100 * epoch.waited:.0f} %" if epoch.waited > _WAITS else ""
        shares = {"accuracy": epoch.accuracy, **epoch.shares}
        quality = ", ".join([f"loss {epoch.loss:.2f}", *(f"{name} {100 * of:.0f} %" for name, of in shares.items())])
        shown.note(f"epoch {epoch.epoch} of {training.epochs}, {quality}{waits}")

    objective = all_backbones()[job.kind].objective if job.kind else Classification
    old = OldModel(*load_backbone(job.old)) if job.old else None
    newest = ray.train.get_checkpoint()
    storage = path_of(config["folder"]) / _STORAGE / config["name"]
    resume_from = whole_checkpoint(storage, Path(newest.path).name if newest else None)
    if resume_from:
        history += read_json(resume_from / "history.json")["epochs"]
    device = ray.train.torch.get_device()
    done = train_backbone(
        source, rows, info, training, device, resume_from, on_epoch, objective, old, threads + lent, shown
    )
    if is_first:
        save_backbone(path_of(config["folder"]), done.network, info)
    fed = feeding(done.work, threads + lent, device.type == "cuda", lent)
    return {
        "images": len(rows),
        "broken_images": len(done.broken),
        "history": history,
        "workers": rank_and_size()[1],
        "training_flops": done.flops,
        "macs": embed_macs(done.network, info.channels, info.image_size),
        "parameters": embed_parameters(done.network),
    } | ({"feeding": fed.facts()} if fed else {})
