"""Runs on a folder of embeddings: fits maps, replays methods, reports results.

Ray is imported only if something is trained or replayed over shards.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ray_backfill.compare.evaluation import RECOMMENDED, Evaluation, Named, check_memory
from ray_backfill.compare.fits import chosen, fit_maps, fit_on_halves
from ray_backfill.compare.replay import Curves, in_order, replay_here, with_relevance
from ray_backfill.compare.resolve import Comparison, Pictures, resolve, resolve_truth
from ray_backfill.compare.results import ResultsData
from ray_backfill.compare.tables import NEW, OLD
from ray_backfill.compare.write import (
    check_can_be_extended,
    facts_of,
    files,
    joined,
    recorded_settings,
    results_in_memory,
    write_results,
)
from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import say, step
from ray_backfill.core.stages import OtherSettingsError, is_finished, settle
from ray_backfill.data.alignment import check_alignment
from ray_backfill.data.division import fit_rows
from ray_backfill.data.folder import EmbeddingFolder, read_folder
from ray_backfill.data.write import with_train
from ray_backfill.engine.replay import check_device
from ray_backfill.learn.methods import RECALLS, find_methods, models_of
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.workers.settings import Context


def evaluate_folder(
    data: Path,
    evaluation: Evaluation,
    fits: FitSettings,
    context: Context,
    recipe: Mapping[str, Any] | None = None,
    results: str = "results",
    show_first: Callable[[ResultsData, list[str]], None] | None = None,
    pictures: Pictures | None = None,
) -> Path:
    """Fit what the methods need on a folder of the data contract, replay them and report into ``out/<results>``.

    Methods and merges that cannot be fitted here (no train split, no labels, no embeddings of a further model) are left
    out, and the report says so. Without labels and right answers, what the new model finds first counts as right.

    Finished results in ``out`` of the same settings are extended: their methods, orders and merges take part, too.

    show_first: called before the training with the results of methods that need none, and the titles of the methods to
        be trained.
    pictures: for the report, see ``Comparison``.
    """
    named, out = evaluation.named, context.out / results
    context.place.check_local()
    with step("read embeddings"):
        comparison = _resolve(data, named, fits, context, out, recipe is not None)
        comparison = replace(comparison, pictures=pictures)
    check_memory(comparison.named, len(comparison.methods), comparison.truth.n_queries)
    with ExitStack() as ray:
        replay = _replayer(comparison, context, ray)
        started = time.perf_counter()
        first: Curves = {}
        maps = context.out / "maps"
        to_train = [m for m in comparison.methods if m.is_trained and not is_finished(maps / m.name)]
        ready = [method for method in comparison.methods if method not in to_train]
        waits = comparison.service is not None and comparison.service.stages.top > 0
        has_first_table = to_train and not waits and any(not method.is_reference for method in ready)
        # An order of a method can need the trained networks.
        if show_first is not None and has_first_table and not any(o.of_method for o in comparison.named.orders):
            untrained = comparison.only(ready)
            untrained, tuned = fit_maps(untrained, fits, context)
            first = replay(untrained)
            facts = facts_of(untrained, fits, context, recipe, time.perf_counter() - started, tuned)
            show_first(results_in_memory(untrained, first, facts), [method.title for method in to_train])
        comparison, tuned = fit_maps(comparison, fits, context)
        facts = facts_of(comparison, fits, context, recipe, time.perf_counter() - started, tuned)
        comparison = with_relevance(comparison, context.out / "relevance", context.place.device, context.overwrite)
        comparison = fit_on_halves(comparison, chosen(tuned, fits), fits, context)

        def replay_rest(comparison: Comparison) -> Curves:
            # Old and new are replayed again: the milestones of the others are judged by them.
            done = {method for method, _, _ in first} - {OLD, NEW}
            rest = [method for method in comparison.methods if method.name not in done]
            return in_order(comparison, {**first, **replay(comparison.only(rest))})

        return write_results(comparison, out, facts, replay_rest, context.overwrite)


def _resolve(data: Path, named: Named, fits: FitSettings, context: Context, out: Path, from_images: bool) -> Comparison:
    """Resolve the run, together with what ``out`` has and would lose.

    Raises:
        InputError: The results there were computed from other data or with other settings, unless they are overwritten.
    """
    settle(out, files())
    models = models_of(named.methods)
    folder = with_sample(data, models, context.out)
    if not from_images:
        check_alignment(folder)
    tables = [folder.gallery, *([folder.queries] if folder.queries else [])]
    if not named.evaluation.truth and all(table.label is None and table.positives is None for table in tables):
        named = replace(named.evaluation, truth=("new-top1",)).named
    takes_recommended = RECOMMENDED in named.evaluation.methods
    if folder.sample_path is not None:
        named = named.without_training()
    truth, named = resolve_truth(folder, named, from_images)
    if takes_recommended and folder.queries is not None and folder.queries.label is None and not named.service:
        # Judged queries without labels, as text has: there maps and rank merge often lose, and a cascade gains.
        named = named.with_method(*find_methods((f"cascade@{RECALLS}",)))
    both = joined(named, out)
    if (needed := models_of(both.methods)) != models:
        folder = with_sample(data, needed, context.out)
    try:
        check_can_be_extended(out, folder, truth.ground, both, recorded_settings(fits, context.chosen))
        if both is not named:
            how, joint = named.evaluation, both.evaluation
            asked = {*how.orders, *how.merges, *(method.name for method in named.methods)}
            kept = [name for name in (*joint.methods, *joint.orders, *joint.merges) if name not in asked]
            kept += [f"the cut-off {cutoff:g}" for cutoff in joint.cutoffs if cutoff not in how.cutoffs]
            if kept:
                say(f"{out} also has {', '.join(kept)}: kept")
    except OtherSettingsError:
        if not context.overwrite:
            raise
        both = named
    return resolve(folder, both, fits, from_images, truth=truth)


def with_sample(data: Path, models: Sequence[str], out: Path) -> EmbeddingFolder:
    """The folder, with a sample of its gallery as train split if it has none of its own.

    The sample has no labels: what is learned from the labels of the gallery says nothing about other items.
    """
    folder = read_folder(data, models)
    if folder.train is not None:
        return folder
    gallery = folder.gallery
    rows = fit_rows(len(gallery), max(vectors.shape[1] for vectors in gallery.vectors.values()))
    return with_train(folder, replace(gallery.take(rows), label=None), out / "fitted_on") if len(rows) else folder


def _replayer(comparison: Comparison, context: Context, ray: ExitStack) -> Callable[[Comparison], Curves]:
    """The function that replays: in this process, or in shards, for which Ray is started (also used for training)."""
    place, has_filter = context.place, bool(comparison.evaluation.filter)
    if comparison.service is not None:
        if place.shards:
            raise InputError("--service is replayed in this process; leave --shards out")
        check_device(place.device)
        return partial(replay_here, device=place.device)
    if has_filter and place.shards:
        raise InputError("--filter replays one part of the gallery at a time in this process; leave --shards out")
    size = sum(vectors.nbytes for vectors in comparison.folder.gallery.vectors.values())
    shards = 0 if has_filter else place.shards_for(size)
    if not shards:
        check_device(place.device)
        return partial(replay_here, device=place.device)
    from ray_backfill.compare.ray.shards import check_shards, replay_in_shards
    from ray_backfill.workers.session import session

    ray.enter_context(session())
    check_shards(shards, place.device)
    return partial(replay_in_shards, number=shards, device=place.device)
