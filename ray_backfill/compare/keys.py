"""Keys of what is made from a folder of embeddings: everything that a comparison, or a method's map, depends on."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ray_backfill.compare.evaluation import Named
from ray_backfill.core.runkey import RunKey, fingerprint
from ray_backfill.data.columns import COLUMNS
from ray_backfill.data.folder import SPLITS, EmbeddingFolder, EmbeddingTable
from ray_backfill.engine.merges import BEST, MergeKind, all_merges
from ray_backfill.engine.orders import Order
from ray_backfill.engine.systems import GroundTruth
from ray_backfill.learn.methods import Method, models_of
from ray_backfill.learn.training.settings import FitSettings



def comparison_key(
    product: str,
    version: int,
    folder: EmbeddingFolder,
    truth: GroundTruth,
    named: Named,
    settings: Mapping[str, Any],
) -> RunKey:
    """The key of a comparison, or of a drill of one method.

    version: of the tables. settings: besides the evaluation, such as those of the fits. Methods are recorded by name,
    because "all" has another meaning when methods are added.
    """
    compared = asdict(named.evaluation) | {"methods": [method.name for method in named.methods]}
    merges = all_merges().values() if any(kind.name == BEST for kind in named.merges) else named.merges
    kinds: list[Method | Order | MergeKind] = [*named.methods, *named.orders, *merges]
    versions = {f"{type(kind).__name__.removesuffix('Kind').lower()} {kind.name}": kind.version for kind in kinds}
    return RunKey(
        product, {**settings, "evaluation": compared, "versions": versions}, _inputs(folder, truth, named), version
    )


def _inputs(folder: EmbeddingFolder, truth: GroundTruth, named: Named) -> dict[str, str]:
    """Input -> its fingerprint; "" for one that is not there or not used.

    The columns of the data contract count, whether they are used or not; of the others, those that are used.
    """
    evaluation, models = named.evaluation, models_of(named.methods)
    needs = {column for order in named.orders for column in order.needs}
    splits = {split: folder.fingerprint(models, (split,)) if getattr(folder, split) else "" for split in SPLITS}
    return {
        **splits,
        "right_answers": truth.fingerprint,
        "filter": truth.filter.fingerprint if truth.filter else "",
        "columns_of_orders": _numbers(folder, sorted(needs)),
        "log": _log(folder, evaluation.filter) if "first_retrieved" in needs else "",
        "slices": _whole_columns(folder.queries or folder.gallery, evaluation.slices),
    }




def _numbers(folder: EmbeddingFolder, names: Sequence[str]) -> str:
    """Numeric columns of the gallery outside the data contract."""
    found = {name: folder.gallery.find_numbers(name) for name in names if name not in COLUMNS}
    there = [part for name, numbers in found.items() if numbers is not None for part in (name, numbers)]
    return fingerprint(*there) if there else ""


def _log(folder: EmbeddingFolder, filter_column: str) -> str:
    log = folder.log
    if log is None:
        return ""
    return fingerprint(log.old, log.weight, log.texts(filter_column) if filter_column else None)


def _whole_columns(table: EmbeddingTable, names: Sequence[str]) -> str:
    return fingerprint(*((name, table.column(name).to_pylist()) for name in names)) if names else ""
