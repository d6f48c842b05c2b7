"""The answers of a running service at one moment: what ``pipeline.replay`` computes for all moments at once.

Shapes: b queries of a request, n results of a partition, L of a text list, k of an answer.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from ray_backfill.engine.lists import RankedLists, merge_sides
from ray_backfill.engine.merges import Merge
from ray_backfill.engine.systems import GroundTruth, IntArray
from ray_backfill.pipeline.lexical import TextLists
from ray_backfill.pipeline.lists import Entries, Stages, TextPart, fuse_places, ranked_lists, rerank_places
from ray_backfill.pipeline.service import Service


@dataclass(frozen=True, eq=False)
class Answering:
    """How the results of two partitions become answers. It can be pickled."""

    merge: Merge
    """Compares distances or scores, not ranks."""
    service: Service
    """Stages, text lists of all queries, and scores of the re-ranker."""
    k: int
    """Results of an answer."""
    truth: GroundTruth | None = None
    """Items that a query ignores there take no place, as in the replay. None: they take one."""

    @classmethod
    def plain(cls, merge: Merge, k: int) -> Self:
        """Two lists of k are merged into the first k."""
        return cls(merge, Service(Stages(k, k)), k)

    @cached_property
    def retrieve(self) -> int:
        """Results that each partition must return, ignored items included."""
        ignored = 0 if self.truth is None else int(np.diff(self.truth.ignored_starts).max(initial=0))
        return self.service.stages.retrieve + ignored

    def answers(self, old: RankedLists, new: RankedLists, queries: IntArray) -> RankedLists:
        """The (b, k) first results of the service; of those of the text list alone, is_forward is False.

        Cost: O(b n), with a fusion O(b n L).

        Args:
            old, new: (b, n) first results of both partitions, n as many as ``retrieve``.
            queries: (b,) rows of the queries.
        """
        stages, fusion, text = self.service.stages, self.service.stages.fusion, self.service.text
        old, new = (self._counted(lists, queries) for lists in (old, new))
        merged = merge_sides(old, new, self.merge, stages.cut)
        if fusion is None and not stages.top:
            return merged.at(np.s_[:, : self.k])
        sides = [merged]
        if fusion is not None and fusion.separate:
            sides = [old, new._replace(is_forward=new.item >= 0)]
        if fusion is None or text is None:
            shown = TextLists(np.full((len(queries), 1), -1), np.full((len(queries), 1), -np.inf))
        else:
            shown = TextLists(text.item[queries], text.score[queries])

        # Entries: all results of the lists of vectors, and behind them those of the text lists.
        row, place = np.nonzero(shown.item >= 0)
        of_text = RankedLists.nothing(len(row))._replace(item=shown.item[row, place])
        item, distance, score, is_forward = (
            np.concatenate([values.ravel() for values in column]) for column in zip(*sides, of_text, strict=True)
        )
        same = [side.item[:, :, None] == shown.item[:, None, :] for side in sides]
        places_in_text = [np.where(is_same.any(axis=2), is_same.argmax(axis=2), -1).ravel() for is_same in same]
        text_place = np.concatenate([*places_in_text, place]).astype(np.int32)
        entries, lists, start = Entries(item, score, distance, text_place, is_forward), [], 0
        for side in sides:
            of_side = start + np.arange(side.item.size).reshape(side.item.shape)
            lists.append(np.where(side.item >= 0, of_side, -1)[:, None].astype(np.int32))
            start += side.item.size

        places = lists[0]
        if fusion is not None:
            two = lists[1] if fusion.separate else np.empty((len(queries), 1, 0), np.int32)
            similarity = -(distance.astype(np.float64) if fusion.separate else score)
            part = TextPart(start + np.searchsorted(row, np.arange(len(queries) + 1)), shown.score)
            k, (of_vectors, of_texts) = float(fusion.k), map(float, fusion.weights)
            places = np.full((len(queries), 1, fusion.cut), -1, np.int32)
            fuse_places(lists[0], two, similarity, entries, part, fusion.kind, k, of_vectors, of_texts, places)
        if stages.top:
            assert self.service.relevance is not None
            query = np.concatenate([*(np.repeat(queries, side.item.shape[1]) for side in sides), queries[row]])
            listed, places = places, np.empty_like(places)
            rerank_places(listed, item, self.service.relevance.of(query, item), stages.top, places)
        return ranked_lists(places[:, 0, : self.k], entries)

    def _counted(self, lists: RankedLists, queries: IntArray) -> RankedLists:
        """The first results that a query does not ignore, as many as the stages take of a partition."""
        if self.truth is None or self.retrieve == self.service.stages.retrieve:
            return lists
        ignored = [np.isin(row, self.truth.ignored_of(q)) for q, row in zip(queries.tolist(), lists.item, strict=True)]
        first = np.argsort(np.stack(ignored), axis=1, kind="stable")[:, : self.service.stages.retrieve]
        return RankedLists._make(np.take_along_axis(values, first, axis=1) for values in lists)
