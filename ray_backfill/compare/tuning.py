"""Chooses settings of fits on the validation part: trials of formulas in this process, of trainings side by side.

Every method gets the same number of trials, unless its space has fewer combinations. The gallery and the queries, by
which methods are compared afterwards, are not read.
"""

import math
from collections.abc import Sequence
from pathlib import Path

from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.trial import Trial, run_trial
from ray_backfill.compare.validation import why_not_judged
from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import Task, task
from ray_backfill.core.stages import begin_stage, read_json
from ray_backfill.data.folder import EmbeddingFolder
from ray_backfill.learn.methods import Method, find_methods
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.learn.training.tuning import Tuned, Values, trials_of, with_values
from ray_backfill.workers.settings import Workers, has_more_than_cpus


def tune_stage(
    out: Path,
    folder: EmbeddingFolder,
    methods: Sequence[Method],
    settings: FitSettings,
    evaluation: Evaluation,
    workers: Workers,
    overwrite: bool = False,
) -> tuple[Tuned, ...]:
    """Try ``settings.tune`` settings for each method that has some to choose; finished trials are kept.

    out: a trial is the stage ``out/<method>/<number>``; on storage that all nodes share, like the folder. overwrite:
    repeat trials on other data or with other settings.

    Raises:
        InputError: The validation part cannot judge anything, a folder belongs to other settings, or a fit failed.
    """
    to_tune = [method for method in methods if method.fit and method.fit.space]
    if not to_tune:
        return ()
    if reason := why_not_judged(folder.validation):
        file = folder.path / "validation.parquet"
        raise InputError(f"--tune cannot judge settings: {reason}; leave it out, or put labelled items into {file}")
    metric, missing, all_trials = evaluation.metrics[0], [], []
    for method in to_tune:
        assert method.fit is not None
        values = trials_of(method.fit.space, settings, settings.tune)
        trials = [
            Trial(
                method.name, with_values(settings, each), evaluation.distance, folder.path,
                out / method.name / str(number), metric, evaluation.order_seed,
            )
            for number, each in enumerate(values)
        ]  # fmt: skip
        all_trials.append((method.name, values, trials))
        missing += [trial for trial in trials if not begin_stage(trial.out, trial.key(folder, method), overwrite)]
    _run(missing, folder, workers)
    return tuple(_best(name, metric, values, trials) for name, values, trials in all_trials)


def chosen(tuned: Sequence[Tuned], settings: FitSettings) -> dict[str, FitSettings]:
    """Method name -> the settings that were chosen for it."""
    return {each.method: with_values(settings, each.values) for each in tuned}


def _run(missing: Sequence[Trial], folder: EmbeddingFolder, workers: Workers) -> None:
    if not missing:
        return
    is_trained = {name: find_methods((name,))[0].is_trained for name in {trial.method for trial in missing}}
    trained = [trial for trial in missing if is_trained[trial.method]]
    here = [trial for trial in missing if not is_trained[trial.method]]
    if len(trained) == 1 and not has_more_than_cpus():
        here, trained = [*here, *trained], []
    with task("tune", len(missing), "trials") as shown:
        _run_here(here, shown)
        if trained:
            from ray_backfill.compare.ray import try_side_by_side
            from ray_backfill.workers.session import session

            with session():
                try_side_by_side(trained, folder.train_bytes, shown, workers.max_failures)


def _run_here(trials: Sequence[Trial], shown: Task) -> None:
    for trial in trials:
        run_trial(trial)
        shown.advance()


def _best(method: str, metric: str, values: Sequence[Values], trials: Sequence[Trial]) -> Tuned:
    """The trial with the highest score, the first of equal ones; the given settings if every training diverged."""
    scores = [read_json(trial.out / "manifest.json")["score"] for trial in trials]
    best = max(range(len(scores)), key=lambda i: -math.inf if scores[i] is None else scores[i])
    return Tuned(method, metric, len(scores), dict(values[best]), scores[best], scores[0])
