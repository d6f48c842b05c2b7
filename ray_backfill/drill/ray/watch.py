"""The Prometheus metrics of a running live drill, and their writer.

Ray exports each metric as ``ray_<name>`` on the metrics port of the node whose process wrote it, so create the writer
inside the process that measures. Creating one needs no connection to Ray, but exporting does. See docs/watching.md.
"""

import json
import math
import threading
from pathlib import Path
from typing import Any, Literal, NamedTuple

import ray
from ray.util.metrics import Counter, Gauge, Histogram

from ray_backfill.core.stages import write_whole

# From 1 ms to 10 s, six in each power of ten.
LATENCY_BUCKETS_S = (*(float(f"{x}e{power}") for power in range(-3, 1) for x in (1, 1.5, 2, 3, 5, 7.5)), 10.0)
# Ray drops a gauge that is not set again within two of its report intervals, which are at least one second.
_REFRESH_S = 0.5


class LiveMetric(NamedTuple):
    """tag: a tag in addition to ``drill``, if any."""

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


PROGRESS = LiveMetric("backfill_progress", "gauge", "Share of the gallery that is backfilled, 0 to 1")
PARTITION_ITEMS = LiveMetric("backfill_partition_items", "gauge", "Items served by a partition", "partition")
PARTITION_BYTES = LiveMetric("backfill_partition_bytes", "gauge", "Bytes of a partition's vectors", "partition")
ITEMS = LiveMetric("backfill_items", "counter", "Items re-embedded and written, repeats included")
RATE = LiveMetric("backfill_rate_items_per_s", "gauge", "Items backfilled per second, measured by the driver")
THROTTLE = LiveMetric(
    "backfill_throttle_items_per_s", "gauge", "Items per second that the throttle allows; absent without a limit"
)
QUALITY = LiveMetric(
    "backfill_live_quality", "gauge", "Quality of live answers at the last checkpoint, 0 to 1", "metric"
)
INCIDENTS = LiveMetric("backfill_incidents", "counter", "Faults: processes that died, writes that failed", "kind")
LATENCY = LiveMetric("backfill_query_latency_seconds", "histogram", "Time from a request's scheduled time to its end")
QUERIES = LiveMetric("backfill_queries", "counter", "Queries answered, or unanswered by their deadline", "outcome")
RETRIES = LiveMetric("backfill_retries", "counter", "Requests sent again after a shard died")
METRICS = (
    PROGRESS, PARTITION_ITEMS, PARTITION_BYTES, ITEMS, RATE, THROTTLE, QUALITY, INCIDENTS, LATENCY, QUERIES, RETRIES,
)  # fmt: skip


class Watch:
    """Writes the metrics of one drill. A thread sets every gauge again regularly, until ``close``."""

    def __init__(self, drill: str) -> None:
        self._metrics = {metric: _made(metric, drill) for metric in METRICS}
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


def _made(metric: LiveMetric, drill: str) -> Any:
    tag_keys = ("drill", metric.tag) if metric.tag else ("drill",)
    if metric.kind == "histogram":
        made = Histogram(metric.name, metric.description, list(LATENCY_BUCKETS_S), tag_keys)
    else:
        made = {"gauge": Gauge, "counter": Counter}[metric.kind](metric.name, metric.description, tag_keys)
    return made.set_default_tags({"drill": drill})


def write_targets(path: Path) -> None:
    """Write the metrics addresses of the connected Ray's nodes, as a .json file for Prometheus's ``file_sd_configs``.

    Ray's dashboard writes such a file too, but a Ray started by ``session`` has no dashboard; its metrics are exported
    anyway.
    """
    targets = [f"{node['NodeManagerAddress']}:{node['MetricsExportPort']}" for node in ray.nodes() if node["Alive"]]
    text = json.dumps([{"labels": {"job": "ray"}, "targets": targets}])
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
