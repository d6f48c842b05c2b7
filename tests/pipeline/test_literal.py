"""Curves behind a service's stages against a literal loop: sort, merge, fuse and re-rank in plain Python."""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ray_backfill.core.errors import InputError
from ray_backfill.engine.distances import ProductForm
from ray_backfill.engine.merges import RAW, fit_merge
from ray_backfill.engine.metrics import parse_metric
from ray_backfill.engine.replay import Served, replay_pairs
from ray_backfill.engine.systems import Filter, GroundTruth, RetrievalSystem, UpgradePair
from ray_backfill.pipeline.lexical import TextLists
from ray_backfill.pipeline.lists import Fusion, Stages
from ray_backfill.pipeline.replay import first_results, pairs_to_rank, replay_service
from ray_backfill.pipeline.rerank import PairScores
from ray_backfill.pipeline.service import Service

METRICS = ("mAP@3", "nDCG@2", "CMC@1", "recall@3")
POINTS = 5


class World(NamedTuple):
    systems: list[RetrievalSystem]
    served: list[Served]
    truth: GroundTruth
    service: Service
    texts: list[dict[int, float]]
    relevance: dict[tuple[int, int], float]


def world(seed: int, stages: Stages, n: int = 14, queries: int = 4, tenants: bool = False) -> World:
    """A gallery on a grid, so that distances, scores and ranks tie."""
    rng = np.random.default_rng(seed)

    def vectors(rows: int) -> np.ndarray:
        return rng.integers(-1, 2, (rows, 2)).astype(np.float32) + np.float32(0.5)

    old, new = (RetrievalSystem(vectors(queries), vectors(n)) for _ in range(2))
    positives = [np.flatnonzero(rng.random(n) < 0.3) for _ in range(queries)]
    positives[0] = np.array([1])
    ignored = [np.flatnonzero(rng.random(n) < 0.1) for _ in range(queries)]
    truth = GroundTruth.from_positives(positives, ignored, n_gallery=n)
    if tenants:
        truth = truth.with_filter(Filter(np.arange(queries) % 2, rng.permutation(n) % 2))
    texts: list[dict[int, float]] = []
    for q in range(queries):
        allowed = [i for i in range(n) if i not in truth.ignored_of(q)]
        if truth.filter:
            allowed = [i for i in allowed if truth.filter.of_item[i] == truth.filter.of_query[q]]
        length = int(rng.integers(0, min(6, len(allowed)) + 1))
        some = rng.choice(allowed, length, replace=False)
        texts.append({int(i): float(rng.integers(1, 4)) for i in some})
    width = 6
    item, score = np.full((queries, width), -1), np.full((queries, width), -np.inf)
    for q, of_query in enumerate(texts):
        ranked = sorted(of_query, key=lambda i: (-of_query[i], i))[: stages.fusion.retrieve if stages.fusion else width]
        texts[q] = {i: of_query[i] for i in ranked}
        item[q, : len(ranked)], score[q, : len(ranked)] = ranked, [of_query[i] for i in ranked]
    relevance = {(q, i): float(rng.integers(0, 4)) for q in range(queries) for i in range(n) if rng.random() < 0.8}
    keys = np.array(sorted(relevance))
    scores = PairScores(keys[:, 0], keys[:, 1], np.array([relevance[q, i] for q, i in sorted(relevance)]))
    orders = {"a": rng.permutation(n), "b": rng.permutation(n)}
    items = [vectors(30), vectors(30)]
    train = UpgradePair(RetrievalSystem(items[0], items[0]), RetrievalSystem(items[1], items[1]))
    merges = [RAW, fit_merge("quantile", train, None, "l2", 0), fit_merge("rrf", None, None, "l2", 0)]
    if stages.fusion and stages.fusion.name != "rrf" and not stages.fusion.separate:
        merges = merges[:2]
    served = [Served(0, 1, orders, merge=merge) for merge in merges]
    served += [Served(0, 0, orders), Served(0, 1, orders, "at_end"), Served(1, 1, orders, "only_backfilled")]
    return World([old, new], served, truth, Service(stages, TextLists(item, score), scores), texts, relevance)


def normalised(name: str, k: float, scores: list[float]) -> tuple[list[float], float]:
    """f of a list's scores, the best first; f of what it lacks. From the definitions in the docs, not from our code."""
    if name == "rrf":
        return [1 / (k + rank) for rank, _ in enumerate(scores, 1)], 0.0
    if not scores:
        return [], 0.0
    mean = sum(scores) / len(scores)
    if name in ("minmax", "relativeScoreFusion"):
        least, most = min(scores), max(scores)
        return [(s - least) / (most - least) if most > least else 1.0 for s in scores], 0.0
    squares = sum((s - mean) ** 2 for s in scores)
    if name == "dbsf":
        sigma = math.sqrt(squares / (len(scores) - 1)) if len(scores) > 1 else 0.0
        low, high = mean - 3 * sigma, mean + 3 * sigma
        return [(s - low) / (high - low) if high > low else 0.5 for s in scores], 0.0
    sigma = math.sqrt(squares / len(scores))
    values = [(s - mean) / sigma if sigma > 0 else 0.0 for s in scores]
    return values, min(values)


def literal(made: World, pair: Served, order: str, stages: Stages) -> list[list[list[int]]]:
    """The lists of each query at each moment."""
    n, lists = made.truth.n_gallery, []
    d = {
        side: np.stack([
            ProductForm.of(made.systems[side], "l2").exact(np.full(n, q), np.arange(n))
            for q in range(made.truth.n_queries)
        ])
        for side in (0, 1)
    }  # fmt: skip
    score = {
        side: pair.merge.scores(d[side].ravel(), np.full(d[side].size, at == 1)).reshape(d[side].shape)
        for at, side in enumerate((pair.backward, pair.forward))
    }
    if pair.backward == pair.forward:
        score = {pair.backward: d[pair.backward].astype(float)}
    for q in range(made.truth.n_queries):
        of_query = []
        for t in range(POINTS):
            count = t * n // (POINTS - 1)
            if pair.switch == "at_end" or (pair.backward == pair.forward and pair.switch == "progressively"):
                count = n if t == POINTS - 1 else 0
            backfilled = set(pair.orders[order][:count].tolist())
            shown = [i for i in range(n) if i not in made.truth.ignored_of(q)]
            if made.truth.filter:
                shown = [i for i in shown if made.truth.filter.of_item[i] == made.truth.filter.of_query[q]]
            old = [i for i in shown if i not in backfilled]
            new = [i for i in shown if i in backfilled]
            if pair.switch == "only_backfilled":
                old = []
            old = sorted(old, key=lambda i: (d[pair.backward][q, i], i))[: stages.retrieve]
            new = sorted(new, key=lambda i: (d[pair.forward][q, i], i))[: stages.retrieve]
            entries = []
            for items, side in ((old, pair.backward), (new, pair.forward)):
                for rank, i in enumerate(items):
                    key = rank if pair.merge.by_rank else score[side][q, i]
                    entries.append((key, d[side][q, i], i))
            merged = [i for _, _, i in sorted(entries)][: stages.cut]
            listed = merged
            if stages.fusion:
                fusion = stages.fusion
                of_item = {i: (key, float(dist)) for key, dist, i in entries}
                vectors = [old, new] if fusion.separate else [merged]
                values: dict[int, float] = {}
                text = made.texts[q]
                parts = []
                for items in vectors:
                    similarity = [-of_item[i][1 if fusion.separate else 0] for i in items]
                    parts.append((fusion.weights[0], items, *normalised(fusion.name, fusion.k, similarity)))
                ranked = sorted(text, key=lambda i: (-text[i], i))
                parts.append((fusion.weights[1], ranked, *normalised(fusion.name, fusion.k, [text[i] for i in ranked])))
                for i in {i for _, items, _, _ in parts for i in items}:
                    for place, (weight, items, f, missing) in enumerate(parts):
                        share = weight * (f[items.index(i)] if i in items else missing)
                        values[i] = share if place == 0 else values[i] + share
                listed = sorted(values, key=lambda i: (-values[i], i))[: fusion.cut]
            if stages.top:
                first, rest = listed[: stages.top], listed[stages.top :]
                scored = [i for i in first if (q, i) in made.relevance]
                listed = [
                    *sorted(scored, key=lambda i: (-made.relevance[q, i], i)),
                    *(i for i in first if (q, i) not in made.relevance), *rest,
                ]  # fmt: skip
            of_query.append(listed)
        lists.append(of_query)
    return lists


def value(metric: str, listed: list[int], right: set[int]) -> float:
    """A metric of one list, by its definition."""
    parsed = parse_metric(metric)
    hits = [i in right for i in listed[: parsed.k]]
    if metric.startswith("CMC"):
        return float(any(hits))
    if metric.startswith("recall"):
        return sum(hits) / len(right)
    if metric.startswith("nDCG"):
        best = sum(1 / math.log2(r + 2) for r in range(min(len(right), parsed.k or 0)))
        return sum(hit / math.log2(r + 2) for r, hit in enumerate(hits)) / best
    precisions = [sum(hits[: r + 1]) / (r + 1) for r, hit in enumerate(hits) if hit]
    return sum(precisions) / min(len(right), parsed.k or 0)


FUSIONS = [
    None,
    *(
        Fusion(name, k, weights, separate, retrieve, cut)
        for name, k, weights, separate, retrieve, cut in (
            ("rrf", 60.0, (1.0, 1.0), False, 5, 6),
            ("rrf", 2.0, (1.0, 0.3), True, 6, 5),
            ("minmax", 60.0, (1.0, 1.0), False, 6, 6),
            ("relativeScoreFusion", 60.0, (0.75, 0.25), False, 4, 4),
            ("relativeScoreFusion", 60.0, (0.75, 0.25), True, 4, 4),
            ("zscore", 60.0, (0.6, 0.4), False, 6, 6),
            ("zscore", 60.0, (0.6, 0.4), True, 6, 6),
            ("dbsf", 60.0, (1.0, 1.0), False, 6, 6),
            ("dbsf", 60.0, (1.0, 1.0), True, 6, 6),
        )
    ),
]


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000), retrieve=st.integers(3, 8), cut=st.integers(3, 20), fusion=st.sampled_from(FUSIONS),
    top=st.sampled_from([0, 4]), tenants=st.booleans(),
)  # fmt: skip
def test_curves_are_those_of_a_literal_loop(
    seed: int, retrieve: int, cut: int, fusion: Fusion | None, top: int, tenants: bool
) -> None:
    stages = Stages(retrieve, cut, fusion, top)
    made = world(seed, stages, tenants=tenants)
    variations = [replace(stages, fusion=None), replace(stages, top=0)]
    curves = replay_service(
        made.systems, made.served, made.truth, POINTS, METRICS, "l2", made.service, variations, step=2
    )
    asked = curves[0][0]["a"].scored
    shown = set()
    for of_stages, kept, of_pairs in zip((stages, *variations), (1, 2, 2), curves, strict=True):
        for pair, of_orders in zip(made.served, of_pairs, strict=True):
            first = first_results(
                made.systems, pair, made.truth, asked, POINTS, "l2", replace(made.service, stages=of_stages), 3
            )
            for order, curve in of_orders.items():
                lists = literal(made, pair, order, of_stages)
                before = literal(made, pair, order, replace(of_stages, top=0))
                for row, q in enumerate(curve.scored.tolist()):
                    right = set(made.truth.positives_of(q).tolist())
                    for t in range(POINTS):
                        items = first[order].item[row, t].tolist()
                        assert items == (lists[q][t] + [-1, -1, -1])[:3]
                        if of_stages.top:
                            shown |= {(q, item) for item in before[q][t][:top]}
                        for metric in METRICS if t % kept == 0 else ():
                            expected = value(metric, lists[q][t], right)
                            assert curve.per_query[metric][row, t // kept] == pytest.approx(expected, abs=1e-12)
    pairs = pairs_to_rank(made.systems, made.served, made.truth, POINTS, "l2", made.service, variations)
    assert {*zip(*(column.tolist() for column in pairs), strict=True)} == shown


@pytest.mark.parametrize("tenants", [False, True])
def test_all_results_and_no_further_stage_are_the_plain_replay(tenants: bool) -> None:
    """To the last bit, in every merge and order."""
    n = 400
    made = world(3, Stages(n, n), n=n, queries=40, tenants=tenants)
    metrics = ("mAP@100", "nDCG@10", "CMC@1", "recall@10", "P@5")
    (curves,) = replay_service(made.systems, made.served, made.truth, 11, metrics, "l2", Service(Stages(n, n)))
    plain = replay_pairs(made.systems, made.served, made.truth, 11, metrics, "l2")
    for of_orders, of_plain in zip(curves, plain, strict=True):
        for order, curve in of_orders.items():
            for metric in metrics:
                np.testing.assert_array_equal(curve.per_query[metric], of_plain[order].per_query[metric])
            np.testing.assert_array_equal(curve.top1_correct, of_plain[order].top1_correct)


@pytest.mark.parametrize(
    ("stages", "metrics", "named"),
    [
        (Stages(10, 10), "mAP", "mAP@10"),
        (Stages(10, 10), "recall@11", "11"),
        (Stages(10, 10, Fusion("rrf", 60, (1, 1), False, 10, 5)), "recall@10", "5"),
        (Stages(10, 10, Fusion("minmax", 60, (1, 1), False, 10, 10)), "recall@10", "rrf"),
    ],
)
def test_what_lists_cannot_answer_is_refused(stages: Stages, metrics: str, named: str) -> None:
    made = world(0, Stages(10, 10))
    with pytest.raises(InputError, match=named):
        replay_service(
            made.systems, made.served, made.truth, POINTS, (metrics,), "l2", replace(made.service, stages=stages)
        )
