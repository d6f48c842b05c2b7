"""Which items to embed by the new model for a forecast.

Three kinds of items share the budget: a uniform sample of the gallery (the pilot), from which the models of distances
are fitted; some right answers of queries that are chosen at random; and the items whose stand-ins (predicted new
embeddings) are closest to these queries, because what is embedded need not be estimated. Queries with the same right
answers are chosen together: they share the cost. A larger sample with the same seed contains a smaller one, except for
close items. A file lists the items with the settings of which the sample was made.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import say, step
from ray_backfill.core.runkey import RunKey, other_format
from ray_backfill.core.schema import arrow_table, open_checked, read_checked
from ray_backfill.core.secrets import cleaned
from ray_backfill.core.store_path import path_of
from ray_backfill.data.folder import EmbeddingFolder, read_folder
from ray_backfill.data.truth import find_truth
from ray_backfill.data.write import write_parquet
from ray_backfill.engine.distances import ProductForm
from ray_backfill.engine.systems import FloatArray, GroundTruth, IntArray, RetrievalSystem
from ray_backfill.forecast.settings import FEW_ITEMS, SampleSettings, few_in_words
from ray_backfill.forecast.tables import SampledItem
from ray_backfill.learn.models.apply import fit_stand_in

PILOT, ANSWER, CLOSE = 0, 1, 2
REASONS = ("pilot", "right answer", "close")
# Shares of the budget.
_PILOT_SHARE, _ANSWER_SHARE = 0.2, 0.6
# Right answers of a query that are embedded, at least: fewer say too little about the others.
PER_QUERY = 3
# Groups of queries that are chosen, at least: with fewer, the error of choosing them cannot be estimated.
_FEWEST_GROUPS = 10
# Streams of random numbers.
_PILOT_STREAM, _GROUP_STREAM, _ANSWER_STREAM = range(3)

# Version of the file; increases when its meaning or that of its key changes.
FORMAT = 2
# Name in the metadata of the file.
_FACTS = b"ray_backfill.sample"

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
    groups: dict[bytes, list[int]] = {}
    for query in range(truth.n_queries):
        answers = truth.positives_of(query)
        if len(answers):
            groups.setdefault(answers.tobytes(), []).append(query)
    return [np.array(queries) for queries in groups.values()]


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
    most = max(map(len, shuffled.values()), default=0)
    taken_N, first, number, per_query, spent = taken_N.copy(), 0, 0, PER_QUERY, 0
    answers = [np.empty(0, np.int64)]
    while first < most:
        for place, g in enumerate(order.tolist()):
            fresh = shuffled[g][first:per_query]
            fresh = fresh[~taken_N[fresh]]
            if spent + len(fresh) > budget:
                return np.concatenate(answers), first + place / len(groups) if first else PER_QUERY, number
            taken_N[fresh] = True
            spent += len(fresh)
            answers.append(fresh)
            number = max(number, place + 1)
        first, per_query = per_query, per_query + 1
    return np.concatenate(answers), most, number


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
        nearest = min(200, len(taken_N))  # stand-ins of a query that count as close
        for first in range(0, len(queries), 16):
            block = queries[first : first + 16]
            for query, distance in zip(block.tolist(), form.approximate(block), strict=True):
                distance[truth.positives_of(query)] = np.inf
                distance[truth.ignored_of(query)] = np.inf
                if truth.filter is not None:
                    distance[truth.filter.of_item != truth.filter.of_query[query]] = np.inf
                close = np.argpartition(distance, nearest - 1)[:nearest]
                close = close[np.argsort(distance[close], kind="stable")]
                close = close[np.isfinite(distance[close])]
                score_N[close] += 1 / np.arange(1, len(close) + 1)
        score_N[taken_N] = -1
        order = np.argsort(-score_N, kind="stable")
        return order[: int((score_N >= 0).sum())]

    return find


@dataclass(frozen=True, eq=False)
class StoredSample:
    """A sample and the settings that it was drawn with. round_n: (n,) round of each item, from 1 on."""

    sample: Sample
    settings: SampleSettings
    round_n: IntArray

    @property
    def lists(self) -> int:
        """Number of different lists of right answers of the chosen queries."""
        return len(np.unique(self.sample.group))


def read_before_backfill(data: Path) -> EmbeddingFolder:
    """A folder whose gallery may lack new embeddings. Raises InputError if it has no queries.parquet."""
    folder = read_folder(data, gallery_needs=("old",))
    if folder.queries is None:
        raise InputError(
            f"{data} has no queries.parquet: a forecast needs queries whose embeddings by both models are known; "
            "embed some queries by the new model"
        )
    return folder


def truth_of(folder: EmbeddingFolder, settings: SampleSettings) -> GroundTruth:
    """The right answers. Raises InputError for weighted queries, and for a truth that needs all new embeddings."""
    words = settings.truth
    if words and words[0].startswith("new-top"):
        raise InputError(
            f"--truth {words[0]} needs the new embedding of every gallery item; a forecast has few of them"
        )
    truth = find_truth(folder, words, settings.distance, filter_column=settings.filter).ground
    if truth.weights is not None:
        raise InputError("queries with weights cannot be forecast; leave the column weight out of queries.parquet")
    return truth


def free_pairs(folder: EmbeddingFolder) -> tuple[FloatArray, FloatArray]:
    """Old and new embeddings of the same items that need no budget: queries, and the train split."""
    tables = [table for table in (folder.queries, folder.train) if table is not None]
    old, new = (np.concatenate([table.vectors[model] for table in tables]) for model in ("old", "new"))
    return old, new


def take_sample(data: Path, out: Path, budget: int, settings: SampleSettings, add: int = 0) -> StoredSample:
    """Choose the items and write them to ``out``.

    budget: number of items. add: instead, extend the sample in ``out`` by this many; its settings stay.

    Raises:
        InputError: The folder lacks something, the budget does not fit, or ``out`` already holds a sample.
    """
    folder = read_before_backfill(data)
    if settings.distance == "inner_product":
        raise InputError("inner products cannot be forecast; use --distance cosine or l2")
    if settings.seed < 0:
        raise InputError(f"--seed must not be negative, got {settings.seed}")
    if settings.truth and settings.truth[0] == "qrels":
        absolute = (str(path_of(file).absolute()) for file in settings.truth[1:])
        settings = replace(settings, truth=("qrels", *absolute))
    earlier = read_sample(out, folder) if add else None
    if earlier is not None:
        if settings not in (SampleSettings(), earlier.settings):
            raise InputError(f"{out} was drawn with other settings ({earlier.settings}); leave them out with --add")
        settings, budget = earlier.settings, len(earlier.sample) + add
    elif out.exists():
        raise InputError(f"{out} is there already; extend it with --add, or write elsewhere with --out")
    truth = truth_of(folder, settings)
    assert folder.queries is not None
    with step("find close items"):
        stand_ins = fit_stand_in(*free_pairs(folder), settings.distance)(folder.gallery.old)
        form = ProductForm.of(RetrievalSystem(folder.queries.new, stand_ins), settings.distance)
        kept = None if earlier is None else earlier.sample.position
        sample = draw_sample(truth, budget, closest_stand_ins(form, truth), settings.seed, kept)
    if few := parts_with_few(truth, sample.queries, sample.position[sample.reason != CLOSE]):
        say(f"{few_in_words(few, settings.filter)}; extend the sample by --add N")
    round_n = np.ones(len(sample), np.int64)
    if earlier is not None:
        round_N = np.full(len(folder.gallery), earlier.round_n.max() + 1)
        round_N[earlier.sample.position] = earlier.round_n
        round_n = round_N[sample.position]
    ids = folder.gallery.id[sample.position]
    rows = [
        SampledItem(str(item), REASONS[reason], float(chance), int(number))
        for item, reason, chance, number in zip(ids, sample.reason, sample.probability, round_n, strict=True)
    ]
    table = arrow_table(SampledItem, rows).set_column(0, "id", pa.array(ids))
    drawn = {"queries": sample.queries.tolist(), "group": sample.group.tolist(), "groups": sample.n_groups}
    facts = drawn | asdict(settings) | {"key": sample_key(folder, truth, settings).recorded()}
    write_parquet(out, table.replace_schema_metadata({_FACTS: json.dumps(cleaned(facts)).encode()}))
    return StoredSample(sample, settings, round_n)


def sample_key(folder: EmbeddingFolder, truth: GroundTruth, settings: SampleSettings) -> RunKey:
    """What determines a sample besides its size. The gallery's new embeddings do not: they come later."""
    of_split = {split: folder.fingerprint(("old", "new"), (split,)) for split in ("queries", "train")}
    gallery = folder.fingerprint(("old",), ("gallery",))
    made_from = {"gallery": gallery, **of_split, "right_answers": truth.fingerprint}
    given = asdict(settings)
    column = given.pop("filter")  # an input, not a setting: samples of before have none
    made_from["filter"] = f"{column} {truth.filter.fingerprint}" if truth.filter else ""
    return RunKey("sample", given, made_from, FORMAT)


def read_sample(path: Path, folder: EmbeddingFolder) -> StoredSample:
    """Read a sample of this folder.

    Raises:
        InputError: There is none, or it was drawn from other data or other right answers.
    """
    if not path.exists():
        advised = max(100, len(folder.gallery) // 50)
        raise InputError(f"{path} is missing; run: ray-backfill sample {folder.path} --budget {advised}")
    metadata = open_checked(path).schema_arrow.metadata or {}
    if _FACTS not in metadata:
        raise InputError(f"{path} was not written by ray-backfill sample; draw a sample with it")
    facts: dict[str, Any] = json.loads(metadata[_FACTS])
    if other := other_format(facts.get("key", {}).get("settings", {}), FORMAT):
        raise InputError(f"{path} was {other}; sample again")
    settings = SampleSettings(facts["seed"], tuple(facts["truth"]), facts["distance"], facts.get("filter", ""))
    truth = truth_of(folder, settings)
    if difference := sample_key(folder, truth, settings).difference(facts["key"]):
        raise InputError(f"{path} is no sample of {folder.path} as it is now ({difference}); sample again")
    table = read_checked(path, ["id", "reason", "probability", "round"])
    position = positions_of(folder.gallery.id, np.asarray(table["id"].to_pylist()))
    reason = np.array([REASONS.index(name) for name in table["reason"].to_pylist()], np.int8)
    probability, of_round = (table[name].to_numpy() for name in ("probability", "round"))
    queries, group = (np.array(facts[name], np.int64) for name in ("queries", "group"))
    sample = Sample(position, reason, probability, queries, group, facts["groups"], facts["seed"])
    return StoredSample(sample, settings, of_round)


def parts_with_few(truth: GroundTruth, queries: IntArray, positions: IntArray) -> int:
    """Number of parts with some of these queries but fewer than ``FEW_ITEMS`` of these items; 0 without a filter."""
    if truth.filter is None:
        return 0
    parts = np.unique(truth.filter.of_query[queries])
    items = np.bincount(truth.filter.of_item[positions], minlength=parts[-1] + 1)[parts]
    return int((items < FEW_ITEMS).sum())


def positions_of(ids: Any, wanted: Any) -> IntArray:
    """(n,) positions of some ids in (N,) ids, -1 for those that are not there."""
    order = np.argsort(ids, kind="stable")
    place = np.minimum(np.searchsorted(ids, wanted, sorter=order), len(ids) - 1)
    position = order[place]
    return np.where(ids[position] == wanted, position, -1)


def counts_in_words(stored: StoredSample) -> str:
    """How many items of which kind, and for how many queries."""
    sample = stored.sample
    pilot, answers, close = np.bincount(sample.reason, minlength=len(REASONS)).tolist()
    kinds = f"{pilot:,} pilot, {answers:,} right answers, {close:,} close"
    lists = f" with {stored.lists:,} different lists of right answers" * (stored.lists < len(sample.queries))
    return f"{len(sample):,} items ({kinds}) for {len(sample.queries):,} queries{lists}"
