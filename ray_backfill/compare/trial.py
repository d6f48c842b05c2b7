"""A trial of a method's settings: fit on the train split, replay on the validation part. Needs no Ray.

The gallery and the queries are not read.
"""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from ray_backfill.compare.keys import map_key
from ray_backfill.compare.maps import FittedMaps
from ray_backfill.compare.validation import ORDER, replay_on_validation
from ray_backfill.core.runkey import RunKey
from ray_backfill.core.stages import begin_stage, finish_stage, is_finished
from ray_backfill.data.folder import EmbeddingFolder, read_train
from ray_backfill.learn.methods import Method, find_methods
from ray_backfill.learn.training.fit import train_set
from ray_backfill.learn.training.settings import FitSettings

# The parts of a folder that determine a score.
_SCORED_ON = ("train", "classifier", "train_views", "validation")


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


def run_trial(trial: Trial) -> None:
    """Fit, replay and store the score: the area under the metric over a backfill; None if the training diverged."""
    from ray_backfill.learn.training.fit_into import fit_into, one_thread

    (method,) = find_methods((trial.method,))
    assert method.fit is not None
    split = read_train(trial.data, method.models)
    assert split.validation is not None
    data = train_set(split)
    method.fit.check(data, trial.settings, 1)
    with one_thread(method.is_trained), TemporaryDirectory() as scratch:
        network, score = Path(scratch) / method.name, None
        begin_stage(network, RunKey("map"))
        fit_into(network, method.title, method.fit, data, trial.settings, trial.distance)
        if is_finished(network):
            maps, measured = FittedMaps({method.name: network}), (trial.metric, trial.distance, trial.order_seed)
            curves = replay_on_validation(split.validation, [method], maps, *measured, threads=1)
            score = curves[method.name].auc(trial.metric)
    finish_stage(trial.out, {"score": score})
