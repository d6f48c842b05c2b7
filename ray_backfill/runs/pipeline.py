"""The whole chain: backbones, embeddings, maps, replay, report. Each stage is done once, kept and reused.

A run's folder: backbones/old, backbones/new, backbones/<kind> for methods that need another one, embeddings (the data
contract), maps/<method>, results.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from ray_backfill.cluster.maps import fit_stage, for_maps
from ray_backfill.cluster.replay import check_shards, replay_in_shards
from ray_backfill.cluster.session import placed, session
from ray_backfill.comparison.evaluation import Evaluation
from ray_backfill.comparison.left_out import find_left_out
from ray_backfill.comparison.replay import Curves, replay_here
from ray_backfill.comparison.resolve import Comparison, resolve
from ray_backfill.errors import InputError
from ray_backfill.files import is_finished
from ray_backfill.methods import Method
from ray_backfill.recipes import Recipe
from ray_backfill.replay import check_device
from ray_backfill.runs.checks import check_evaluation, check_recipe
from ray_backfill.runs.context import Context
from ray_backfill.runs.images import embed_recipe, models_of, timed
from ray_backfill.runs.results import facts_of, write_results
from ray_backfill.runs.synthetic import SyntheticGallery, draw_gallery
from ray_backfill.store import EmbeddingFolder, read_folder
from ray_backfill.tables.results import LeftOut
from ray_backfill.training.settings import FitSettings


def run_recipe(recipe: Recipe[Any], context: Context) -> Path:
    """Everything from images to the report; returns the folder of results.

    Raises:
        InputError: anything wrong in the settings, the data or ``out``; before anything is computed where possible.
    """
    methods, out = recipe.evaluation.find_methods(), context.out
    models = models_of(methods)
    to_train = [model for model in models if not is_finished(out / "backbones" / model)]
    check_recipe(recipe, 1, to_train)
    check_evaluation(recipe, 1)
    stages = [out / "backbones" / model for model in models] + [out / "embeddings"]
    stages += [out / "maps" / method.name for method in methods if method.fit]
    # One Ray for the chain instead of one a stage: starting it takes seconds. None if everything is there already.
    is_complete = all(is_finished(stage) for stage in stages)
    with nullcontext() if is_complete else session():
        if not is_complete:
            workers, actors = context.workers, context.actors
            number, _ = placed(workers.number, workers.cpus, "--workers")
            placed(actors.number, actors.cpus, "--actors", spare_cpus=1)
            check_recipe(recipe, number, to_train)
            check_evaluation(recipe, for_maps(workers).number)
        embeddings = embed_recipe(recipe, context)
        return evaluate_folder(embeddings, recipe.evaluation, recipe.fits, context, asdict(recipe))


def evaluate_folder(
    data: Path,
    evaluation: Evaluation,
    fits: FitSettings,
    context: Context,
    recipe: Mapping[str, Any] | None = None,
    results: str = "results",
) -> Path:
    """Fit what the methods need on a folder of the data contract, replay them and report into ``out/<results>``.

    Methods and merges that cannot be fitted here (no train split, no labels, no embeddings of a further model) are left
    out, and the report says so.
    """
    evaluation.check()
    folder = read_folder(data, models_of(evaluation.find_methods()))
    comparison = resolve(folder, evaluation, fits, from_images=recipe is not None)
    with ExitStack() as ray:
        replayed = _replayer(folder, context, ray)
        started = time.perf_counter()
        comparison = fit_maps(comparison, comparison.methods, fits, context)
        facts = facts_of(comparison, fits, context, recipe, maps_s=time.perf_counter() - started)
        return write_results(comparison, context.out / results, facts, replayed)


def evaluate_synthetic(gallery: SyntheticGallery, evaluation: Evaluation, fits: FitSettings, context: Context) -> Path:
    """Draw an invented gallery into ``out/embeddings``, then ``evaluate_folder``."""
    evaluation.check()
    data = context.out / "embeddings"
    timed(data, lambda: draw_gallery(gallery, data))
    return evaluate_folder(data, evaluation, fits, context)


def fit_folder(
    data: Path, evaluation: Evaluation, fits: FitSettings, context: Context
) -> tuple[dict[str, Path], tuple[LeftOut, ...]]:
    """Fit what the methods need on a folder of the data contract into ``out/maps``, and nothing else.

    Returns: method -> folder of its network, and what was left out; a method whose training diverged is in neither.

    Raises:
        InputError: no method has anything to fit, or one that was asked for by name cannot be fitted.
    """
    methods = [method for method in evaluation.find_methods() if method.fit]
    if not methods:
        raise InputError("none of these methods has anything to fit; give e.g. --methods rqt cl_s cl_m mcl rm")
    folder = read_folder(data, models_of(methods))
    left_out = find_left_out(folder, methods, (), fits, evaluation.distance)
    for each in left_out:
        if each.name in evaluation.methods:
            raise InputError(f"{each.name} {each.reason}")
    gone = {each.name for each in left_out}
    methods = [method for method in methods if method.name not in gone]
    networks = fit_stage(context.out / "maps", folder, methods, fits, evaluation.distance, context.workers)
    for method in methods:
        if method.fit and method.name not in networks:
            option = f"--{method.fit.option}.lr"
            raise InputError(f"training {method.name} diverged (its loss is not finite); lower {option}")
    return networks, left_out


def fit_maps(comparison: Comparison, methods: Sequence[Method], fits: FitSettings, context: Context) -> Comparison:
    """Fit what these methods need on the train split into ``out/maps``; returns the comparison with the networks."""
    if comparison.folder.train is None or not any(method.fit for method in methods):
        return comparison.fitted({})
    distance = comparison.evaluation.distance
    return comparison.fitted(
        fit_stage(context.out / "maps", comparison.folder, methods, fits, distance, context.workers)
    )


def _replayer(folder: EmbeddingFolder, context: Context, ray: ExitStack) -> Callable[[Comparison], Curves]:
    """What replays: this process, or shards, for which a Ray is started that serves training, too."""
    place = context.place
    shards = place.shards_for(sum(vectors.nbytes for vectors in folder.gallery.vectors.values()))
    if not shards:
        check_device(place.device)
        return partial(replay_here, device=place.device)
    ray.enter_context(session())
    check_shards(shards, place.device)
    return partial(replay_in_shards, number=shards, device=place.device)
