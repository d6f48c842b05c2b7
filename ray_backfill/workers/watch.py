"""The Prometheus metrics of what runs on Ray, and their writer.

Ray exports each metric as ``ray_<name>`` on the metrics port of the node whose process wrote it, so create the writer
inside the process that measures. Creating one needs no connection to Ray, but exporting does. See docs/watching.md.
"""

import json
import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import ray
from ray.util.metrics import Counter, Gauge, Histogram

from ray_backfill.core.job import current_job
from ray_backfill.core.stages import write_whole

# From 1 ms to 10 s, six in each power of ten.
LATENCY_BUCKETS_S = (*(float(f"{x}e{power}") for power in range(-3, 1) for x in (1, 1.5, 2, 3, 5, 7.5)), 10.0)
# Ray drops a gauge that is not set again within two of its report intervals, which are at least one second.
_REFRESH_S = 0.5


class LiveMetric(NamedTuple):
    """tag: a tag in addition to that of all metrics of a writer, if any."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    description: str
    tag: str = ""

    @property
    def exported(self) -> str:
        """The name in Prometheus; a histogram's series append ``_bucket``, ``_sum`` and ``_count``."""
        return f"ray_{self.name}{'_total' if self.kind == 'counter' else ''}"

    def tags(self, value: str) -> dict[str, str]:
        """The tag with this value, in the form that Ray expects."""
        return {self.tag: value} if self.tag else {}


EPOCH = LiveMetric("backfill_training_epoch", "gauge", "Epochs of a training that are done", "training")
LOSS = LiveMetric("backfill_training_loss", "gauge", "Mean loss of a training's last epoch", "training")
TRAINING_RATE = LiveMetric("backfill_training_items_per_s", "gauge", "Items per second in the last epoch", "training")
EMBEDDED = LiveMetric("backfill_embedded_items", "counter", "Items that were embedded and written")
BROKEN = LiveMetric("backfill_broken_items", "counter", "Items that could not be read")
RUN_METRICS = (EPOCH, LOSS, TRAINING_RATE, EMBEDDED, BROKEN)


class Watch:
    """Writes metrics with these tags; None: the run. A thread sets every gauge again regularly, until ``close``."""

    def __init__(self, metrics: Sequence[LiveMetric] = RUN_METRICS, tags: dict[str, str] | None = None) -> None:
        tags = tags or {"run": Path(current_job().out).name or "run"}
        self._metrics = {metric: _made(metric, tags) for metric in metrics}
        self._values: dict[tuple[LiveMetric, str], float] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._refresh, daemon=True)
        self._thread.start()

    def set(self, gauge: LiveMetric, value: float, tag: str = "") -> None:
        """Set a gauge; an infinite value removes it."""
        with self._lock:
            if math.isinf(value):
                self._values.pop((gauge, tag), None)
            else:
                self._values[gauge, tag] = float(value)
                self._metrics[gauge].set(float(value), gauge.tags(tag))

    def count(self, counter: LiveMetric, by: float, tag: str = "") -> None:
        """Increase a counter."""
        if by:  # Ray refuses to count by 0
            self._metrics[counter].inc(by, counter.tags(tag))

    def observe(self, histogram: LiveMetric, value: float) -> None:
        """Add a value to a histogram."""
        self._metrics[histogram].observe(value)

    def close(self) -> None:
        """Stop: the gauges disappear within two of Ray's report intervals, counters stay as long as their node."""
        self._closed.set()
        self._thread.join()  # before Ray is shut down

    def _refresh(self) -> None:
        while not self._closed.wait(_REFRESH_S):
            with self._lock:
                for (gauge, tag), value in self._values.items():
                    self._metrics[gauge].set(value, gauge.tags(tag))


def _made(metric: LiveMetric, tags: dict[str, str]) -> Any:
    tag_keys = (*tags, metric.tag) if metric.tag else (*tags,)
    if metric.kind == "histogram":
        made = Histogram(metric.name, metric.description, list(LATENCY_BUCKETS_S), tag_keys)
    else:
        made = {"gauge": Gauge, "counter": Counter}[metric.kind](metric.name, metric.description, tag_keys)
    return made.set_default_tags(tags)


def write_targets(path: Path) -> None:
    """Write the metrics addresses of the connected Ray's nodes, as a .json file for Prometheus's ``file_sd_configs``.

    Ray's dashboard writes such a file too, but a Ray started by ``session`` has no dashboard; its metrics are exported
    anyway.
    """
    targets = [f"{node['NodeManagerAddress']}:{node['MetricsExportPort']}" for node in ray.nodes() if node["Alive"]]
    text = json.dumps([{"labels": {"job": "ray"}, "targets": targets}])
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
