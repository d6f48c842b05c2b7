"""Answers of a running service at single moments against the literal loop of the replay's test."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ray_backfill.engine.distances import ProductForm
from ray_backfill.engine.lists import RankedLists, best_first
from ray_backfill.engine.systems import RetrievalSystem
from ray_backfill.pipeline.lists import Fusion, Stages
from ray_backfill.pipeline.live import Answering
from tests.pipeline.test_literal import FUSIONS, POINTS, literal, world


def nearest(system: RetrievalSystem, items: np.ndarray, k: int) -> RankedLists:
    """The first k of these items for each query, as an index returns them."""
    query, item = np.repeat(np.arange(len(system.query)), len(items)), np.tile(items, len(system.query))
    return best_first(query, ProductForm.of(system, "l2").exact(query, item), item, len(system.query), k)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000), retrieve=st.integers(3, 8), cut=st.integers(3, 20), fusion=st.sampled_from(FUSIONS),
    top=st.sampled_from([0, 4]), k=st.sampled_from([1, 3, 30]),
)  # fmt: skip
def test_answers_are_those_of_a_literal_loop(
    seed: int, retrieve: int, cut: int, fusion: Fusion | None, top: int, k: int
) -> None:
    stages = Stages(retrieve, cut, fusion, top)
    made = world(seed, stages)
    n = made.truth.n_gallery
    for pair in made.served[:2]:  # raw and quantile
        expected = literal(made, pair, "a", stages)
        answering = Answering(pair.merge, made.service, k, made.truth)
        for t in range(POINTS):
            done = pair.orders["a"][: t * n // (POINTS - 1)]
            old, new = (
                nearest(system, items, answering.retrieve)
                for system, items in zip(made.systems, (np.setdiff1d(np.arange(n), done), done), strict=True)
            )
            for queries in (np.arange(4), np.array([2, 0, 2])):
                answers = answering.answers(old.at(queries), new.at(queries), queries)
                for row, q in enumerate(queries.tolist()):
                    item = answers.item[row]
                    assert item[item >= 0].tolist() == expected[q][t][:k]
                    assert (np.diff(item < 0) >= 0).all()
                    of_vectors = (item >= 0) & np.isfinite(answers.distance[row])
                    assert (answers.is_forward[row][of_vectors] == np.isin(item, done)[of_vectors]).all()


@pytest.mark.parametrize("k", [1, 4, 14])
def test_the_plain_service_merges_its_partitions(k: int) -> None:
    """With nothing ignored: what a query ignores takes a place."""
    made = world(1, Stages(14, 14))
    pair, n = made.served[1], made.truth.n_gallery
    done = pair.orders["b"][:5]
    sides = ((np.setdiff1d(np.arange(n), done), made.systems[0], False), (done, made.systems[1], True))
    old, new = (nearest(system, items, k) for items, system, _ in sides)
    answers = Answering.plain(pair.merge, k).answers(old, new, np.arange(4))
    for q in range(4):
        entries = []
        for items, system, is_forward in sides:
            distance = ProductForm.of(system, "l2").exact(np.full(len(items), q), items)
            score = pair.merge.scores(distance, np.full(len(items), is_forward))
            entries += list(zip(score, distance, items, strict=True))
        assert answers.item[q].tolist() == [item for _, _, item in sorted(entries)][:k]
