"""Measures methods on the validation part, by which settings are chosen (trials of --tune) and fits are judged.

The part is a small gallery that queries itself, backfilled in random order. The run's gallery and queries are not read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any
from ray_backfill.compare.evaluation import Named
from ray_backfill.core.runkey import RunKey, fingerprint
from ray_backfill.data.columns import COLUMNS
from ray_backfill.data.folder import SPLITS, EmbeddingFolder, EmbeddingTable
from ray_backfill.engine.merges import BEST, MergeKind, all_merges
from ray_backfill.engine.orders import Order
from ray_backfill.engine.systems import GroundTruth
from ray_backfill.learn.methods import Method, models_of
from ray_backfill.learn.training.settings import FitSettings

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from ray_backfill.compare.maps import FittedMaps, fit_map
from ray_backfill.compare.orders import embeddings_of
from ray_backfill.compare.replay import distinct_systems
from ray_backfill.core.errors import InputError
from ray_backfill.core.runkey import RunKey
from ray_backfill.core.stages import begin_stage, finish_stage, is_finished
from ray_backfill.data.division import FEWEST
from ray_backfill.data.folder import EmbeddingFolder, EmbeddingTable, read_train
from ray_backfill.data.truth import ground_truth
from ray_backfill.engine.orders import GalleryColumns, make_order
from ray_backfill.engine.replay import Curve, Served, replay_pairs
from ray_backfill.learn.methods import Method, find_methods
from ray_backfill.learn.training.fit import train_set
from ray_backfill.learn.training.settings import FitSettings

# The backfill order and the moments of the replay.
ORDER, POINTS = "random", 11
# The parts of a folder that determine the score of a trial.
_SCORED_ON = ("train", "classifier", "train_views", "validation")
# Most items that are replayed: enough to tell differences of a point, in a fraction of a second for each method.
MOST_ITEMS = 4096


def why_not_judged(validation: EmbeddingTable | None) -> str:
    """Why methods cannot be measured on this validation part; "" if they can."""
    if validation is None:
        return f"the train split is too small to hold out {FEWEST} items that have right answers among themselves"
    if validation.label is None:
        return f"{validation.path.name} has no column 'label', so no answer is known to be right"
    if len(validation) < FEWEST:
        return f"{validation.path.name} has fewer than {FEWEST} items"
    try:
        ground_truth(_as_gallery(validation, 0))
    except InputError:
        return f"no item held out in {validation.path.name} has a right answer there"
    return ""


def replay_on_validation(
    validation: EmbeddingTable,
    methods: Sequence[Method],
    maps: FittedMaps,
    metric: str,
    distance: str,
    seed: int,
    threads: int | None = None,
) -> Mapping[str, Curve]:
    """Method name -> its curve, over at most 4,096 items of the validation part.

    seed: for the sample and the order. Cost: two matrix products of these items for each method, and its map.
    """
    folder = _as_gallery(validation, seed)
    truth, embeddings = ground_truth(folder), embeddings_of(folder)
    order = make_order(ORDER, GalleryColumns(folder.gallery.old, {}), seed)
    pairs = [method.pair(embeddings, maps.of(method)) for method in methods]
    found = distinct_systems(methods, pairs)
    served = [Served(*at, {ORDER: order}, switch) for at, switch in zip(found.at, found.switches, strict=True)]
    curves = replay_pairs(found.systems, served, truth, POINTS, metric, distance, threads=threads)
    return {method.name: of_orders[ORDER] for method, of_orders in zip(methods, curves, strict=True)}


def _as_gallery(validation: EmbeddingTable, seed: int) -> EmbeddingFolder:
    found = validation.drawn(MOST_ITEMS, seed)
    items = EmbeddingTable(found.path, found.id, found.vectors, label=found.label, camera=found.camera, rows=found.rows)
    return EmbeddingFolder(validation.path.parent, items, None, None)


@dataclass(frozen=True)
class Trial:
    """One trial. data: a folder with a validation part. out: a stage that has begun, for the score.

    metric, distance: those of the comparison.
    """

    method: str
    settings: FitSettings
    distance: str
    data: Path
    out: Path
    metric: str
    order_seed: int = 0

    def key(self, folder: EmbeddingFolder, method: Method) -> RunKey:
        """What determines the score. folder: what ``data`` has."""
        measured = {"metric": self.metric, "distance": self.distance, "order": ORDER, "seed": self.order_seed}
        of_fit = map_key(folder, method, self.settings, self.distance)
        data = {"data": folder.fingerprint(method.models, _SCORED_ON)}
        return RunKey("trial", {"measured": measured, **of_fit.settings}, data)

    def run(self) -> None:
        """Fit, replay and store the score: the area under the metric over a backfill; None if the training diverged."""
        from ray_backfill.learn.training.fit import one_thread

        (method,) = find_methods((self.method,))
        split = read_train(self.data, method.models)
        assert split.validation is not None
        with one_thread(method.is_trained), TemporaryDirectory() as scratch:
            network, score = Path(scratch) / method.name, None
            begin_stage(network, RunKey("map"))
            fit_map(network, method, train_set(split), self.settings, self.distance)
            if is_finished(network):
                maps, measured = FittedMaps({method.name: network}), (self.metric, self.distance, self.order_seed)
                curves = replay_on_validation(split.validation, [method], maps, *measured, threads=1)
                score = curves[method.name].auc(self.metric)
        finish_stage(self.out, {"score": score})


# The parts of a folder that determine a map, and what a trained one also depends on.
_FITTED_ON, _TRAINED_ON = ("train", "classifier"), ("train_views",)

def map_key(folder: EmbeddingFolder, method: Method, settings: FitSettings, distance: str) -> RunKey:
    """The key of a method's map, fitted with these settings for this distance."""
    assert method.fit is not None
    splits = _FITTED_ON + _TRAINED_ON * method.is_trained
    version = {"version": method.version} if method.version > 1 else {}
    of_fit = method.fit.recorded(settings, distance)
    return RunKey("map", {**of_fit, **version}, {"data": folder.fingerprint(method.models, splits)})
