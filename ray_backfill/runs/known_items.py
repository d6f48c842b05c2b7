"""The gallery items whose new embeddings a forecast has."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from ray_backfill.comparison.forecast import KnownItems
from ray_backfill.errors import InputError
from ray_backfill.forecast import Known, Sample
from ray_backfill.forecast.sample import PILOT
from ray_backfill.forecast.stand_in import fit_stand_in
from ray_backfill.runs.sampling import StoredSample, free_pairs, positions_of
from ray_backfill.store import EmbeddingFolder, read_table
from ray_backfill.store import take as take_rows
from ray_backfill.systems import FloatArray, IntArray


def find_known(folder: EmbeddingFolder, stored: StoredSample, new: Path | None) -> KnownItems:
    """The new embeddings of the sample, and what else ``new`` holds.

    Raises:
        InputError: An item of the sample has no new embedding.
    """
    sample, distance = stored.sample, stored.settings.distance
    if new is None:
        if "new" not in folder.gallery.vectors:
            raise InputError(f"{folder.path} has no new embeddings; give them with --new FILE (Parquet: id, new)")
        return known_items(folder, sample, sample.position, folder.gallery.new[sample.position], distance)
    table = read_table(new, ("new",), ("new",))
    _check_new(new, table.new, folder, distance)
    position = positions_of(folder.gallery.id, table.id)
    if (position < 0).any():
        raise InputError(
            f"{new} has {int((position < 0).sum()):,} ids that the gallery lacks, such as {table.id[position < 0][0]}"
        )
    missing = np.setdiff1d(sample.position, position)
    if len(missing):
        raise InputError(
            f"{new} lacks {len(missing):,} of the {len(sample):,} items of the sample, such as "
            f"{folder.gallery.id[missing[0]]}; embed them, too"
        )
    return known_items(folder, sample, position, table.new, distance)


def _check_new(path: Path, new: FloatArray, folder: EmbeddingFolder, distance: str) -> None:
    """Raises InputError for vectors of another length than the queries', and for zero vectors under cosine."""
    assert folder.queries is not None
    of_queries = folder.queries.new.shape[1]
    if new.shape[1] != of_queries:
        have = f"{path} has vectors of {new.shape[1]} dimensions"
        raise InputError(f"{have}, the queries' new embeddings have {of_queries}; use one model")
    zero = np.flatnonzero(~new.any(axis=1))
    if distance == "cosine" and len(zero):
        raise InputError(
            f"{path}, column 'new': zero vector in row {zero[0]}, which has no cosine distance; embed it again"
        )


def known_items(
    folder: EmbeddingFolder, sample: Sample, position: IntArray, new: FloatArray, distance: str
) -> KnownItems:  # fmt: skip
    """Items of a sample and others, which no sample listed. position: (n,). new: (n, d) their new embeddings.

    Stand-ins for other items are fitted on the pilot, the queries and the train split.
    """
    weight_N, pilot_N = np.zeros(len(folder.gallery)), np.zeros(len(folder.gallery), np.bool_)
    weight_N[sample.position] = sample.weight
    pilot_N[sample.position[sample.reason == PILOT]] = True
    known = Known(position, weight_N[position], pilot_N[position], sample.queries, sample.group, sample.n_groups)
    old, free = free_pairs(folder)
    of_pilot = folder.gallery.old[position[known.pilot]]
    both = (np.concatenate([of_pilot, old]), np.concatenate([new[known.pilot], free]))
    return KnownItems(known, new, fit_stand_in(*both, distance))


def with_stand_ins(folder: EmbeddingFolder, items: KnownItems) -> EmbeddingFolder:
    """The folder with stand-ins as new embeddings, and the pilot as train split if it has none."""
    vectors = {"old": folder.gallery.old, "new": items.stand_in(folder.gallery.old)}
    train = folder.train
    if train is None:
        pilot = items.known.position[items.known.pilot]
        rows = take_rows(folder.gallery, pilot)
        train = replace(rows, vectors={"old": folder.gallery.old[pilot], "new": items.new[items.known.pilot]})
    return replace(folder, gallery=replace(folder.gallery, vectors=vectors), train=train)
