"""Curves of a gallery that changes during the backfill, against a literal loop in plain Python."""

import math
from dataclasses import replace
from itertools import product
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ray_backfill.core.errors import InputError
from ray_backfill.engine.distances import ProductForm
from ray_backfill.engine.replay import Served
from ray_backfill.pipeline.changes import Changes, Timeline
from ray_backfill.pipeline.lists import Stages
from ray_backfill.pipeline.replay import first_results, replay_service
from tests.pipeline.test_literal import METRICS, POINTS, World, value, world

# At, between, before and after the points of a replay.
TIMES = st.sampled_from([0.0, 0.0, 0.0, 0.01, 0.25, 0.3, 0.5, 0.6, 0.75, 0.9, 1.0])


@st.composite
def changes(draw: st.DrawFn, n: int) -> Changes:
    """In order for each item: inserted, changed, deleted."""
    rows = []
    for _ in range(n):
        inserted, changed, deleted = draw(st.tuples(TIMES, TIMES, TIMES))
        changed = changed if changed > inserted else 0.0
        rows.append((inserted, changed, deleted if deleted > max(inserted, changed) else 0.0))
    return Changes(*np.array(rows).T)


class Literal:
    """The lists of a pair in plain Python."""

    def __init__(self, made: World, pair: Served, what: Changes) -> None:
        self.made, self.pair, self.what, n = made, pair, what, made.truth.n_gallery
        self.distance, self.score = {}, {}
        for q in range(made.truth.n_queries):
            for is_new, side in ((False, pair.backward), (True, pair.forward)):
                d = ProductForm.of(made.systems[side], "l2").exact(np.full(n, q), np.arange(n))
                is_alone = pair.backward == pair.forward
                self.distance[q, is_new] = d.tolist()
                self.score[q, is_new] = (d if is_alone else pair.merge.scores(d, np.full(n, is_new))).tolist()

    def at(self, q: int, t: float, order: str, stages: Stages) -> list[tuple[int, bool]]:
        """(item, whether the old partition serves it) of one query at progress t."""
        truth, pair, inserted = self.made.truth, self.pair, self.what.inserted_at
        n, is_alone = truth.n_gallery, pair.backward == pair.forward
        waiting = [i for i in pair.orders[order].tolist() if inserted[i] == 0]
        done = {*waiting[: math.floor(t * len(waiting) + 1e-9)], *np.flatnonzero(inserted).tolist()}
        if pair.switch == "at_end" or is_alone:
            done = set(range(n)) if t == 1 else set()
        old, new = [], []
        for i in set(range(n)) - set(truth.ignored_of(q).tolist()):
            gone = 0 < self.what.deleted_at[i] <= t
            if t < inserted[i] or gone or (truth.filter and truth.filter.of_item[i] != truth.filter.of_query[q]):
                continue
            if i in done:
                new.append(i)
            elif pair.switch != "only_backfilled" and (is_alone or inserted[i] == 0):
                old.append(i)
        entries = []
        for is_new, items in ((False, old), (True, new)):
            d, score = self.distance[q, is_new], self.score[q, is_new]
            for rank, i in enumerate(sorted(items, key=lambda i: (d[i], i))[: stages.retrieve]):
                entries.append((rank if pair.merge.by_rank else score[i], d[i], i, not is_new))
        listed = [(i, is_old) for _, _, i, is_old in sorted(entries)][: stages.cut]
        first, rest, relevance = listed[: stages.top], listed[stages.top :], self.made.relevance
        scored = sorted((of for of in first if (q, of[0]) in relevance), key=lambda of: (-relevance[q, of[0]], of[0]))
        return [*scored, *(of for of in first if (q, of[0]) not in relevance), *rest]


@settings(max_examples=20)
@given(
    data=st.data(), seed=st.integers(0, 10_000), retrieve=st.integers(3, 8), cut=st.integers(3, 12),
    top=st.sampled_from([0, 3]), tenants=st.booleans(), is_shallow=st.booleans(),
)  # fmt: skip
def test_curves_are_those_of_a_literal_loop(
    data: st.DataObject, seed: int, retrieve: int, cut: int, top: int, tenants: bool, is_shallow: bool
) -> None:
    """is_shallow: queries are searched again until their lists are whole."""
    stages = Stages(retrieve, min(cut, 2 * retrieve), None, top)
    made = world(seed, stages, tenants=tenants)
    what = data.draw(changes(made.truth.n_gallery))
    t_of = [j / (POINTS - 1) for j in range(POINTS)]

    def right_at(q: int, t: float) -> set[int]:
        right = made.truth.positives_of(q).tolist()
        return {i for i in right if what.inserted_at[i] <= t and not 0 < what.deleted_at[i] <= t}

    counted = [q for q in range(made.truth.n_queries) if all(right_at(q, t) for t in t_of)]
    service, variation = replace(made.service, text=None, changes=what), replace(stages, top=0)
    usual = Timeline.likely_depth
    with patch.object(Timeline, "likely_depth", (lambda self, k, points: k) if is_shallow else usual):
        arguments = made.systems, made.served, made.truth, POINTS, METRICS, "l2", service, [variation]
        if not counted:
            with pytest.raises(InputError, match="at every moment"):
                replay_service(*arguments)
            return
        curves = replay_service(*arguments, step=2)
        for place, pair in enumerate(made.served):
            first = first_results(made.systems, pair, made.truth, np.array(counted), POINTS, "l2", service, 3)
            literal = Literal(made, pair, what)
            for order in pair.orders:
                whole, thinned = (of_pairs[place][order] for of_pairs in curves)
                assert whole.scored.tolist() == counted
                assert whole.n_skipped == made.truth.n_queries - len(counted)
                assert (whole.stale is None) == (pair.backward == pair.forward)
                for (row, q), (j, t) in product(enumerate(counted), enumerate(t_of)):
                    listed = literal.at(q, t, order, stages)
                    items = [i for i, _ in listed]
                    assert first[order].item[row, j].tolist() == [*items, -1, -1, -1][:3]
                    plain = [i for i, _ in literal.at(q, t, order, variation)]
                    for metric in METRICS:
                        expected = value(metric, items, right_at(q, t))
                        assert whole.per_query[metric][row, j] == pytest.approx(expected, abs=1e-12)
                        if j % 2 == 0:
                            expected = value(metric, plain, right_at(q, t))
                            assert thinned.per_query[metric][row, j // 2] == pytest.approx(expected, abs=1e-12)
                    stale = [is_old and 0 < what.changed_at[i] <= t for i, is_old in listed[:10]]
                    if whole.stale is not None:
                        assert whole.stale[row, j] == pytest.approx(sum(stale) / max(1, len(stale)))
