"""The gallery items whose new embeddings a forecast has."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ray_backfill.comparison.forecast import KnownItems
from ray_backfill.errors import InputError
from ray_backfill.forecast import Known, Sample
from ray_backfill.forecast.sample import PILOT
from ray_backfill.forecast.stand_in import fit_stand_in
from ray_backfill.runs.matching import plain_ids
from ray_backfill.runs.sampling import StoredSample, free_pairs, positions_of
from ray_backfill.sources import Source, open_source
from ray_backfill.store import EmbeddingFolder
from ray_backfill.store import take as take_rows
from ray_backfill.store.loose import FINE, PROBLEMS, ZERO, read_vectors_loosely
from ray_backfill.systems import FloatArray, IntArray


def find_known(folder: EmbeddingFolder, stored: StoredSample, new: Sequence[str]) -> KnownItems:
    """The new embeddings of the sample, and what else the sources ``new`` hold. Without sources: the gallery's own.

    Raises:
        InputError: An item of the sample has no new embedding, or a vector cannot be used.
    """
    sample, distance = stored.sample, stored.settings.distance
    if not new:
        if "new" not in folder.gallery.vectors:
            raise InputError(f"{folder.path} has no new embeddings; give them with --new SOURCE (id and new)")
        return known_items(folder, sample, sample.position, folder.gallery.new[sample.position], distance)
    found = [_read_new(open_source(text), folder, distance) for text in new]
    position = np.concatenate([each for each, _ in found])
    vectors = np.concatenate([each for _, each in found])
    own, counts = np.unique(position, return_counts=True)
    if (counts > 1).any():
        raise InputError(f"--new has the id {folder.gallery.id[own[counts > 1][0]]} more than once; drop one of them")
    missing = np.setdiff1d(sample.position, position)
    if len(missing):
        raise InputError(
            f"--new lacks {len(missing):,} of the {len(sample):,} items of the sample, such as "
            f"{folder.gallery.id[missing[0]]}; embed them, too, or give the files of earlier rounds beside it"
        )
    return known_items(folder, sample, position, vectors, distance)


def _read_new(source: Source, folder: EmbeddingFolder, distance: str) -> tuple[IntArray, FloatArray]:
    """Positions in the gallery, and new embeddings."""
    source.need(("id", "new"))
    assert folder.queries is not None
    ids, vectors, problems, dims = [], [], [], folder.queries.new.shape[1]
    for batch in source.read(("id", "new"), 0):
        read = read_vectors_loosely(batch.column("new"))
        if read[0].shape[1] not in (0, dims):
            have = f"{source.name} has vectors of {read[0].shape[1]} dimensions"
            raise InputError(f"{have}, the queries' new embeddings have {dims}; use one model")
        ids.append(batch.column("id"))
        vectors.append(read[0])
        problems.append(read[1])
    if not ids:
        raise InputError(f"{source.name} has no rows")
    wrong = np.concatenate(problems)
    bad = np.flatnonzero((wrong != FINE) & ((wrong != ZERO) | (distance == "cosine")))
    if len(bad):
        raise InputError(f"{source.name}, column 'new', row {bad[0]}: {PROBLEMS[int(wrong[bad[0]])]}; embed it again")
    own = np.asarray(plain_ids(ids, source, "id").to_pylist())
    position = positions_of(folder.gallery.id, own)
    if (position < 0).any():
        lacking = own[position < 0]
        raise InputError(f"{source.name} has {len(lacking):,} ids that the gallery lacks, such as {lacking[0]}")
    new: FloatArray = np.concatenate(vectors)
    return position, new


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
