"""The answers of shards, and how several become one.

Shapes: b queries, k items an answer, short answers filled up with position -1 and an infinite score.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ray_backfill.index import Found
from ray_backfill.merges import Merge
from ray_backfill.store import vector_column, vectors_of, write_parquet
from ray_backfill.systems import IntArray
from ray_backfill.tables.drill import AnswerRow
from ray_backfill.tables.schema import columns


@dataclass(frozen=True)
class Answer:
    """The k best items for each query, by (score, distance, position): the ranking of the replay.

    position: (b, k) int64 gallery positions. distance: (b, k) float32 by the system that serves the item. score: (b, k)
    float64 what is compared, the distance itself unless a merge maps it. is_new: (b, k) whether the forward system, the
    new partition, serves the item.
    """

    position: IntArray
    distance: NDArray[np.float32]
    score: NDArray[np.float64]
    is_new: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.position)


@dataclass(frozen=True)
class ShardAnswer:
    """What one shard knows: its best items, and how many it was searching.

    applied: operations of the plan that it had applied. old_items, new_items: in each of its partitions, at that
    moment. missing_items: inserted ones that no model could embed.
    """

    best: Answer
    applied: int
    old_items: int
    new_items: int
    missing_items: int


def answer_of(old: Found, new: Found, merge: Merge, k: int) -> Answer:
    """The k best of what the old and the new partition found."""
    position = np.concatenate([old.position, new.position], axis=1)
    distance = np.concatenate([old.distance, new.distance], axis=1)
    is_new = np.broadcast_to(np.arange(position.shape[1]) >= old.position.shape[1], position.shape)
    score = merge.scores(distance.ravel(), is_new.ravel()).reshape(position.shape)
    score[position < 0] = np.inf
    return _best([position, distance, score, is_new], k)


def merge_answers(answers: Sequence[Answer], k: int) -> Answer:
    """The k best of several answers to the same queries, of disjoint items."""
    return _best([np.concatenate([getattr(a, field.name) for a in answers], axis=1) for field in fields(Answer)], k)


def _best(columns: Sequence[NDArray[Any]], k: int) -> Answer:
    """The first k in the order of an answer, of all of its columns."""
    position, distance, score, _ = columns
    best = np.lexsort((position, distance, score))[:, :k]
    return Answer(*(np.take_along_axis(values, best, axis=1) for values in columns))


def is_consistent(answer: Answer) -> bool:
    """Whether no query is answered by the same item twice."""
    ordered = np.sort(answer.position, axis=1)
    return not bool(((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any())


def write_answers(drill: Path, moment: int, answer: Answer) -> None:
    """Keep the answers to all queries at a checkpoint in the drill's folder."""
    lists: tuple[NDArray[Any], ...] = (answer.position, answer.distance, answer.is_new.astype(np.float32))
    named = {name: vector_column(values) for name, values in zip(columns(AnswerRow), lists, strict=True)}
    write_parquet(_answers_path(drill, moment), pa.table(named))


def read_answers(drill: Path, moment: int) -> IntArray:
    """(Q, k) the positions of the items that ``write_answers`` wrote."""
    name = columns(AnswerRow)[0]
    return vectors_of(pq.read_table(_answers_path(drill, moment), columns=[name])[name])


def _answers_path(drill: Path, moment: int) -> Path:
    return drill / "answers" / f"checkpoint-{moment:04d}.parquet"
