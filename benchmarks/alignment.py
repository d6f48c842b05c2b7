"""How often rows that belong together are taken for rows of other items, and how often the reverse.

    python -m benchmarks.alignment FOLDER_OF_EMBEDDINGS ... [--samples 20] [--sizes 300 1000 3000 20000] [--honest]

Each folder holds embeddings of two models. Of its gallery, contiguous parts and random samples of several sizes are
judged as a run judges them: as they are, and with a new model that sees little of an item (16 and 4 random projections
of the new vectors); then with wrong rows: the new ones in another order, half of them, and all one row later. Prints,
for each folder and size, how many of the samples are stopped. --honest: leave the wrong rows out.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.data.alignment import check_alignment
from ray_backfill.data.folder import EmbeddingFolder, EmbeddingTable, read_folder

Vectors = NDArray[np.floating]
Change = Callable[[Vectors, np.random.Generator], Vectors]


def projected(dims: int) -> Change:
    def change(new: Vectors, rng: np.random.Generator) -> Vectors:
        return (new.astype(np.float32) - new.mean(axis=0, dtype=np.float32)) @ rng.normal(
            size=(new.shape[1], dims)
        ).astype(np.float32)

    return change


def half_in_another_order(new: Vectors, rng: np.random.Generator) -> Vectors:
    rows = np.arange(len(new))
    rows[len(new) // 2 :] = rng.permutation(rows[len(new) // 2 :])
    return new[rows]


HONEST: dict[str, Change] = {
    "as they are": lambda new, rng: new,
    "new in 16 dimensions": projected(16),
    "new in 4 dimensions": projected(4),
}
WRONG: dict[str, Change] = {
    "in another order": lambda new, rng: new[rng.permutation(len(new))],
    "half in another order": half_in_another_order,
    "one row later": lambda new, rng: np.roll(new, 1, axis=0),
}


def is_stopped(folder: EmbeddingFolder, table: EmbeddingTable, new: Vectors) -> bool:
    """Whether a run would stop. The queries take part if the gallery is as it was."""
    queries = folder.queries if new is table.new else None
    gallery = replace(table, vectors={"old": table.old, "new": new})
    try:
        check_alignment(EmbeddingFolder(folder.path, gallery, queries, None))
    except InputError:
        return True
    return False


def measure(folder: EmbeddingFolder, size: int, samples: int, changes: dict[str, Change]) -> dict[str, int]:
    """What was done to the new vectors -> how many of the samples were stopped. Every second one is contiguous."""
    stopped, n = dict.fromkeys(changes, 0), len(folder.gallery)
    for seed in range(samples):
        rng = np.random.default_rng(seed)
        first = rng.integers(n - size + 1)
        rows = np.arange(first, first + size) if seed % 2 else np.sort(rng.choice(n, size, replace=False))
        table = replace(folder.gallery.take(rows), rows=None)
        for name, change in changes.items():
            stopped[name] += is_stopped(folder, table, change(table.new, rng))
    return stopped


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--sizes", type=int, nargs="+", default=[300, 1000, 3000, 20_000])
    parser.add_argument("--honest", action="store_true")
    given = parser.parse_args(arguments)
    started = time.process_time()
    lines, changes = [], HONEST if given.honest else HONEST | WRONG
    for path in given.folders:
        folder = read_folder(path)
        for size in (each for each in given.sizes if each <= len(folder.gallery)):
            lines.append({"folder": path.name, "items": size} | measure(folder, size, given.samples, changes))
            print(lines[-1], flush=True)
    table = pd.DataFrame(lines)
    print(table.to_string(index=False))
    asked = given.samples * len(table)
    print(f"{(time.process_time() - started) / (asked * len(changes)):.2f} s of processor time a sample")
    for name in changes:
        print(f"{name}: {table[name].sum():,} of {asked:,} stopped")


if __name__ == "__main__":
    main()
