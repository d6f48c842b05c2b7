"""Moves the rate of the backfill while it runs, so that queries stay as quick as they should be."""

import threading
from collections.abc import Callable

import numpy as np
import ray
from ray.actor import ActorHandle

from ray_backfill.live.throttle import P99Controller, ThrottleSettings

# Between two looks at the latency.
_CONTROL_S = 3.0


class ThrottleLoop:
    """recent_ms: the latencies of the last so many seconds. tell: hears each rate, with the p99 it was chosen by."""

    def __init__(
        self,
        settings: ThrottleSettings,
        pacer: ActorHandle,
        recent_ms: Callable[[float], list[float]],
        tell: Callable[[float, float | None], None],
    ) -> None:
        self.controller = P99Controller(settings)
        self.pacer, self.recent_ms, self.tell = pacer, recent_ms, tell
        self.reserved = 0
        self.ended = threading.Event()

    def start(self) -> None:
        """Look every few seconds, if there is a target, until ``close``."""
        if self.controller.settings.p99_ms:
            threading.Thread(target=self._run, daemon=True).start()

    def step(self) -> None:
        """One look at the latency, and the rate that follows from it."""
        latencies_ms = self.recent_ms(_CONTROL_S)
        reserved = ray.get(self.pacer.reserved.remote())
        p99_ms = float(np.quantile(latencies_ms, 0.99)) if latencies_ms else None
        rate = self.controller.update(p99_ms, (reserved - self.reserved) / _CONTROL_S)
        self.reserved = reserved
        ray.get(self.pacer.set_rate.remote(rate))
        self.tell(rate, p99_ms)

    def close(self) -> None:
        self.ended.set()

    def _run(self) -> None:
        while not self.ended.wait(_CONTROL_S):
            try:
                self.step()
            except ray.exceptions.RayError:
                return  # the drill ends
