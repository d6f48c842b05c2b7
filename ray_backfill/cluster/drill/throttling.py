"""Moves the rate of the backfill while it runs, so that queries stay as quick as they should be."""

import threading

import numpy as np
import ray

from ray_backfill.cluster.drill.recorder import Recorder
from ray_backfill.cluster.drill.supervisor import EmbeddingSupervisor
from ray_backfill.cluster.drill.traffic import Traffic
from ray_backfill.live.throttle import P99Controller, ThrottleSettings

# Between two looks at the latency.
_CONTROL_S = 3.0


class ThrottleLoop:
    """Looks at the latency of the traffic every few seconds, and sets the rate of the embedding by it."""

    def __init__(
        self, settings: ThrottleSettings, embedding: EmbeddingSupervisor, traffic: Traffic, recorder: Recorder
    ) -> None:
        self.controller = P99Controller(settings)
        self.embedding, self.traffic, self.recorder = embedding, traffic, recorder
        self.reserved = 0
        self.ended = threading.Event()

    def start(self) -> None:
        """Go on until ``close``, if the settings have a target."""
        if self.controller.settings.p99_ms:
            threading.Thread(target=self._run, daemon=True).start()

    def step(self) -> None:
        """One look at the latency, and the rate that follows from it."""
        latencies_ms, reserved = self.traffic.recent_ms(_CONTROL_S), self.embedding.reserved()
        p99_ms = float(np.quantile(latencies_ms, 0.99)) if latencies_ms else None
        rate = self.controller.update(p99_ms, (reserved - self.reserved) / _CONTROL_S)
        self.reserved = reserved
        self.embedding.set_rate(rate)
        self.recorder.throttled(rate, p99_ms)

    def close(self) -> None:
        self.ended.set()

    def _run(self) -> None:
        while not self.ended.wait(_CONTROL_S):
            try:
                self.step()
            except ray.exceptions.RayError:
                return  # the drill ends
