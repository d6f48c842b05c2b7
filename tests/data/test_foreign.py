"""Rows of another model are found among made vectors of known models; one model on several subjects is left alone."""

import numpy as np
import pytest

from ray_backfill.data.foreign import FEWEST, foreign_rows, jump
from tests.data.made_models import DIMS, TOPICS, embedded, items, mixed


@pytest.mark.parametrize("foreign", [10, 20, 200, 800])
def test_scattered_rows_of_another_model_are_found(foreign: int) -> None:
    column, chosen = mixed(2_000, foreign, seed=foreign)
    found = foreign_rows(column)
    assert len(np.intersect1d(found, chosen)) > 0.8 * foreign
    assert len(np.setdiff1d(found, chosen)) <= max(2, 0.02 * foreign)


def test_lengths_and_order_do_not_count() -> None:
    column, chosen = mixed(2_000, 100, seed=1)
    rng = np.random.default_rng(2)
    order = rng.permutation(len(column))
    found = foreign_rows(column[order] * rng.gamma(5, 1, size=(len(column), 1)))
    assert len(np.intersect1d(order[found], chosen)) > 80


@pytest.mark.parametrize("rare", [0.003, 0.02, 0.2, 0.5])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_another_subject_is_no_other_model(rare: float, seed: int) -> None:
    """The rare topics are in no other row."""
    few = int(rare * 2_000)
    contents = np.concatenate([items(2_000 - few, seed, range(8)), items(few, seed + 50, range(8, TOPICS))])
    assert not len(foreign_rows(embedded(contents, model=seed)))


@pytest.mark.parametrize("rare", [0.3, 0.5])
def test_a_file_of_two_halves(rare: float) -> None:
    """A mean jumps at another model, and at another subject, which is none."""
    few = int(rare * 4_000)
    one, other = items(4_000 - few, 0, range(2)), items(few, 1, range(10, TOPICS))
    assert not jump(np.concatenate([embedded(one, model=1), embedded(other, model=1)]))
    found = jump(np.concatenate([embedded(one, model=1), embedded(items(few, 2, range(2)), model=2)]))
    assert abs(found - len(one)) <= 256


def test_neither_copies_of_an_odd_row_nor_noise_are_another_model() -> None:
    rng = np.random.default_rng(0)
    column = embedded(items(2_000, 0), model=1)
    column[rng.permutation(2_000)[:300]] = rng.normal(size=DIMS)
    assert not len(foreign_rows(column))
    assert not len(foreign_rows(rng.normal(size=(2_000, DIMS)).astype(np.float32)))


def test_few_rows_tell_nothing() -> None:
    column, _ = mixed(FEWEST - 1, 100, seed=3)
    assert not len(foreign_rows(column))
    assert not len(foreign_rows(np.ones((2_000, 1), np.float32)))
