"""Every method, found by itself: its pair fits, replays, and meets the ends that its systems promise."""

import numpy as np
import pytest

import ray_backfill as rb
from ray_backfill.methods import Embeddings, Method, all_methods
from ray_backfill.models.heads import Heads, HeadShape
from ray_backfill.training.head_loop import HeadTraining, TrainSet, train_heads


@pytest.fixture(scope="module")
def embeddings() -> Embeddings:
    """40 gallery items and 10 queries of 5 classes; old has 4 dimensions, new 6 and less noise."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(5, 6))

    def draw(labels: np.ndarray, d: int, noise: float) -> np.ndarray:
        return (centres[labels][:, :d] + noise * rng.normal(size=(len(labels), d))).astype(np.float32)

    query, gallery = np.arange(10) % 5, np.arange(40) % 5
    return Embeddings(draw(query, 4, 1.0), draw(query, 6, 0.5), draw(gallery, 4, 1.0), draw(gallery, 6, 0.5))


@pytest.mark.parametrize("method", all_methods().values(), ids=lambda m: m.name)
def test_every_method_replays(method: Method, embeddings: Embeddings) -> None:
    heads = None
    if method.head:
        heads = Heads(HeadShape(4, 6, method.head.learn_new)).eval()
    pair = method.pair(embeddings, heads)
    truth = rb.GroundTruth.from_labels(np.arange(10) % 5, np.arange(40) % 5)
    curve = rb.replay(pair, truth, np.arange(40), points=3)
    assert np.isfinite(curve.values("mAP")).all()
    for end, system in [(0, pair.backward), (-1, pair.forward)]:
        alone = rb.replay(rb.UpgradePair(system, system), truth, np.arange(40), points=2)
        assert curve.values("mAP")[end] == pytest.approx(alone.values("mAP")[0])


@pytest.mark.parametrize("method", [m for m in all_methods().values() if m.head], ids=lambda m: m.name)
def test_every_head_learns_its_loss(method: Method, embeddings: Embeddings) -> None:
    assert method.head is not None
    data = TrainSet(embeddings.old_gallery, embeddings.new_gallery, np.arange(40) % 5)
    losses: list[float] = []
    training = HeadTraining(epochs=15, classes=5, items=4, lr=1e-2)
    train_heads(data, method.head, training, on_epoch=lambda epoch, loss: losses.append(loss))
    assert len(losses) == 15
    assert np.mean(losses[-3:]) < 0.9 * losses[0]


def test_names_are_unique_and_say_their_source() -> None:
    methods = all_methods()
    assert len({m.title for m in methods.values()}) == len(methods)
    assert all(m.source and m.name == name for name, m in methods.items())
