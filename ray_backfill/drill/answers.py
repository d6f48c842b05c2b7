"""Search results of shards, and how they are merged.

Shapes: b queries, k items per answer; short answers are padded with position -1 and an infinite score.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ray_backfill.core.kernels import Array, kernel
from ray_backfill.core.schema import columns, read_checked
from ray_backfill.data.write import vector_column, vectors_of, write_parquet
from ray_backfill.drill.tables import AnswerRow
from ray_backfill.engine.index import Found
from ray_backfill.engine.merges import Merge
from ray_backfill.engine.systems import IntArray


@dataclass(frozen=True)
class Answer:
    """The k best items for each query, sorted by (score, distance, position) like the ranking of the replay.

    position: (b, k) int64 gallery positions. distance: (b, k) float32 in the system that serves the item. score: (b, k)
    float64 sort key; the distance itself unless a merge maps it. is_new: (b, k) whether the item is served from the new
    partition, that is, by the forward system.
    """

    position: IntArray
    distance: NDArray[np.float32]
    score: NDArray[np.float64]
    is_new: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.position)


@dataclass(frozen=True)
class ShardAnswer:
    """One shard's best items, and the state in which it searched them.

    applied: number of plan operations it had applied. old_items, new_items: size of each partition at that moment.
    missing_items: inserted items that no model could embed.
    """

    best: Answer
    applied: int
    old_items: int
    new_items: int
    missing_items: int


def answer_of(old: Found, new: Found, merge: Merge, k: int) -> Answer:
    """The k best of the results from the old and the new partition."""
    return merge_answers([_of_side(old, merge, is_new=False), _of_side(new, merge, is_new=True)], k)


def _of_side(found: Found, merge: Merge, is_new: bool) -> Answer:
    flags = np.full(found.position.shape, is_new)
    score = merge.scores(found.distance.ravel(), flags.ravel()).reshape(flags.shape)
    score[found.position < 0] = np.inf
    return Answer(found.position, found.distance, score, flags)


def merge_answers(answers: Sequence[Answer], k: int) -> Answer:
    """Merge answers to the same queries over disjoint items, each sorted best first, into the k best.

    Cost: O(b k) per answer; sorting both takes 1.5 to 7 times as long (docs/log.md).
    """
    merged = answers[0]
    for answer in answers[1:]:
        merged = _merge_two(merged, answer, k)
    return merged


def _merge_two(one: Answer, other: Answer, k: int) -> Answer:
    shape = (len(one), k)
    out = Answer(np.empty(shape, np.int64), np.empty(shape, np.float32), np.empty(shape), np.empty(shape, np.bool_))
    _merge_rows(*_columns(one), *_columns(other), *_columns(out))
    return out


def _columns(answer: Answer) -> list[Array]:
    """Arrays from Ray are read-only, but the kernel is compiled for writable ones, so copy where needed."""
    columns = (answer.position, answer.distance, answer.score, answer.is_new)
    return [values if values.flags.writeable else values.copy() for values in columns]


@kernel
def _merge_rows(
    p1: Array, d1: Array, s1: Array, n1: Array, p2: Array, d2: Array, s2: Array, n2: Array,
    p: Array, d: Array, s: Array, n: Array,
) -> None:  # fmt: skip
    """Merge positions, distances, scores and flags of two answers; padding stays at the end."""
    for q in range(len(p)):
        i = j = 0
        for place in range(p.shape[1]):
            if i < p1.shape[1] and (j == p2.shape[1] or _is_before(p1, d1, s1, i, p2, d2, s2, j, q)):
                p[q, place], d[q, place], s[q, place], n[q, place] = p1[q, i], d1[q, i], s1[q, i], n1[q, i]
                i += 1
            elif j < p2.shape[1]:
                p[q, place], d[q, place], s[q, place], n[q, place] = p2[q, j], d2[q, j], s2[q, j], n2[q, j]
                j += 1
            else:
                p[q, place], d[q, place], s[q, place], n[q, place] = -1, np.inf, np.inf, False


@kernel
def _is_before(p1: Array, d1: Array, s1: Array, i: int, p2: Array, d2: Array, s2: Array, j: int, q: int) -> bool:
    if s1[q, i] != s2[q, j]:
        return s1[q, i] < s2[q, j]
    if d1[q, i] != d2[q, j]:
        return d1[q, i] < d2[q, j]
    return p1[q, i] < p2[q, j]


def is_consistent(answer: Answer) -> bool:
    """Whether no answer contains the same item twice."""
    ordered = np.sort(answer.position, axis=1)
    return not bool(((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any())


def write_answers(drill: Path, moment: int, answer: Answer) -> None:
    """Store the answers to all queries at a checkpoint in the drill's folder."""
    lists: tuple[NDArray[Any], ...] = (answer.position, answer.distance, answer.is_new.astype(np.float32))
    named = {name: vector_column(values) for name, values in zip(columns(AnswerRow), lists, strict=True)}
    write_parquet(_answers_path(drill, moment), pa.table(named))


def read_answers(drill: Path, moment: int) -> IntArray:
    """(Q, k) item positions as written by ``write_answers``."""
    name = columns(AnswerRow)[0]
    return vectors_of(read_checked(_answers_path(drill, moment), [name])[name])


def _answers_path(drill: Path, moment: int) -> Path:
    return drill / "answers" / f"checkpoint-{moment:04d}.parquet"
