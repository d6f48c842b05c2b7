"""What runs record of themselves: the key of what they depend on, versions, origin of the data, and traits of names.

Traits of methods, orders and merges are recorded because reports do not import plugins.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ray_backfill.compare.evaluation import Named
from ray_backfill.compare.resolve import Comparison
from ray_backfill.compare.tables import MergeTraits, MethodTraits, OrderTraits, Traits
from ray_backfill.core import __version__
from ray_backfill.core.outcome import Remark
from ray_backfill.core.runkey import RunKey, fingerprint
from ray_backfill.core.stages import read_json
from ray_backfill.data.cleaning import copied_from
from ray_backfill.data.columns import COLUMNS
from ray_backfill.data.folder import SPLITS, EmbeddingFolder
from ray_backfill.data.identity import short_names
from ray_backfill.engine.merges import BEST, MergeKind, all_merges
from ray_backfill.engine.orders import GalleryColumns, Order
from ray_backfill.engine.statistics import relative_weights
from ray_backfill.engine.systems import GroundTruth
from ray_backfill.learn.methods import Method, models_of
from ray_backfill.page.heading import INVENTED
from ray_backfill.workers.settings import Context


def comparison_key(
    product: str,
    version: int,
    folder: EmbeddingFolder,
    truth: GroundTruth,
    named: Named,
    settings: Mapping[str, Any],
) -> RunKey:
    """The key of a comparison, or of a drill of one method.

    version: of the tables. settings: besides the evaluation, such as those of the fits.
    """
    merges = all_merges().values() if any(kind.name == BEST for kind in named.merges) else named.merges
    kinds: list[Method | Order | MergeKind] = [*named.methods, *named.orders, *merges]
    versions = {f"{type(kind).__name__.removesuffix('Kind').lower()} {kind.name}": kind.version for kind in kinds}
    # The columns of the data contract count, whether they are used or not; of the others, those that are used.
    how, models = named.evaluation, models_of(named.methods)
    needs, searched = {column for order in named.orders for column in order.needs}, folder.queries or folder.gallery
    changes = named.service.changes_of(folder.gallery) if named.service else None
    in_key = {*COLUMNS, *(() if changes is None else ("changed_at",))}
    numbers = {name: folder.gallery.find_numbers(name) for name in sorted(needs) if name not in in_key}
    used: dict[str, list[Any]] = {
        "columns_of_orders": [part for column in numbers.items() if column[1] is not None for part in column],
        "log": [],
        "slices": [(name, searched.column(name).to_pylist()) for name in how.slices],
    }
    if "first_retrieved" in needs and (log := folder.log) is not None:
        used["log"] = [log.old, log.weight, log.texts(how.filter) if how.filter else None]
    splits = {split: folder.fingerprint(models, (split,)) if getattr(folder, split) else "" for split in SPLITS}
    inputs = {
        **splits,
        "right_answers": truth.fingerprint,
        "filter": truth.filter.fingerprint if truth.filter else "",
        **{name: fingerprint(*parts) if parts else "" for name, parts in used.items()},
    }
    if changes is not None:
        inputs["changes"] = changes.fingerprint
    return RunKey(product, {**settings, "evaluation": named.recorded(), "versions": versions}, inputs, version)


# The stage that draws embeddings from a model of distances.
SYNTHETIC = "synthetic embeddings"


def origin_of(comparison: Comparison, context: Context, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of ``data`` in a manifest besides sizes. recipe: all its settings; empty for a folder of embeddings.

    - name: of the data set, or of the folder. recipe: its name, "" without one
    - is_synthetic: the embeddings are invented. synthetic: then, the settings that they were drawn with
    - notes: sentences for the reader of a report that can change the decision. remarks: others, which are good to know
    - broken_images, path. models: column -> its model in short, if the folder states any
    """
    path, left_out = copied_from(comparison.folder.path)
    stage = read_json(path / "manifest.json") if (path / "manifest.json").exists() else {}
    is_synthetic = stage.get("stage") == SYNTHETIC
    dropped = [
        Remark.about(
            f"{counts.rows:,} of {counts.of:,} rows of {name} were left out, because of their vectors or ids. "
            "Right answers among them count for no query.",
            counts.rows,
            counts.of,
        )
        for name, counts in left_out.items()
    ]
    remarks = [*((INVENTED,) if is_synthetic else ()), *dropped, *comparison.notes]
    data_set = stage.get("settings", {}).get("data", {}).get("dataset", "")
    if data_set in ("image_folder", "manifest") and recipe:  # the user's own images
        data_set = Path(recipe["images"]["root"]).name
    facts = {
        "name": "synthetic gallery" if is_synthetic else data_set or path.name,
        "recipe": context.recipe,
        "is_synthetic": is_synthetic,
        "notes": [str(remark) for remark in remarks if getattr(remark, "matters", True)],  # a truth's may be text
        "remarks": [str(remark) for remark in remarks if not getattr(remark, "matters", True)],
        "broken_images": stage.get("broken_images", 0),
        "path": str(path),
    }
    models = short_names(comparison.folder.identities)
    return facts | ({"synthetic": stage["settings"]} if is_synthetic else {}) | ({"models": models} if models else {})


def traits_of(
    methods: Iterable[Method], orders: Iterable[Order], merges: Iterable[str], gallery: GalleryColumns
) -> Traits:
    """Traits by name of everything that takes part. gallery: what the orders read."""
    merge_kinds, of_methods = all_merges(), {}
    for method in methods:
        is_baseline = not method.is_reference and method.fit is None and set(method.models) == {"old", "new"}
        of_methods[method.name] = MethodTraits(
            method.title,
            method.family,
            method.is_reference,
            is_baseline,
            needs_labels=method.fit is not None and method.fit.needs_labels,
            is_trained=method.fit is not None and method.fit.is_trained,
            learns_new=method.learns_new,
            further_models=tuple(model for model in method.models if model not in ("old", "new")),
            stays=method.forward.plain != "new" and not method.is_reference,
            recalls=method.recalls,
            merges_models=is_baseline and method.is_merged,
            glossary=method.glossary,
        )
    of_orders = {
        order.name: OrderTraits(order.title, order.is_oracle, order.glossary, order.column_in(gallery) == "label")
        for order in orders
    }
    of_merges = {name: merge_kinds[name] for name in merges}
    return Traits(
        of_methods,
        of_orders,
        {name: MergeTraits(kind.title, kind.is_by_rank, kind.glossary) for name, kind in of_merges.items()},
    )


def weighting(comparison: Comparison) -> dict[str, Any]:
    """The fact that queries have unequal weights, for manifests."""
    weights = comparison.truth.weights
    if weights is None or relative_weights(weights) is None:
        return {}
    return {"queries_weighted_by": comparison.truth_facts.get("truth", {}).get("weighted_by", "weight")}


def versions() -> dict[str, str]:
    """The versions of packages that affect the numbers, of those that are installed."""
    installed = {"ray_backfill": __version__}
    for name in ("ray", "torch", "numpy", "pyarrow"):
        with suppress(PackageNotFoundError):  # formulas need neither Ray nor torch
            installed[name] = version(name)
    return installed


def now() -> str:
    """The time in UTC to the second, for manifests."""
    return datetime.now(UTC).isoformat(timespec="seconds")
