"""Adjusts the backfill rate while it runs, to keep the query latency below its target."""

import threading

import numpy as np
import ray

from ray_backfill.drill.ray.recorder import Recorder
from ray_backfill.drill.ray.supervisor import EmbeddingSupervisor
from ray_backfill.drill.ray.traffic import Traffic
from ray_backfill.drill.throttle import P99Controller, ThrottleSettings

# Seconds between two adjustments.
_CONTROL_S = 3.0
# Seconds that an adjustment may take to end.
_STOP_S = 20.0


class ThrottleLoop:
    """Sets the embedding rate from the traffic's latency every few seconds."""

    def __init__(
        self, settings: ThrottleSettings, embedding: EmbeddingSupervisor, traffic: Traffic, recorder: Recorder
    ) -> None:
        self.controller = P99Controller(settings)
        self.embedding, self.traffic, self.recorder = embedding, traffic, recorder
        self.reserved = 0
        self.ended, self.thread = threading.Event(), threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Run until ``close``, if the settings have a target."""
        if self.controller.settings.p99_ms:
            self.thread.start()

    def step(self) -> None:
        """Measure the latency once and set the rate accordingly."""
        latencies_ms, reserved = self.traffic.recent_ms(_CONTROL_S), self.embedding.reserved()
        p99_ms = float(np.quantile(latencies_ms, 0.99)) if latencies_ms else None
        rate = self.controller.update(p99_ms, (reserved - self.reserved) / _CONTROL_S)
        self.reserved = reserved
        self.embedding.set_rate(rate)
        self.recorder.throttled(rate, p99_ms)

    def close(self) -> None:
        """Returns when the loop calls Ray no more: a call while Ray is shut down ends the process by SIGSEGV."""
        self.ended.set()
        if self.thread.is_alive():
            self.thread.join(_STOP_S)

    def _run(self) -> None:
        while not self.ended.wait(_CONTROL_S):
            try:
                self.step()
            except ray.exceptions.RayError:
                continue  # an actor died, or the drill ends
