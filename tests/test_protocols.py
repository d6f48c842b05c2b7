"""Who learns which classes."""

import numpy as np
import pytest

from ray_backfill.errors import InputError
from ray_backfill.protocols import Protocol, split_classes

LABELS = np.repeat(np.arange(10) * 3, 2)


def test_extended_class_the_new_model_knows_all() -> None:
    old, new = split_classes(LABELS, Protocol("extended"))
    assert old == [0, 3, 6, 9, 12]
    assert new == [0, 3, 6, 9, 12, 15, 18, 21, 24, 27]


def test_open_class_the_new_model_knows_the_others() -> None:
    old, new = split_classes(LABELS, Protocol("open", old_share=0.3, seed=1))
    assert len(old) == 3
    assert sorted(old + new) == sorted(set(LABELS.tolist()))
    assert old == sorted(old)
    draws = {tuple(split_classes(LABELS, Protocol("open", 0.3, seed))[0]) for seed in range(5)}
    assert len(draws) > 1


def test_same_classes_and_errors() -> None:
    old, new = split_classes(LABELS, Protocol("same"))
    assert old == new
    with pytest.raises(InputError, match="unknown protocol 'closed'; known: extended, open, same"):
        split_classes(LABELS, Protocol("closed"))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="leave 1 to the old model"):
        split_classes(np.arange(3), Protocol("extended", old_share=0.3))


def test_biased_knows_little_of_the_first_subgroup_and_all_of_the_others() -> None:
    labels = np.repeat(np.arange(20), 3)
    groups = (labels >= 10).astype(np.int64)
    old, new = split_classes(labels, Protocol("biased", old_share=0.2, seed=1), groups)
    assert new == list(range(20))
    assert [c for c in old if c >= 10] == list(range(10, 20))
    assert len([c for c in old if c < 10]) == 2
    assert split_classes(labels, Protocol("biased", old_share=0.2, seed=1), groups)[0] == old
    with pytest.raises(InputError, match="needs a data set with subgroups"):
        split_classes(labels, Protocol("biased"))
