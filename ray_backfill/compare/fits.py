"""Fits the maps of methods on stored embeddings, with the given settings or the best of several (--tune).

Formulas and a single network are fitted in this process, several networks with Ray. To choose settings, every method
gets the same number of trials, unless its space has fewer combinations. Trials and fits are judged on the validation
part: a small gallery that queries itself, backfilled in random order. The gallery and the queries, by which methods are
compared afterwards, are not read.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.fitted import FittedMaps, MapJob, fit_map
from ray_backfill.compare.orders import embeddings_of
from ray_backfill.compare.resolve import Comparison, find_left_out
from ray_backfill.compare.systems import distinct_systems
from ray_backfill.compare.tables import LeftOut
from ray_backfill.core.errors import InputError
from ray_backfill.core.job import reported_to
from ray_backfill.core.progress import say, task
from ray_backfill.core.runkey import RunKey
from ray_backfill.core.stages import begin_stage, finish_stage, is_finished, read_json
from ray_backfill.data.alignment import check_alignment
from ray_backfill.data.columns import kind_of, unknown
from ray_backfill.data.division import FEWEST
from ray_backfill.data.folder import EmbeddingFolder, EmbeddingTable, read_folder, read_train
from ray_backfill.data.truth import ground_truth
from ray_backfill.data.words import called
from ray_backfill.data.write import with_train
from ray_backfill.engine.merges import RAW, Merge
from ray_backfill.engine.orders import GalleryColumns, make_order
from ray_backfill.engine.replay import Curve, Served, replay_pairs
from ray_backfill.learn.methods import Method, find_methods, models_of
from ray_backfill.learn.training.fit import (
    Tuned,
    sized,
    train_set,
    trials_of,
    with_values,
)
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.workers.settings import Context, Workers, has_more_than_cpus
from ray_backfill.workers.trackers import tracked

T = TypeVar("T")
# The backfill order and the moments of the replay.
ORDER, POINTS = "random", 11
# Most items that are replayed: enough to tell differences of a point, in a fraction of a second for each method.
MOST_ITEMS = 4096


def why_not_judged(validation: EmbeddingTable | None) -> str:
    """Why methods cannot be measured on this validation part; "" if they can."""
    if validation is None:
        return f"the train split is too small to hold out {FEWEST} items that have right answers among themselves"
    part = called(validation.path, in_short=True)
    if validation.label is None:
        return f"{part} has no column 'label', so no answer is known to be right"
    if len(validation) < FEWEST:
        return f"{part} has fewer than {FEWEST} items"
    try:
        ground_truth(_as_gallery(validation, 0))
    except InputError:
        return f"no item held out in {part} has a right answer there"
    return ""


def replay_on_validation(
    validation: EmbeddingTable,
    methods: Sequence[Method],
    maps: FittedMaps,
    metric: str,
    distance: str,
    seed: int,
    threads: int | None = None,
    merges: Mapping[str, Mapping[str, Merge]] | None = None,
) -> Mapping[tuple[str, str], Curve]:
    """(method, merge) name -> its curve, over at most 4,096 items of the validation part.

    seed: for the sample and the order. merges: method -> its merges by name; raw distances by default. Cost: two matrix
    products of these items for each method, and its map.
    """
    folder = _as_gallery(validation, seed)
    truth, embeddings = ground_truth(folder), embeddings_of(folder)
    order = make_order(ORDER, GalleryColumns(folder.gallery.old, {}), seed)
    distinct = distinct_systems(methods, [method.pair(embeddings, maps.of(method)) for method in methods])
    served = {
        (method.name, name): Served(*at, {ORDER: order}, switch, merge)
        for method, at, switch in zip(methods, distinct.at, distinct.switches, strict=True)
        for name, merge in ({RAW.name: RAW} if merges is None else merges[method.name]).items()
    }
    curves = replay_pairs(distinct.systems, list(served.values()), truth, POINTS, metric, distance, threads=threads)
    return {key: of_orders[ORDER] for key, of_orders in zip(served, curves, strict=True)}


def _as_gallery(validation: EmbeddingTable, seed: int) -> EmbeddingFolder:
    part = validation.drawn(MOST_ITEMS, seed)
    items = EmbeddingTable(part.path, part.id, part.vectors, label=part.label, camera=part.camera, rows=part.rows)
    return EmbeddingFolder(validation.path.parent, items, None, None)


@dataclass(frozen=True)
class Trial(MapJob):
    """One trial. data: a folder with a validation part. out: for the score. metric, distance: of the comparison."""

    metric: str
    order_seed: int = 0

    def key(self, folder: EmbeddingFolder, method: Method) -> RunKey:
        """What determines the score. folder: what ``data`` has."""
        measured = {"metric": self.metric, "distance": self.distance, "order": ORDER, "seed": self.order_seed}
        of_fit = map_key(folder, method, self.settings, self.distance)
        data = {"data": folder.fingerprint(method.models, ("train", "classifier", "train_views", "validation"))}
        return RunKey("trial", {"measured": measured, **of_fit.settings}, data)

    def run(self, device: str | None = None) -> None:
        """Fit, replay and store the score: the area under the metric over a backfill; None if the training diverged."""
        from ray_backfill.learn.training.fit import one_thread

        (method,) = find_methods((self.method,))
        split = read_train(self.data, method.models)
        assert split.validation is not None
        with one_thread(method.is_trained), TemporaryDirectory() as scratch, reported_to(lambda epoch: None):
            network, score = Path(scratch) / method.name, None
            begin_stage(network, RunKey("map"))
            fit_map(network, method, train_set(split), self.settings, self.distance, device)
            if is_finished(network):
                maps, measured = FittedMaps({method.name: network}), (self.metric, self.distance, self.order_seed)
                curves = replay_on_validation(split.validation, [method], maps, *measured, threads=1)
                score = curves[method.name, RAW.name].auc(self.metric)
        finish_stage(self.out, {"score": score})


def map_key(folder: EmbeddingFolder, method: Method, settings: FitSettings, distance: str) -> RunKey:
    """The key of a method's map, fitted with these settings for this distance."""
    assert method.fit is not None
    splits = ("train", "classifier", *(("train_views",) if method.is_trained else ()))
    version = {"version": method.version} if method.version > 1 else {}
    of_fit = method.fit.recorded(settings, distance)
    return RunKey("map", {**of_fit, **version}, {"data": folder.fingerprint(method.models, splits)})


def fit_folder(
    data: Path, evaluation: Evaluation, fits: FitSettings, context: Context
) -> tuple[dict[str, Path], tuple[LeftOut, ...]]:
    """Fit what the methods need on a folder of the data contract into ``out/maps``, without a replay.

    Returns: method -> folder of its network, and what was left out.

    Raises:
        InputError: No method has anything to fit, a method requested by name cannot be fitted, or a training diverged.
    """
    named = evaluation.named.with_metrics(math.inf)  # --tune judges by the first one, whatever the answers
    methods = [method for method in named.asked if method.fit]
    if not methods:
        raise InputError("none of these methods has anything to fit; give e.g. --methods rqt cl_s cl_m mcl rm")
    folder = read_folder(data, models_of(methods))
    check_alignment(folder)
    left_out = find_left_out(folder, methods, (), fits, evaluation.distance)
    for missing in left_out:
        if missing.name in evaluation.methods:
            raise InputError(f"{missing.name} {missing.reason}")
    gone = {missing.name for missing in left_out}
    methods = [method for method in methods if method.name not in gone]
    networks, _ = _fitted(folder, methods, fits, named.evaluation, context)
    for method in methods:
        if method.fit and method.name not in networks:
            raise InputError(
                f"training {method.name} diverged (its loss is not finite); lower --{method.fit.option}.lr"
            )
    return networks, left_out


def fit_maps(comparison: Comparison, fits: FitSettings, context: Context) -> tuple[Comparison, tuple[Tuned, ...]]:
    """Fit what the methods need on the train split into ``out/maps``.

    Returns: the comparison with the networks, and the settings that ``fits.tune`` trials chose.
    """
    if comparison.folder.train is None or not any(method.fit for method in comparison.methods):
        return comparison.fitted({}), ()
    networks, tuned = _fitted(comparison.folder, comparison.methods, fits, comparison.evaluation, context)
    return comparison.fitted(networks), tuned


def fit_on_halves(
    comparison: Comparison, tuned: Mapping[str, FitSettings], fits: FitSettings, context: Context
) -> Comparison:
    """Fit each method that learns from labels on either half of the classes alone, into ``out/halves``.

    Only if training has seen all classes of the queries, so that these cannot tell what it gives on others. tuned:
    method -> settings of its own. The fits do without a classifier and further views, which would know all classes.
    """
    methods = [m for m in comparison.methods if m.fit and not m.is_reference and (m.fit.needs_labels or m.learns_new)]
    train, halves = comparison.folder.train, _halves_of_classes(comparison.folder) if methods else ()
    fitted = []
    for number, classes in enumerate(halves):
        assert train is not None
        assert train.label is not None
        place = context.out / "halves" / str(number)
        folder = replace(comparison.folder, classifier=None, train_views={})
        folder = with_train(folder, train.take(np.flatnonzero(np.isin(train.label, classes))), place)
        where = place / "maps", folder, methods, fits, comparison.evaluation.distance
        try:
            fitted.append((classes, FittedMaps(fit_stage(*where, context.workers, context.overwrite, tuned))))
        except InputError as error:  # the run does not depend on it
            say(f"not judged on classes that training has not seen: {error}", "warning")
            return comparison
    return replace(comparison, halves=tuple(fitted))


def _halves_of_classes(folder: EmbeddingFolder) -> tuple[NDArray[Any], ...]:
    """Two random halves of the train split's classes; () unless all answers have these, and both can be judged."""
    train, part, gallery, queries = folder.train, folder.validation, folder.gallery, folder.queries or folder.gallery
    if train is None or part is None or any(table.label is None for table in (train, part, gallery, queries)):
        return ()
    known: NDArray[Any] = np.asarray(train.label)
    names = np.unique(known[~unknown(known)])
    shared = np.intersect1d(np.asarray(gallery.label), np.asarray(queries.label))
    if kind_of(shared) != kind_of(names) or not np.isin(shared[~unknown(shared)], names).all():
        return ()
    shuffled = np.random.default_rng(0).permutation(names)
    halves = shuffled[::2], shuffled[1::2]
    parts = (part.take(np.flatnonzero(np.isin(np.asarray(part.label), half))) for half in halves)
    return () if any(map(why_not_judged, parts)) else halves


def _fitted(
    folder: EmbeddingFolder, methods: Sequence[Method], fits: FitSettings, evaluation: Evaluation, context: Context
) -> tuple[dict[str, Path], tuple[Tuned, ...]]:
    """Fit maps with the given settings, or with those chosen for each method: method -> network, and the choices."""
    out, workers, overwrite = context.out, context.workers, context.overwrite
    tuned = context.chosen
    if fits.tune > 1:
        tuned = tune_stage(out / "tuning", folder, methods, fits, evaluation, workers, overwrite)
    settings = chosen(tuned, fits)
    with tracked(out, workers.log_to):
        return fit_stage(out / "maps", folder, methods, fits, evaluation.distance, workers, overwrite, settings), tuned


def fit_stage(
    out: Path,
    folder: EmbeddingFolder,
    methods: Sequence[Method],
    settings: FitSettings,
    distance: str,
    workers: Workers,
    overwrite: bool = False,
    tuned: Mapping[str, FitSettings] | None = None,
) -> dict[str, Path]:
    """Fit the maps of those methods that have one into ``out/<method>``; finished maps are kept.

    folder: has a train split, which every worker reads again. out: on storage that all nodes share, like the folder.
    overwrite: fit maps again that were fitted with other settings or on other data. tuned: method name -> settings of
    its own.
    Returns: method name -> folder, for ``load_network``; a method whose training diverged is missing.

    Raises:
        InputError: A folder belongs to other settings, a fit failed, or the workers cannot divide the train split.
    """
    fits = {method.name: method.fit for method in methods if method.fit}
    folders = {name: out / name for name in fits}
    settings_of = dict.fromkeys(folders, settings) | dict(tuned or {})
    keys = {
        method.name: map_key(folder, method, settings_of[method.name], distance) for method in methods if method.fit
    }
    missing = {name for name, key in keys.items() if not begin_stage(folders[name], key, overwrite)}
    if not missing:
        return folders
    here, trained = _divided([method for method in methods if method.name in missing], lambda method: method.is_trained)
    data = train_set(folder)
    for method in (*here, *trained):  # the number of epochs, if it was left open
        fit, asked = fits[method.name], settings_of[method.name]
        fit.check(data, asked, 1)
        settings_of[method.name] = sized(fit, asked, data, distance)
        if settings_of[method.name] != asked:
            say(f"{method.title}: {fit.epochs(settings_of[method.name])} epochs of {len(data):,} items")
    with task("fit maps", len(missing), "methods") as shown:
        for method in (method for method in here if not method.is_trained):
            fit_map(out / method.name, method, data, settings_of[method.name], distance)
            shown.advance()
        data.shared.clear()  # trainings use the memory
        for method in (method for method in here if method.is_trained):
            shown.expect(len(missing))  # formulas took no time, so they cannot predict the rest
            fit_map(out / method.name, method, data, settings_of[method.name], distance)
            shown.advance()
        if trained:
            shown.expect(len(missing))
            from ray_backfill.compare.ray.fits import train_maps

            is_only = sum(method.is_trained for method in methods) == 1
            train_maps(out, folder, trained, settings_of, distance, workers, shown, is_only)
    return {name: path for name, path in folders.items() if is_finished(path)}


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
    metric, missing, trials_of_method = evaluation.metrics[0], list[Trial](), []
    for method in to_tune:
        assert method.fit is not None
        values = trials_of(method.fit.space, settings, settings.tune)
        trials = [
            Trial(
                method.name, with_values(settings, each), evaluation.distance, folder.train_path,
                out / method.name / str(number), metric, evaluation.order_seed,
            )
            for number, each in enumerate(values)
        ]  # fmt: skip
        trials_of_method.append((values, trials))
        missing += [trial for trial in trials if not begin_stage(trial.out, trial.key(folder, method), overwrite)]
    if missing:
        is_trained = {method.name: method.is_trained for method in to_tune}
        here, trained = _divided(missing, lambda trial: is_trained[trial.method])
        with task("tune", len(missing), "trials") as shown:
            for trial in here:
                trial.run()
                shown.advance()
            if trained:
                from ray_backfill.compare.ray.fits import fit_side_by_side
                from ray_backfill.workers.session import session

                with session():
                    fit_side_by_side(trained, folder.train_bytes, shown, workers.max_failures)
    tuned = []
    for values, trials in trials_of_method:
        # The highest score, the first of equal ones; the given settings if every training diverged.
        scores = [read_json(trial.out / "manifest.json")["score"] for trial in trials]
        best = max(range(len(scores)), key=lambda i: -math.inf if scores[i] is None else scores[i])
        tuned.append(Tuned(trials[0].method, metric, len(scores), dict(values[best]), scores[best], scores[0]))
    return tuple(tuned)


def chosen(tuned: Sequence[Tuned], settings: FitSettings) -> dict[str, FitSettings]:
    """Method name -> the settings that were chosen for it."""
    return {choice.method: with_values(settings, choice.values) for choice in tuned}


def _divided(jobs: Sequence[T], is_trained: Callable[[T], bool]) -> tuple[list[T], list[T]]:
    """Formulas and a single network, for this process; several networks, for Ray."""
    here, trained = ([job for job in jobs if is_trained(job) == wanted] for wanted in (False, True))
    return ([*here, *trained], []) if len(trained) == 1 and not has_more_than_cpus() else (here, trained)
