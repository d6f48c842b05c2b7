"""Rates for ``benchmarks.stream``: of the stream, and of both models alone in dedicated processes."""

import multiprocessing
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.processes import Sample
from ray_backfill.core.runkey import RunKey
from ray_backfill.core.stages import begin_stage, finish_stage
from ray_backfill.images.datasets import landmarks, open_images
from ray_backfill.recipes import load_recipe

BATCH, _WARM_UP_S = 256, 2.0
# Target of the stream: a share of the images per second of the models alone.
LIMIT = 0.85


@dataclass(frozen=True)
class Streamed:
    """samples: memory samples. parts: (seconds from the start, images) of each gallery part, by finishing time."""

    samples: list[Sample]
    parts: list[tuple[float, int]]


def steady(parts: Sequence[tuple[float, int]], actors: int) -> float:
    """Images per second from the time each actor has finished a part to the last part, without Ray's start-up."""
    if len(parts) <= actors:
        return float("nan")
    seconds = parts[-1][0] - parts[actors - 1][0]
    return sum(images for _, images in parts[actors:]) / max(seconds, 1e-9)


@dataclass(frozen=True)
class Bare:
    """Images per second of dedicated processes. forward: decoded pixels through both models.

    loop: the same with rendering, in one process per core. ..._us: microseconds of CPU time per image, which other load
    on the machine affects less. configuration: processes x threads of the faster setup.
    """

    configuration: str
    forward: float
    forward_us: float
    loop: float
    loop_us: float


def data_of(images: int) -> landmarks.Settings:
    """A gallery of this size, with minimal other splits."""
    images_of_recipe: landmarks.Settings = load_recipe("landmarks").images
    return replace(images_of_recipe, gallery_images=images, train_images=200, queries=200)


def make_backbones(out: Path) -> dict[str, Path]:
    """Both networks of the recipe, with weights initialised from their seeds."""
    import torch

    from ray_backfill.learn.models.backbones import BackboneInfo, save_backbone

    recipe = load_recipe("landmarks")
    folders = {}
    for name, model in (("old", recipe.old), ("new", recipe.new)):
        folders[name] = out / "backbones" / name
        if not begin_stage(folders[name], RunKey("backbone", {"untrained": name})):
            torch.manual_seed(model.training.seed)
            info = BackboneInfo(model.backbone, 3, recipe.images.image_size, list(range(recipe.images.landmarks)))
            save_backbone(folders[name], info.build().eval(), info)
            finish_stage(folders[name])
    return folders


def bare_rates(models: dict[str, Path], data: landmarks.Settings, cores: int, seconds: float) -> Bare:
    """The faster of two setups: one single-threaded process per core, or one process with all threads."""
    found = []
    for processes, threads in {(cores, 1), (1, cores)}:
        found.append((_together(models, data, processes, threads, seconds, render=False), processes, threads))
    forward, processes, threads = max(found)
    loop = _together(models, data, cores, 1, seconds, render=True)  # rendering is single-threaded
    return Bare(f"{processes} x {threads}", *forward, *loop)


def _together(
    models: dict[str, Path], data: landmarks.Settings, processes: int, threads: int, seconds: float, render: bool
) -> tuple[float, float]:
    """Images per second of all processes, and microseconds of CPU time per image."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(processes), context.Queue()
    workers = [
        context.Process(target=_forward, args=(models, data, threads, seconds, render, barrier, results))
        for _ in range(processes)
    ]
    for worker in workers:
        worker.start()
    rates, cpu_s = zip(*(results.get() for _ in workers), strict=True)
    for worker in workers:
        worker.join()
    return float(sum(rates)), 1e6 * float(np.average(cpu_s, weights=rates))


def _forward(
    models: dict[str, Path],
    data: landmarks.Settings,
    threads: int,
    seconds: float,
    render: bool,
    barrier: Barrier,
    results: Any,
) -> None:
    """One process: batches through both models, newly rendered or the same ones repeatedly."""
    import torch

    from ray_backfill.learn.models.backbones import load_backbone, pixels_to_float

    torch.set_num_threads(threads)
    networks = [load_backbone(folder)[0] for folder in models.values()]
    source = open_images(data)
    batches = [np.arange(i, i + BATCH) % data.gallery_images for i in range(0, 16 * BATCH, BATCH)]
    decoded = [source.read("gallery", rows).pixels_BSSC for rows in batches]
    ends, images, cpu_s = None, 0, 0.0
    barrier.wait()
    started = time.perf_counter()
    with torch.inference_mode():
        for i in range(sys.maxsize):
            now = time.perf_counter()
            if ends is None and now >= started + _WARM_UP_S:
                started, ends, images, cpu_s = now, now + seconds, 0, time.process_time()
            if ends is not None and now >= ends:
                results.put((images / (now - started), (time.process_time() - cpu_s) / images))
                return
            rows = batches[i % len(batches)]
            uint8 = source.read("gallery", rows).pixels_BSSC if render else decoded[i % len(batches)]
            pixels = pixels_to_float(torch.from_numpy(uint8))
            for network in networks:
                network.embed(pixels)
            images += BATCH
