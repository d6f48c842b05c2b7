"""What streaming through actors costs: the rate of ``embed_items`` beside that of the bare model in one process.

    python -m benchmarks.embedding MODEL SOURCE [--images] [--actors 2] [--most N]

MODEL: words of a model (docs/models.md). SOURCE: texts or, with --images, a folder of images. The bare model embeds the
same parts in the same batches with as many threads as all actors have together, and reads or tokenises as they do.
Prints items per second of wall time and of CPU time, of both; the actors' start is not counted, and told.
"""

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from ray_backfill.core.stages import read_json
from ray_backfill.encode.encoder import Device
from ray_backfill.encode.items import ItemSettings, ItemSources, write_items
from ray_backfill.encode.kinds import load_model, parse_spec
from ray_backfill.encode.part import EncodeRequest, embed_part
from ray_backfill.encode.stage import embed_items
from ray_backfill.workers.settings import EmbedActors


def cpu_s() -> float:
    """CPU seconds of this process and of all that it started and that live."""
    found = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        found += times.user + times.system
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("source")
    parser.add_argument("--images", action="store_true")
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--part-rows", type=int, default=250)
    given = parser.parse_args()
    modality, spec = "image" if given.images else "text", parse_spec(given.model)
    with TemporaryDirectory() as scratch:
        settings = ItemSettings(part_rows=given.part_rows, draw_queries=10, draw_train=0)
        items = write_items(Path(scratch) / "items", ItemSources(modality, given.source), settings)
        request = EncodeRequest(items, modality, {"new": spec})
        model = load_model(spec, modality, Device("cpu", given.actors))
        began, cpu, done = time.perf_counter(), cpu_s(), 0
        for split, path in request.parts():
            done += len(embed_part(path, split, {"new": model}, given.actors))
        bare, bare_cpu = done / (time.perf_counter() - began), done / (cpu_s() - cpu)
        print(f"bare: {done:,} {modality}s, {bare:.1f} per second, {bare_cpu:.1f} per CPU second", flush=True)
        del model
        folder = embed_items(Path(scratch) / "e", request, EmbedActors(number=given.actors))
        facts = read_json(folder / "manifest.json")["embedding"]
        print(
            f"{facts['actors']} actors: {facts['items']:,} {modality}s, {facts['items_per_s']:.1f} per second without "
            f"{facts['start_s']:.1f} s of start; {facts['items_per_s'] / bare:.2f} of the bare rate"
        )


if __name__ == "__main__":
    main()
