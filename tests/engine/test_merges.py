"""Score maps against plain loops; fitted merges against numpy, scikit-learn and the formula of CSLS."""

import math
import pickle
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

import ray_backfill as rb
from ray_backfill.core.progress import State, relay, task
from ray_backfill.engine.distances import exact_distances
from ray_backfill.engine.merges import RAW, Merge, ScoreMap, all_merges, csls, fit_merge
from ray_backfill.engine.merges import score_map as fitting

OFF_DIAGONAL = ~np.eye(60, dtype=bool)


def labelled_pair(seed: int = 0, n: int = 60, classes: int = 6) -> tuple[rb.UpgradePair, np.ndarray]:
    """Embeddings of n items by two models; the new one is better, and its distances have another scale."""
    rng = np.random.default_rng(seed)
    label = rng.permutation(np.arange(n) % classes)

    def system(d: int, noise: float) -> rb.RetrievalSystem:
        vectors = rng.normal(size=(classes, d))[label] + noise * rng.normal(size=(n, d)) + 0.5
        return rb.RetrievalSystem(vectors.astype(np.float32), vectors.astype(np.float32))

    return rb.UpgradePair(system(5, 1.5), system(8, 0.7)), label


def distances(pair: rb.UpgradePair, distance: str = "cosine") -> tuple[np.ndarray, np.ndarray]:
    """Backward and forward distances of all pairs i != j, (n, 60) without the diagonal."""
    backward, forward = (
        exact_distances(s.query, s.gallery, distance)[OFF_DIAGONAL].astype(np.float64)
        for s in (pair.backward, pair.forward)
    )
    return backward, forward


def fitted_maps(
    name: str, pair: rb.UpgradePair, label: np.ndarray | None = None, distance: str = "cosine", seed: int = 0
) -> tuple[ScoreMap, ScoreMap]:
    """Of the backward and of the forward system."""
    merge = fit_merge(name, pair, label, distance, seed)
    assert merge.backward is not None
    assert merge.forward is not None
    return merge.backward, merge.forward


@given(
    knots=st.lists(st.floats(-10, 10), min_size=1, max_size=6, unique=True),
    rises=st.lists(st.sampled_from([0.0, 0.1, 1.0, 1e-300, 1e6]), min_size=6, max_size=6),
    seed=st.integers(0, 2**32 - 1),
)
@example(knots=[0.0, 2.2250738585072014e-308], rises=[0.0, 0.1, 0.0, 0.0, 0.0, 0.0], seed=0)
def test_a_score_map_never_falls_and_is_inverted_exactly(knots: list[float], rises: list[float], seed: int) -> None:
    """Also between neighbouring float32 numbers and on flat parts; the inverse is checked at its neighbours."""
    x = np.sort(np.array(knots, np.float64))
    try:
        score_map = ScoreMap(x, np.cumsum(rises[: len(x)]))
    except rb.InputError:  # two knots so close that the slope overflows float64
        return
    rng = np.random.default_rng(seed)
    some = np.concatenate([x, rng.uniform(-12, 12, 20), [0.0, -1e-40, 1e-40, 3e38, -3e38]]).astype(np.float32)
    near = np.unique(
        np.concatenate([some, np.nextafter(some, np.float32(np.inf)), np.nextafter(some, np.float32(-np.inf))])
    )
    scores = score_map(near)
    assert (np.diff(scores) >= 0).all()
    inside = (near >= x[0]) & (near <= x[-1])
    np.testing.assert_allclose(scores[inside], np.interp(near[inside], x, score_map.scores), rtol=1e-9, atol=1e-9)
    wanted_d = rng.permutation(near)
    wanted_score = np.where(rng.random(len(near)) < 0.5, score_map(wanted_d), rng.permutation(scores))
    first, ties = score_map.first_not_before(wanted_d, wanted_score)
    before = np.nextafter(first, np.float32(-np.inf))
    for e, low, tie, d, s in zip(first, before, ties, wanted_d, wanted_score, strict=True):
        at, at_low = score_map(np.array([e]))[0], score_map(np.array([low]))[0]
        assert (at, e) >= (s, d) or e == np.finfo(np.float32).max
        assert (at_low, low) < (s, d) or low == -np.inf
        assert tie == ((at, e) == (s, d))


def test_score_maps_extrapolate_and_refuse_bad_knots() -> None:
    score_map = ScoreMap(np.array([0.0, 1.0, 3.0]), np.array([0.0, 1.0, 1.5]))
    assert score_map(np.array([-2, 0.5, 2, 7], np.float32)).tolist() == [-2.0, 0.5, 1.25, 2.5]
    assert ScoreMap(np.array([0.5]), np.array([7.0]))(np.array([-1, 9], np.float32)).tolist() == [7.0, 7.0]
    for x, y, message in [
        ([0.0, 0.0], [0.0, 1.0], "strictly ascending"),
        ([0.0, 1.0], [1.0, 0.0], "never decrease"),
        ([0.0, np.nan], [0.0, 1.0], "finite"),
        ([0.0], [0.0, 1.0], "as many scores"),
        ([0.0, 5e-324], [0.0, 1.0], "too steep"),
    ]:
        with pytest.raises(rb.InputError, match=message):
            ScoreMap(np.array(x), np.array(y))
    with pytest.raises(rb.InputError, match="has one score map; give one for both systems"):
        Merge("half", backward=score_map)
    with pytest.raises(rb.InputError, match="not both"):
        Merge("both", score_map, score_map, by_rank=True)


def test_quantiles_map_to_the_same_quantiles() -> None:
    pair, _ = labelled_pair()
    backward, forward = distances(pair)
    of_backward, of_forward = fitted_maps("quantile", pair)
    q = fitting.quantiles(len(backward))
    x, first, counts = np.unique(np.quantile(backward, q), return_index=True, return_counts=True)
    assert (counts == 1).sum() > 300  # (i, j) and (j, i) have equal distances: the first quantiles coincide
    np.testing.assert_allclose(of_backward.distances, x, rtol=1e-12)
    scores = np.quantile(forward, q)[first]
    np.testing.assert_allclose(of_backward.scores[counts == 1], scores[counts == 1], rtol=1e-12)
    some = np.linspace(-1, 3, 50, dtype=np.float32)
    assert of_forward(some).tolist() == some.tolist()


def test_quantiles_of_a_monotone_change_undo_it() -> None:
    """Forward vectors are three times the backward vectors: under l2, each distance is three times the old one."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(200, 4)).astype(np.float32)
    pair = rb.UpgradePair(rb.RetrievalSystem(x, x), rb.RetrievalSystem(3 * x, 3 * x))
    backward, _ = fitted_maps("quantile", pair, distance="l2")
    d = np.array([0.01, 0.5, 2.0, 20.0], np.float32)  # the first and last are beyond all sampled pairs
    np.testing.assert_allclose(backward(d), 3 * d.astype(float), rtol=1e-5, atol=1e-5)


def test_quantile_knots_are_dense_where_retrieval_happens() -> None:
    q = fitting.quantiles(1 << 22)
    assert q[0] == 0
    assert q[-1] == 1
    assert ((q > 1e-6) & (q < 1e-3)).sum() > 150


def test_quantiles_of_sampled_pairs_come_near_those_of_all() -> None:
    pair, _ = labelled_pair(n=60)
    all_pairs, _ = fitted_maps("quantile", pair)
    with patch.object(fitting, "MOST_PAIRS", 3000):
        sampled, again, other = (fitted_maps("quantile", pair, seed=seed)[0] for seed in (0, 0, 1))
    d = np.quantile(distances(pair)[0], [0.1, 0.5, 0.9]).astype(np.float32)
    np.testing.assert_allclose(sampled(d), all_pairs(d), atol=0.05)
    assert not np.array_equal(sampled(d), other(d))
    np.testing.assert_array_equal(sampled.scores, again.scores)


@pytest.mark.parametrize("distance", ["cosine", "l2", "inner_product"])
def test_calibrated_merges_equal_scikit_learn(distance: str) -> None:
    pair, label = labelled_pair()
    is_match = (label[:, None] == label)[OFF_DIAGONAL]
    isotonic, logistic = (fitted_maps(name, pair, label, distance) for name in ("isotonic", "logistic"))
    for staircase, curve, d in zip(isotonic, logistic, distances(pair, distance), strict=True):
        some = np.linspace(d.min() - 1, d.max() + 1, 500, dtype=np.float32)
        theirs = IsotonicRegression(increasing=False, out_of_bounds="clip").fit(d, is_match)
        np.testing.assert_allclose(staircase(some), -theirs.predict(some.astype(float)), atol=1e-9)
        chances = LogisticRegression(C=1e6, tol=1e-8).fit(d[:, None], is_match).predict_proba(some[:, None])[:, 1]
        np.testing.assert_allclose(1 / (1 + np.exp(curve(some))), chances, atol=1e-5)


@pytest.mark.parametrize("number", [1, 2, 17, 40_000])
def test_quantiles_are_those_of_numpy(number: int) -> None:
    values = np.random.default_rng(number).normal(size=number).astype(np.float32).astype(np.float64)
    q = fitting.quantiles(number)
    np.testing.assert_array_equal(fitting.quantiles_of(values, q), np.quantile(values, q))


def test_an_uninformative_logistic_merge_leaves_raw_distances() -> None:
    """Matches are farther than other pairs in the backward system: only the forward score depends on the distance."""
    pair, label = labelled_pair()
    away = np.eye(60, dtype=np.float32) + 1  # all distances between two items are the same
    flat = rb.RetrievalSystem(away, away)
    opposite = np.where(label[:, None] == np.arange(6), np.float32(1), np.float32(0)) + np.float32(0.01)
    reverse = rb.RetrievalSystem((1 - opposite).astype(np.float32), opposite)
    for system in (flat, reverse):
        backward, forward = fitted_maps("logistic", rb.UpgradePair(system, pair.forward), label)
        share = (label[:, None] == label)[OFF_DIAGONAL].mean()
        expected = np.log((1 - share) / share)
        np.testing.assert_allclose(backward(np.array([0, 1, 2], np.float32)), expected)
        assert forward.scores[1] > forward.scores[0]


def test_calibration_of_a_large_train_split_draws_whole_classes() -> None:
    rng = np.random.default_rng(2)
    label = np.concatenate([np.repeat(np.arange(3000), 3), np.full(9000, 3000)])
    rows = fitting._draw_classes(label, seed=0)
    assert len(rows) == math.isqrt(fitting.MOST_PAIRS)
    counts = np.bincount(label[rows], minlength=3001)
    assert counts[3000] in (0, fitting._MOST_OF_A_CLASS)
    assert (np.isin(counts[:3000], (0, 3))).sum() >= 2999  # the last one drawn may be cut
    x = rng.normal(size=(len(label), 3)).astype(np.float32)
    system = rb.RetrievalSystem(x, x)
    with patch.object(fitting, "MOST_PAIRS", 10_000):
        backward, forward = fitted_maps("isotonic", rb.UpgradePair(system, system), label, "l2")
    np.testing.assert_array_equal(backward.scores, forward.scores)


def literal_csls(system: rb.RetrievalSystem, train: rb.RetrievalSystem, k: int) -> np.ndarray:
    """(Q, N) 2 cos(q, g) - r(q) - r(g)."""

    def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        a, b = a.astype(np.float64), b.astype(np.float64)
        return (a @ b.T) / np.linalg.norm(a, axis=1)[:, None] / np.linalg.norm(b, axis=1)

    def mean_nearest(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.sort(cosines(a, b), axis=1)[:, -k:].mean(axis=1)

    r_q, r_g = mean_nearest(system.query, train.gallery), mean_nearest(system.gallery, train.query)
    return 2 * cosines(system.query, system.gallery) - r_q[:, None] - r_g


@pytest.mark.parametrize("n_train", [60, 7])
def test_csls_equals_the_formula(n_train: int) -> None:
    train, _ = labelled_pair(0, n_train)
    rng = np.random.default_rng(3)
    backward, forward = (
        rb.RetrievalSystem(rng.normal(size=(9, d)).astype(np.float16), rng.normal(size=(70, d)).astype(np.float32))
        for d in (5, 8)
    )
    pair = rb.UpgradePair(backward, forward, switch="at_end")
    prepared, distance = fit_merge("csls", train, None, "cosine").prepare(pair, "cosine")
    assert prepared.switch == "at_end"
    for side in ("backward", "forward"):
        ours, system, of_train = (getattr(of, side) for of in (prepared, pair, train))
        expected = -literal_csls(system, of_train, {60: 3, 7: 1}[n_train]) / 2  # a twentieth of them
        np.testing.assert_allclose(exact_distances(ours.query, ours.gallery, distance), expected, atol=3e-7)


def test_csls_hardly_depends_on_the_number_of_references() -> None:
    """r from 100 and from 2,000 vectors of one population; with ten neighbours of each they would be far apart."""
    rng = np.random.default_rng(6)
    vectors, references = rng.normal(size=(50, 16)), rng.normal(size=(2000, 16))
    few, many = (csls.mean_nearest_cosine(vectors, references[:n].astype(np.float32)) for n in (100, 2000))
    ten = np.sort(1 - exact_distances(vectors, references.astype(np.float32), "cosine"), axis=1)[:, -10:].mean(axis=1)
    assert abs(few.mean() - many.mean()) < 0.01
    assert ten.mean() - few.mean() > 0.1


def test_csls_of_a_vector_does_not_depend_on_the_batch() -> None:
    """One row at a time gives the same bits as all at once, with duplicated references and rows."""
    rng = np.random.default_rng(4)
    references = rng.normal(size=(500, 33)).astype(np.float32)
    references[100:200] = references[:100]
    vectors = np.concatenate([references[:50], rng.normal(size=(250, 33)).astype(np.float32)])
    whole = csls.mean_nearest_cosine(vectors, references)
    alone = np.concatenate([csls.mean_nearest_cosine(vectors[i : i + 1], references) for i in range(len(vectors))])
    np.testing.assert_array_equal(whole, alone)
    with patch.object(csls, "_ROWS", 7):
        np.testing.assert_array_equal(csls.mean_nearest_cosine(vectors[::-1], references)[::-1], whole)


def test_csls_takes_the_nearest_by_exact_distance() -> None:
    """Among near-duplicates, which float32 products put in arbitrary order."""
    rng = np.random.default_rng(5)
    vectors = rng.normal(size=(40, 64)).astype(np.float32)
    references = (vectors[:1] + 3e-4 * rng.normal(size=(300, 64))).astype(np.float32)
    nearest = np.sort(exact_distances(vectors, references, "cosine"), axis=1)[:, :15].astype(np.float64)
    expected = [math.fsum(1 - d for d in row) / 15 for row in nearest]
    np.testing.assert_allclose(csls.mean_nearest_cosine(vectors, references), expected, rtol=0, atol=1e-12)


def test_csls_keeps_shared_systems_shared_and_bounds_its_references() -> None:
    pair, _ = labelled_pair()
    both = rb.UpgradePair(pair.forward, pair.forward)
    prepared, _ = fit_merge("csls", both, None, "cosine").prepare(both, "cosine")
    assert prepared.backward is prepared.forward
    with patch.object(csls, "_MOST_ROWS", 20):
        merge = fit_merge("csls", pair, None, "cosine")
    assert merge.references is not None
    assert [len(side) for r in merge.references for side in (r.query, r.gallery)] == [20] * 4
    with pytest.raises(rb.InputError, match="8 dimensions"):
        merge.references[1].replace(pair.backward, "cosine")
    with pytest.raises(rb.InputError, match="supports only the cosine distance, not l2"):
        merge.prepare(pair, "l2")


def test_unfitted_merges_are_plain() -> None:
    assert fit_merge("raw", None, None, "l2") is RAW
    rrf = fit_merge("rrf", None, None, "l2")
    assert rrf.by_rank
    assert not rrf.is_mapped
    pair, _ = labelled_pair()
    assert rrf.prepare(pair, "l2") == (pair, "l2")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "average"}, "known: raw, quantile, "),
        ({"train": None}, "train embeddings"),
        ({"label": None}, "use the merge 'quantile'"),
        ({"label": np.zeros(59, int)}, "59 labels for 60"),
        ({"label": np.zeros(60, int)}, "the same label, so there are only matches"),
        ({"label": np.arange(60)}, "no match to learn from"),
        ({"distance": "manhattan"}, "known: cosine"),
        ({"name": "csls", "distance": "l2"}, "supports only the cosine distance, not l2"),
        ({"name": "quantile", "train": "unequal"}, "59 gallery items"),
        ({"name": "quantile", "train": "single"}, "at least two train items"),
    ],
)
def test_bad_input_is_named(change: dict[str, object], message: str) -> None:
    pair, label = labelled_pair()
    one = rb.RetrievalSystem(np.ones((1, 2)), np.ones((1, 2)))
    some = {"unequal": pair.items(0, 59), "single": rb.UpgradePair(one, one)}
    arguments = {"name": "isotonic", "train": pair, "label": label, "distance": "cosine"} | change
    if isinstance(arguments["train"], str):
        arguments["train"] = some[arguments["train"]]
    with pytest.raises(rb.InputError, match=message):
        fit_merge(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", all_merges())
def test_merges_can_be_pickled(name: str) -> None:
    """A pickled merge gives the same curve."""
    pair, label = labelled_pair()
    truth = rb.GroundTruth.from_labels(label, label, exclude_self=True)
    merge = fit_merge(name, pair, label, "cosine")
    copy = pickle.loads(pickle.dumps(merge))
    here, there = (rb.replay(pair, truth, np.arange(60), 4, merge=m) for m in (merge, copy))
    np.testing.assert_array_equal(here.per_query["mAP"], there.per_query["mAP"])


def test_neighbours_of_many_vectors_are_shown_while_they_are_found() -> None:
    """Of two million items they take minutes before anything else of a replay is done."""
    shown: list[State] = []
    vectors = np.random.default_rng(0).normal(size=(400_000, 4)).astype(np.float32)
    with relay(shown.extend), task("replay"):
        csls.mean_nearest_cosine(vectors, vectors[:64])
    amounts = [state.done for state in shown if state.title == "neighbours for CSLS"]
    assert amounts == sorted(amounts)
    assert 0 < amounts[-1] <= 400_000 == next(state.total for state in shown if state.title == "neighbours for CSLS")
