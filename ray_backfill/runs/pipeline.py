"""The whole chain: backbones, embeddings, heads, replay, report. Each stage is done once, kept and reused.

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

from ray_backfill.cluster.backbones import train_backbone_stage
from ray_backfill.cluster.embed import EmbedActors, embed_stage
from ray_backfill.cluster.maps import fit_stage, for_maps
from ray_backfill.cluster.replay import ReplayPlace, ShardedReplay
from ray_backfill.cluster.session import placed, session
from ray_backfill.cluster.train import Workers
from ray_backfill.datasets import open_source
from ray_backfill.errors import InputError
from ray_backfill.files import read_json
from ray_backfill.methods import Method, all_backbones
from ray_backfill.runs.checks import check_distances_agree, check_evaluation, check_recipe, unfittable
from ray_backfill.protocols import split_classes
from ray_backfill.recipes import Recipe
from ray_backfill.replay import check_device
from ray_backfill.comparison.simulate import Evaluation, Replayer, Run, replay_methods, simulate
from ray_backfill.comparison.truth import check_vectors, ground_truth
from ray_backfill.comparison.merges import unfittable as unfittable_merges
from ray_backfill.comparison.merges import without_merges
from ray_backfill.comparison.orders import BackfillOrders
from ray_backfill.stages import is_finished, note_facts
from ray_backfill.store import EmbeddingFolder, read_folder
from ray_backfill.runs.synthetic import STAGE as SYNTHETIC
from ray_backfill.runs.synthetic import SyntheticGallery, draw_gallery
from ray_backfill.training.fits import FitSettings


def run_recipe(
    recipe: Recipe[Any],
    out: Path,
    workers: Workers,
    actors: EmbedActors,
    place: ReplayPlace,
    command: str,
) -> Path:
    """Everything from images to the report; returns the folder of results.

    Raises:
        InputError: anything wrong in the settings, the data or ``out``; before anything is computed where possible.
    """
    models = models_of(recipe.evaluation.find_methods())
    to_train = [model for model in models if not is_finished(out / "backbones" / model)]
    check_recipe(recipe, 1, to_train)
    check_evaluation(recipe, 1)
    stages = [out / "backbones" / model for model in models] + [out / "embeddings"]
    stages += [out / "maps" / method.name for method in recipe.evaluation.find_methods() if method.fit]
    # One Ray for the chain instead of one a stage: starting it takes seconds. None if everything is there already.
    is_complete = all(is_finished(stage) for stage in stages)
    with nullcontext() if is_complete else session():
        if not is_complete:
            number, _ = placed(workers.number, workers.cpus, "--workers")
            placed(actors.number, actors.cpus, "--actors", spare_cpus=1)
            check_recipe(recipe, number, to_train)
            check_evaluation(recipe, for_maps(workers).number)
        embeddings = embed_recipe(recipe, out, workers, actors)
        return evaluate_folder(embeddings, out, recipe.evaluation, recipe.fits, workers, place, command, asdict(recipe))


def train_recipe_backbone(recipe: Recipe[Any], role: str, out: Path, workers: Workers) -> Path:
    """One of the recipe's backbones (old, new or the name of a kind), trained into ``out/backbones/<role>``.

    Trains the old backbone first where that takes part and is not there.

    Raises:
        InputError: unknown role, or anything wrong in the settings, the data or ``out``.
    """
    kind = None if role in ("old", "new") else all_backbones().get(role)
    if kind is None and role not in ("old", "new"):
        raise InputError(f"unknown model {role!r}; known: {', '.join(('old', 'new', *all_backbones()))}")
    folder = out / "backbones" / role
    if not is_finished(folder):
        check_recipe(recipe, 1)
    old = train_recipe_backbone(recipe, "old", out, workers) if kind and kind.needs_old else None
    like = kind.like if kind else role
    old_classes, new_classes = recipe_classes(recipe)
    model, classes = (recipe.old, old_classes) if like == "old" else (recipe.new, new_classes)
    title = f"{kind.title if kind else role} backbone"
    data, name = recipe.images, kind.name if kind else ""
    return _timed(
        folder,
        lambda: train_backbone_stage(folder, title, data, classes, model.backbone, model.training, workers, name, old),
    )


def embed_recipe(recipe: Recipe[Any], out: Path, workers: Workers, actors: EmbedActors) -> Path:
    """All splits embedded by all backbones that the recipe's methods need, into ``out/embeddings``.

    Trains the backbones if they are not there.
    """
    roles = models_of(recipe.evaluation.find_methods())
    models = {role: train_recipe_backbone(recipe, role, out, workers) for role in roles}
    _, new_classes = recipe_classes(recipe)
    folder = out / "embeddings"
    return _timed(folder, lambda: embed_stage(folder, recipe.images, models, new_classes, recipe.embed, actors))


def models_of(methods: Sequence[Method]) -> tuple[str, ...]:
    """The backbones that these methods need: old, new, then further kinds in the order of ``all_backbones``."""
    needed = {model for method in methods for model in method.models}
    return ("old", "new", *(name for name in all_backbones() if name in needed))


def recipe_classes(recipe: Recipe[Any]) -> tuple[list[int], list[int]]:
    """The classes of the old and of the new model."""
    train = open_source(recipe.images).items("train")
    return split_classes(train.labels_N, recipe.protocol, train.groups_N)


def evaluate_folder(
    data: Path,
    out: Path,
    evaluation: Evaluation,
    fits: FitSettings,
    workers: Workers,
    place: ReplayPlace,
    command: str,
    recipe: Mapping[str, Any] | None = None,
    results: str = "results",
) -> Path:
    """Fit what the methods need on a folder of the data contract, replay them and report into ``out/<results>``.

    Methods and merges that cannot be fitted here (no train split, no labels, no embeddings of a further model) are left
    out, and the report says so.
    """
    evaluation.check()
    wanted = evaluation.find_methods()
    folder = read_folder(data, models_of(wanted))
    # What is wrong should show before anything is trained.
    check_vectors(folder, evaluation.distance)
    # A recipe's images were checked; a query that lost its class to broken images is skipped, like any without answer.
    ground_truth(folder, refuse_unknown_labels=recipe is None)
    if recipe is not None:
        check_distances_agree(wanted, evaluation, fits)
    left_out = unfittable(folder, wanted, fits, evaluation.distance) | unfittable_merges(folder, evaluation.merges)
    left_out |= without_merges(folder, [m for m in wanted if m.name not in left_out], evaluation.merges)
    methods = [method for method in wanted if method.name not in left_out]
    if all(f"{merge} merge" in left_out for merge in evaluation.merges):
        raise InputError("none of the --merges can be fitted on this folder; add raw, or give it a train.parquet")
    BackfillOrders(folder, evaluation.orders, evaluation.order_seed, evaluation.distance, methods, networks={}).check()
    replayer = _replayer(folder, place)
    with ExitStack() as ray:
        if isinstance(replayer, ShardedReplay):
            ray.enter_context(session())  # one for training and shards
            replayer.check_cluster()
        started = time.perf_counter()
        networks = fit_folder(folder, out, methods, evaluation, fits, workers)
        diverged = [method for method in methods if method.fit and method.name not in networks]
        left_out |= {m.name: f"its training diverged; lower --{m.kind}.lr to try again" for m in diverged}
        timings_s = {
            name: read_json(out / name / "manifest.json").get("seconds", 0.0)
            for name in (*(f"backbones/{model}" for model in models_of(methods)), "embeddings")
            if (out / name).is_dir()
        }
        run = Run(
            command=command,
            settings={"fits": asdict(fits)},
            recipe=dict(recipe or {}),
            embeddings=_embedding_facts(data),
            timings_s=timings_s | {"maps": round(time.perf_counter() - started, 2)},
            left_out=left_out,
            backbones=_backbone_facts(out, folder.models) if recipe else {},
        )
        return simulate(folder, out / results, evaluation, networks, run, replayer)


def evaluate_synthetic(
    gallery: SyntheticGallery,
    out: Path,
    evaluation: Evaluation,
    fits: FitSettings,
    workers: Workers,
    place: ReplayPlace,
    command: str,
) -> Path:
    """Draw an invented gallery into ``out/embeddings``, then ``evaluate_folder``."""
    evaluation.check()
    data = out / "embeddings"
    _timed(data, lambda: draw_gallery(gallery, data))
    return evaluate_folder(data, out, evaluation, fits, workers, place, command)


def _replayer(folder: EmbeddingFolder, place: ReplayPlace) -> Replayer:
    shards = place.shards_for(sum(vectors.nbytes for vectors in folder.gallery.vectors.values()))
    if shards:
        return ShardedReplay(shards, place.device)
    check_device(place.device)
    return partial(replay_methods, device=place.device)


def fit_folder(
    folder: EmbeddingFolder,
    out: Path,
    methods: Sequence[Method],
    evaluation: Evaluation,
    fits: FitSettings,
    workers: Workers,
) -> dict[str, Path]:
    """What those methods need that need anything, fitted on the folder's train split into ``out/maps``."""
    if folder.train is None or not any(method.fit for method in methods):
        return {}
    return fit_stage(out / "maps", folder, methods, fits, evaluation.distance, workers)


def _embedding_facts(data: Path) -> dict[str, Any]:
    """What the embedding stage knows about its folder; nothing for a folder of the user's."""
    path = data / "manifest.json"
    manifest = read_json(path) if path.exists() else {}
    facts = {"broken_images": manifest.get("broken_images", 0), "path": str(data)}
    if manifest.get("stage") == SYNTHETIC:
        facts["embeddings"] = "synthetic: drawn from a model of distances, no image was seen"
        facts["synthetic"] = manifest["settings"]
    return facts


def _backbone_facts(out: Path, models: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What one embedding of each model costs, and what its training took."""
    manifests = {model: read_json(out / "backbones" / model / "manifest.json") for model in models}
    names = ("macs", "parameters", "training_flops", "seconds")
    return {model: {name: facts.get(name) for name in names} for model, facts in manifests.items()}


def _timed(folder: Path, stage: Callable[[], Path]) -> Path:
    """Run a stage and note its seconds, unless it was finished before."""
    if is_finished(folder):
        return stage()
    started = time.perf_counter()
    stage()
    note_facts(folder, {"seconds": round(time.perf_counter() - started, 2)})
    return folder
