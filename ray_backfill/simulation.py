"""From a folder of embeddings to a folder of results: every method and order replayed, tables written, reported."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from tqdm import tqdm

from ray_backfill import __version__
from ray_backfill.distances import check_distance
from ray_backfill.errors import InputError
from ray_backfill.methods import Embeddings, Method, find_methods
from ray_backfill.metrics import largest_fall, parse_metric
from ray_backfill.models.checkpoints import load_heads
from ray_backfill.orders import GalleryColumns, check_order_name, make_order
from ray_backfill.replay import Curve, replay
from ray_backfill.report import write_report
from ray_backfill.stages import begin_stage, finish_stage, note_facts
from ray_backfill.store import EmbeddingFolder, EmbeddingTable, write_parquet
from ray_backfill.systems import GroundTruth, IntArray

METHODS = ("old", "new", "offline", "rm_naive", "rqt", "cl_s", "cl_m", "mcl", "rm")

# Distances are compared as they are; other merges come as a dimension of their own.
_MERGE = "raw"


@dataclass(frozen=True)
class Evaluation:
    """What is compared and how."""

    # Upgrade methods; old and new always take part, as the ends of the gain.
    methods: tuple[str, ...] = METHODS
    # Backfill orders: random, classifier_score, centroid_cosine, given.
    orders: tuple[str, ...] = ("classifier_score",)
    # mAP, mAP@k, CMC@k; the first one leads the report.
    metrics: tuple[str, ...] = ("mAP", "CMC@1")
    # Moments of the backfill, t = 0 and t = 1 included.
    points: int = 11
    # cosine, l2 or inner_product.
    distance: str = "cosine"
    # Of the random order.
    order_seed: int = 0

    def checked_methods(self) -> list[Method]:
        """The methods with old and new in front. Raises InputError for any unknown name or setting."""
        for metric in self.metrics:
            parse_metric(metric)
        for order in self.orders:
            check_order_name(order)
        check_distance(self.distance)
        if not self.metrics or not self.orders:
            raise InputError("give at least one metric and one order")
        if self.points < 2:
            raise InputError(f"a curve needs at least 2 points, got {self.points}")
        return find_methods(("old", "new", *(name for name in self.methods if name not in ("old", "new"))))


def simulate(
    folder: EmbeddingFolder,
    out: Path,
    evaluation: Evaluation,
    heads: Mapping[str, Path],
    left_out: Mapping[str, str],
    facts: Mapping[str, Any],
) -> Path:
    """Replay and report; does nothing if ``out`` holds these very results already.

    heads: method -> folder of its trained heads. left_out: methods that cannot run here, with the reason.
    facts, for the manifest: "settings" (what besides the data and the evaluation decides the results), "recipe",
    "command", "timings_s", "data".

    Raises:
        InputError: unknown names, columns that an order needs, labels or positives that do not fit, another run's out.
    """
    methods = [method for method in evaluation.checked_methods() if method.name not in left_out]
    orders = make_orders(folder.gallery, evaluation)
    truth = ground_truth(folder)
    wanted = {"data": folder.fingerprint(), "evaluation": asdict(evaluation)} | dict(facts["settings"])
    if begin_stage(out, "simulation", wanted):
        return out
    started = time.perf_counter()
    curves = replay_methods(folder, truth, methods, orders, evaluation, heads)
    curve_table, summary = tabulate(methods, curves, evaluation.metrics)
    write_parquet(out / "curves.parquet", pa.Table.from_pandas(curve_table, preserve_index=False))
    write_parquet(out / "summary.parquet", pa.Table.from_pandas(summary, preserve_index=False))
    seconds = {"replay": round(time.perf_counter() - started, 2)}
    note_facts(out, _facts(folder, truth, evaluation, left_out, facts, seconds))
    write_report(out)
    finish_stage(out)
    return out


def check_vectors(folder: EmbeddingFolder, distance: str) -> None:
    """Raises InputError for zero vectors under cosine; the message names file, column and row."""
    for table in (folder.gallery, folder.queries or folder.gallery):
        for column in ("old", "new"):
            zero = np.flatnonzero(~getattr(table, column).any(axis=1))
            if distance == "cosine" and len(zero):
                raise InputError(
                    f"{table.path}, column {column!r}: zero vector in row {zero[0]} ({len(zero)} in all), which has no "
                    "cosine distance; remove such rows or use --distance l2"
                )


def make_orders(gallery: EmbeddingTable, evaluation: Evaluation) -> dict[str, IntArray]:
    """Each order of the evaluation over this gallery."""
    label = None if gallery.label is None else np.unique(gallery.label, return_inverse=True)[1]
    columns = GalleryColumns(gallery.old, label, gallery.old_score, gallery.order_score)
    return {name: make_order(name, columns, evaluation.order_seed) for name in evaluation.orders}


def ground_truth(folder: EmbeddingFolder) -> GroundTruth:
    """Who is right for whom: by the queries' positives if there are any, else by labels (and cameras where known).

    Raises:
        InputError: neither labels nor positives, an unknown id, or query labels that the gallery lacks.
    """
    gallery, queries = folder.gallery, folder.queries or folder.gallery
    if queries.positives is not None:
        return _truth_from_ids(gallery, queries)
    for table in (gallery, queries):
        if table.label is None:
            raise InputError(f"{table.path} has no column 'label'; add it, or give the queries a column 'positives'")
    assert gallery.label is not None
    assert queries.label is not None
    if gallery.label.dtype.kind != queries.label.dtype.kind:
        raise InputError(
            f"labels are {gallery.label.dtype} in {gallery.path} but {queries.label.dtype} in {queries.path}"
        )
    unknown = np.flatnonzero(~np.isin(queries.label, gallery.label))
    if len(unknown):
        raise InputError(
            f"{queries.path}, column 'label': {len(unknown)} queries have a label that {gallery.path} lacks, first "
            f"{queries.label[unknown[0]]!s} in row {unknown[0]}; remove these queries"
        )
    names, gallery_label = np.unique(gallery.label, return_inverse=True)
    return GroundTruth.from_labels(
        np.searchsorted(names, queries.label),
        gallery_label,
        exclude_self=folder.queries is None,
        query_cameras=queries.camera,
        gallery_cameras=gallery.camera,
    )


def _truth_from_ids(gallery: EmbeddingTable, queries: EmbeddingTable) -> GroundTruth:
    index = pd.Index(gallery.id)

    def positions(column: str, rows: Sequence[NDArray[Any]] | None) -> list[IntArray]:
        found = []
        for query, ids in enumerate(rows or [np.empty(0)] * len(queries)):
            at = index.get_indexer(pd.Index(ids)) if len(ids) else np.empty(0, np.int64)
            if (at < 0).any():
                missing = ids[np.argmax(at < 0)]
                raise InputError(f"{queries.path}, column {column!r}, row {query}: the gallery has no id {missing!s}")
            found.append(at.astype(np.int64))
        return found

    return GroundTruth.from_positives(
        positions("positives", queries.positives), positions("ignored", queries.ignored), n_gallery=len(gallery)
    )


def replay_methods(
    folder: EmbeddingFolder,
    truth: GroundTruth,
    methods: Sequence[Method],
    orders: Mapping[str, IntArray],
    evaluation: Evaluation,
    heads: Mapping[str, Path],
) -> dict[tuple[str, str], Curve]:
    """The curve of each (method, order)."""
    queries = folder.queries or folder.gallery
    embeddings = Embeddings(queries.old, queries.new, folder.gallery.old, folder.gallery.new)
    curves = {}
    for method in (bar := tqdm(methods, desc="replay", unit=" methods", dynamic_ncols=True)):
        bar.set_postfix_str(method.title)
        pair = method.pair(embeddings, load_heads(heads[method.name]) if method.head else None)
        of_orders = replay(
            pair, truth, orders, evaluation.points, evaluation.metrics, evaluation.distance, progress=True
        )
        curves.update({(method.name, order): curve for order, curve in of_orders.items()})
    return curves


def tabulate(
    methods: Sequence[Method], curves: Mapping[tuple[str, str], Curve], metrics: Sequence[str]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tables ``curves`` and ``summary`` (columns: docs/results-format.md); needs the methods old and new."""
    titles = {method.name: method.title for method in methods}
    curve_rows, summary_rows = [], []
    for (method, order), curve in curves.items():
        old, new = curves["old", order], curves["new", order]
        key = {"method": method, "order": order, "merge": _MERGE}
        flips = {
            "negative_flips": curve.negative_flips(),
            "positive_flips": curve.positive_flips(),
            "negative_flips_vs_old": curve.negative_flips(old),
            "positive_flips_vs_old": curve.positive_flips(old),
        }
        for metric in metrics:
            values, (low, high) = curve.values(metric), curve.interval(metric)
            curve_rows.append(_rows(key, metric, curve.t, values, low, high))
            start, end = values[0], values[-1]
            summary_rows.append(
                key
                | {
                    "title": titles[method],
                    "metric": metric,
                    "auc": curve.auc(metric),
                    "auc_mean": curve.auc_mean(metric),
                    "gain": curve.gain(metric, old, new),
                    "start": start,
                    "end": end,
                    "monotone": curve.monotone(metric),
                    "largest_fall": largest_fall(values),
                    "starts_at_old": bool(start >= old.values(metric)[0] - 1e-12),
                    "ends_at_new": bool(end >= new.values(metric)[-1] - 1e-12),
                    "negative_flips_max": float(flips["negative_flips"].max()),
                }
            )
        for name, values in flips.items():
            nothing = np.full(len(values), np.nan)
            curve_rows.append(_rows(key, name, curve.t, values, nothing, nothing))
    return pd.concat(curve_rows, ignore_index=True), pd.DataFrame(summary_rows)


def _rows(
    key: Mapping[str, str],
    metric: str,
    t: NDArray[np.float64],
    value: NDArray[np.float64],
    low: NDArray[np.float64],
    high: NDArray[np.float64],
) -> pd.DataFrame:
    return pd.DataFrame({**key, "metric": metric, "t": t, "value": value, "low": low, "high": high})


def _facts(
    folder: EmbeddingFolder,
    truth: GroundTruth,
    evaluation: Evaluation,
    left_out: Mapping[str, str],
    facts: Mapping[str, Any],
    seconds: Mapping[str, float],
) -> dict[str, Any]:
    """What the manifest says beside the settings."""
    packages = ("ray", "torch", "numpy", "pyarrow")
    return {
        "kind": "simulation",
        "command": facts["command"],
        "recipe": dict(facts["recipe"]),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"ray_backfill": __version__} | {name: version(name) for name in packages},
        "seed": evaluation.order_seed,
        "primary_metric": evaluation.metrics[0],
        "left_out": dict(left_out),
        "timings_s": dict(facts["timings_s"]) | dict(seconds),
        "data": {
            "fingerprint": folder.fingerprint(),
            "gallery_items": len(folder.gallery),
            "queries": truth.n_queries,
            "queries_skipped": len(truth.skipped),
            "old_dim": folder.gallery.old.shape[1],
            "new_dim": folder.gallery.new.shape[1],
        }
        | dict(facts["data"]),
    }
