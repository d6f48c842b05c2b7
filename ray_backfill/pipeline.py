"""The whole chain: backbones, embeddings, heads, replay, report. Each stage is done once, kept and reused.

A run's folder: backbones/old, backbones/new, embeddings (the data contract), heads/<method>, results.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ray_backfill.cluster.backbones import train_backbone_stage
from ray_backfill.cluster.embed import EmbedActors, embed_stage
from ray_backfill.cluster.heads import train_heads_stage
from ray_backfill.cluster.replay import ReplayPlace, ShardedReplay
from ray_backfill.cluster.session import placed, session
from ray_backfill.cluster.train import Workers
from ray_backfill.datasets import open_source
from ray_backfill.files import read_json
from ray_backfill.methods import Method
from ray_backfill.preflight import check_distances_agree, check_evaluation, check_recipe, untrainable
from ray_backfill.protocols import split_classes
from ray_backfill.recipes import Recipe
from ray_backfill.replay import check_device
from ray_backfill.simulation import Evaluation, Replayer, Run, replay_methods, simulate
from ray_backfill.simulation.folder import check_vectors, ground_truth, make_orders
from ray_backfill.stages import is_finished, note_facts
from ray_backfill.store import EmbeddingFolder, read_folder
from ray_backfill.training.head_loop import HeadTraining

Role = Literal["old", "new"]
ROLES: tuple[Role, Role] = ("old", "new")


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
    finished = [role for role in ROLES if is_finished(out / "backbones" / role)]
    check_recipe(recipe, 1, but=finished)
    check_evaluation(recipe, 1)
    stages = [out / "backbones" / "old", out / "backbones" / "new", out / "embeddings"]
    stages += [out / "heads" / method.name for method in recipe.evaluation.find_methods() if method.head]
    # One Ray for the chain instead of one a stage: starting it takes seconds. None if everything is there already.
    is_complete = all(is_finished(stage) for stage in stages)
    with nullcontext() if is_complete else session():
        if not is_complete:
            number, _ = placed(workers.number, workers.cpus, "--workers")
            placed(actors.number, actors.cpus, "--actors", spare_cpus=1)
            check_recipe(recipe, number, but=finished)
            check_evaluation(recipe, number)
        embeddings = embed_recipe(recipe, out, workers, actors)
        return evaluate_folder(
            embeddings, out, recipe.evaluation, recipe.heads, workers, place, command, asdict(recipe)
        )


def train_recipe_backbone(recipe: Recipe[Any], role: Role, out: Path, workers: Workers) -> Path:
    """The recipe's old or new backbone, trained into ``out/backbones/<role>``."""
    folder = out / "backbones" / role
    if not is_finished(folder):
        check_recipe(recipe, 1)
    old_classes, new_classes = recipe_classes(recipe)
    model, classes = (recipe.old, old_classes) if role == "old" else (recipe.new, new_classes)
    return _timed(
        folder,
        lambda: train_backbone_stage(
            folder, f"{role} backbone", recipe.images, classes, model.backbone, model.training, workers
        ),
    )


def embed_recipe(recipe: Recipe[Any], out: Path, workers: Workers, actors: EmbedActors) -> Path:
    """All splits embedded by both backbones into ``out/embeddings``; trains the backbones if they are not there."""
    old, new = (train_recipe_backbone(recipe, role, out, workers) for role in ROLES)
    _, new_classes = recipe_classes(recipe)
    folder = out / "embeddings"
    return _timed(folder, lambda: embed_stage(folder, recipe.images, old, new, new_classes, recipe.embed, actors))


def recipe_classes(recipe: Recipe[Any]) -> tuple[list[int], list[int]]:
    """The classes of the old and of the new model."""
    return split_classes(open_source(recipe.images).items("train").labels_N, recipe.protocol)


def evaluate_folder(
    data: Path,
    out: Path,
    evaluation: Evaluation,
    training: HeadTraining,
    workers: Workers,
    place: ReplayPlace,
    command: str,
    recipe: Mapping[str, Any] | None = None,
) -> Path:
    """Train what the methods need on a folder of the data contract, replay them and report into ``out/results``.

    Methods whose heads cannot be trained here (no train split, no labels) are left out, and the report says so.
    """
    evaluation.check()
    folder = read_folder(data)
    fingerprint = folder.fingerprint()
    # What is wrong should show before heads are trained.
    check_vectors(folder, evaluation.distance)
    make_orders(folder.gallery, evaluation.orders, evaluation.order_seed)
    # A recipe's images were checked; a query that lost its class to broken images is skipped, like any without answer.
    ground_truth(folder, refuse_unknown_labels=recipe is None)
    left_out = untrainable(folder, evaluation.find_methods())
    methods = [method for method in evaluation.find_methods() if method.name not in left_out]
    check_distances_agree(methods, evaluation, training)
    replayer = _replayer(folder, place)
    with ExitStack() as ray:
        if isinstance(replayer, ShardedReplay):
            ray.enter_context(session())  # one for heads and shards
            replayer.check_cluster()
        started = time.perf_counter()
        heads = train_folder_heads(folder, fingerprint, out, methods, training, workers)
        timings_s = {
            name: read_json(out / name / "manifest.json").get("seconds", 0.0)
            for name in _STAGES
            if (out / name).is_dir()
        }
        run = Run(
            command=command,
            settings={"head_training": asdict(training)},
            recipe=dict(recipe or {}),
            embeddings=_embedding_facts(data),
            timings_s=timings_s | {"heads": round(time.perf_counter() - started, 2)},
            left_out=left_out,
        )
        return simulate(folder, fingerprint, out / "results", evaluation, heads, run, replayer)


def _replayer(folder: EmbeddingFolder, place: ReplayPlace) -> Replayer:
    shards = place.shards_for(folder.gallery.old.nbytes + folder.gallery.new.nbytes)
    if shards:
        return ShardedReplay(shards, place.device)
    check_device(place.device)
    return partial(replay_methods, device=place.device)


def train_folder_heads(
    folder: EmbeddingFolder,
    fingerprint: str,
    out: Path,
    methods: list[Method],
    training: HeadTraining,
    workers: Workers,
) -> dict[str, Path]:
    """The heads of those methods that have any, trained on the folder's train split into ``out/heads``."""
    if folder.train is None or not any(method.head for method in methods):
        return {}
    return train_heads_stage(out / "heads", folder.train, fingerprint, methods, training, workers)


_STAGES = ("backbones/old", "backbones/new", "embeddings")


def _embedding_facts(data: Path) -> dict[str, Any]:
    """What the embedding stage knows about its folder; nothing for a folder of the user's."""
    manifest = data / "manifest.json"
    broken = read_json(manifest).get("broken_images", 0) if manifest.exists() else 0
    return {"broken_images": broken, "path": str(data)}


def _timed(folder: Path, stage: Callable[[], Path]) -> Path:
    """Run a stage and note its seconds, unless it was finished before."""
    if is_finished(folder):
        return stage()
    started = time.perf_counter()
    stage()
    note_facts(folder, {"seconds": round(time.perf_counter() - started, 2)})
    return folder
