"""The throttle: the rate a token bucket allows, and the controller in a simulated service."""

import math

import numpy as np
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.drill.settings import ThrottleSettings
from ray_backfill.drill.throttle import P99Controller, TokenBucket


def test_a_bucket_lets_through_its_rate_and_a_second_more_after_idling() -> None:
    """Every batch starts when allowed; in any period no more than rate * (period + 1 s) items start."""
    rng = np.random.default_rng(0)
    bucket, now_s, started = TokenBucket(100, now_s=5.0), 5.0, [(5.0, 0)]
    for items in rng.integers(1, 60, 500):
        now_s += bucket.reserve(int(items), now_s)
        started.append((now_s, int(items)))
        now_s += rng.choice([0.0, 0.3, 3.0], p=[0.6, 0.35, 0.05])
    start_s, items_done = np.array([s for s, _ in started]), np.cumsum([n for _, n in started])
    assert (items_done <= 100 * (start_s - 5.0) + 1e-6).all(), "never ahead of the rate"
    for i in range(len(started)):
        later = items_done[i:] - items_done[i]
        assert (later <= 100 * (start_s[i:] - start_s[i] + 1) + 1e-6).all()


def test_a_busy_bucket_gives_the_whole_rate() -> None:
    bucket, now_s = TokenBucket(100, now_s=0.0), 0.0
    for _ in range(50):
        now_s += bucket.reserve(64, now_s)
    assert now_s == pytest.approx(50 * 64 / 100)


def test_a_debt_survives_a_change_of_rate() -> None:
    bucket = TokenBucket(10, now_s=0.0)
    assert bucket.reserve(50, 0.0) == 5.0
    bucket.set_rate(20, 1.0)  # 10 of the 50 are paid off
    assert bucket.reserve(20, 1.0) == pytest.approx((40 + 20) / 20)
    bucket.set_rate(5, 3.0)  # the other 40 too
    assert bucket.reserve(0, 3.0) == pytest.approx(20 / 5)


def test_savings_shrink_with_the_rate() -> None:
    bucket = TokenBucket(1000, now_s=0.0)
    bucket.set_rate(10, 100.0)
    assert bucket.reserve(20, 100.0) == pytest.approx(1.0), "10 saved, 10 to wait for"


def test_without_a_limit_nothing_waits_and_a_later_limit_starts_from_nothing() -> None:
    bucket = TokenBucket(math.inf, now_s=0.0)
    assert bucket.reserve(10**9, 1.0) == 0.0
    bucket.set_rate(10, 2.0)
    assert bucket.reserve(10, 2.0) == 1.0
    bucket.set_rate(math.inf, 2.0)
    assert bucket.reserve(10**9, 2.0) == 0.0


def test_a_clock_that_goes_back_gives_nothing_twice() -> None:
    bucket = TokenBucket(10, now_s=10.0)
    bucket.reserve(10, 10.0)
    assert bucket.reserve(0, 9.0) == 1.0
    assert bucket.reserve(0, 10.5) == pytest.approx(0.5)


class Service:
    """An M/M/1 queue that shares its server with the backfill: at rate r it serves mu * (1 - r / full) queries/s.

    The time in an M/M/1 queue is exponential with rate mu - lambda, so its p99 is ln(100) / (mu - lambda).
    """

    mu, arrivals, full, windows = 1000.0, 50.0, 2000.0, 400

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def p99_ms(self, rate: float, slower: float = 1.0) -> float:
        """The p99 of 200 simulated queries."""
        spare = max(self.mu * (1 - rate / self.full) - self.arrivals, 1.0)
        return float(np.quantile(self.rng.exponential(1000 * slower / spare, 200), 0.99))

    def rate_for(self, p99_ms: float) -> float:
        """The rate at which the formula gives this p99."""
        return self.full * (1 - (self.arrivals + 1000 * math.log(100) / p99_ms) / self.mu)


def drive(service: Service, target_ms: float, slower: dict[int, float] | None = None) -> np.ndarray:
    """(windows, 2) rate and p99 of a backfill that does 1,800 items per second unless throttled."""
    controller = P99Controller(ThrottleSettings(p99_ms=target_ms))
    run = []
    for window in range(service.windows):
        rate = min(controller.rate, 1800.0)
        p99_ms = service.p99_ms(rate, (slower or {}).get(window, 1.0))
        controller.update(p99_ms, rate)
        run.append((rate, p99_ms))
    return np.array(run)


@pytest.mark.parametrize("seed", range(5))
def test_the_controller_settles_below_the_limit_without_swinging(seed: int) -> None:
    service = Service(seed)
    best = service.rate_for(20)
    rate, p99_ms = drive(service, target_ms=20)[50:].T
    assert np.median(p99_ms) < 20
    assert (p99_ms > 20).mean() < 0.35
    assert 0.6 * best < rate.mean() < 1.05 * best, "nor does it give away the machine"
    assert np.quantile(rate, 0.95) / np.quantile(rate, 0.05) < 2.2


def test_the_limit_holds_soon() -> None:
    rate, p99_ms = drive(Service(0), target_ms=20).T
    assert rate[0] == 1800
    assert p99_ms[0] > 40
    assert np.median(p99_ms[6:20]) < 20
    assert p99_ms[6:20].max() < 40


def test_it_recovers_from_slow_queries_that_were_not_its_doing() -> None:
    """Sixty windows of fiftyfold latency drive the rate to the floor, never below; afterwards it recovers."""
    service = Service(1)
    rate, _ = drive(service, target_ms=20, slower=dict.fromkeys(range(100, 160), 50.0)).T
    before, after = rate[50:100].mean(), rate[220:].mean()
    assert rate.min() == pytest.approx(0.05 * 1800)
    assert rate[120:160].max() == pytest.approx(0.05 * 1800)
    assert after == pytest.approx(before, rel=0.15)


def test_an_idle_backfill_does_not_save_up_speed() -> None:
    controller = P99Controller(ThrottleSettings(p99_ms=20))
    controller.update(50.0, 1000.0)
    for _ in range(50):
        controller.update(5.0, 30.0)
    assert controller.rate == pytest.approx(700), "it did 30 a second of 700: raising the rate would change nothing"


def test_one_cut_for_one_burst() -> None:
    controller = P99Controller(ThrottleSettings(p99_ms=20))
    rates = [controller.update(50.0, 1000.0) for _ in range(4)]
    assert rates == pytest.approx([700, 700, 490, 490])


def test_a_limit_is_never_passed_and_without_a_target_it_is_all() -> None:
    both = P99Controller(ThrottleSettings(items_per_s=500, p99_ms=20))
    assert both.rate == 500
    assert both.update(50.0, 480.0) == pytest.approx(336)
    for _ in range(20):
        both.update(1.0, both.rate)
    assert both.rate == 500
    only = P99Controller(ThrottleSettings(items_per_s=500))
    assert only.update(10_000.0, 480.0) == 500
    assert P99Controller(ThrottleSettings()).update(10_000.0, 480.0) == math.inf


def test_nothing_known_changes_nothing() -> None:
    controller = P99Controller(ThrottleSettings(p99_ms=20))
    assert controller.update(None, 1000.0) == math.inf
    assert controller.update(50.0, 0.0) == math.inf, "nothing was backfilled: slow for another reason"


@pytest.mark.parametrize("name", ["items_per_s", "p99_ms"])
def test_an_infinite_limit_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"--live.throttle.{name.replace('_', '-')} must"):
        ThrottleSettings(**{name: math.inf})


def test_a_rate_of_0_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        TokenBucket(10, now_s=0.0).set_rate(0.0, 1.0)
