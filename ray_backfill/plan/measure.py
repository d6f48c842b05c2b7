"""Times the stages of an embedding actor on a user's own items, one after the other, and what indexes take.

Each stage runs the code of ``encode.part.embed_part`` and of its actors, as one worker with their threads and GPU.
"""

import os
import platform
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import cycle
from math import inf, nan
from pathlib import Path
from time import perf_counter
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ray_backfill.core import __version__
from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import step, task
from ray_backfill.core.secrets import learn
from ray_backfill.core.stages import make_folder, remove_folder
from ray_backfill.core.store_path import path_of
from ray_backfill.data.columns import part_files
from ray_backfill.data.identity import stating
from ray_backfill.data.write import vector_column, write_parquet
from ray_backfill.encode.encoder import IMAGE, TEXT, Device, Model, by_length
from ray_backfill.encode.items import PLACE, ItemSettings, ItemSources, write_items
from ray_backfill.encode.kinds import all_kinds, load_model
from ray_backfill.encode.part import contents_of, embed_part
from ray_backfill.encode.spec import Spec
from ray_backfill.engine.replay import usable_cpus
from ray_backfill.engine.stack import expects_gpu
from ray_backfill.plan.builds import check_store, measure_faiss, measure_pgvector
from ray_backfill.plan.rates import TOGETHER, Rate, Rates
from ray_backfill.workers.settings import EmbedActors, threads_of

# Items that are cycled, at most.
_MOST = {TEXT: 4_000, IMAGE: 512}
_WINDOW_S, _WARM_UP_S = 5.0, 2.0
# A stage whose inputs take longer to make than the stage itself ends after so many times its seconds.
_MOST_TIMES = 3
# Items that were handled, and the seconds of the stage.
Call = Callable[[], tuple[int, float]]


@dataclass(frozen=True)
class MeasureSettings:
    """What is measured beside the stages, and for how long."""

    seconds: float = 60.0
    """Seconds for each stage, each kind of index, and its searches, after a warm-up."""
    store: str = ""
    """PostgreSQL with pgvector, postgresql://user@host/database, in which indexes are built, in a temporary table."""
    maintenance_work_mem: str = ""
    """Memory of a build in the store, such as 2GB; empty: as the server is set."""

    def __post_init__(self) -> None:
        learn(self.store)
        if not 0 < self.seconds < inf:
            raise InputError(f"--seconds must be a finite number above 0, got {self.seconds}")
        if self.store and not self.store.startswith(("postgresql://", "postgres://")):
            raise InputError(f"--store {self.store}: only PostgreSQL is measured: postgresql://user@host/database")
        if self.maintenance_work_mem and not self.store:
            raise InputError("--maintenance-work-mem is of a store; give --store, or leave it out")
        if self.maintenance_work_mem and not re.fullmatch(r"[1-9]\d* ?(kB|MB|GB)", self.maintenance_work_mem):
            raise InputError(f"--maintenance-work-mem is written as 64MB or 2GB, not {self.maintenance_work_mem!r}")


def measure(
    spec: Spec, sources: ItemSources, settings: MeasureSettings, items: ItemSettings, actors: EmbedActors,
    scratch: Path, command: str = "",
) -> Rates:  # fmt: skip
    """Measure in this process or, with RAY_ADDRESS, as one task on that cluster.

    scratch: a folder on the disk that a run would write to, which is left as it was. Cost: the seconds of each of the
    four stages, of all together and, for each kind of index, of builds and searches.

    Raises:
        InputError: The items, the model or the store cannot be used, or the model is a service that charges.
    """
    actors.require_own_decoders()
    if all_kinds()[spec.kind].reads:
        raise InputError(
            f"{spec} is a service that charges for what it reads, and its limits set its pace; write price and limits "
            "in the section provider: of fleet.yaml instead"
        )
    if spec.kind == "cached":
        raise InputError(f"{spec} looks vectors up and embeds nothing; name the model that made them")
    make_folder(scratch)
    folder, threads = scratch / f".measure-{uuid4().hex[:12]}", threads_of(actors)
    with ExitStack() as at_the_end:
        at_the_end.callback(remove_folder, folder)
        write_items(folder / "items", sources, replace(items, draw_queries=1, draw_train=0))
        work = partial(_measure, spec, sources.modality, settings, folder, items.part_rows, threads, command)
        if os.environ.get("RAY_ADDRESS"):
            from ray_backfill.plan.ray import run_as_actor

            return run_as_actor(work, actors)
        return work("cuda" if expects_gpu() else "cpu")


def _measure(
    spec: Spec, modality: str, settings: MeasureSettings, folder: Path, part_rows: int, threads: int, command: str,
    device: str,
) -> Rates:  # fmt: skip
    with step("load the model"):
        model = load_model(spec, modality, Device(device, threads))
        identity = {"name": spec.recorded_name()} | model.identity()
    batches = _batches(part_files(folder / "items" / "gallery.parquet"), model.size, _MOST[modality])
    sample, part = pa.concat_tables(batches), folder / "part.parquet"
    write_parquet(part, _repeated(sample, part_rows))  # as large as those of a large collection
    with step("look at the items"):
        characters, tokens = _lengths(model, batches, threads)
    if settings.store:
        check_store(settings.store, model.dims, settings.maintenance_work_mem)
    order, embedded = cycle(range(len(batches))), dict[int, tuple[pa.Table, Any]]()

    def read() -> tuple[int, float]:
        began, table = perf_counter(), pq.read_table(part)
        for place in table.to_pylist() if modality == IMAGE else ():
            with suppress(OSError), path_of(place["image"]).open("rb") as file:  # told when it is decoded
                file.seek(place.get("offset") or 0)
                file.read(place.get("bytes") or -1)
        return len(table), perf_counter() - began

    def prepare() -> tuple[int, float]:
        began = perf_counter()
        table, _ = _prepared(model, batches[next(order)], threads)
        return len(table), perf_counter() - began

    def embed() -> tuple[int, float]:
        number = next(order)
        table, prepared = _prepared(model, batches[number], threads)
        began = perf_counter()
        vectors = model.vectors(prepared, "document", table["id"].to_pylist())
        took = perf_counter() - began
        embedded.setdefault(number, (table, vectors))
        return len(table), took

    stages = [_timed(work.__name__, work, settings.seconds) for work in (read, prepare, embed)]
    tables, of_batches = zip(*embedded.values(), strict=True)
    vectors, rows = np.concatenate(of_batches), pa.concat_tables(tables)
    rows = rows.drop_columns([name for name in PLACE if name in rows.column_names])
    rows = stating(_repeated(rows.append_column("new", vector_column(vectors)), part_rows), {"new": identity})

    def write() -> tuple[int, float]:
        began = perf_counter()
        write_parquet(folder / "written.parquet", rows)
        return len(rows), perf_counter() - began

    stages.append(_timed("write", write, settings.seconds))
    # Of about five seconds, so that a slow model ends.
    few = int(min(part_rows, max(model.size, 5 * stages[2].items_per_s)))
    write_parquet(folder / "few.parquet", _repeated(sample, few))

    def together() -> tuple[int, float]:
        began, table = perf_counter(), embed_part(folder / "few.parquet", "gallery", {"new": model}, threads)
        write_parquet(folder / "written.parquet", stating(table, {"new": identity}))
        return few, perf_counter() - began

    stages.append(_timed(TOGETHER, together, settings.seconds))
    vectors = vectors[vectors.any(axis=1)]  # zero vectors have no place in an index of cosines
    builds, searches = measure_faiss(vectors, settings.seconds) if len(vectors) else ([], [])
    if settings.store and len(vectors):
        more = measure_pgvector(settings.store, vectors, settings.seconds, settings.maintenance_work_mem)
        builds, searches = builds + more.builds, searches + more.searches
    machine = {"cpus": usable_cpus(), "threads": threads, "device": device, "processor": _processor()}
    machine |= {"system": platform.platform(), "python": platform.python_version(), "ray_backfill": __version__}
    return Rates(
        identity["name"], identity, modality, model.dims, tuple(stages), tuple(builds), tuple(searches), machine,
        datetime.now(UTC).isoformat(timespec="seconds"), command, characters, tokens,
    )  # fmt: skip


def _repeated(table: pa.Table, rows: int) -> pa.Table:
    """So many rows: the first ones, or all of them several times."""
    return table.take(pa.array(np.arange(rows) % len(table)))


def _batches(parts: Sequence[Path], size: int, most: int) -> list[pa.Table]:
    """Batches of items as actors make them of parts, of parts drawn at random, in a random order."""
    rng, batches = np.random.default_rng(0), list[pa.Table]()
    for number in rng.permutation(len(parts)):
        table = pq.read_table(parts[number])
        order = by_length(table[TEXT].to_pylist() if TEXT in table.column_names else range(len(table)))
        of_part = [table.take(order[first : first + size]) for first in range(0, len(order), size)]
        batches += [of_part[place] for place in rng.permutation(len(of_part))]
        if len(batches) * size >= most:
            break
    return batches[: max(1, most // size)]


def _prepared(model: Model, batch: pa.Table, threads: int) -> tuple[pa.Table, list[tuple[int, Any]]]:
    """The items that are not broken, and what the model takes of them."""
    contents, broken = contents_of(batch, threads)
    good = [row for row in range(len(batch)) if row not in broken]
    return batch.take(pa.array(good, pa.int64())), model.prepare([contents[row] for row in good], "document")


def _lengths(model: Model, batches: Sequence[pa.Table], threads: int) -> tuple[float, float]:
    """Characters and tokens of a text, with its prompt where the model adds it before its tokenizer; nan: unknown.

    Embeds one batch, by which the dimensions are known. Raises InputError if no item can be read.
    """
    items, characters, tokens = 0, 0, 0.0
    for batch in batches:
        table, prepared = _prepared(model, batch, threads)
        if len(table) and not items:
            model.vectors(prepared, "document")
        items += len(table)
        if items and TEXT not in table.column_names:
            return nan, nan
        characters += sum(map(len, table[TEXT].to_pylist())) if items else 0
        for _, of_batch in prepared:
            if count := getattr(model.encoder, "count_tokens", None):
                tokens += count(of_batch)
            else:  # of hf: and onnx:
                has_mask = hasattr(of_batch, "keys") and "attention_mask" in of_batch
                tokens += float(of_batch["attention_mask"].sum()) if has_mask else nan
    if not items:
        _, broken = contents_of(batches[0], threads)
        raise InputError(f"none of the items can be embedded: {next(iter(broken.values()))}")
    return characters / items, tokens / items


def _timed(stage: str, work: Call, seconds: float) -> Rate:
    """The rate of what is done again and again, after a warm-up of two seconds or a fifth of the time."""
    length, warm = min(_WINDOW_S, seconds / 4), perf_counter() + min(_WARM_UP_S, seconds / 5)
    work()
    while perf_counter() < warm:
        work()
    windows, until = [(0, 0.0)], perf_counter() + _MOST_TIMES * seconds
    with task(f"measure {stage} for {seconds:g} s", unit="items") as shown:
        while sum(took for _, took in windows) < seconds and perf_counter() < until:
            if windows[-1][1] >= length:
                windows.append((0, 0.0))
            items, took = work()
            windows[-1] = (windows[-1][0] + items, windows[-1][1] + took)
            shown.advance(items)
    if not (all_items := sum(items for items, _ in windows)):
        raise InputError(f"none of the items that were read in {seconds:g} s can be embedded; look at them")
    whole = [items / took for items, took in windows if items and took >= length / 2]  # the last one may be short
    return Rate(stage, all_items / sum(took for _, took in windows), tuple(whole))


def _processor() -> str:
    """The name of the processor, where the system tells it."""
    with suppress(OSError):
        if name := re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text()):
            return name[1]
    return platform.processor() or platform.machine()
