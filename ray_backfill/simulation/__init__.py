"""From a folder of embeddings to a folder of results: every method and order replayed, tables written, reported."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from tqdm import tqdm

from ray_backfill import __version__
from ray_backfill.distances import check_distance
from ray_backfill.errors import InputError
from ray_backfill.methods import Embeddings, Method, find_methods
from ray_backfill.metrics import parse_metric
from ray_backfill.models.checkpoints import load_heads
from ray_backfill.orders import check_order_name
from ray_backfill.replay import Curve, replay
from ray_backfill.report import write_report
from ray_backfill.simulation.folder import ground_truth, make_orders
from ray_backfill.simulation.tables import tabulate
from ray_backfill.stages import begin_stage, finish_stage, look_at_stage, note_facts
from ray_backfill.store import EmbeddingFolder, write_parquet
from ray_backfill.systems import GroundTruth, IntArray

MERGES = ("raw",)
# Of the folder of results: goes up when a table gets another shape.
FORMAT = 2
METHODS = ("old", "new", "offline", "rm_naive", "rqt", "cl_s", "cl_m", "mcl", "rm")


@dataclass(frozen=True)
class Evaluation:
    """What is compared and how."""

    # Upgrade methods; old and new always take part, as the ends of the gain.
    methods: tuple[str, ...] = METHODS
    # Backfill orders: random, classifier_score, centroid_cosine, given.
    orders: tuple[str, ...] = ("classifier_score",)
    # How distances of the two systems are made comparable: raw, as they are.
    merges: tuple[str, ...] = ("raw",)
    # mAP, mAP@k, CMC@k; the first one leads the report.
    metrics: tuple[str, ...] = ("mAP", "CMC@1")
    # Moments of the backfill, t = 0 and t = 1 included.
    points: int = 11
    # cosine, l2 or inner_product.
    distance: str = "cosine"
    # Of the random order.
    order_seed: int = 0

    def find_methods(self) -> list[Method]:
        """The methods, old and new in front. Raises InputError for an unknown name."""
        return find_methods(tuple(dict.fromkeys(("old", "new", *self.methods))))

    def check(self) -> None:
        """Raises InputError for any unknown name or impossible setting."""
        self.find_methods()
        for metric in self.metrics:
            parse_metric(metric)
        for order in self.orders:
            check_order_name(order)
        check_distance(self.distance)
        for merge in self.merges:
            if merge not in MERGES:
                raise InputError(f"unknown merge {merge!r}; known: {', '.join(MERGES)}")
        if not self.metrics or not self.orders or not self.merges:
            raise InputError("give at least one metric, one order and one merge")
        if self.order_seed < 0:
            raise InputError(f"the seed of an order must not be negative, got {self.order_seed}")
        if not 2 <= self.points <= 1 << 16:
            raise InputError(f"a curve needs at least 2 points and at most {1 << 16}, got {self.points}")


@dataclass(frozen=True)
class Run:
    """What the manifest tells of a run beside its results.

    settings: what decides the results besides the data and the evaluation. recipe: all of it, {} for a user's folder.
    embeddings: facts about how the embeddings were made. left_out: method -> why it cannot take part.
    """

    command: str
    settings: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)
    embeddings: dict[str, Any] = field(default_factory=dict)
    timings_s: dict[str, float] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


class Replayer(Protocol):
    """What replays all methods: ``replay_methods``, or the same over a cluster."""

    def __call__(
        self,
        folder: EmbeddingFolder,
        truth: GroundTruth,
        methods: Sequence[Method],
        orders: Mapping[str, IntArray],
        evaluation: Evaluation,
        heads: Mapping[str, Path],
    ) -> dict[tuple[str, str], Curve]: ...


def simulate(
    folder: EmbeddingFolder,
    fingerprint: str,
    out: Path,
    evaluation: Evaluation,
    heads: Mapping[str, Path],
    run: Run,
    replayer: Replayer | None = None,
) -> Path:
    """Replay and report; does nothing if ``out`` holds these very results already.

    fingerprint: of the folder. heads: method -> folder of its trained heads. replayer: default this process.

    Raises:
        InputError: unknown names, columns that an order needs, labels or positives that do not fit, another run's out.
    """
    evaluation.check()
    wanted = {"format": FORMAT, "data": fingerprint, "evaluation": asdict(evaluation)} | run.settings
    methods = [method for method in evaluation.find_methods() if method.name not in run.left_out]
    orders = make_orders(folder.gallery, evaluation.orders, evaluation.order_seed)
    truth = ground_truth(folder, refuse_unknown_labels=not run.recipe)
    if look_at_stage(out, "simulation", wanted):
        return out
    # The folder is claimed when there is something to write: what fails or is stopped before leaves no trace.
    started = time.perf_counter()
    curves = (replayer or replay_methods)(folder, truth, methods, orders, evaluation, heads)
    begin_stage(out, "simulation", wanted)
    tables = tabulate(methods, curves, evaluation.metrics, (folder.queries or folder.gallery).group)
    for name in ("curves", "summary", "differences", "subgroups"):
        if (table := getattr(tables, name)) is not None:
            write_parquet(out / f"{name}.parquet", pa.Table.from_pandas(table, preserve_index=False))
    replay_s = round(time.perf_counter() - started, 2)
    note_facts(out, _facts(folder, fingerprint, truth, evaluation, run, replay_s))
    write_report(out)
    finish_stage(out)
    return out


def replay_methods(
    folder: EmbeddingFolder,
    truth: GroundTruth,
    methods: Sequence[Method],
    orders: Mapping[str, IntArray],
    evaluation: Evaluation,
    heads: Mapping[str, Path],
    device: str = "cpu",
) -> dict[tuple[str, str], Curve]:
    """The curve of each (method, order). device: see ``replay``."""
    queries = folder.queries or folder.gallery
    embeddings = Embeddings(queries.old, queries.new, folder.gallery.old, folder.gallery.new)
    curves = {}
    for method in (bar := tqdm(methods, desc="replay", unit=" methods", dynamic_ncols=True)):
        bar.set_postfix_str(method.title)
        pair = method.pair(embeddings, load_heads(heads[method.name]) if method.head else None)
        of_orders = replay(
            pair,
            truth,
            orders,
            evaluation.points,
            evaluation.metrics,
            evaluation.distance,
            progress=True,
            device=device,
        )
        curves.update({(method.name, order): curve for order, curve in of_orders.items()})
    return curves


def _facts(
    folder: EmbeddingFolder, fingerprint: str, truth: GroundTruth, evaluation: Evaluation, run: Run, replay_s: float
) -> dict[str, Any]:
    """What the manifest says beside the settings."""
    packages = ("ray", "torch", "numpy", "pyarrow")
    return {
        "kind": "simulation",
        "command": run.command,
        "recipe": run.recipe,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"ray_backfill": __version__} | {name: version(name) for name in packages},
        "seed": evaluation.order_seed,
        "primary_metric": evaluation.metrics[0],
        "left_out": run.left_out,
        "timings_s": run.timings_s | {"replay": replay_s},
        "data": {
            "fingerprint": fingerprint,
            "gallery_items": len(folder.gallery),
            "queries": truth.n_queries,
            "queries_skipped": len(truth.skipped),
            "old_dim": folder.gallery.old.shape[1],
            "new_dim": folder.gallery.new.shape[1],
        }
        | run.embeddings,
    }
