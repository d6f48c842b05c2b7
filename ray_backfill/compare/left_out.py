"""Finds methods and merges that cannot take part on a folder of embeddings, with the reason."""

from collections.abc import Sequence

from ray_backfill.compare.merges import why_merge_cannot_be_fitted
from ray_backfill.compare.tables.results import LeftOut
from ray_backfill.core.errors import InputError
from ray_backfill.data.doctor import FIT_NOISE, few_items_per_dimension
from ray_backfill.data.folder import EmbeddingFolder
from ray_backfill.engine.merges import all_merges
from ray_backfill.learn.methods import Method
from ray_backfill.learn.training.fit import train_set
from ray_backfill.learn.training.settings import FitSettings


def find_left_out(
    folder: EmbeddingFolder,
    methods: Sequence[Method],
    merges: Sequence[str],
    fits: FitSettings,
    distance: str,
    to_come: Sequence[str] = (),
) -> tuple[LeftOut, ...]:
    """Methods and merges that cannot take part. to_come: models that will embed the gallery later."""
    reasons = {method.name: _why_not(folder, method, fits, distance, to_come) for method in methods}
    found = [LeftOut("method", name, reason) for name, reason in reasons.items() if reason]
    for name in merges:
        if reason := why_merge_cannot_be_fitted(name, folder.train):
            found.append(LeftOut("merge", name, reason))
    if folder.train is not None and any(all_merges()[name].needs_train for name in merges):
        for method in methods:
            lacking = [model for model in method.models if model not in folder.train.vectors]
            if lacking and not reasons[method.name] and not method.is_reference:
                reason = f"needs a column {lacking[0]!r} in train.parquet"
                found.append(LeftOut("fitted merges", method.name, reason))
    return tuple(found)


def few_items_note(folder: EmbeddingFolder, methods: Sequence[Method]) -> tuple[str, ...]:
    """A sentence for the report if the methods that take part are fitted on few items per dimension."""
    if folder.train is None or not any(method.fit for method in methods):
        return ()
    dims = max(vectors.shape[1] for vectors in folder.train.vectors.values())
    said = few_items_per_dimension(len(folder.train), dims)
    if not said:
        return ()
    return (f"Fitted methods learned from {said}. {FIT_NOISE}. Methods that look bad here may only lack train items.",)


def _why_not(folder: EmbeddingFolder, method: Method, fits: FitSettings, distance: str, to_come: Sequence[str]) -> str:
    """The reason why a method cannot take part, or ""."""
    of_gallery = {model for model in method.models if model not in to_come}
    splits = [(folder.gallery, of_gallery)]
    if folder.queries is not None:
        splits.append((folder.queries, set(method.models)))
    if method.fit is not None:
        if folder.train is None:
            return "needs train.parquet to be fitted on"
        if method.fit.needs_labels and folder.train.label is None:
            return "needs a column 'label' in train.parquet to be fitted on"
        splits.append((folder.train, set(method.models)))
    for model in method.models:
        for table, needed in splits:
            if model in needed and model not in table.vectors:
                return f"needs embeddings of a further model: a column {model!r} in {table.path.name}"
    if method.fit is not None and folder.train is not None:
        if problem := method.fit.distance_problem(fits, distance):
            return problem
        try:
            method.fit.check(train_set(folder), fits, 1)
        except InputError as error:
            return str(error)
    return ""
