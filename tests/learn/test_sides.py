"""For every method that can serve live, each side depends only on embeddings that exist at that time."""

import numpy as np
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.engine.merges import RAW, Merge, fit_merge
from ray_backfill.learn.methods import Embeddings, Method, all_methods
from ray_backfill.learn.sides import Sides, check_live
from ray_backfill.learn.training.fit import TrainSet
from ray_backfill.learn.training.settings import FitSettings, HeadTraining, TransformTraining
from tests.learn.fits import fitted

DIMS = {"old": 4, "new": 6}
RNG = np.random.default_rng(0)
LIVE = [method for method in all_methods().values() if method.is_merged]


def vectors(method: Method, n: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {m: rng.normal(size=(n, DIMS.get(m, 6))).astype(np.float32) for m in method.models}


@pytest.mark.parametrize("method", LIVE, ids=lambda method: method.name)
def test_each_side_needs_its_own_models_alone(method: Method) -> None:
    """The oracle is the pair computed from all embeddings at once."""
    train = TrainSet(vectors(method, 40, 1), np.arange(40) % 5)
    settings = FitSettings(
        heads=HeadTraining(epochs=1, classes=5, items=2), transforms=TransformTraining(epochs=1, batch=16, hidden=8)
    )
    network = None if method.fit is None else fitted(method.name, train, settings)
    sides = Sides(method, network, RAW, "cosine", {m: v.shape[1] for m, v in vectors(method, 1, 0).items()})
    query, gallery = vectors(method, 3, 2), vectors(method, 7, 3)
    pair = method.pair(Embeddings(query, gallery), network)
    backward, forward = sides.queries(query)
    np.testing.assert_array_equal(backward, pair.backward.query)
    np.testing.assert_array_equal(forward, pair.forward.query)
    old, new = ({m: gallery[m] for m in models} for models in (method.old_models, method.new_models))
    np.testing.assert_array_equal(sides.gallery("backward", old), pair.backward.gallery)
    np.testing.assert_array_equal(sides.gallery("forward", new), pair.forward.gallery)
    assert not set(old) & set(new)
    assert sides.gallery("forward", {m: v[:0] for m, v in new.items()}).shape == (0, sides.dim("forward"))


def test_csls_replaces_both_sides() -> None:
    method = all_methods()["rm_naive"]
    train = vectors(method, 50, 4)
    merge = fit_merge("csls", method.pair(Embeddings(train, train), None), None, "cosine", 0)
    sides = Sides(method, None, merge, "cosine", DIMS)
    query, gallery = vectors(method, 3, 5), vectors(method, 7, 6)
    pair, distance = merge.prepare(method.pair(Embeddings(query, gallery), None), "cosine")
    assert sides.live_distance == distance
    np.testing.assert_array_equal(sides.gallery("backward", {"old": gallery["old"]}), pair.backward.gallery)
    np.testing.assert_array_equal(sides.gallery("forward", {"new": gallery["new"]}), pair.forward.gallery)
    np.testing.assert_array_equal(sides.queries(query)[1], pair.forward.query)


@pytest.mark.parametrize(
    ("name", "merge", "said"),
    [
        ("old", RAW, "backfills nothing"),
        ("offline", RAW, "backfills nothing"),
        ("rm_naive", Merge("rrf", by_rank=True), "needs ranks over the whole gallery"),
    ],
)
def test_what_cannot_serve_item_by_item_is_refused(name: str, merge: Merge, said: str) -> None:
    with pytest.raises(InputError, match=said):
        check_live(all_methods()[name], merge)
