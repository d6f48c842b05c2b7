"""Items per second of one core, and cost of a million items, by stage: decode, embed, write, index, replay.

python -m benchmarks.stages                  # a minute or two on one core, 1 GB of memory
python -m benchmarks.stages --scale 0.02     # smoke test
python -m benchmarks.stages --files PATH     # also decodes the image files below PATH

All values are CPU time of one thread, without a GPU. The price of a core hour is an argument, not a measurement.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import faiss
import numpy as np
import pyarrow as pa
import torch

import ray_backfill as rb
from benchmarks.decoding import decoding
from benchmarks.galleries import D, header, row, synthetic
from benchmarks.serving import machine
from benchmarks.timing import cpu_s
from ray_backfill.core.errors import InputError
from ray_backfill.data.write import vector_column, write_parquet
from ray_backfill.engine.index import IndexSettings, make_partition
from ray_backfill.engine.systems import FloatArray
from ray_backfill.images.datasets import landmarks, open_images
from ray_backfill.learn.models.backbones import Backbone, pixels_to_float
from ray_backfill.learn.training.settings import BackboneSettings
from ray_backfill.recipes import load_recipe

# Number of queries that the retrieval track of Google Landmarks v2 scores.
_QUERIES = 1129
_BATCH, _PART = 256, 8192


@dataclass(frozen=True)
class Stage:
    """seconds: CPU time per item."""

    name: str
    what: str
    bound_by: str
    seconds: float


def landmark_stages() -> list[Stage]:
    """Rendering and both models of the recipe."""
    recipe, rows = load_recipe("landmarks"), np.arange(_BATCH)
    source = open_images(landmarks.Settings())
    found = [
        Stage(
            "decode", "rendered landmark of 32 x 32", "arithmetic", cpu_s(lambda: source.read("gallery", rows)) / _BATCH
        )
    ]
    images = pixels_to_float(torch.from_numpy(source.read("gallery", rows).pixels_BSSC))
    for name, model in (("old", recipe.old), ("new", recipe.new)):
        settings = model.backbone
        found.append(_embed(f"{name} model: {settings.arch} of width {settings.width}, 32 x 32", settings, images))
    return found


def large_stages() -> list[Stage]:
    """A network and an image size from the papers, which normally need a GPU."""
    images = torch.rand(16, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    return [_embed("resnet18, 224 x 224", BackboneSettings("resnet18"), images)]


def _embed(what: str, settings: BackboneSettings, images_BCSS: torch.Tensor) -> Stage:
    network = Backbone(settings, images_BCSS.shape[1], images_BCSS.shape[2], 200).eval()

    def run() -> None:
        with torch.inference_mode():
            network.embed(images_BCSS)

    return Stage("embed", what, "matrix products", cpu_s(run) / len(images_BCSS))


def write_stages() -> list[Stage]:
    """Writing one part with two models' embeddings."""
    rng = np.random.default_rng(0)
    found = []
    for dtype in ("float32", "float16"):
        vectors: dict[str, FloatArray] = {name: rng.normal(size=(_PART, D)).astype(dtype) for name in ("old", "new")}
        table = pa.table({"id": np.arange(_PART)} | {name: vector_column(v) for name, v in vectors.items()})
        with tempfile.TemporaryDirectory() as folder:
            took = cpu_s(lambda table=table, folder=folder: write_parquet(Path(folder) / "part.parquet", table)) / _PART  # type: ignore[misc]
            size = (Path(folder) / "part.parquet").stat().st_size / _PART
        what = f"2 x {D} of {dtype} as Parquet, {size:,.0f} bytes"
        found.append(Stage("write", what, "compression", took))
    return found


def index_and_replay_stages(scale: float) -> list[Stage]:
    """Indexing one model's vectors, and a replay of one method and one order."""
    items = max(2000, int(200_000 * scale))
    case = synthetic(items, _QUERIES, max(2000, int(20_000 * scale)))
    vectors, train = np.asarray(case.embedded.gallery["new"], np.float32), case.train["new"]
    kinds = {"Flat": "copying", f"IVF{max(4, int(1024 * scale))},Flat": "distances to the lists' centres"}
    found = []
    for kind, bound_by in kinds.items():

        def build(kind: str = kind) -> None:
            empty = make_partition(IndexSettings(kind), case.distance, D, train)
            empty.with_rows(vectors, np.arange(items))

        found.append(Stage("index", f"{kind} of {items:,} x {D}", bound_by, cpu_s(build, runs=1) / items))
    order = np.random.default_rng(1).permutation(items)

    def run() -> None:
        rb.replay(case.pair, case.truth, order, 11, ("mAP@100",), case.distance, threads=1)

    what = f"one method, one order, {_QUERIES:,} queries x {items:,}, mAP@100"
    return [*found, Stage("replay", what, "matrix products", cpu_s(run, runs=1) / items)]


def print_table(stages: list[Stage], price: float) -> None:
    """Print rates, and the cost of a million items, as Markdown."""
    print(f"\n## Stage by stage\n\nOne core, CPU time; a core hour at {price:g} $.\n")
    header("stage", "what", "items/s a core", "bound by", "CPU s a million", "core hours a million", "$ a million")
    for stage in stages:
        per_million = 1e6 * stage.seconds
        row(stage.name, stage.what, f"{1 / stage.seconds:,.0f}", stage.bound_by, f"{per_million:,.1f}",
            f"{per_million / 3600:,.3f}", f"{per_million / 3600 * price:,.4f}")  # fmt: skip


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on all sizes")
    parser.add_argument("--images", type=int, default=16, help="number of photographs to decode per size")
    parser.add_argument("--files", type=Path, help="folder of image files, such as Omniglot's")
    parser.add_argument("--price", type=float, default=0.05, help="dollars per core hour (an assumption)")
    return parser.parse_args(words)


def run(arguments: argparse.Namespace) -> list[Stage]:
    stages: list[Stage] = []
    parts: tuple[Callable[[], list[Stage]], ...] = (
        landmark_stages,
        large_stages,
        write_stages,
        lambda: index_and_replay_stages(arguments.scale),
    )
    decoded = decoding(max(2, int(arguments.images * min(1, 5 * arguments.scale))), arguments.files)
    stages += [Stage("decode", name, most, took) for name, (took, most) in decoded.items()]
    for part in parts:
        stages += part()
    order = ("decode", "embed", "write", "index", "replay")
    return sorted(stages, key=lambda stage: order.index(stage.name))


def main() -> None:
    arguments = parse()
    print(f"{machine()}\n\n    python -m benchmarks.stages {' '.join(sys.argv[1:])}".rstrip())
    since = time.perf_counter()
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    try:
        print_table(run(arguments), arguments.price)
    except InputError as error:
        sys.exit(f"error: {error}")
    print(f"\n{(time.perf_counter() - since) / 60:.1f} minutes")


if __name__ == "__main__":
    main()
