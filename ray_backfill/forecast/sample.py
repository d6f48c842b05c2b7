"""Which items to embed by the new model for a forecast.

Three kinds of items share the budget: a uniform sample of the gallery (the pilot), from which the models of distances
are fitted; some right answers of queries that are chosen at random; and the items whose stand-ins (predicted new
embeddings) are closest to these queries, because what is embedded need not be estimated. Queries with the same right
answers are chosen together: they share the cost. A larger sample with the same seed contains a smaller one, except for
close items.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.engine.distances import ProductForm
from ray_backfill.engine.systems import GroundTruth, IntArray

PILOT, ANSWER, CLOSE = 0, 1, 2
REASONS = ("pilot", "right answer", "close")
# Shares of the budget.
_PILOT_SHARE, _ANSWER_SHARE = 0.2, 0.6
# Right answers of a query that are embedded, at least: fewer say too little about the others.
PER_QUERY = 3
# Groups of queries that are chosen, at least: with fewer, the error of choosing them cannot be estimated.
_FEWEST_GROUPS = 10
# Nearest stand-ins of a query that count as close, and queries whose distances are computed at a time.
_NEAREST, _BLOCK = 200, 16
# Streams of random numbers.
_PILOT_STREAM, _GROUP_STREAM, _ANSWER_STREAM = range(3)

# (chosen queries, items that are already sampled) -> gallery positions by how close they are to these queries.
FindClose = Callable[[IntArray, NDArray[np.bool_]], IntArray]


@dataclass(frozen=True, eq=False)
class Sample:
    """Items that are embedded for a forecast.

    position: (n,) gallery positions. reason: (n,) index into REASONS. probability: (n,) probability of being sampled.
    queries: (m,) the chosen queries, ascending. group: (m,) number of each one's group; queries of a group have the
    same right answers. n_groups: number of groups of all queries. seed: of the drawing.
    """

    position: IntArray
    reason: NDArray[np.int8]
    probability: NDArray[np.float64]
    queries: IntArray
    group: IntArray
    n_groups: int
    seed: int

    def __len__(self) -> int:
        return len(self.position)

    @property
    def weight(self) -> NDArray[np.float64]:
        """(n,) for how many items of the gallery each one stands; 0: it was not drawn at random."""
        return np.where(self.reason == CLOSE, 0.0, 1 / self.probability)


def groups_of(truth: GroundTruth) -> list[IntArray]:
    """Queries with right answers, in groups that have the same ones."""
    found: dict[bytes, list[int]] = {}
    for query in range(truth.n_queries):
        answers = truth.positives_of(query)
        if len(answers):
            found.setdefault(answers.tobytes(), []).append(query)
    return [np.array(queries) for queries in found.values()]


def draw_sample(
    truth: GroundTruth, budget: int, find_close: FindClose, seed: int = 0, kept: IntArray | None = None
) -> Sample:
    """Draw at most ``budget`` items.

    kept: items of an earlier, smaller sample with the same seed. They stay in the sample.

    Raises:
        InputError: The budget is too small for any query, or larger than the gallery.
    Cost: O(N + positives), and ``find_close``.
    """
    size = truth.n_gallery
    if budget > size:
        raise InputError(f"the gallery has {size:,} items; a budget of {budget:,} is more than all of them")
    shuffled = np.random.default_rng([seed, _PILOT_STREAM]).permutation(size)
    pilot: IntArray = shuffled[: int(_PILOT_SHARE * budget)].astype(np.int64)
    groups = groups_of(truth)
    order = np.random.default_rng([seed, _GROUP_STREAM]).permutation(len(groups))
    taken_N = np.zeros(size, np.bool_)
    taken_N[pilot] = True
    answers, per_query, n_chosen = _draw_answers(truth, groups, order, taken_N, int(_ANSWER_SHARE * budget), seed)
    if n_chosen < min(_FEWEST_GROUPS, len(groups)):
        few = f"a budget of {budget:,} items covers {n_chosen:,} of {len(groups):,} different lists of right answers"
        least = max(budget + 1, round(_FEWEST_GROUPS * PER_QUERY / _ANSWER_SHARE))
        better = f", better {size // 50:,}, which is 2 % of the gallery" if size // 50 > least else ""
        raise InputError(f"{few}; use at least {least:,}{better}")
    taken_N[answers] = True
    queries = np.concatenate([groups[g] for g in order[:n_chosen]])
    number = np.concatenate([np.full(len(groups[g]), i) for i, g in enumerate(order[:n_chosen])])
    close = np.empty(0, np.int64) if kept is None else kept[~taken_N[kept]]
    taken_N[close] = True
    rest = max(0, budget - int(taken_N.sum()))
    close = np.concatenate([close, find_close(np.sort(queries), taken_N)[:rest]])
    positions = np.concatenate([pilot, answers, close])
    reason = np.repeat(np.array([PILOT, ANSWER, CLOSE], np.int8), [len(pilot), len(answers), len(close)])
    chance = _probabilities(truth, groups, len(pilot) / size, per_query, n_chosen / len(groups))
    by_query = np.argsort(queries, kind="stable")
    probability = np.where(reason == CLOSE, 1.0, chance[positions])
    return Sample(positions, reason, probability, queries[by_query], number[by_query], len(groups), seed)


def _draw_answers(
    truth: GroundTruth, groups: list[IntArray], order: IntArray, taken_N: NDArray[np.bool_], budget: int, seed: int
) -> tuple[IntArray, float, int]:
    """Right answers that are not in the pilot, how many a group has on average, and the number of groups with them.

    If there is budget for every group, each gets more answers.
    """
    shuffled = {
        g: np.random.default_rng([seed, _ANSWER_STREAM, g]).permutation(truth.positives_of(int(groups[g][0])))
        for g in order.tolist()
    }
    most = max((len(answers) for answers in shuffled.values()), default=0)
    taken_N, first, number, per_query, spent = taken_N.copy(), 0, 0, PER_QUERY, 0
    found: list[IntArray] = []
    while first < most:
        for place, g in enumerate(order.tolist()):
            fresh = shuffled[g][first:per_query]
            fresh = fresh[~taken_N[fresh]]
            if spent + len(fresh) > budget:
                return _joined(found), first + place / len(groups) if first else PER_QUERY, number
            taken_N[fresh] = True
            spent += len(fresh)
            found.append(fresh)
            number = max(number, place + 1)
        first, per_query = per_query, per_query + 1
    return _joined(found), most, number


def _joined(parts: list[IntArray]) -> IntArray:
    return np.concatenate([*parts, np.empty(0, np.int64)])


def _probabilities(
    truth: GroundTruth, groups: list[IntArray], of_pilot: float, per_query: float, of_group: float
) -> NDArray[np.float64]:
    """(N,) probability that an item is drawn, for the pilot or as a right answer of a chosen group."""
    missed_N = np.full(truth.n_gallery, 1 - of_pilot)
    for group in groups:
        answers = truth.positives_of(int(group[0]))
        missed_N[answers] *= 1 - of_group * min(1.0, per_query / len(answers))
    return 1 - missed_N


def closest_stand_ins(form: ProductForm, truth: GroundTruth) -> FindClose:
    """Rank items by the sum of 1 / rank over the chosen queries, among each one's nearest stand-ins.

    form: distances from new queries to stand-ins. Cost: one product of the chosen queries with the gallery.
    """

    def find(queries: IntArray, taken_N: NDArray[np.bool_]) -> IntArray:
        score_N = np.zeros(len(taken_N))
        nearest = min(_NEAREST, len(taken_N))
        for first in range(0, len(queries), _BLOCK):
            block = queries[first : first + _BLOCK]
            for query, distance in zip(block.tolist(), form.approximate(block), strict=True):
                distance[truth.positives_of(query)] = np.inf
                distance[truth.ignored_of(query)] = np.inf
                close = np.argpartition(distance, nearest - 1)[:nearest]
                close = close[np.argsort(distance[close], kind="stable")]
                score_N[close] += 1 / np.arange(1, nearest + 1)
        score_N[taken_N] = -1
        order = np.argsort(-score_N, kind="stable")
        return order[: int((score_N >= 0).sum())]

    return find
