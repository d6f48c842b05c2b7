"""The gallery items whose new embeddings a forecast has."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import say
from ray_backfill.data.folder import EmbeddingFolder
from ray_backfill.data.identity import one_model_each
from ray_backfill.data.importing import plain_ids
from ray_backfill.data.sources import Source, open_source
from ray_backfill.data.vectors import FINE, PROBLEMS, ZERO, decode
from ray_backfill.data.write import with_train
from ray_backfill.engine.systems import FloatArray, IntArray
from ray_backfill.forecast.models import KnownItems
from ray_backfill.forecast.sample import PILOT, Sample, StoredSample, free_pairs, positions_of
from ray_backfill.learn.models.apply import StandInMap, fit_stand_in

_NOTHING = np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class NewEmbeddings:
    """New embeddings of some gallery items: (n, d) ``new`` of the known ones. stand_in: predicts those of the others.
    sampled: number of items of the sample.
    """

    known: KnownItems
    new: FloatArray
    stand_in: StandInMap
    sampled: int


def find_new(folder: EmbeddingFolder, stored: StoredSample, new: Sequence[str]) -> NewEmbeddings:
    """The new embeddings of the sample, and what else the sources ``new`` hold. Without sources: the gallery's own.

    Up to 1 % of the sample may lack a new embedding; such items count as not sampled, which is said.

    Raises:
        InputError: More items of the sample have no new embedding, a vector cannot be used, or a source is of another
            model than the folder.
    """
    sample, distance = stored.sample, stored.settings.distance
    if not new:
        if "new" not in folder.gallery.vectors:
            raise InputError(f"{folder.path} has no new embeddings; give them with --new SOURCE (id and new)")
        return new_embeddings(folder, sample, sample.position, folder.gallery.new[sample.position], distance)
    opened = [open_source(name) for name in new]
    stated = [(str(folder.path), folder.identities), *((source.name, source.models) for source in opened)]
    one_model_each((place, {"new": models["new"]}) for place, models in stated if "new" in models)
    sources = [(source.name, *_read_new(source, folder, distance)) for source in opened]
    positions, places = np.unique(np.concatenate([position for _, position, _ in sources]), return_index=True)
    vectors = np.concatenate([given for *_, given in sources])[places]
    for name, position, given in sources:
        if not np.array_equal(vectors[np.searchsorted(positions, position)], given):
            raise InputError(f"{name} repeats an id of --new with another vector; drop one of them")
    missing = np.setdiff1d(sample.position, positions)
    if len(missing):
        lacks = f"--new lacks {len(missing):,} of the {len(sample):,} items of the sample, such as "
        lacks += str(folder.gallery.id[missing[0]])
        if len(missing) > 0.01 * len(sample):  # such as unreadable images; if it is more, a file was forgotten
            raise InputError(
                f"{lacks}; embed them, too (up to 1 % may be missing), or name all files, those of earlier rounds, too"
            )
        say(f"{lacks}; they count as not sampled")
    listed = np.intersect1d(sample.position, positions)
    done = _NOTHING if len(positions) == len(folder.gallery) else _backfilled(sources, listed)
    return new_embeddings(folder, sample, positions, vectors, distance, done)


def _backfilled(sources: Sequence[tuple[str, IntArray, FloatArray]], sampled: IntArray) -> IntArray:
    """Positions of what the backfill has done so far: of sources with items that no sample listed. sampled: positions
    of those items of the sample that are in any source.

    Sampled items among them cannot stand for items that are still to be done: an order is no random choice.
    """
    more = [(name, position) for name, position, _ in sources if not np.isin(position, sampled).all()]
    if not more:
        return _NOTHING
    of_sample = [position for _, position, _ in sources if np.isin(position, sampled).all()]
    if len(np.setdiff1d(sampled, np.concatenate([_NOTHING, *of_sample]))):
        raise InputError(
            f"{more[0][0]} has items that no sample lists, beside items of the sample; give the sample as a file of its"
            " own, and all that the backfill has done so far as another one"
        )
    return np.unique(np.concatenate([position for _, position in more]))


def _read_new(source: Source, folder: EmbeddingFolder, distance: str) -> tuple[IntArray, FloatArray]:
    """Positions in the gallery, and new embeddings."""
    source.need(("id", "new"))
    assert folder.queries is not None
    ids, vectors, problems, dims = [], [], [], folder.queries.new.shape[1]
    for batch in source.read(("id", "new"), 0):
        read = decode(batch.column("new"))
        if read.vectors.shape[1] not in (0, dims):
            have = f"{source.name} has vectors of {read.vectors.shape[1]} dimensions"
            raise InputError(f"{have}, the queries' new embeddings have {dims}; use one model")
        ids.append(batch.column("id"))
        vectors.append(read.vectors)
        problems.append(read.problems)
    if not ids:
        raise InputError(f"{source.name} has no rows")
    wrong = np.concatenate(problems)
    bad = np.flatnonzero((wrong != FINE) & ((wrong != ZERO) | (distance == "cosine")))
    if len(bad):
        raise InputError(f"{source.name}, column 'new', row {bad[0]}: {PROBLEMS[int(wrong[bad[0]])]}; embed it again")
    wanted = np.asarray(plain_ids(ids, source, "id").to_pylist())
    position = positions_of(folder.gallery.id, wanted)
    if (position < 0).any():
        lacking = wanted[position < 0]
        raise InputError(f"{source.name} has {len(lacking):,} ids that the gallery lacks, such as {lacking[0]}")
    new: FloatArray = np.concatenate(vectors)
    return position, new


def new_embeddings(
    folder: EmbeddingFolder, sample: Sample, position: IntArray, new: FloatArray, distance: str,
    done: IntArray = _NOTHING,
) -> NewEmbeddings:  # fmt: skip
    """Items of a sample and others, which no sample listed. position: (n,). new: (n, d) their new embeddings. done:
    what the backfill has done so far; such items stand for no others.

    Stand-ins for other items are fitted on the pilot, the queries and the train split.
    """
    weight_N = np.zeros(len(folder.gallery))
    weight_N[sample.position] = sample.weight
    is_pilot = np.isin(position, sample.position[sample.reason == PILOT])
    of_queries = sample.queries, sample.group, sample.n_groups
    known = KnownItems(position, weight_N[position], is_pilot, *of_queries, np.isin(position, done))
    old, free = free_pairs(folder)
    of_pilot = folder.gallery.old[position[known.pilot]]
    both = (np.concatenate([of_pilot, old]), np.concatenate([new[known.pilot], free]))
    return NewEmbeddings(known, new, fit_stand_in(*both, distance), len(sample))


def with_stand_ins(folder: EmbeddingFolder, given: NewEmbeddings) -> EmbeddingFolder:
    """The folder with stand-ins as new embeddings."""
    vectors = {"old": folder.gallery.old, "new": given.stand_in(folder.gallery.old)}
    return replace(folder, gallery=replace(folder.gallery, vectors=vectors))


def with_known(folder: EmbeddingFolder, given: NewEmbeddings) -> EmbeddingFolder:
    """The folder with those items of the gallery alone whose new embeddings are known."""
    rows = folder.gallery.take(given.known.position)
    return replace(folder, gallery=replace(rows, vectors={"old": rows.old, "new": given.new}))


def with_pilot(folder: EmbeddingFolder, given: NewEmbeddings, place: Path) -> EmbeddingFolder:
    """The folder with the pilot as its train split, which is written to ``place``, where fits read it again."""
    pilot = with_known(folder, given).gallery.take(np.flatnonzero(given.known.pilot))
    return with_train(folder, pilot, place)
