"""Runs on a folder of embeddings: fits maps, replays methods, reports results.

Ray is imported only if something is trained or replayed over shards.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ray_backfill.compare.earlier import FILES, check_can_be_extended, joined
from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.fit_maps import fit_stage
from ray_backfill.compare.left_out import find_left_out
from ray_backfill.compare.replay import Curves, replay_here
from ray_backfill.compare.report import Results
from ray_backfill.compare.resolve import Comparison, resolve, resolve_truth
from ray_backfill.compare.size import check_memory
from ray_backfill.compare.tables.results import LeftOut
from ray_backfill.compare.tuning import chosen, tune_stage
from ray_backfill.compare.write import facts_of, recorded_settings, results_in_memory, write_results
from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import say, step
from ray_backfill.core.stages import OtherSettingsError, is_finished, settle
from ray_backfill.data.folder import EmbeddingFolder, read_folder
from ray_backfill.data.truth import Truth, usual_answers
from ray_backfill.engine.orders import find_order
from ray_backfill.engine.replay import check_device
from ray_backfill.learn.methods import RECALLS, Method, models_of
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.learn.training.tuning import Tuned
from ray_backfill.workers.context import Context


def evaluate_folder(
    data: Path,
    evaluation: Evaluation,
    fits: FitSettings,
    context: Context,
    recipe: Mapping[str, Any] | None = None,
    results: str = "results",
    show_first: Callable[[Results, list[str]], None] | None = None,
) -> Path:
    """Fit what the methods need on a folder of the data contract, replay them and report into ``out/<results>``.

    Methods and merges that cannot be fitted here (no train split, no labels, no embeddings of a further model) are left
    out, and the report says so.

    Finished results in ``out`` of the same settings are extended: their methods, orders and merges take part, too.

    show_first: called before the training with the results of methods that need none, and the titles of the methods to
        be trained.
    """
    evaluation.check()
    context.place.check_local()
    with step("read embeddings"):
        folder, evaluation, truth = _with_earlier(data, evaluation, fits, context, results, recipe is not None)
        comparison = resolve(folder, evaluation, fits, recipe is not None, right_answers=truth)
    check_memory(evaluation, len(comparison.methods), comparison.truth.n_queries)
    with ExitStack() as ray:
        replayed = _replayer(folder, evaluation, context, ray)
        started = time.perf_counter()
        first: Curves = {}
        to_train = _to_train(comparison, context.out)
        if show_first is not None and _has_first_table(comparison, to_train):
            untrained = comparison.only([m for m in comparison.methods if m not in to_train])
            untrained, tuned = fit_maps(untrained, untrained.methods, fits, context)
            first = replayed(untrained)
            facts = facts_of(untrained, fits, context, recipe, time.perf_counter() - started, tuned)
            show_first(results_in_memory(untrained, first, facts), [method.title for method in to_train])
        comparison, tuned = fit_maps(comparison, comparison.methods, fits, context)
        facts = facts_of(comparison, fits, context, recipe, time.perf_counter() - started, tuned)
        return write_results(
            comparison,
            context.out / results,
            facts,
            lambda all_: _replay_rest(all_, first, replayed),
            context.overwrite,
        )


def _with_earlier(
    data: Path, evaluation: Evaluation, fits: FitSettings, context: Context, results: str, from_images: bool
) -> tuple[EmbeddingFolder, Evaluation, Truth]:
    """The embeddings, the evaluation together with what ``out/<results>`` has and would lose, and the right answers.

    Raises:
        InputError: The results there were computed from other data or with other settings, unless they are overwritten.
    """
    out = context.out / results
    settle(out, FILES)
    folder = read_folder(data, models_of(evaluation.find_methods()))
    truth = resolve_truth(folder, evaluation, from_images)
    evaluation = _with_cascade(evaluation.with_metrics(usual_answers(truth.ground)), folder)
    both = joined(evaluation, out)
    methods = both.find_methods()
    if models_of(methods) != models_of(evaluation.find_methods()):
        folder = read_folder(data, models_of(methods))
    try:
        check_can_be_extended(out, folder, truth.ground, both, methods, recorded_settings(fits, context.chosen))
    except OtherSettingsError:
        if not context.overwrite:
            raise
        return folder, evaluation, truth
    _say_what_is_kept(out, evaluation, both)
    return folder, both, truth


def _with_cascade(evaluation: Evaluation, folder: EmbeddingFolder) -> Evaluation:
    """Judged queries without labels, as text has: there maps and rank merge often lose, and a cascade gains."""
    if "recommended" not in evaluation.methods or folder.queries is None or folder.queries.label is not None:
        return evaluation
    return replace(evaluation, methods=(*evaluation.methods, f"cascade@{RECALLS}"))


def _say_what_is_kept(out: Path, evaluation: Evaluation, both: Evaluation) -> None:
    """A line about methods, orders, merges and cut-offs that this run did not ask for."""
    asked = {method.name for method in evaluation.find_methods()} | {*evaluation.orders, *evaluation.merges}
    kept = [name for name in (*both.methods, *both.orders, *both.merges) if name not in asked]
    kept += [f"the cut-off {cutoff:g}" for cutoff in both.cutoffs if cutoff not in evaluation.cutoffs]
    if both is not evaluation and kept:
        say(f"{out} also has {', '.join(kept)}: kept")


def _to_train(comparison: Comparison, out: Path) -> list[Method]:
    """The methods that still have to be trained."""
    trained = [method for method in comparison.methods if method.is_trained]
    return [method for method in trained if not is_finished(out / "maps" / method.name)]


def _has_first_table(comparison: Comparison, to_train: Sequence[Method]) -> bool:
    """Whether there is something to train, something to show before, and no order that needs the trained networks."""
    ready = [method for method in comparison.methods if method not in to_train and not method.is_reference]
    return bool(to_train and ready) and not any(find_order(name).of_method for name in comparison.evaluation.orders)


def _replay_rest(comparison: Comparison, first: Curves, replayed: Callable[[Comparison], Curves]) -> Curves:
    """The curves of all methods, in their order. first: curves that are already computed."""
    done = {key[0] for key in first}
    rest = [method for method in comparison.methods if method.name not in done]
    curves = {**first, **replayed(comparison.only(rest))}
    place = {method.name: number for number, method in enumerate(comparison.methods)}
    return {key: curves[key] for key in sorted(curves, key=lambda key: place[key[0]])}


def fit_folder(
    data: Path, evaluation: Evaluation, fits: FitSettings, context: Context
) -> tuple[dict[str, Path], tuple[LeftOut, ...]]:
    """Fit what the methods need on a folder of the data contract into ``out/maps``, without a replay.

    Returns: method -> folder of its network, and what was left out.

    Raises:
        InputError: No method has anything to fit, a method requested by name cannot be fitted, or a training diverged.
    """
    evaluation = evaluation.with_metrics(math.inf)  # --tune judges by the first one, whatever the answers
    methods = [method for method in evaluation.named_methods() if method.fit]
    if not methods:
        raise InputError("none of these methods has anything to fit; give e.g. --methods rqt cl_s cl_m mcl rm")
    folder = read_folder(data, models_of(methods))
    left_out = find_left_out(folder, methods, (), fits, evaluation.distance)
    for each in left_out:
        if each.name in evaluation.methods:
            raise InputError(f"{each.name} {each.reason}")
    gone = {each.name for each in left_out}
    methods = [method for method in methods if method.name not in gone]
    networks, _ = _fitted(folder, methods, fits, evaluation, context)
    for method in methods:
        if method.fit and method.name not in networks:
            option = f"--{method.fit.option}.lr"
            raise InputError(f"training {method.name} diverged (its loss is not finite); lower {option}")
    return networks, left_out


def fit_maps(
    comparison: Comparison, methods: Sequence[Method], fits: FitSettings, context: Context
) -> tuple[Comparison, tuple[Tuned, ...]]:
    """Fit what these methods need on the train split into ``out/maps``.

    Returns: the comparison with the networks, and the settings that ``fits.tune`` trials chose.
    """
    if comparison.folder.train is None or not any(method.fit for method in methods):
        return comparison.fitted({}), ()
    networks, tuned = _fitted(comparison.folder, methods, fits, comparison.evaluation, context)
    return comparison.fitted(networks), tuned


def _fitted(
    folder: EmbeddingFolder, methods: Sequence[Method], fits: FitSettings, evaluation: Evaluation, context: Context
) -> tuple[dict[str, Path], tuple[Tuned, ...]]:
    """Fit maps with the given settings, or with those chosen for each method: method -> network, and the choices."""
    out, workers, overwrite = context.out, context.workers, context.overwrite
    tuned = context.chosen
    if fits.tune > 1:
        tuned = tune_stage(out / "tuning", folder, methods, fits, evaluation, workers, overwrite)
    own = chosen(tuned, fits)
    return fit_stage(out / "maps", folder, methods, fits, evaluation.distance, workers, overwrite, own), tuned


def _replayer(
    folder: EmbeddingFolder, evaluation: Evaluation, context: Context, ray: ExitStack
) -> Callable[[Comparison], Curves]:
    """The function that replays: in this process, or in shards, for which Ray is started (also used for training)."""
    place = context.place
    if evaluation.filter and place.shards:
        raise InputError("--filter replays one part of the gallery at a time in this process; leave --shards out")
    size = sum(vectors.nbytes for vectors in folder.gallery.vectors.values())
    shards = 0 if evaluation.filter else place.shards_for(size)
    if not shards:
        check_device(place.device)
        return partial(replay_here, device=place.device)
    from ray_backfill.compare.ray import check_shards, replay_in_shards
    from ray_backfill.workers.session import session

    ray.enter_context(session())
    check_shards(shards, place.device)
    return partial(replay_in_shards, number=shards, device=place.device)
