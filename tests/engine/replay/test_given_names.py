"""What ``replay`` takes besides arrays: names, lists and tensors."""

import re
from typing import Any

import numpy as np
import pytest
import torch

import ray_backfill as rb
from tests.engine.replay.cases import random_pair

N = 12
LABELS = np.arange(N) % 3


@pytest.fixture(scope="module")
def case() -> tuple[rb.UpgradePair, rb.GroundTruth]:
    pair = random_pair(np.random.default_rng(0), 5, N, tied=False)
    return pair, rb.GroundTruth.from_labels(np.arange(5) % 3, LABELS)


def values(curve: rb.Curve) -> list[float]:
    return curve.values("mAP").tolist()


def test_an_order_is_a_name_a_list_a_tensor_or_an_array(case: tuple[rb.UpgradePair, rb.GroundTruth]) -> None:
    pair, _ = case
    by_hand = rb.make_order("random", rb.GalleryColumns(pair.backward.gallery))
    expected = values(rb.replay(*case, by_hand, 5, "mAP"))
    assert values(rb.replay(*case, "random", 5, metrics="mAP")) == expected
    assert values(rb.replay(*case, by_hand.tolist(), 5, "mAP")) == expected
    assert values(rb.replay(*case, torch.tensor(by_hand), 5, "mAP")) == expected
    curves = rb.replay(*case, {"drawn": "random", "forward": list(range(N))}, 5, ["mAP"])
    assert values(curves["drawn"]) == expected


def test_a_merge_without_a_fit_may_be_a_name(case: tuple[rb.UpgradePair, rb.GroundTruth]) -> None:
    order = np.arange(N)
    fitted = rb.fit_merge("rrf", None, None, "cosine")
    assert values(rb.replay(*case, order, 5, merge="rrf")) == values(rb.replay(*case, order, 5, merge=fitted))
    assert values(rb.replay(*case, order, 5, merge="raw")) == values(rb.replay(*case, order, 5))
    half = [True, False] * (N // 2)
    by_name = rb.replay_moment(*case, half, "mAP", merge="rrf")["mAP"]
    np.testing.assert_array_equal(by_name, rb.replay_moment(*case, np.array(half), "mAP", merge=fitted)["mAP"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"order": "entropy"},
            "needs columns of the gallery; pass rb.make_order('entropy', rb.GalleryColumns(old, columns))",
        ),
        ({"order": "randon"}, "unknown order 'randon'; did you mean random?"),
        ({"order": [0, 1]}, "one entry for each of the 12 gallery items, got integers of shape (2,)"),
        (
            {"merge": "csls"},
            "merge 'csls' is fitted on train items; pass rb.fit_merge('csls', train_pair, labels, 'cosine')",
        ),
        ({"merge": "cls"}, "unknown merge 'cls'; did you mean csls?"),
        ({"merge": "csls", "distance": "l2"}, "supports only the cosine distance"),
        ({"merge": 3}, "merge must be a Merge or a name, not int; pass rb.fit_merge(...)"),
    ],
)
def test_what_a_name_cannot_say_is_asked_for(
    case: tuple[rb.UpgradePair, rb.GroundTruth], given: dict[str, Any], message: str
) -> None:
    with pytest.raises(rb.InputError, match=re.escape(message)) as error:
        rb.replay(*case, **{"order": "random"} | given)
    assert "\n" not in str(error.value)


def test_flags_of_a_moment_are_true_or_false(case: tuple[rb.UpgradePair, rb.GroundTruth]) -> None:
    with pytest.raises(rb.InputError, match=r"true/false value for each of 12 items, got integers of shape \(12,\)"):
        rb.replay_moment(*case, np.zeros(N, int), "mAP")


def test_orders_and_merges_are_made_from_lists_and_text(case: tuple[rb.UpgradePair, rb.GroundTruth]) -> None:
    gallery = case[0].backward.gallery
    lists: Any = {"old_entropy": [float(i) for i in range(N)]}
    of_lists = rb.GalleryColumns(gallery.tolist(), lists)
    assert rb.make_order("entropy", of_lists).tolist() == list(range(N))[::-1]
    with pytest.raises(rb.InputError, match="column 'popularity' needs one value for each of 12 gallery items"):
        rb.GalleryColumns(gallery, {"popularity": np.ones(2)})
    train = random_pair(np.random.default_rng(1), 30, 30, tied=False)
    classes = np.arange(30) % 3
    of_text = rb.fit_merge("isotonic", train, [f"class {c}" for c in classes], "l2")
    of_numbers = rb.fit_merge("isotonic", train, classes, "l2")
    assert of_text.backward is not None
    assert of_numbers.backward is not None
    np.testing.assert_array_equal(of_text.backward.scores, of_numbers.backward.scores)
