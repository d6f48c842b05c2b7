"""The lists of a service at every moment, for a block of queries: merged, cut, fused with a text list, re-ranked.

Lists hold places in one table of entries: the candidates of every partition, and behind them the entries of the text
lists. What a stage needs to know of an entry is a column of that table.

Shapes: b queries, T points, K results of a partition, L of a text list, E entries, n results of a list.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.kernels import Array, kernel
from ray_backfill.engine.lists import RankedLists
from ray_backfill.engine.systems import IntArray

Places = NDArray[np.int32]
"""(b, T, n) entries, the first result first; -1 behind the last."""
Scores = NDArray[np.float64]

# How scores of a list become comparable with those of another one.
RRF, MIN_MAX, Z_SCORE, DBSF = range(4)
# Name -> kind.
FUSIONS = {"rrf": RRF, "minmax": MIN_MAX, "relativeScoreFusion": MIN_MAX, "zscore": Z_SCORE, "dbsf": DBSF}


@dataclass(frozen=True)
class Fusion:
    """How a list of vectors and a text list become one. A list's share in a result's score is weight x f.

    name: rrf: f = 1 / (k + rank), ranks from 1 (Cormack et al. 2009; rank_constant of Elasticsearch and OpenSearch;
        Qdrant counts ranks from 0, so that its k is larger by 1). minmax: f = (s - least) / (most - least), 1 if all
        scores are equal (Elasticsearch's linear retriever, OpenSearch's min_max). relativeScoreFusion: the same, with
        Weaviate's weights alpha and 1 - alpha. zscore: f = (s - mean) / standard deviation, 0 if all are equal
        (OpenSearch's z_score, but without its floor of 0.001). dbsf: f = (s - low) / (high - low) with low, high = mean
        -+ 3 standard deviations of the sample, 0.5 if all are equal (Qdrant's distribution-based score fusion).
        Of a result that a list lacks, f is 0; of zscore, the least of the list. Equal scores: the earlier item first.
    k: of rrf. weights: of the vectors' list and of the text list. separate: old and new partition are two lists, which
        are not merged before. retrieve: results of the text list. cut: results that are kept.
    """

    name: str
    k: float
    weights: tuple[float, float]
    separate: bool
    retrieve: int
    cut: int

    @property
    def kind(self) -> int:
        return FUSIONS[self.name]


@dataclass(frozen=True)
class Stages:
    """The stages of a service. retrieve: results of each partition. cut: results after the merge. top: results that are
    re-ranked, 0 for none."""

    retrieve: int
    cut: int
    fusion: Fusion | None = None
    top: int = 0

    @property
    def shown(self) -> int:
        """Results of the service."""
        return self.fusion.cut if self.fusion else self.cut

    @property
    def fuses_scores(self) -> bool:
        """Whether a fusion needs scores of the merged list, which a merge by rank lacks."""
        return self.fusion is not None and not self.fusion.separate and self.fusion.kind != RRF


class Entries(NamedTuple):
    """What is known of each entry.

    item: (E,) gallery positions. score: (E,) what the merge compares, the less the better. distance: (E,) of the system
    that found it. text_place: (E,) place in the query's text list, -1 where it is not in it. is_forward: (E,)
    whether the new partition has it.
    """

    item: IntArray
    score: Scores
    distance: NDArray[np.float32]
    text_place: NDArray[np.int32]
    is_forward: NDArray[np.bool_]


class TextPart(NamedTuple):
    """The text lists of a block. starts: (b + 1,) of each query's entries in ``Entries``. score: (b, L)."""

    starts: IntArray
    score: Scores


def ranked_lists(places: Places, entries: Entries) -> RankedLists:
    """The results at these places, of any shape."""
    there = places >= 0
    return RankedLists(
        np.where(there, entries.item[places], -1), np.where(there, entries.distance[places], np.inf),
        np.where(there, entries.score[places], np.inf), there & entries.is_forward[places],
    )  # fmt: skip


@kernel
def merge_places(old: Places, new: Places, entries: Entries, by_rank: bool, out: Places) -> None:
    """Merge two lists of disjoint items by (score, distance, item); by_rank: by (rank, distance, item)."""
    item, score, distance = entries.item, entries.score, entries.distance
    for q in range(len(out)):
        for t in range(out.shape[1]):
            i = j = 0
            for place in range(out.shape[2]):
                one = old[q, t, i] if i < old.shape[2] else -1
                other = new[q, t, j] if j < new.shape[2] else -1
                if one < 0 and other < 0:
                    break
                is_old = other < 0
                if one >= 0 and other >= 0:
                    first: float = i if by_rank else score[one]
                    second: float = j if by_rank else score[other]
                    if first != second:
                        is_old = first < second
                    elif distance[one] != distance[other]:
                        is_old = distance[one] < distance[other]
                    else:
                        is_old = item[one] < item[other]
                if is_old:
                    out[q, t, place] = one
                    i += 1
                else:
                    out[q, t, place] = other
                    j += 1


@kernel
def _normalise(kind: int, k: float, scores: Array, n: int, out: Array) -> float:
    """Write f of the n scores of a list, the best first; return f of a result that it lacks."""
    if kind == RRF:
        for r in range(n):
            out[r] = 1.0 / (k + (r + 1))
        return 0.0
    least, most, total = np.inf, -np.inf, 0.0
    for r in range(n):
        least, most = min(least, scores[r]), max(most, scores[r])
        total += scores[r]
    if kind == MIN_MAX:
        for r in range(n):
            out[r] = (scores[r] - least) / (most - least) if most > least else 1.0
        return 0.0
    mean, squares = total / max(n, 1), 0.0
    for r in range(n):
        squares += (scores[r] - mean) ** 2
    if kind == DBSF:
        deviation = np.sqrt(squares / (n - 1)) if n > 1 else 0.0
        low, high = mean - 3 * deviation, mean + 3 * deviation
        for r in range(n):
            out[r] = (scores[r] - low) / (high - low) if high > low else 0.5
        return 0.0
    deviation, missing = np.sqrt(squares / max(n, 1)), 0.0
    for r in range(n):
        out[r] = (scores[r] - mean) / deviation if deviation > 0 else 0.0
        missing = min(missing, out[r])
    return missing


@kernel
def fuse_places(
    one: Places, two: Places, similarity: Scores, entries: Entries, text: TextPart, kind: int, k: float,
    of_vectors: float, of_text: float, out: Places,
) -> None:  # fmt: skip
    """Fuse one or two lists of vectors with the text list of each query. two: (b, T, 0) if there is one list.

    similarity: (E,) the scores of the lists of vectors, the more the better.
    """
    n_one, n_two, n_text = one.shape[2], two.shape[2], text.score.shape[1]
    longest = max(n_one, n_two, n_text)
    scores, f_one, f_two, f_text = np.empty(longest), np.empty(n_one), np.empty(n_two), np.empty(n_text)
    # What is only in one, only in two, only in the text list, and in two lists: f falls along the first three.
    value, item, entry = np.empty((4, longest)), np.empty((4, longest), np.int64), np.empty((4, longest), np.int32)
    lengths, at = np.zeros(4, np.int64), np.zeros(4, np.int64)
    is_taken = np.zeros(n_text, np.bool_)
    for q in range(len(out)):
        start, n_listed = text.starts[q], text.starts[q + 1] - text.starts[q]
        no_text = _normalise(kind, k, text.score[q], n_listed, f_text)
        for t in range(out.shape[1]):
            is_taken[:] = False
            lengths[:] = at[:] = 0
            len_one = len_two = 0
            while len_one < n_one and one[q, t, len_one] >= 0:
                scores[len_one] = similarity[one[q, t, len_one]]
                len_one += 1
            no_one = _normalise(kind, k, scores, len_one, f_one)
            while len_two < n_two and two[q, t, len_two] >= 0:
                scores[len_two] = similarity[two[q, t, len_two]]
                len_two += 1
            no_two = _normalise(kind, k, scores, len_two, f_two)
            for r in range(len_one + len_two + n_listed):
                in_one, in_two, run = no_one, no_two, 2
                if r < len_one:
                    which, in_one, run = one[q, t, r], f_one[r], 0
                elif r < len_one + len_two:
                    which, in_two, run = two[q, t, r - len_one], f_two[r - len_one], 1
                else:
                    which = np.int32(start + r - len_one - len_two)
                place = entries.text_place[which]
                if place >= 0 and run < 2:
                    run, is_taken[place] = 3, True
                elif run == 2 and is_taken[place]:
                    continue
                total = of_vectors * in_one
                if n_two > 0:
                    total += of_vectors * in_two
                total += of_text * (f_text[place] if place >= 0 else no_text)
                # Sorted by (-value, item): what is in two lists, and equal values, move forward.
                i, of_item = lengths[run], entries.item[which]
                while i > 0 and (
                    value[run, i - 1] < total or (value[run, i - 1] == total and item[run, i - 1] > of_item)
                ):
                    value[run, i], item[run, i], entry[run, i] = value[run, i - 1], item[run, i - 1], entry[run, i - 1]
                    i -= 1
                value[run, i], item[run, i], entry[run, i] = total, of_item, which
                lengths[run] += 1
            for place in range(min(lengths.sum(), out.shape[2])):
                best = -1
                for run in range(4):
                    i = at[run]
                    if i < lengths[run] and (
                        best < 0
                        or value[run, i] > value[best, at[best]]
                        or (value[run, i] == value[best, at[best]] and item[run, i] < item[best, at[best]])
                    ):
                        best = run
                out[q, t, place] = entry[best, at[best]]
                at[best] += 1


@kernel
def _best_first(value: Array, item: Array) -> Array:
    """Indices by (-value, item)."""
    order = np.argsort(-value)
    for i in range(1, len(order)):  # equal values, of which there are few
        j = i
        while j > 0 and value[order[j]] == value[order[j - 1]] and item[order[j]] < item[order[j - 1]]:
            order[j], order[j - 1] = order[j - 1], order[j]
            j -= 1
    return order


@kernel
def rerank_places(listed: Places, item: IntArray, relevance: Scores, top: int, out: Places) -> None:
    """Sort the first ``top`` results by (-relevance, item); behind them the others as they are.

    relevance: (E,) scores of the re-ranker; results without one (NaN) stand behind those with one, as they were.
    """
    n = min(top, listed.shape[2])
    value, of_item = np.empty(n), np.empty(n, np.int64)
    for q in range(len(out)):
        for t in range(out.shape[1]):
            there = 0
            for r in range(n):
                at = listed[q, t, r]
                if at < 0:
                    break
                is_scored = not np.isnan(relevance[at])
                # Unscored ones keep their order: equal values, and their rank in place of the item.
                value[r] = relevance[at] if is_scored else -np.inf
                of_item[r] = item[at] if is_scored else r
                there += 1
            order = _best_first(value[:there], of_item[:there])
            for r in range(out.shape[2]):
                out[q, t, r] = listed[q, t, order[r]] if r < there else listed[q, t, r]
