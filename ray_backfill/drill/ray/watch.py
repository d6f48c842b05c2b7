"""The Prometheus metrics of a running live drill, with the tag ``drill``. See docs/watching.md."""

from ray_backfill.workers.watch import LiveMetric

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
