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
from ray_backfill.comparison.costs import cost_table
from ray_backfill.comparison.merges import FittedMerges, check_merge
from ray_backfill.comparison.orders import BackfillOrders, embeddings_of, load_fitted, store_sigma
from ray_backfill.comparison.tabulate import Curves, tabulate
from ray_backfill.comparison.truth import ground_truth
from ray_backfill.distances import check_distance
from ray_backfill.errors import InputError
from ray_backfill.methods import Method, all_methods, find_methods
from ray_backfill.metrics import parse_metric
from ray_backfill.orders import check_order_name
from ray_backfill.replay import replay
from ray_backfill.report import write_report
from ray_backfill.stages import begin_stage, finish_stage, look_at_stage, note_facts
from ray_backfill.store import EmbeddingFolder, write_parquet
from ray_backfill.systems import GroundTruth

# Of the folder of results: goes up when a table gets another shape.
FORMAT = 3
# A choice: the references, what needs no training, and the best known of each family.
METHODS = (
    *("old", "new", "offline", "rm_naive", "procrustes_query", "least_squares_gallery", "fct", "fastfill"),
    *("rqt", "cl_s", "mcl", "rm"),
)


@dataclass(frozen=True)
class Evaluation:
    """What is compared and how."""

    # Upgrade methods, or "all"; old and new always take part, as the ends of the gain.
    methods: tuple[str, ...] = METHODS
    # Backfill orders: random, classifier_score, least_confidence, entropy, margin, centroid_cosine,
    # class_mean_distance, sigma, oracle_loss (peeks), popularity, given.
    orders: tuple[str, ...] = ("classifier_score",)
    # How distances of the two systems are made comparable: raw (as they are), quantile, isotonic, logistic, csls, rrf.
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
        wanted = [name for word in self.methods for name in (all_methods() if word == "all" else (word,))]
        return find_methods(tuple(dict.fromkeys(("old", "new", *wanted))))

    def check(self) -> None:
        """Raises InputError for any unknown name or impossible setting."""
        self.find_methods()
        for metric in self.metrics:
            parse_metric(metric)
        for order in self.orders:
            check_order_name(order)
        check_distance(self.distance)
        for merge in self.merges:
            check_merge(merge, self.distance)
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
    embeddings: facts about how the embeddings were made. left_out: method -> why it cannot take part. backbones:
    model -> macs and parameters of one embedding, and the training_flops it took, where the models are known.
    """

    command: str
    settings: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)
    embeddings: dict[str, Any] = field(default_factory=dict)
    timings_s: dict[str, float] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    backbones: dict[str, dict[str, Any]] = field(default_factory=dict)


class Replayer(Protocol):
    """What replays all methods: ``replay_methods``, or the same over a cluster."""

    def __call__(
        self,
        folder: EmbeddingFolder,
        truth: GroundTruth,
        methods: Sequence[Method],
        orders: BackfillOrders,
        merges: FittedMerges,
        evaluation: Evaluation,
        networks: Mapping[str, Path],
    ) -> Curves: ...


def simulate(
    folder: EmbeddingFolder,
    out: Path,
    evaluation: Evaluation,
    networks: Mapping[str, Path],
    run: Run,
    replayer: Replayer | None = None,
) -> Path:
    """Replay and report; does nothing if ``out`` holds these very results already.

    networks: method -> folder of its fitted network. replayer: default this process.

    Raises:
        InputError: unknown names, columns that an order needs, labels or positives that do not fit, another run's out.
    """
    evaluation.check()
    fingerprint = folder.fingerprint(folder.models)
    methods = [method for method in evaluation.find_methods() if method.name not in run.left_out]
    # By name, so that "all" means other results when there are other methods.
    compared = asdict(evaluation) | {"methods": [method.name for method in methods]}
    wanted = {"format": FORMAT, "data": fingerprint, "evaluation": compared} | run.settings
    orders = BackfillOrders(folder, evaluation.orders, evaluation.order_seed, evaluation.distance, methods, networks)
    orders.check()
    truth = ground_truth(folder, refuse_unknown_labels=not run.recipe)
    if look_at_stage(out, "simulation", wanted):
        return out
    for method in methods:
        if method.has_sigma:
            store_sigma(folder, method, networks[method.name])
    # The folder is claimed when there is something to write: what fails or is stopped before leaves no trace.
    started = time.perf_counter()
    merges = FittedMerges(
        folder, [m for m in evaluation.merges if f"{m} merge" not in run.left_out], evaluation, networks
    )
    curves = (replayer or replay_methods)(folder, truth, methods, orders, merges, evaluation, networks)
    begin_stage(out, "simulation", wanted)
    tables = tabulate(methods, curves, evaluation.metrics, (folder.queries or folder.gallery).group)
    for name in ("curves", "summary", "differences", "subgroups"):
        if (table := getattr(tables, name)) is not None:
            write_parquet(out / f"{name}.parquet", pa.Table.from_pandas(table, preserve_index=False))
    dims = {model: folder.gallery.vectors[model].shape[1] for model in folder.models}
    costs = cost_table(methods, dims, networks, run.backbones)
    write_parquet(out / "costs.parquet", pa.Table.from_pandas(costs, preserve_index=False))
    replay_s = round(time.perf_counter() - started, 2)
    note_facts(out, _facts(folder, fingerprint, truth, evaluation, run, replay_s))
    write_report(out)
    finish_stage(out)
    return out


def replay_methods(
    folder: EmbeddingFolder,
    truth: GroundTruth,
    methods: Sequence[Method],
    orders: BackfillOrders,
    merges: FittedMerges,
    evaluation: Evaluation,
    networks: Mapping[str, Path],
    device: str = "cpu",
) -> Curves:
    """The curve of each (method, order, merge). device: see ``replay``."""
    embeddings = embeddings_of(folder)
    curves = {}
    for method in (bar := tqdm(methods, desc="replay", unit=" methods", dynamic_ncols=True)):
        bar.set_postfix_str(method.title)
        pair = method.pair(embeddings, load_fitted(networks, method))
        of_method = orders.of(method, pair)
        for name, merge in merges.of(method).items():
            of_orders = replay(
                pair,
                truth,
                of_method,
                evaluation.points,
                evaluation.metrics,
                evaluation.distance,
                progress=True,
                device=device,
                merge=merge,
            )
            curves.update({(method.name, order, name): curve for order, curve in of_orders.items()})
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
        "backbones": run.backbones,
        "data": {
            "fingerprint": fingerprint,
            "gallery_items": len(folder.gallery),
            "queries": truth.n_queries,
            "queries_skipped": len(truth.skipped),
        }
        | {f"{model}_dim": folder.gallery.vectors[model].shape[1] for model in folder.models}
        | run.embeddings,
    }
