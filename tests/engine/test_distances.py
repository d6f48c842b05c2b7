"""Distances against plain loops, ties, and the error bound of the float32 products."""

import numpy as np
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.engine.distances import DISTANCES, ProductForm, exact_distances
from ray_backfill.engine.distances.exact import as_float32
from ray_backfill.engine.distances.form import Products
from ray_backfill.engine.systems import RetrievalSystem
from tests import reference


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("d", [1, 3, 24, 37])
def test_exact_distances_equal_plain_loops(distance: str, d: int) -> None:
    rng = np.random.default_rng(0)
    query, gallery = rng.normal(size=(7, d)).astype(np.float32), rng.normal(size=(40, d)).astype(np.float32)
    gallery[3] = query[2]
    expected = reference.distances(query, gallery, distance)
    np.testing.assert_allclose(exact_distances(query, gallery, distance), expected, rtol=2e-7, atol=2e-7)


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("step", [0.0, 1e-6, 1e-4, 1e-2, 1.0])
def test_equal_vectors_tie(distance: str, step: float) -> None:
    """512 copies of one vector among others, close to the queries or far from them."""
    rng = np.random.default_rng(1)
    query = rng.normal(size=(20, 128)).astype(np.float32)
    twin = (query[0] + step * rng.normal(size=128)).astype(np.float32)
    gallery = rng.normal(size=(1024, 128)).astype(np.float32)
    gallery[::2] = twin
    values = exact_distances(query, gallery, distance)[0, ::2]
    assert (values == values[0]).all()
    if distance == "l2" and step == 0:
        assert values[0] == 0


@pytest.mark.parametrize("distance", DISTANCES)
def test_float16_counts_as_the_same_numbers_in_float32(distance: str) -> None:
    rng = np.random.default_rng(2)
    query, gallery = (rng.normal(size=(rows, 20)).astype(np.float16) for rows in (5, 300))
    np.testing.assert_array_equal(
        exact_distances(query, gallery, distance),
        exact_distances(query.astype(np.float32), gallery.astype(np.float32), distance),
    )


def _systems() -> dict[str, RetrievalSystem]:
    """Vectors that are easy for float32, and vectors that are not."""
    rng = np.random.default_rng(3)

    def draw(rows: int) -> np.ndarray:
        return rng.normal(size=(rows, 96))

    far = 50 + draw(1)
    cases = {
        "random": (draw(30), draw(400)),
        "duplicates": (draw(30), np.repeat(draw(40), 10, axis=0)),
        "near the queries": ((q := draw(20)), np.repeat(q, 20, axis=0) + 1e-6 * draw(400)),
        "one long constant vector": (np.full((3, 96), 0.1), np.full((400, 96), 0.3) + 1e-7 * draw(400)),
        "far from the origin": (far + 1e-2 * draw(30), far + 1e-2 * draw(400)),
        "tiny": (1e-30 * draw(30), 1e-30 * draw(400)),
        "denormal": (1e-44 * draw(30), 1e-44 * draw(400)),
        "huge": (1e17 * draw(30), 1e17 * draw(400)),
        "of all lengths": (draw(30) * np.logspace(-6, 6, 30)[:, None], draw(400) * np.logspace(-6, 6, 400)[:, None]),
    }
    return {name: RetrievalSystem(q.astype(np.float32), g.astype(np.float32)) for name, (q, g) in cases.items()}


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("name", _systems())
def test_bounds_never_contradict_the_exact_distance(name: str, distance: str) -> None:
    system = _systems()[name]
    n_queries, n_gallery = len(system.query), len(system.gallery)
    exact = exact_distances(system.query, system.gallery, distance)
    form = ProductForm.of(system, distance)
    for width in (1, 7, 400):  # a BLAS rounds differently in tiles of other shapes
        left = form.left(np.arange(n_queries))
        v = np.hstack([left @ form.tile(i, min(i + width, n_gallery)).T for i in range(0, n_gallery, width)])
        for j in range(0, n_gallery, 9):  # the exact distance of item j as a threshold for all others
            low, high = form.bounds(np.arange(n_queries), np.arange(n_queries), exact[:, j])
            assert not ((v < low[:, None]) & (exact >= exact[:, j, None])).any()
            assert not ((v > high[:, None]) & (exact <= exact[:, j, None])).any()


def _true_v(form: ProductForm) -> np.ndarray:
    """(Q, N) v, almost infinitely precise."""
    query, gallery = form.query.astype(np.float64), form.gallery.astype(np.float64)
    length_Q, length_N = np.linalg.norm(query, axis=1)[:, None], np.linalg.norm(gallery, axis=1)
    true = -(query @ gallery.T) / length_Q * (1 / length_N if form.distance == "cosine" else form.scale)
    if form.distance == "l2":
        true = 2 * true * length_Q * form.scale + (length_N * form.scale) ** 2
    return np.asarray(true)


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("name", _systems())
@pytest.mark.parametrize("parts", [0, 1, 2, 5, 40, 97])
def test_products_in_parts_are_within_their_error(parts: int, name: str, distance: str) -> None:
    """Of the infinitely precise v, and less apart from it where parts are many or numbers wide."""
    system = _systems()[name]
    form, queries = ProductForm.of(system, distance), np.arange(len(system.query))
    products, factor, offset = Products(form, queries, parts).tile(3, 390)
    v = (products * factor + offset).astype(np.float64)
    error = form.error(queries, parts)
    assert (np.abs(v - _true_v(form)[:, 3:390]) <= error[:, None]).all()
    if name == "random" and distance == "cosine":  # of 96 columns: those of a part, and additions
        terms = {0: 1, 1: 96, 2: 48 + 1, 5: 20 + 4, 40: 3 + 39, 97: 1 + 96}[parts]
        assert error[0] * 2.0**24 == pytest.approx(terms + 10, rel=1e-3)


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("name", _systems())
def test_factors_turn_products_with_the_stored_vectors_into_v(name: str, distance: str) -> None:
    """v by factors is within the error of the infinitely precise v, which increases with the exact distance."""
    system = _systems()[name]
    form, queries = ProductForm.of(system, distance), np.arange(len(system.query))
    d = system.query.shape[1]
    for width in (1, 7, 400):
        parts = []
        for i in range(0, len(system.gallery), width):
            factor, offset = form.factors(i, min(i + width, len(system.gallery)))
            parts.append((form.left(queries)[:, :d] @ system.gallery[i : i + width].T) * factor + offset)
        v, error = np.hstack(parts).astype(np.float64), form.error_of_factors(queries)[:, None]
        assert (np.abs(v - _true_v(form)) <= error).all()
        if form.uses_factors:
            assert (form.error(queries)[:, None] >= error).all()
        assert form.uses_factors or name in ("tiny", "denormal", "of all lengths")
        if name == "random":
            assert (error < 1.01 * form.error(queries)[:, None]).all()


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("name", _systems())
def test_distances_of_a_grid_have_the_bits_of_single_pairs(name: str, distance: str) -> None:
    system = _systems()[name]
    form = ProductForm.of(system, distance)
    queries, items = np.arange(len(system.query))[::2], np.arange(len(system.gallery))[::-3]
    expected = exact_distances(system.query, system.gallery, distance)[np.ix_(queries, items)]
    np.testing.assert_array_equal(form.exact_grid(queries, items), expected)
    halves = RetrievalSystem(*(np.clip(x, -6e4, 6e4).astype(np.float16) for x in (system.query, system.gallery)))
    if not (distance == "cosine" and name in ("tiny", "denormal")):  # zero in float16
        form = ProductForm.of(halves, distance)
        expected = exact_distances(halves.query, halves.gallery, distance)[np.ix_(queries, items)]
        np.testing.assert_array_equal(form.exact_grid(queries, items), expected)


@pytest.mark.parametrize("distance", DISTANCES)
def test_bounds_decide_nearly_always_on_random_vectors(distance: str) -> None:
    system = _systems()["random"]
    form = ProductForm.of(system, distance)
    v = form.left(np.arange(30)) @ form.tile(0, 400).T
    low, high = form.bounds(np.arange(30), np.arange(30), exact_distances(system.query, system.gallery, distance)[:, 0])
    undecided = (v >= low[:, None]) & (v <= high[:, None])
    assert 1 / 400 <= undecided.mean() < 1.5 / 400  # the item itself, and hardly any other


def test_a_zero_vector_is_refused_only_under_cosine() -> None:
    system = RetrievalSystem(np.ones((1, 2), np.float32), np.array([[1, 1], [0, 0]], np.float32))
    with pytest.raises(InputError, match="gallery row 1 is a zero vector"):
        ProductForm.of(system, "cosine")
    assert exact_distances(system.query, system.gallery, "l2")[0].tolist() == [0.0, np.float32(np.sqrt(2))]


def test_values_beyond_float32_are_refused() -> None:
    with pytest.raises(InputError, match=r"infinite values \(as float32\), first in row 1"):
        RetrievalSystem(np.ones((1, 2)), np.array([[1, 1], [1e39, 0]]))


@pytest.mark.parametrize(("distance", "size"), [("inner_product", 1e20), ("l2", 3e38)])
def test_distances_that_overflow_are_refused(distance: str, size: float) -> None:
    system = RetrievalSystem(np.full((1, 2), size, np.float32), np.full((1, 2), -size, np.float32))
    with pytest.raises(InputError, match="scale the embeddings down"):
        ProductForm.of(system, distance)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("distance", DISTANCES)
def test_approximate_distances_are_close_to_the_exact_ones(distance: str, dtype: type) -> None:
    rng = np.random.default_rng(3)
    query: np.ndarray = (7 * rng.standard_normal((9, 24))).astype(dtype)
    gallery: np.ndarray = (7 * rng.standard_normal((300, 24))).astype(dtype)
    form = ProductForm.of(RetrievalSystem(query, gallery), distance)
    exact = exact_distances(query, gallery, distance)
    assert form.approximate(np.arange(9)) == pytest.approx(exact, rel=1e-4, abs=1e-4)
    some = np.array([5, 2, 299])
    assert form.of_items(some).approximate(np.array([4])) == pytest.approx(exact[4:5, some], rel=1e-4, abs=1e-4)


def test_approximate_distances_of_very_long_vectors() -> None:
    rng = np.random.default_rng(4)
    query, gallery = (
        rng.standard_normal((3, 8)).astype(np.float32),
        1e30 * rng.standard_normal((20, 8)).astype(np.float32),
    )
    form = ProductForm.of(RetrievalSystem(query, gallery), "cosine")
    assert form.approximate(np.arange(3)) == pytest.approx(exact_distances(query, gallery, "cosine"), abs=1e-5)


def test_every_half_precision_number_is_widened_exactly() -> None:
    every = np.arange(1 << 16).astype(np.uint16).view(np.float16)
    with np.errstate(invalid="ignore"):
        expected = every.astype(np.float32)
    np.testing.assert_array_equal(as_float32(every), expected)
    np.testing.assert_array_equal(np.signbit(as_float32(every))[~np.isnan(every)], np.signbit(every)[~np.isnan(every)])
    np.testing.assert_array_equal(as_float32(every.reshape(256, 256)[::2, ::3]), expected.reshape(256, 256)[::2, ::3])
