"""The stages of a live drill: the state before a backfill, the maps of one method, the drill, its report.

Folders of a run: backbones and maps as in ``pipeline``; before (the data contract, with the gallery embedded by the old
model only); live (the drill: plan, parts, journal, answers, events, then tables and report).
"""

import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from ray_backfill.cluster.drill.driver import run_drill
from ray_backfill.cluster.drill.embedding import EmbedJob, FromImages, FromStore
from ray_backfill.cluster.drill.job import DrillJob, Questions
from ray_backfill.cluster.drill.shards import ShardJob, shard_edges
from ray_backfill.cluster.embed import embed_stage
from ray_backfill.cluster.session import placed, session
from ray_backfill.cluster.settings import EmbedActors
from ray_backfill.comparison.evaluation import Evaluation
from ray_backfill.comparison.keys import comparison_key
from ray_backfill.comparison.orders import store_sigma
from ray_backfill.comparison.resolve import Comparison, resolve
from ray_backfill.datasets import open_source
from ray_backfill.errors import InputError
from ray_backfill.files import (
    OtherSettingsError,
    begin_stage,
    finish_stage,
    is_finished,
    look_at_stage,
    note_facts,
    read_json,
)
from ray_backfill.index import check_index, make_partition
from ray_backfill.live.operations import DrillPlan, make_plan, read_plan, write_plan
from ray_backfill.live.parts import BadPartError
from ray_backfill.live.quality import depth
from ray_backfill.live.results import Known, drill_tables
from ray_backfill.live.settings import LiveSettings
from ray_backfill.live.shard import ShardPlace
from ray_backfill.live.sides import SIDES, Sides, check_live, dims_of, new_models, old_models
from ray_backfill.merges import Merge, all_merges
from ray_backfill.methods import Method, find_methods, models_of
from ray_backfill.orders import find_order
from ray_backfill.progress import stage, step
from ray_backfill.recipes import Recipe
from ray_backfill.report import REPORT_FILES
from ray_backfill.report.live import write_live_report
from ray_backfill.runkey import RunKey
from ray_backfill.runs.checks import check_evaluation, check_recipe
from ray_backfill.runs.context import Context
from ray_backfill.runs.folder import fit_maps
from ray_backfill.runs.images import recipe_classes, train_recipe_backbone
from ray_backfill.runs.origin import origin_of
from ray_backfill.runs.results import now, skipped_queries, versions, weighting
from ray_backfill.store import read_folder
from ray_backfill.systems import IntArray
from ray_backfill.tables.drill import TABLES, DrillFacts
from ray_backfill.tables.journal import Journal, Started, of_type
from ray_backfill.tables.schema import write_table
from ray_backfill.training.settings import FitSettings

# Version of the drill's folder; increases when the shape of a table or the meaning of the key changes.
FORMAT = 2
# Tables that are made from what a drill recorded.
_MADE_AFTER = [name for name in TABLES if "/" not in name]


def drill_recipe(recipe: Recipe[Any], live: LiveSettings, context: Context) -> Path:
    """Backfill a recipe's gallery for real, under traffic; returns the folder with the report.

    Raises:
        InputError: Settings, data or ``out`` are wrong; raised before any computation where possible.
    """
    method, evaluation = _check(recipe.evaluation, live)
    recipe, out, actors = replace(recipe, evaluation=evaluation), context.out, context.actors
    roles = models_of(evaluation.named_methods())
    check_recipe(recipe, 1, [role for role in roles if not is_finished(out / "backbones" / role)])
    check_evaluation(recipe, 1)
    for settings, model in ((live.old_index, recipe.old), (live.new_index, recipe.new)):
        check_index(settings, model.backbone.dim, evaluation.distance)
    with session():
        _check_room(live, actors)
        backbones = {role: train_recipe_backbone(recipe, role, context) for role in roles}
        # Without separate queries, gallery items serve as queries, so all models embed the gallery.
        gallery_models = old_models(method) if "queries" in open_source(recipe.images).splits else None
        _, classes = recipe_classes(recipe)
        before = embed_stage(
            out / "before", recipe.source, backbones, classes, recipe.new.training, recipe.embed, actors,
            gallery_models, context.overwrite,
        )  # fmt: skip
        folder = read_folder(before, roles, gallery_needs=("old",))
        number, on_gpu = _check_room(live, actors)
        source = FromImages(
            recipe.images, backbones, folder.gallery.path, recipe.embed.batch, max(1, int(actors.cpus)), on_gpu,
            zero_is_broken=evaluation.distance == "cosine",
        )  # fmt: skip
        comparison = resolve(folder, evaluation, recipe.fits, from_images=True, to_come=roles)
        context = replace(context, actors=replace(actors, number=number))
        return _drill(comparison, method, source, recipe.fits, live, context, asdict(recipe))


def drill_folder(data: Path, evaluation: Evaluation, fits: FitSettings, live: LiveSettings, context: Context) -> Path:
    """Backfill a folder of embeddings under traffic; the new embeddings are read from the folder.

    Raises:
        InputError: See ``drill_recipe``.
    """
    method, evaluation = _check(evaluation, live)
    with step("read embeddings"):
        comparison = resolve(read_folder(data, models_of([method])), evaluation, fits, to_come=())
    if _is_there(context.out / "live", _key(comparison, method, fits, live), context.overwrite):
        return context.out / "live"
    with session():
        _check_room(live, context.actors)
        return _drill(comparison, method, FromStore(comparison.folder.gallery.path), fits, live, context, {})


def _check(evaluation: Evaluation, live: LiveSettings) -> tuple[Method, Evaluation]:
    """The method of the drill, and the evaluation restricted to it, to the first order and the first merge.

    A gallery is backfilled in one permutation only.
    """
    (method,) = find_methods((live.method,))
    if evaluation.filter:
        raise InputError("--filter is replayed only; leave it out of a live drill")
    if evaluation.cutoffs:
        raise InputError("a drill has no --cutoffs, because its answers are the first results; give them to simulate")
    evaluation = replace(
        evaluation, methods=(method.name,), orders=evaluation.orders[:1], merges=evaluation.merges[:1], permutations=1
    )
    # Live answers are top-k lists, not complete rankings.
    metrics = tuple(dict.fromkeys("mAP@100" if metric == "mAP" else metric for metric in evaluation.metrics))
    evaluation = replace(evaluation, metrics=metrics)
    evaluation.check()
    check_live(method, Merge(evaluation.merges[0], by_rank=all_merges()[evaluation.merges[0]].is_by_rank))
    if find_order(evaluation.orders[0]).is_oracle:
        raise InputError(f"order {evaluation.orders[0]!r} needs embeddings of the future; choose another with --orders")
    return method, evaluation


def _check_room(live: LiveSettings, actors: EmbedActors) -> tuple[int, bool]:
    """Number of embedding actors that fit in addition to the shards, and whether they have GPUs.

    Raises:
        InputError: The cluster is too small for both.
    """
    on_gpus = live.shards.number if "cuda" in (live.old_index.device, live.new_index.device) else 0
    spare_cpus = 1 + live.shards.number * live.shards.cpus
    return placed(actors.number, actors.cpus, "--actors", spare_cpus, on_gpus)


def _drill(
    comparison: Comparison,
    method: Method,
    source: FromImages | FromStore,
    fits: FitSettings,
    live: LiveSettings,
    context: Context,
    recipe: Mapping[str, Any],
) -> Path:
    drill_folder, evaluation = context.out / "live", comparison.evaluation
    key = _key(comparison, method, fits, live)
    k = depth(evaluation.metrics, comparison.truth)
    if _is_there(drill_folder, key, context.overwrite):
        return drill_folder
    comparison, _ = fit_maps(comparison, [method], fits, context)
    if comparison.left_out:
        raise InputError(f"{method.name}: {comparison.left_out[0].reason}")
    sides = _sides(comparison, method, live)
    order = _order(comparison, method)
    # Claim the folder only when there is something to write, so that an earlier failure leaves no trace.
    has_ended = begin_stage(drill_folder, key, context.overwrite)  # and only lacks tables
    plan = _plan(drill_folder, order, evaluation.points, live)
    queries = comparison.embeddings.query
    job = DrillJob(
        context.out.name, drill_folder, plan,
        Questions(*sides.queries(queries), comparison.truth, evaluation.metrics, k),
        _shards(drill_folder, comparison, sides, live, plan.n_items),
        EmbedJob(drill_folder, source, old_models(method), new_models(method), context.actors), live,
    )  # fmt: skip
    timings_s = read_json(drill_folder / "manifest.json").get("timings_s", {})
    if not has_ended:
        started = time.perf_counter()
        with session():
            run_drill(job)
        timings_s = {"drill": round(time.perf_counter() - started, 2)}
    gallery = {model: comparison.folder.gallery.vectors[model] for model in old_models(method)}
    known = Known(plan, sides, comparison.truth, evaluation.metrics, evaluation.points, queries, gallery)
    with stage("write report"):
        if (skipped := skipped_queries(comparison)) is not None:
            write_table(drill_folder / "skipped_queries.parquet", skipped)
        return _conclude(drill_folder, known, _facts(comparison, sides, live, plan, context, recipe), timings_s)


def _key(comparison: Comparison, method: Method, fits: FitSettings, live: LiveSettings) -> RunKey:
    """What determines a drill. Its fits are those of one method."""
    folder, truth, evaluation = comparison.folder, comparison.truth, comparison.evaluation
    tuned = {"tune": fits.tune} if fits.tune > 1 else {}
    fit = method.fit.recorded(fits, evaluation.distance) | tuned if method.fit else {}
    return comparison_key("live", FORMAT, folder, truth, evaluation, [method], {"fit": fit, "live": asdict(live)})


def _is_there(folder: Path, key: RunKey, overwrite: bool) -> bool:
    """Whether the drill has ended there, with all tables. A missing report is written from the tables."""
    try:
        is_finished_there = look_at_stage(folder, key)
    except OtherSettingsError:
        if not overwrite:
            raise
        return False
    if not is_finished_there or any(not (folder / f"{name}.parquet").exists() for name in _MADE_AFTER):
        return False
    if any(not (folder / name).exists() for name in REPORT_FILES):
        write_live_report(folder)
    return True


def _sides(comparison: Comparison, method: Method, live: LiveSettings) -> Sides:
    """The method with its network and its merge. Raises InputError if it cannot serve or be indexed."""
    folder, distance = comparison.folder, comparison.evaluation.distance
    (merge,) = comparison.merges_of(method).values()
    check_live(method, merge)
    dims = dims_of([folder.gallery.vectors, comparison.embeddings.query])
    sides = Sides(method, comparison.maps.of(method), merge, distance, dims)
    train = folder.train.vectors if folder.train else {}
    for settings, side in zip((live.old_index, live.new_index), SIDES, strict=True):
        check_index(settings, sides.dim(side), sides.live_distance)
        if settings.kind != "exact":  # find out here, not in a shard, whether it can be trained
            models = (old_models if side == "backward" else new_models)(method)
            learn = sides.gallery(side, {m: train[m] for m in models}) if train else None
            make_partition(replace(settings, device="cpu"), sides.live_distance, sides.dim(side), learn)
    return sides


def _shards(drill: Path, comparison: Comparison, sides: Sides, live: LiveSettings, n_items: int) -> list[ShardJob]:
    folder, name = comparison.folder, sides.method.name
    train = folder.train
    return [
        ShardJob(
            drill, folder.gallery.path, train.path if train else None, len(train) if train else 0, name,
            comparison.maps.folders.get(name), sides.merge, sides.distance, dict(sides.dims),
            ShardPlace(first, last, live.old_index, live.new_index),
        )
        for first, last in pairwise(shard_edges(n_items, live.shards.number))
    ]  # fmt: skip


def _conclude(folder: Path, known: Known, facts: DrillFacts, timings_s: dict[str, float]) -> Path:
    """Write the tables and the report of a finished drill."""
    started = time.perf_counter()
    try:
        tables = drill_tables(folder, known)
    except BadPartError as error:
        raise InputError(
            f"{error.reason}; it was intact when the drill ended: delete {folder} to run the drill again"
        ) from error
    for name, table in tables.items():
        write_table(folder / f"{name}.parquet", table)
    timings_s = timings_s | {"tables": round(time.perf_counter() - started, 2)}
    entries = Journal(folder).entries()
    seconds, legs = max(entry.elapsed_s for entry in entries), len(of_type(entries, Started))
    note_facts(folder, asdict(replace(facts, timings_s=timings_s, seconds=seconds, legs=legs)))
    finish_stage(folder)
    write_live_report(folder)  # after the results: a page that cannot be made must not take them with it
    return folder


def _order(comparison: Comparison, method: Method) -> IntArray:
    if method.has_sigma:
        store_sigma(comparison.folder, method, comparison.maps)
    (order,) = comparison.orders_of(method).values()
    return order


def _plan(drill: Path, order: IntArray, points: int, live: LiveSettings) -> DrillPlan:
    """The stored plan, or a new one if there is none."""
    if not (drill / "plan" / "checkpoints.parquet").exists():  # the last of its files
        write_plan(drill / "plan", make_plan(order, points, live.part_items, live.churn))
    return read_plan(drill / "plan")


def _facts(
    comparison: Comparison,
    sides: Sides,
    live: LiveSettings,
    plan: DrillPlan,
    context: Context,
    recipe: Mapping[str, Any],
) -> DrillFacts:
    """Facts for the report besides the tables."""
    folder, evaluation, method = comparison.folder, comparison.evaluation, sides.method
    return DrillFacts(
        command=context.command,
        created=now(),
        method=method.name,
        title=method.title,
        order=evaluation.orders[0],
        merge=sides.merge.name,
        glossary=all_merges()[sides.merge.name].glossary,
        primary_metric=evaluation.metrics[0],
        metrics=evaluation.metrics,
        distance=evaluation.distance,
        recipe=dict(recipe),
        is_exact=live.old_index.kind == live.new_index.kind == "exact",
        has_churn=bool(live.churn.inserts or live.churn.deletes),
        rolled_back=any(operation.kind == "rollback" for operation in plan.operations),
        data={
            "gallery_items": len(folder.gallery),
            "queries": len(folder.queries or folder.gallery),
            "queries_skipped": len(comparison.truth.skipped),
            "fingerprint": folder.fingerprint(method.models),
        }
        | weighting(comparison)
        | origin_of(comparison, context, recipe),
        versions=versions(),
    )
