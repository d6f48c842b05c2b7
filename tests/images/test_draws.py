import numpy as np

from ray_backfill.images.draws import _GOLDEN, _mix, class_sizes, hash_ids, uniform


def test_mix_is_splitmix64() -> None:
    # The first outputs of the reference implementation (Vigna, splitmix64.c) for seed 0.
    states = np.arange(1, 4, dtype=np.uint64) * _GOLDEN
    assert _mix(states).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x6C45D188009454F]


def test_numbers_depend_on_seed_stream_and_id_alone() -> None:
    ids = np.array([7, 3, 7, 1 << 41], np.int64)
    together = uniform(5, 2, ids, 6)
    np.testing.assert_array_equal(together[0], together[2])
    np.testing.assert_array_equal(together[3:], uniform(5, 2, ids[3:], 6))
    np.testing.assert_array_equal(together[:, :4], uniform(5, 2, ids, 4))
    assert not np.array_equal(together, uniform(6, 2, ids, 6))
    assert not np.array_equal(together, uniform(5, 3, ids, 6))


def test_uniform_fills_the_interval_evenly() -> None:
    draws = uniform(0, 0, np.arange(20_000), 3)
    assert draws.min() >= 0
    assert draws.max() < 1
    # The standard error of a mean of 20,000 is 0.002, of a bin of 2,000 about 42.
    np.testing.assert_allclose(draws.mean(axis=0), 0.5, atol=0.01)
    assert np.abs(np.histogram(draws[:, 0], 10, (0, 1))[0] - 2000).max() < 220
    assert np.abs(np.corrcoef(draws.T) - np.eye(3)).max() < 0.03


def test_negative_seeds_are_seeds() -> None:
    ids = np.arange(3)
    assert not np.array_equal(hash_ids(-1, 0, ids), hash_ids(1, 0, ids))


def test_class_sizes_by_hand() -> None:
    # A floor of 4 each, then 88 in the proportions 1 : 1/2 : 1/3 = 6 : 3 : 2 of 11 parts of 8.
    assert class_sizes(100, 3, 1.0, fewest=4).tolist() == [52, 28, 20]
    assert class_sizes(100, 4, 0.0, fewest=4).tolist() == [25, 25, 25, 25]
    # 12 images for 5 landmarks: a floor of 2 each, and the two left over to the largest shares.
    assert class_sizes(12, 5, 1.0, fewest=4).tolist() == [3, 3, 2, 2, 2]
    assert class_sizes(2, 4, 1.0, fewest=4).tolist() == [1, 1, 0, 0]
    # One each, and 7 as 6 : 3 : 2 of 11: 3.8, 1.9 and 1.3; the two largest remainders are rounded up.
    assert class_sizes(10, 3, 1.0).tolist() == [5, 3, 2]
    assert class_sizes(7, 7, 1.0).tolist() == [1] * 7


def test_class_sizes_of_a_large_gallery() -> None:
    sizes = class_sizes(761_757, 81_313, 0.6)
    assert sizes.sum() == 761_757
    assert sizes.min() >= 1
    assert (np.diff(sizes) <= 0).all()
    assert sizes[0] > 250 * sizes.mean(), "a few are huge"
    assert np.median(sizes) < sizes.mean(), "most are small"
