"""How much maps flatter themselves that are fitted on items of the gallery that they serve.

    python -m benchmarks.sampled_train FOLDER_OF_EMBEDDINGS [--truth ...] [--metric mAP@100]

A folder without a train split has its maps fitted on a sample of the gallery (``ray_backfill.data.division.fit_rows``).
Here a random part of the gallery is taken out of it. The same number of items serves the fits twice: items that were
taken out, which the gallery does not hold, and items that stayed in. The difference of the two gains, over several
divisions, is what the sample flatters. The folder's own train split is not used.
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import ray_backfill as rb
from ray_backfill.data.division import fit_rows
from ray_backfill.data.folder import EmbeddingFolder, EmbeddingTable
from ray_backfill.engine.systems import IntArray

METHODS = ("rm_naive", "procrustes_gallery", "ridge_gallery", "low_rank_gallery")


def columns_of(table: EmbeddingTable, with_labels: bool) -> dict[str, NDArray[np.generic]]:
    """The ids, embeddings and labels of a split, as ``write_folder`` takes them."""
    label = {"label": table.label} if with_labels and table.label is not None else {}
    return {"id": table.id, **{model: table.vectors[model] for model in ("old", "new")}, **label}


def gains(folder: EmbeddingFolder, train: EmbeddingTable | None, how: dict[str, object]) -> pd.Series:
    """Method -> gain, with the maps fitted on these items; None: on a sample of the gallery."""
    with tempfile.TemporaryDirectory() as data:
        queries = None if folder.queries is None else columns_of(folder.queries, with_labels=True)
        fitted_on = None if train is None else columns_of(train, with_labels=False)
        rb.write_folder(data, columns_of(folder.gallery, with_labels=True), queries, fitted_on)
        found = rb.simulate(data, **how).summary  # type: ignore[arg-type]
    return found.groupby("method").gain.first().reindex(METHODS)


def compare(folder: EmbeddingFolder, seed: int, how: dict[str, object]) -> pd.DataFrame:
    """Gains on one division of the gallery; one row a method."""
    gallery, rng = folder.gallery, np.random.default_rng(seed)
    dims = max(vectors.shape[1] for vectors in gallery.vectors.values())
    shuffled: IntArray = rng.permutation(len(gallery))
    taken_out = len(fit_rows(len(gallery), dims))
    while len(fit_rows(len(gallery) - taken_out, dims)) < taken_out:
        taken_out -= 1
    rest = replace(folder, gallery=gallery.take(np.sort(shuffled[taken_out:])), train=None)
    unseen = gains(rest, gallery.take(np.sort(shuffled[:taken_out])), how)
    return pd.DataFrame({"items": taken_out, "others": unseen, "sample": gains(rest, None, how)}).assign(seed=seed)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--truth", nargs="+", default=[])
    parser.add_argument("--metric", default="mAP@100")
    parser.add_argument("--divisions", type=int, default=5)
    given = parser.parse_args(arguments)
    folder = rb.read_folder(given.folder)
    how = {"methods": METHODS, "truth": given.truth, "metrics": (given.metric,)}
    found = pd.concat([compare(folder, seed, how) for seed in range(given.divisions)])
    found["difference"] = found["sample"] - found.others
    of_method = found.groupby("method")
    table = of_method[["others", "sample", "difference"]].mean() * 100
    table["lowest"], table["highest"] = of_method.difference.min() * 100, of_method.difference.max() * 100
    dims = [vectors.shape[1] for vectors in folder.gallery.vectors.values()]
    print(
        f"{given.folder}: {len(folder.gallery):,} gallery items, {dims} dimensions, {found['items'].iloc[0]:,} for fits"
    )
    print(table.reindex(METHODS).round(1).to_string())


if __name__ == "__main__":
    main()
