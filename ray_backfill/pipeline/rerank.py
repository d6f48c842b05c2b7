"""The re-ranker of a service: scores of pairs of a query and an item, from a table or by a model, each pair once.

Shapes: P pairs, B pairs of a batch.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ray_backfill.core import stages
from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import Task, say, step, task
from ray_backfill.core.runkey import RunKey, fingerprint
from ray_backfill.core.schema import read_checked
from ray_backfill.core.streams import said_if_it_dies
from ray_backfill.data.columns import as_ids, as_numbers, some
from ray_backfill.data.folder import EmbeddingFolder
from ray_backfill.data.sources import open_source
from ray_backfill.data.text import texts_of
from ray_backfill.data.words import called
from ray_backfill.data.write import write_parquet
from ray_backfill.encode.encoder import Device, Reranker, by_length, failing_in_one_line
from ray_backfill.encode.kinds import RERANK, load_reranker, parse_spec
from ray_backfill.encode.spec import Spec
from ray_backfill.engine.replay import usable_cpus
from ray_backfill.engine.systems import IntArray

# Columns of tables of scores, and of the parts of a stage, where the first two are rows.
_COLUMNS = ("query", "item", "score")
# Pairs of a part, which is what a killed run loses at most; and texts that are hashed together.
_BLOCK, _TEXTS = 4096, 1 << 16


@dataclass(frozen=True, eq=False)
class PairScores:
    """Scores of P different pairs, ascending by query, then item."""

    query: IntArray
    """(P,) int64 rows of the folder's queries; of its gallery, if that queries itself."""
    item: IntArray
    """(P,) int64 rows of the gallery."""
    score: NDArray[np.float64]
    """(P,) float64, finite; a larger one ranks before."""

    def of(self, query: IntArray, item: IntArray) -> NDArray[np.float64]:
        """Scores of pairs of rows, arrays of one shape; NaN where a pair has no score, and where a row is negative.

        Cost: a binary search for each: 10 million among 10 million take 2 s if sorted by query, 20 s if not.
        """
        wide, key, score = self._lookup
        wanted = np.where((item >= 0) & (item < wide), np.asarray(query, np.int64) * wide + item, -1)
        place = np.searchsorted(key[:-1], wanted)
        return np.where(key[place] == wanted, score[place], np.nan)

    @cached_property
    def _lookup(self) -> tuple[int, IntArray, NDArray[np.float64]]:
        """A number above all items; (P + 1,) query times that plus item, and (P + 1,) scores, with NaN last."""
        wide = int(self.item.max(initial=0)) + 1
        return wide, np.append(self.query * wide + self.item, np.iinfo(np.int64).min), np.append(self.score, np.nan)


def read_scores(file: Path, folder: EmbeddingFolder) -> PairScores:
    """Read a table, .parquet or .csv, with the columns query and item (ids of the folder) and score (finite numbers).

    Raises:
        InputError: It cannot be read, lacks a column or rows, or has a pair twice, an unknown id, or a score that is no
            finite number.
    """
    if file.suffix.lower() not in (".parquet", ".csv"):
        raise InputError(f"{file} is no table of scores; give a .parquet or .csv file with query, item and score")
    source = open_source(str(file))
    source.need(_COLUMNS)
    table = pa.Table.from_batches(
        source.read(_COLUMNS, 0), pa.schema([(name, source.columns[name]) for name in _COLUMNS])
    )
    if not len(table):
        raise InputError(f"{file} has no rows; give one for each pair that is re-ranked")
    rows = []
    for name, known in (("query", folder.queries or folder.gallery), ("item", folder.gallery)):
        given = pa.array(as_ids(table[name], file, name)).cast(pa.string())
        row_of = pc.index_in(given, pa.array(known.id.astype(str).tolist()))
        if row_of.null_count:
            row = int(np.argmax(np.asarray(row_of.is_null())))
            raise InputError(
                f"{called(file, name)}: {given[row].as_py()!r} in row {row} is no id of {called(known.path)}; drop "
                f"what has unknown ids ({row_of.null_count:,} of {len(table):,} rows), or give this folder's scores"
            )
        rows.append(row_of.to_numpy().astype(np.int64))
    score = as_numbers(table["score"], file, "score")
    if len(bad := np.flatnonzero(~np.isfinite(score))):
        raise InputError(
            f"{called(file, 'score')}: {score[bad[0]]} in row {some(bad)}; a score is a finite number: score these "
            "pairs again, or drop them"
        )
    query, item = rows
    order = np.lexsort((item, query))
    scores = PairScores(query[order], item[order], score[order])
    if (is_again := (np.diff(scores.query) == 0) & (np.diff(scores.item) == 0)).any():
        first = int(order[np.argmax(is_again)])
        raise InputError(
            f"{file}: query {table['query'][first]} and item {table['item'][first]} have several scores; keep one for "
            "each pair"
        )
    return scores


def score_pairs(
    query: IntArray, item: IntArray, folder: EmbeddingFolder, column: str, model: str | Spec, out: Path, *,
    device: Device | None = None, overwrite: bool = False, block: int = _BLOCK,
) -> PairScores:  # fmt: skip
    """Score pairs by a re-ranker, in a stage that keeps every score: pairs that it has are not scored again.

    It says how many pairs are left before the first, and meanwhile how long they take. A run that was stopped goes on
    with the same blocks, so its scores have the same bits. The score of one pair may differ in its last bits between
    batches, because a model rounds longer batches in another way.

    Args:
        query: (P,) rows of the folder's queries; of its gallery, if that queries itself.
        item: (P,) rows of the gallery. Pairs may repeat.
        folder: Queries and gallery.
        column: Of their texts.
        model: Words such as cross-encoder:NAME_OR_FOLDER, or as ``parse_spec`` reads them with the table RERANK.
        out: Folder of the stage. It belongs to one model and the texts of one folder.
        device: Where the model computes; None: all CPUs.
        overwrite: Whether scores of another model or other texts are deleted.
        block: Pairs of a part. What was not written when a run ends is lost.

    Returns:
        The scores of these pairs, each once.

    Raises:
        InputError: The model cannot be loaded, fails, or does not give a finite number for each pair; a split has no
            such texts; or the folder belongs to another run. Scores that were written stay.
    """
    queries, gallery = folder.queries or folder.gallery, folder.gallery
    texts = texts_of(queries, column), texts_of(gallery, column)
    spec = parse_spec(model, "re-ranker", RERANK) if isinstance(model, str) else model
    dies = f"error: the re-ranker {spec} ended this process, or took all memory; mend it and run the same command again"
    with step("load the re-ranker"), said_if_it_dies(dies):
        reranker = load_reranker(spec, device or Device(threads=usable_cpus()))
        with failing_in_one_line(spec, "in identity()"):
            identity = json.loads(json.dumps(spec.meaning() | reranker.identity(), allow_nan=False))
    marks = [fingerprint(of.slice(i, _TEXTS).to_pylist()) for of in texts for i in range(0, len(of), _TEXTS)]
    is_finished = stages.begin_stage(
        out, RunKey("rerank", {"model": identity}, {"texts": fingerprint(len(queries), *marks)}), overwrite
    )
    wanted, known = np.unique(np.asarray(query, np.int64) * len(gallery) + item), _scored(out)
    missing = wanted[np.isnan(known.of(*np.divmod(wanted, len(gallery))))]
    facts: dict[str, Any] = {"name": spec.recorded_name(), "pairs": len(known.score) + len(missing)}
    if len(missing):
        stages.note_facts(out, {"finished": False})
        say(f"re-rank: {len(missing):,} of {len(wanted):,} pairs are left for {spec}")
        first = 1 + max((int(part.stem.partition("-")[2]) for part in out.glob("part-*.parquet")), default=-1)
        began_s = perf_counter()
        with task("re-rank", len(wanted), "pairs", len(wanted) - len(missing)) as bar, said_if_it_dies(dies):
            for number, start in enumerate(range(0, len(missing), block), first):
                rows = np.divmod(missing[start : start + block], len(gallery))
                pairs = [of.take(pa.array(places)).to_pylist() for of, places in zip(texts, rows, strict=True)]
                ids = [split.id[places] for split, places in zip((queries, gallery), rows, strict=True)]
                table = dict(zip(_COLUMNS, (*rows, _scores(reranker, spec, pairs, ids, bar)), strict=True))
                write_parquet(out / f"part-{number:06}.parquet", pa.table(table))
        facts["pairs_per_s"] = round(len(missing) / (perf_counter() - began_s), 1)
    if len(missing) or not is_finished:
        stages.remove_halves(out)
        stages.finish_stage(out, facts)
    query, item = np.divmod(wanted, len(gallery))
    return PairScores(query, item, _scored(out).of(query, item))


def _scored(out: Path) -> PairScores:
    """The scores that a stage has."""
    parts = [read_checked(part) for part in sorted(out.glob("part-*.parquet"))]
    query, item, score = (np.concatenate([part[name].to_numpy() for part in parts] or [[]]) for name in _COLUMNS)
    order = np.lexsort((item, query))
    return PairScores(query[order].astype(np.int64), item[order].astype(np.int64), score[order])


def _scores(
    reranker: Reranker, spec: Spec, pairs: list[list[str]], ids: list[NDArray[Any]], bar: Task
) -> NDArray[np.float64]:  # fmt: skip
    """Scores of the pairs of a block, whose texts of about the same length are scored together. pairs, ids: of queries
    and of items. Raises InputError if the model fails, or does not give a finite number for each.
    """
    score = np.empty(len(ids[0]))
    size = spec.batch or reranker.batch
    order = by_length([query + text for query, text in zip(*pairs, strict=True)])
    for batch in (order[i : i + size] for i in range(0, len(order), size)):
        with failing_in_one_line(spec, f"on {len(batch)} pairs"):
            given = np.asarray(reranker.score(*([texts[row] for row in batch] for texts in pairs)))
        if given.dtype.kind not in "fiu" or given.shape != batch.shape:
            raise InputError(
                f"the re-ranker {spec} returned values of type {given.dtype} and shape {given.shape} for {len(batch)} "
                "pairs; return one number for each pair"
            )
        if not (is_finite := np.isfinite(given)).all():
            row, what = batch[np.argmin(is_finite)], given[np.argmin(is_finite)]
            raise InputError(
                f"the re-ranker {spec} returned {what} for query {ids[0][row]} and item {ids[1][row]}; mend it, so "
                "that every score is finite"
            )
        score[batch] = given
        bar.advance(len(batch))
    return score
