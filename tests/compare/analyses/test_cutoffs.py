"""Score cut-offs: translated as the merges say, and counted at every moment as a loop over all pairs counts them."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ray_backfill as rb
from ray_backfill.compare.analyses.cutoffs import CutoffRow, cutoff_table
from ray_backfill.compare.cutoffs import as_cutoffs, as_distances, carry
from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.fitted import FittedMaps, MergeFits
from ray_backfill.compare.replay import permutation_seeds
from ray_backfill.compare.resolve import Comparison, resolve
from ray_backfill.core.errors import InputError
from ray_backfill.core.schema import rows_of
from ray_backfill.data.folder import read_folder
from ray_backfill.drill.run import check_drill
from ray_backfill.drill.settings import LiveSettings
from ray_backfill.engine.merges import Merge, MergeKind, ScoreMap, all_merges
from ray_backfill.learn.expressions import plain
from ray_backfill.learn.methods import Embeddings, Method, find_methods
from ray_backfill.learn.training.settings import FitSettings
from tests.reference import distances

EVALUATION = Evaluation(
    methods=("rm_naive", "offline", "instant", "bct"), orders=("random", "given"), merges=("raw", "quantile", "rrf"),
    points=4, cutoffs=(0.7, 0.2),
)  # fmt: skip
MEASURES = ("precision", "recall", "results")


def split(n: int, seed: int, **more: Any) -> dict[str, Any]:
    """Small whole numbers: many distances are equal, some exactly at a cut-off."""
    rng = np.random.default_rng(seed)
    sizes = {"old": 3, "new": 4, "bct": 4}
    return {name: rng.integers(1, 4, (n, d)).astype(np.float32) for name, d in sizes.items()} | {
        "label": rng.integers(0, 4, n), **more
    }  # fmt: skip


@pytest.fixture
def data(tmp_path: Path) -> Path:
    queries = split(9, 2, camera=np.arange(9) % 2, weight=np.arange(1, 10) / 3)
    queries["label"][[1, 5]] = [-1, 77]  # queries without a right answer
    gallery = split(29, 1, camera=np.arange(29) % 2, order_score=np.arange(29) % 7)
    return rb.write_folder(tmp_path / "data", gallery, queries, split(60, 3))


def resolved(data: Path, **changed: Any) -> Comparison:
    how = replace(EVALUATION, **changed)
    return resolve(read_folder(data, ("old", "new", "bct")), how.named, FitSettings())


def table_of(data: Path, **changed: Any) -> pd.DataFrame:
    table = cutoff_table(resolved(data, **changed))
    assert table is not None
    return table


def counted(
    comparison: Comparison, method: Method, done: set[int], limits: tuple[float, float], system: str = ""
) -> tuple[float, float, float]:
    """Precision, recall and results per query of one moment, pair by pair.

    limits: largest distance for items that are not backfilled, and for those that are.
    """
    truth, pair, how = comparison.truth, comparison.pair(method), comparison.evaluation
    if pair.switch == "at_end" and len(done) < truth.n_gallery:
        done = set()
    d = [distances(s.query, s.gallery, how.distance) for s in (pair.backward, pair.forward)]
    shown = right = positives = total = 0.0
    for q in range(truth.n_queries):
        answers, ignored = set(truth.positives_of(q).tolist()), set(truth.ignored_of(q).tolist())
        if not answers:
            continue
        weight = 1.0 if truth.weights is None else float(truth.weights[q])
        total, positives = total + weight, positives + weight * len(answers)
        for item in set(range(truth.n_gallery)) - ignored:
            side = int(item in done)
            if (side or pair.switch != "only_backfilled") and d[side][q, item] <= limits[side]:
                shown, right = shown + weight, right + weight * (item in answers)
    return right / shown if shown else math.nan, right / positives, shown / total


def as_limit(cutoff: float, distance: str) -> float:
    """The float32 distance of a cut-off as a user would compute it."""
    one = {"cosine": np.float32(1) - np.float32(cutoff), "l2": np.float32(cutoff)}
    return float(one.get(distance, -np.float32(cutoff)))


@pytest.mark.parametrize(
    ("distance", "cutoffs"), [("cosine", (0.95, 1.0)), ("l2", (2.0, 1.0)), ("inner_product", (16.0, 20.0))]
)
def test_every_moment_against_a_loop_over_all_pairs(data: Path, distance: str, cutoffs: tuple[float, ...]) -> None:
    comparison = resolved(data, distance=distance, cutoffs=cutoffs)
    table = cutoff_table(comparison)
    assert table is not None
    assert len(table) == 6 * 2 * 2 * 2 * 4  # methods, orders, merges but rrf, cut-offs, moments
    (old,) = find_methods(("old",))
    checked = set()
    for row in rows_of(CutoffRow, table):
        (method,) = find_methods((row.method,))
        order = comparison.orders_of(method)[row.order]
        done = set(order[: math.floor(row.t * len(order) + 1e-9)].tolist())
        given = as_limit(row.cutoff, distance)
        moved = [given if math.isnan(x) else as_limit(x, distance) for x in (row.backward_cutoff, row.forward_cutoff)]
        wanted = {
            "_before": counted(comparison, old, set(), (given, given)),
            "_unchanged": counted(comparison, method, done, (given, given)),
            "": counted(comparison, method, done, (moved[0], moved[1])),
        }
        for suffix, values in wanted.items():
            found = [getattr(row, f"{name}{suffix}") for name in MEASURES]
            np.testing.assert_allclose(found, values, rtol=1e-12, err_msg=f"{row}")
        checked |= {(row.method, row.merge, moved[1] != given)}
    assert {("rm_naive", "quantile", True), ("bct", "quantile", True), ("offline", "quantile", True)} <= checked
    some = old_distances(comparison)
    assert any(as_limit(cutoff, distance) in some for cutoff in cutoffs), "no tie"


def old_distances(comparison: Comparison) -> set[float]:
    e = comparison.embeddings
    return set(distances(e.query["old"], e.gallery["old"], comparison.evaluation.distance).ravel().tolist())


def test_both_ends_and_raw(data: Path) -> None:
    table = table_of(data, cutoffs=(0.95, 0.9))
    raw = table[table["merge"] == "raw"]
    assert (raw.backward_cutoff.isna() == (raw.method == "instant")).all()
    assert (raw.forward_cutoff == raw.cutoff).all()
    for name in MEASURES:
        same = (raw[name] == raw[f"{name}_unchanged"]) | raw[name].isna()
        assert same.all()
        start = table[(table.t == 0) & table.method.isin(["rm_naive", "offline", "old"])]
        assert (start[name] == start[f"{name}_before"]).all(), "equal to the last bit"
    begun = table[(table.method == "instant") & (table.t == 0)]
    assert (begun.results == 0).all()
    assert begun.precision.isna().all()
    offline = table[(table.method == "offline") & (table.t < 1)]
    assert (offline.results == offline.results_before).all()
    keys = ["order", "merge", "cutoff"]
    ends = {m: table[(table.method == m) & (table.t == 1)].set_index(keys) for m in ("offline", "rm_naive", "new")}
    pd.testing.assert_series_equal(ends["offline"].precision, ends["rm_naive"].precision)
    pd.testing.assert_series_equal(ends["offline"].precision, ends["new"].precision)


def test_of_several_permutations_the_counts_are_pooled(data: Path) -> None:
    several = table_of(data, methods=("rm_naive",), merges=("raw",), orders=("random",), permutations=3, cutoffs=(0.9,))
    alone = [
        table_of(data, methods=("rm_naive",), merges=("raw",), orders=("random",), order_seed=seed, cutoffs=(0.9,))
        for seed in permutation_seeds(0, 3)
    ]
    found, each = ([t[t.method == "rm_naive"].reset_index() for t in tables] for tables in ([several], alone))
    np.testing.assert_allclose(found[0].results, np.mean([t.results for t in each], axis=0))
    np.testing.assert_allclose(found[0].recall, np.mean([t.recall for t in each], axis=0))
    right = np.mean([t.precision * t.results for t in each], axis=0)
    np.testing.assert_allclose(found[0].precision, right / np.mean([t.results for t in each], axis=0))
    assert each[0].results[1] != each[1].results[1]


def unit(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of 40 classes in the positive orthant, and their classes: all cosines are positive."""
    rng = np.random.default_rng(seed)
    label = np.arange(n) % 40
    raw = np.abs(rng.normal(size=(40, 4)))[label] + 0.25 * np.abs(rng.normal(size=(n, 4)))
    return raw / np.linalg.norm(raw, axis=1, keepdims=True), label


def powers(u: np.ndarray) -> dict[str, np.ndarray]:
    """Tensor powers: the cosine of two vectors of "middle" is the square of that of "old", of "new" its cube."""
    two = np.einsum("ni,nj->nij", u, u).reshape(len(u), -1)
    three = np.einsum("ni,nj->nij", two, u).reshape(len(u), -1)
    return {"old": u, "middle": two, "new": three}


OLD_TO_NEW = Method("plain", "plain", "", plain("old"), plain("new"), "")
THROUGH = Method("through", "through", "", plain("middle"), plain("new"), "")
# The distance in a system with this cosine: under l2 unit vectors are compared.
OF_COSINE: dict[str, Callable[[Any], Any]] = {
    "cosine": lambda s: 1 - s, "l2": lambda s: np.sqrt(2 - 2 * s), "inner_product": lambda s: -s
}  # fmt: skip


def kinds(*names: str) -> tuple[MergeKind, ...]:
    return tuple(all_merges()[name] for name in names)


@pytest.mark.parametrize("distance", ["cosine", "l2", "inner_product"])
@pytest.mark.parametrize(("merge", "error"), [("quantile", 0.006), ("isotonic", 0.08)])
def test_a_known_monotone_function_is_recovered(merge: str, error: float, distance: str) -> None:
    """error: of isotonic, as wide as a stretch of equal scores, which is where raw distances decide."""
    u, label = unit(600, 0)
    vectors = powers(u)
    fits = MergeFits(kinds(merge), distance, 0, Embeddings(vectors, vectors), label)
    cosines = np.linspace(0.85, 0.98, 14)
    given = OF_COSINE[distance](cosines).astype(np.float32)
    for method, backward in ((OLD_TO_NEW, cosines), (THROUGH, cosines**2)):
        carried = carry(fits, method, FittedMaps(), given)[merge]
        for found, cosine in ((carried.backward, backward), (carried.forward, cosines**3)):
            wanted = OF_COSINE[distance](cosine)
            np.testing.assert_allclose(found, wanted, atol=error)
            assert np.median(np.abs(found - wanted)) < error / 2
    assert (carry(fits, OLD_TO_NEW, FittedMaps(), given)[merge].backward == given).all(), "not fitted, to the last bit"


def test_the_same_model_needs_no_fit_and_references_get_a_cutoff() -> None:
    u, label = unit(300, 1)
    vectors = powers(u)
    fits = MergeFits(kinds("quantile", "rrf", "csls"), "cosine", 0, Embeddings(vectors, vectors), label)
    given = np.array([0.1, 0.05], np.float32)
    old, new, offline, instant = (
        carry(fits, method, FittedMaps(), given) for method in find_methods(("old", "new", "offline", "instant"))
    )
    assert list(old) == ["quantile"], "nothing is carried by ranks or by scaled similarities"
    assert (old["quantile"].forward == given).all()
    assert (offline["quantile"].backward == given).all()
    for found in (new, offline, instant):
        np.testing.assert_allclose(found["quantile"].forward, 1 - (1 - given.astype(float)) ** 3, atol=0.005)


def test_items_without_a_model_of_the_method_leave_only_raw() -> None:
    u, label = unit(30, 1)
    vectors = {"old": u, "new": u}
    fits = MergeFits(kinds("raw", "quantile"), "cosine", 0, Embeddings(vectors, vectors), label)
    assert list(carry(fits, THROUGH, FittedMaps(), np.array([0.1], np.float32))) == ["raw"]


def test_a_carried_cutoff_is_the_last_distance_that_does_not_rank_after_it() -> None:
    backward = ScoreMap(np.array([0.0, 1.0]), np.array([0.0, 2.0]))
    forward = ScoreMap(np.array([0.0, 0.5, 1.0]), np.array([0.0, 1.0, 1.0]))
    merge = Merge("made", backward, forward)
    cutoffs = np.array([0.1, 0.25, 0.5, 0.7, 0.9], np.float32)
    found = merge.carry_cutoffs(cutoffs)
    for cutoff, carried in zip(cutoffs, found, strict=True):
        score = merge.scores(np.array([cutoff], np.float32), np.array([False]))[0]
        after = [] if carried > 1e38 else [(np.nextafter(carried, np.float32(9)), False)]
        for distance, is_within in [(carried, True), *after]:
            own = merge.scores(np.array([distance], np.float32), np.array([True]))[0]
            assert ((own, distance) <= (score, cutoff)) == is_within
    assert found[2] == 0.5, "its score is that of a whole stretch, on which raw distances decide"
    assert found[4] > 1e38, "everything passes"
    with pytest.raises(InputError, match="the rrf merge has no cut-offs"):
        Merge("rrf", by_rank=True).carry_cutoffs(cutoffs)


def test_cutoffs_keep_their_unit_and_their_last_digit() -> None:
    given = np.array([0.85, -0.1])
    for distance in ("cosine", "l2", "inner_product"):
        there = as_distances(given, distance)
        assert there.dtype == np.float32
        assert as_cutoffs(there, given, distance).tolist() == given.tolist()
    farthest = np.finfo(np.float32).max
    ends = np.array([farthest, -farthest], np.float32)
    assert as_cutoffs(ends, given, "cosine").tolist() == [-math.inf, math.inf]
    assert as_cutoffs(ends, given, "l2").tolist() == [math.inf, -math.inf]
    moved = as_cutoffs(np.array([0.25, 0.5], np.float32), given, "inner_product")
    assert moved.tolist() == [-0.25, -0.5]


@pytest.mark.parametrize(
    ("distance", "cutoff", "message"),
    [
        ("cosine", math.nan, r"--cutoffs are similarities under the cosine distance, from -1 to 1; got nan"),
        ("cosine", 1.5, r"from -1 to 1; got 1.5"),
        ("l2", -0.1, r"--cutoffs are distances under the l2 distance, from 0 on; got -0.1"),
        ("l2", math.inf, r"got inf"),
        (
            "inner_product",
            math.nan,
            r"--cutoffs are similarities under the inner_product distance, finite numbers; got",
        ),
    ],
)
def test_impossible_cutoffs_are_refused(distance: str, cutoff: float, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        replace(EVALUATION, merges=("raw",), distance=distance, cutoffs=(0.5, cutoff)).check()
    assert "\n" not in str(error.value)


def test_merges_without_cutoffs_alone_are_refused_and_so_are_drills() -> None:
    with pytest.raises(InputError, match="cannot be translated by the rrf merge, which compares ranks"):
        replace(EVALUATION, merges=("rrf",)).check()
    with pytest.raises(InputError, match="a drill has no --cutoffs"):
        check_drill(replace(EVALUATION, orders=("random",)), LiveSettings(method="rm_naive"))
