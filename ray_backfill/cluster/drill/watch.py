"""What a live backfill tells Prometheus while it runs: every metric in one table, and two writers of them.

Ray exports each as ``ray_<name>`` on the metrics port of the node whose process wrote it, so a writer is made inside
the process that measures; to make one needs no connection, to be seen does. docs/watching.md says how to look.
"""

import json
import math
import threading
from pathlib import Path
from typing import Any, Literal, NamedTuple

import ray
from ray.util.metrics import Counter, Gauge, Histogram

from ray_backfill.files import write_whole

Partition = Literal["old", "new"]

# fmt: off
LATENCY_BUCKETS_S = (
    0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075,
    0.01, 0.015, 0.02, 0.03, 0.05, 0.075,
    0.1, 0.15, 0.2, 0.3, 0.5, 0.75,
    1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0,
)
# fmt: on

# Ray forgets a gauge that is not set again within two of its report intervals, which are one second at least.
_REFRESH_S = 0.5


class Metric(NamedTuple):
    """A row of METRICS; every metric has the tag ``drill`` besides these."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    description: str
    tags: tuple[str, ...] = ()

    @property
    def exported(self) -> str:
        """As Prometheus knows it; a histogram's series have ``_bucket``, ``_sum`` and ``_count`` behind that."""
        return f"ray_{self.name}{'_total' if self.kind == 'counter' else ''}"


METRICS = (
    Metric("backfill_progress", "gauge", "Share of the gallery that is backfilled, 0 to 1"),
    Metric("backfill_partition_items", "gauge", "Items that a partition serves", ("partition",)),
    Metric("backfill_partition_bytes", "gauge", "Bytes of a partition's vectors", ("partition",)),
    Metric("backfill_items", "counter", "Items re-embedded and written, repeats included"),
    Metric("backfill_rate_items_per_s", "gauge", "Items backfilled a second, as the driver measures it"),
    Metric("backfill_throttle_items_per_s", "gauge", "Items a second that the throttle allows; none without a limit"),
    Metric("backfill_live_quality", "gauge", "Quality of the answers that users get, 0 to 1", ("metric",)),
    Metric("backfill_incidents", "counter", "Faults seen: processes that died, writes that failed", ("kind",)),
    Metric("backfill_query_latency_seconds", "histogram", "From a request's scheduled time to its end"),
    Metric("backfill_queries", "counter", "Queries answered, and not answered by their deadline", ("outcome",)),
    Metric("backfill_retries", "counter", "Requests sent again"),
)


class _Writer:
    """The metrics of one drill by name."""

    def __init__(self, drill: str) -> None:
        self._metrics = {metric.name: _made(metric, drill) for metric in METRICS}

    def _count(self, name: str, by: float, **tags: str) -> None:
        if by:  # Ray refuses to count by 0
            self._metrics[name].inc(by, tags)


def _made(metric: Metric, drill: str) -> Any:
    tag_keys = ("drill", *metric.tags)
    if metric.kind == "histogram":
        made = Histogram(metric.name, metric.description, list(LATENCY_BUCKETS_S), tag_keys)
    else:
        made = {"gauge": Gauge, "counter": Counter}[metric.kind](metric.name, metric.description, tag_keys)
    return made.set_default_tags({"drill": drill})


class DriverWatch(_Writer):
    """What the driver of a drill knows. Repeats every gauge from a thread, until ``close``."""

    def __init__(self, drill: str) -> None:
        super().__init__(drill)
        self._values: dict[tuple[str, str, str], float] = {}  # by name, tag and the tag's value
        self._lock = threading.Lock()
        self._closed = threading.Event()
        threading.Thread(target=self._refresh, daemon=True).start()

    def progress(self, share: float) -> None:
        """The share of the gallery that is backfilled, 0 to 1."""
        self._set("backfill_progress", share)

    def partition(self, name: Partition, items: int, n_bytes: int) -> None:
        """What a partition serves."""
        self._set("backfill_partition_items", items, "partition", name)
        self._set("backfill_partition_bytes", n_bytes, "partition", name)

    def backfilled(self, items: int) -> None:
        """So many items more were re-embedded and written."""
        self._count("backfill_items", items)

    def rate(self, items_per_s: float) -> None:
        """How fast the backfill goes."""
        self._set("backfill_rate_items_per_s", items_per_s)

    def throttle(self, items_per_s: float) -> None:
        """How fast it may go; an infinite rate shows nothing."""
        self._set("backfill_throttle_items_per_s", items_per_s)

    def quality(self, metric: str, live: float) -> None:
        """A metric of the live answers at the last checkpoint."""
        self._set("backfill_live_quality", live, "metric", metric)

    def incident(self, kind: str) -> None:
        """A fault was seen."""
        self._count("backfill_incidents", 1, kind=kind)

    def close(self) -> None:
        """The gauges disappear within two of Ray's report intervals; counters stay while their node lives."""
        self._closed.set()

    def _set(self, name: str, value: float, tag: str = "", tag_value: str = "") -> None:
        with self._lock:
            if math.isinf(value):
                self._values.pop((name, tag, tag_value), None)
            else:
                self._values[name, tag, tag_value] = float(value)
                self._metrics[name].set(float(value), {tag: tag_value} if tag else None)

    def _refresh(self) -> None:
        while not self._closed.wait(_REFRESH_S):
            with self._lock:
                for (name, tag, tag_value), value in self._values.items():
                    self._metrics[name].set(value, {tag: tag_value} if tag else None)


class TrafficWatch(_Writer):
    """What an actor that sends queries knows."""

    def answered(self, queries: int, latency_s: float) -> None:
        """A request of so many queries was answered so long after its scheduled time."""
        self._metrics["backfill_query_latency_seconds"].observe(latency_s)
        self._count("backfill_queries", queries, outcome="answered")

    def unanswered(self, queries: int, waited_s: float) -> None:
        """A request was given up. It has waited at least so long, so that the latency's quantiles cannot hide it."""
        self._metrics["backfill_query_latency_seconds"].observe(waited_s)
        self._count("backfill_queries", queries, outcome="unanswered")

    def retried(self, times: int = 1) -> None:
        """A request was sent again."""
        self._count("backfill_retries", times)


def write_targets(path: Path) -> None:
    """Write the metrics ports of the connected Ray's nodes in Prometheus's ``file_sd_configs`` format (a .json file).

    Ray's own file of this kind is written by its dashboard, and a Ray that ``session`` starts has none; its metrics
    are exported all the same.
    """
    targets = [f"{node['NodeManagerAddress']}:{node['MetricsExportPort']}" for node in ray.nodes() if node["Alive"]]
    text = json.dumps([{"labels": {"job": "ray"}, "targets": targets}])
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
