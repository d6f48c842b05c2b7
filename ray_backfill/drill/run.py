"""Runs a live drill: the maps of one method, the backfill under traffic, then tables and report.

Folders of a run: maps; live (plan, parts, journal, answers, events, then tables and report). A drill of a recipe also
has backbones, and before: the data contract, with the gallery embedded by the old model only.
"""

import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from ray_backfill.compare.analyses.skipped_queries import skipped_queries
from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.fits import fit_maps
from ray_backfill.compare.manifest import comparison_key, now, origin_of, versions, weighting
from ray_backfill.compare.orders import store_sigma
from ray_backfill.compare.replay import with_relevance
from ray_backfill.compare.report import REPORT_FILES
from ray_backfill.compare.resolve import Comparison, resolve
from ray_backfill.core import stages
from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import step, task
from ray_backfill.core.runkey import RunKey
from ray_backfill.core.schema import footers, write_table
from ray_backfill.data.alignment import check_alignment
from ray_backfill.data.folder import read_folder
from ray_backfill.data.identity import short_names
from ray_backfill.drill.jobs import FromImages, FromItems, FromStore, LiveJob, PartsJob, Questions, ShardJob
from ray_backfill.drill.journal import Finished, Journal, Started, of_type
from ray_backfill.drill.parts import BadPartError
from ray_backfill.drill.plan import PLAN_FILES, DrillPlan, make_plan, read_plan, write_plan
from ray_backfill.drill.report import write_live_report
from ray_backfill.drill.results import depth, drill_tables
from ray_backfill.drill.settings import LiveSettings
from ray_backfill.drill.shard import ShardPlace, measured_moments, shard_edges
from ray_backfill.drill.tables import FORMAT, TABLES, DrillFacts
from ray_backfill.drill.traffic import drop_events
from ray_backfill.encode.encoder import Device
from ray_backfill.encode.items import ItemSettings, ItemSources
from ray_backfill.encode.part import EncodeRequest
from ray_backfill.encode.spec import Spec
from ray_backfill.engine.index import check_index, make_partition
from ray_backfill.engine.merges import Merge, all_merges
from ray_backfill.engine.metrics import of_lists
from ray_backfill.engine.orders import find_order
from ray_backfill.learn.methods import Method, find_methods, models_of
from ray_backfill.learn.sides import SIDES, Sides, check_live, dims_of
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.pipeline.live import Answering
from ray_backfill.workers.settings import Context, EmbedActors, threads_of

# Tables that are made from what a drill recorded.
_MADE_AFTER = [name for name in TABLES if "/" not in name]


def drill_folder(data: Path, evaluation: Evaluation, fits: FitSettings, live: LiveSettings, context: Context) -> Path:
    """Backfill a folder of embeddings under traffic; the new embeddings are read from the folder.

    Raises:
        InputError: See ``drill_recipe``.
    """
    context.actors.require_own_decoders()
    method, evaluation = check_drill(evaluation, live, has_new=True)
    with step("read embeddings"):
        folder = read_folder(data, models_of([method]))
        check_alignment(folder)
        comparison = resolve(folder, evaluation.named, fits, to_come=())
    gallery = comparison.folder.gallery
    return run_resolved(comparison, method, FromStore(gallery.stored, len(gallery)), fits, live, context)


def drill_models(
    specs: Mapping[str, Spec], sources: ItemSources, settings: ItemSettings, evaluation: Evaluation, fits: FitSettings,
    live: LiveSettings, context: Context,
) -> Path:  # fmt: skip
    """Backfill texts or images under traffic: the old model has embedded the gallery, the new one embeds it meanwhile.

    specs: "old" and "new". Raises InputError: see ``drill_recipe``.
    """
    from ray_backfill.encode.bill import bill, estimate
    from ray_backfill.encode.stage import embed_two
    from ray_backfill.workers.session import session

    context.actors.require_own_decoders()
    method, evaluation = check_drill(evaluation, live)
    if evaluation.filter:  # known before anything is embedded
        raise InputError("--filter needs a folder of embeddings (--data) with this column; items of models lack it")
    needed, actors = models_of([method]), context.actors
    if lacking := [name for name in needed if name not in specs]:
        raise InputError(f"{method.name} needs a model {lacking[0]!r}; choose another --live.method")
    with session():
        number, on_gpu = check_room(live, actors)
        context = replace(context, actors=replace(actors, number=number))
        before = embed_two(context, specs, sources, settings, method.old_models)
        folder = read_folder(before, needed, gallery_needs=("old",))
        to_embed = EncodeRequest(context.out / "items", sources.modality, {"new": specs["new"]})
        if context.overwrite or not (context.out / "live" / "manifest.json").exists():
            estimate(to_embed, [(split, part) for split, part in to_embed.parts() if split == "gallery"], number)
        device = Device("cuda" if on_gpu else "cpu", threads_of(actors), number)
        source = FromItems(
            context.out / "items", sources.modality, dict(specs), folder.gallery.stored, device,
            stages.read_json(before / "probes.json"), tuple(sys.path),
        )  # fmt: skip
        comparison = resolve(folder, evaluation.named, fits, to_come=needed)
        folder_of_drill = run_resolved(comparison, method, source, fits, live, context)
        bill(footers(sorted(folder_of_drill.glob("parts/part-*.parquet"))), to_embed.models)
        return folder_of_drill


def check_drill(evaluation: Evaluation, live: LiveSettings, has_new: bool = False) -> tuple[Method, Evaluation]:
    """The method of the drill, and the evaluation restricted to it, to the first order and the first merge.

    A gallery is backfilled in one permutation only. has_new: whether the new embeddings are known before the drill.
    """
    (method,) = find_methods((live.method,))
    if evaluation.service is not None and (live.churn.inserts or live.churn.deletes):
        raise InputError(
            "--live.churn.inserts and --live.churn.deletes would change the lists of a --service, which a drill reads "
            "once; leave one of them out"
        )
    if evaluation.cutoffs:
        raise InputError("a drill has no --cutoffs, because its answers are the first results; give them to simulate")
    evaluation = replace(
        evaluation, methods=(method.name,), orders=evaluation.orders[:1], merges=evaluation.merges[:1], permutations=1
    )
    # Live answers are top-k lists, not complete rankings.
    metrics = tuple(dict.fromkeys(map(of_lists, evaluation.metrics)))
    evaluation = replace(evaluation, metrics=metrics)
    evaluation.check()
    service = evaluation.named.service
    if service and service.changes:
        raise InputError("changes of --service are replayed only; leave them out of a live drill")
    if service and service.rerank and service.rerank.model and not has_new:
        raise InputError(
            "rerank.model of --service cannot score pairs before the new model has embedded the gallery; give "
            "rerank.scores, a file, or drill on the embeddings of a finished simulate by --data"
        )
    check_live(method, Merge(evaluation.merges[0], by_rank=all_merges()[evaluation.merges[0]].is_by_rank))
    if find_order(evaluation.orders[0]).is_oracle:
        raise InputError(f"order {evaluation.orders[0]!r} needs embeddings of the future; choose another with --orders")
    return method, evaluation


def check_room(live: LiveSettings, actors: EmbedActors, with_models: bool = True) -> tuple[int, bool]:
    """Number of embedding actors that fit in addition to the shards, and whether they have GPUs.

    with_models: whether the actors embed; those that read stored vectors need no GPU.

    Raises:
        InputError: The cluster is too small for both.
    """
    from ray_backfill.workers.session import placed

    on_gpus = live.shards.number if "cuda" in (live.old_index.device, live.new_index.device) else 0
    return placed(actors, live.shards.number * live.shards.cpus, on_gpus, with_models)


def run_resolved(
    comparison: Comparison, method: Method, source: FromImages | FromItems | FromStore, fits: FitSettings,
    live: LiveSettings, context: Context, recipe: Mapping[str, Any] | None = None,
) -> Path:  # fmt: skip
    """Run the drill of a resolved comparison, or what is left of it; returns its folder.

    source: what the embeddings of the backfill are made from. recipe: settings of the recipe, for the manifest.
    """
    folder, evaluation = context.out / "live", comparison.evaluation
    # Of all fits, those of this method count.
    tuned = {"tune": fits.tune} if fits.tune > 1 else {}
    fit = method.fit.recorded(fits, evaluation.distance) | tuned if method.fit else {}
    of_one, settings = comparison.only([method]), {"fit": fit, "live": asdict(live)}
    key = comparison_key("live", FORMAT, of_one.folder, of_one.truth, of_one.named, settings)
    k = depth(evaluation.metrics, comparison.truth)
    if _is_there(folder, key, context.overwrite):
        return folder
    from ray_backfill.workers.session import session

    with session():
        number, _ = check_room(live, context.actors, not isinstance(source, FromStore))
        actors = replace(context.actors, number=number)
        comparison, _ = fit_maps(comparison, fits, context)
        if comparison.left_out:
            raise InputError(f"{method.name}: {comparison.left_out[0].reason}")
        sides = _sides(comparison, method, live)
        comparison = with_relevance(comparison, context.out / "relevance", context.place.device, context.overwrite)
        answering = Answering.plain(sides.merge, k)
        if comparison.service is not None:
            answering = Answering(sides.merge, comparison.service, k, comparison.truth)
        if method.has_sigma:
            store_sigma(comparison.folder, method, comparison.maps)
        (order,) = comparison.orders_of(method).values()
        # Begin the folder only when there is something to write, so that an earlier failure leaves no trace.
        drop_events(folder, Journal(folder).mend(measured_moments(folder)))
        stages.begin_stage(folder, key, context.overwrite)
        has_ended = bool(of_type(Journal(folder).entries(), Finished))  # and only lacks tables
        # The stored plan, or a new one if a file of it is missing.
        if any(not (folder / "plan" / f"{name}.parquet").exists() for name in PLAN_FILES):
            write_plan(folder / "plan", make_plan(order, evaluation.points, live.part_items, live.churn))
        plan = read_plan(folder / "plan")
        timings_s = stages.read_json(folder / "manifest.json").get("timings_s", {})
        if not has_ended:
            from ray_backfill.drill.ray.driver import run_drill

            started = time.perf_counter()
            gallery, train = comparison.folder.gallery, comparison.folder.train
            network = comparison.maps.folders.get(method.name)
            shards = [
                ShardJob(
                    folder, gallery.stored, train.stored if train else None, len(train) if train else 0, method.name,
                    network, sides.merge, sides.distance, dict(sides.dims),
                    ShardPlace(first, last, live.old_index, live.new_index),
                )
                for first, last in pairwise(shard_edges(plan.n_items, live.shards.number))
            ]  # fmt: skip
            if (parts := comparison.truth.filter) is not None:
                shards = [replace(job, part_n=parts.of_item[job.place.first : job.place.last]) for job in shards]
            queries = sides.queries(comparison.embeddings.query)
            questions = Questions(*queries, comparison.truth, evaluation.metrics, answering)
            job = LiveJob(
                context.out.name, folder, plan, questions, shards,
                PartsJob(folder, source, method.old_models, method.new_models, actors), live,
                short_names(comparison.folder.identities),
            )  # fmt: skip
            run_drill(job)
            timings_s = {"drill": round(time.perf_counter() - started, 2)}
    with task("write report"):
        if (skipped := skipped_queries(comparison)) is not None:
            write_table(folder / "skipped_queries.parquet", skipped)
        of_data, recipe = comparison.folder, recipe or {}
        data = {
            "gallery_items": len(of_data.gallery), "queries": len(of_data.queries or of_data.gallery),
            "queries_skipped": len(comparison.truth.skipped), "fingerprint": of_data.fingerprint(method.models),
        }  # fmt: skip
        facts = DrillFacts(
            command=context.command, created=now(), versions=versions(), recipe=dict(recipe),
            method=method.name, title=method.title, order=evaluation.orders[0], merge=sides.merge.name,
            glossary=all_merges()[sides.merge.name].glossary,
            primary_metric=evaluation.metrics[0], metrics=evaluation.metrics, distance=evaluation.distance,
            is_exact=live.old_index.kind == live.new_index.kind == "exact",
            has_service=comparison.service is not None, has_churn=bool(live.churn.inserts or live.churn.deletes),
            rolled_back=any(operation.kind == "rollback" for operation in plan.operations),
            data=data | weighting(comparison) | origin_of(comparison, context, recipe),
        )  # fmt: skip
        return _conclude(folder, comparison, sides, plan, answering, facts, timings_s)


def _is_there(folder: Path, key: RunKey, overwrite: bool) -> bool:
    """Whether the drill has ended there, with all tables. A missing report is written from the tables."""
    try:
        is_finished_there = stages.look_at_stage(folder, key)
    except stages.OtherSettingsError:
        if not overwrite:
            raise
        return False
    if not is_finished_there or any(not stages.is_whole(folder / f"{name}.parquet") for name in _MADE_AFTER):
        return False
    if any(not stages.is_whole(folder / name) for name in REPORT_FILES):
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
        check_index(settings, sides.dim(side), sides.live_distance, bool(comparison.evaluation.filter))
        if settings.kind != "exact":  # find out here, not in a shard, whether it can be trained
            models = method.old_models if side == "backward" else method.new_models
            learn = sides.gallery(side, {m: train[m] for m in models}) if train else None
            make_partition(replace(settings, device="cpu"), sides.live_distance, sides.dim(side), learn)
    return sides


def _conclude(
    folder: Path, comparison: Comparison, sides: Sides, plan: DrillPlan, answering: Answering, facts: DrillFacts,
    timings_s: dict[str, float],
) -> Path:  # fmt: skip
    started = time.perf_counter()
    try:
        tables = drill_tables(folder, comparison, sides, plan, answering)
    except BadPartError as error:
        raise InputError(
            f"{error.reason}; it was intact when the drill ended: delete {folder} to run the drill again"
        ) from error
    for name, table in tables.items():
        write_table(folder / f"{name}.parquet", table)
    timings_s = timings_s | {"tables": round(time.perf_counter() - started, 2)}
    entries = Journal(folder).entries()
    seconds, legs = max(entry.elapsed_s for entry in entries), len(of_type(entries, Started))
    stages.note_facts(folder, asdict(replace(facts, timings_s=timings_s, seconds=seconds, legs=legs)))
    stages.finish_stage(folder)
    write_live_report(folder)  # after the results: a page that cannot be made must not take them with it
    return folder
