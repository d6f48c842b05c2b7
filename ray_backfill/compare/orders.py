"""The backfill orders of a comparison: most depend on the gallery only, some on the method, one on traffic.

Shapes: L queries of the log, N gallery items.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ray_backfill.compare.evaluation import Named
from ray_backfill.compare.fitted import (
    FittedMaps,
    class_means,
    mapped_confidence,
    mapped_cosine,
    mapped_gallery,
    new_classifier,
)
from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import step
from ray_backfill.core.runkey import RunKey
from ray_backfill.core.schema import open_checked, read_checked
from ray_backfill.core.stages import is_whole
from ray_backfill.data.folder import Classifier, EmbeddingFolder, EmbeddingTable
from ray_backfill.data.truth import filter_of
from ray_backfill.data.write import write_parquet
from ray_backfill.engine.distances import ProductForm
from ray_backfill.engine.index import IndexSettings, make_partition
from ray_backfill.engine.orders import GalleryColumns, Order, make_order
from ray_backfill.engine.systems import IntArray, RetrievalSystem, UpgradePair
from ray_backfill.learn.expressions import Evaluator
from ray_backfill.learn.methods import Embeddings, Method
from ray_backfill.learn.models.apply import named_map
from ray_backfill.learn.training.settings import ClassificationSettings

# Name in the metadata of sigma.parquet.
_KEY = b"ray_backfill.key"
# Column that an order needs from a method -> whether a method has it.
_CAN_GIVE: Mapping[str, Callable[[Method], bool]] = {
    "sigma": lambda method: method.has_sigma,
    "true_loss": lambda method: method.aligned,
    "mapped_cosine": lambda method: method.aligned,
    # The classifier reads embeddings of the new model only.
    "mapped_confidence": lambda method: method.aligned and method.forward.plain == "new",
}
# Results of a query that a user sees.
SEEN = 10


def embeddings_of(folder: EmbeddingFolder) -> Embeddings:
    """The embeddings from which methods make their pairs of systems."""
    return Embeddings((folder.queries or folder.gallery).vectors, folder.gallery.vectors)


def store_sigma(folder: EmbeddingFolder, method: Method, maps: FittedMaps) -> Path:
    """Write ``sigma.parquet`` (id, sigma) of the gallery next to a network with uncertainty, if it is missing."""
    path = maps.folders[method.name] / "sigma.parquet"
    key = RunKey("sigma", {}, {"gallery": folder.fingerprint(method.models, ("gallery",))}).fingerprint().encode()
    if not is_whole(path) or (open_checked(path).schema_arrow.metadata or {}).get(_KEY) != key:
        from ray_backfill.learn.papers.fastfill import log_variances

        gallery, network = folder.gallery, maps.of(method)
        h_Nd = Evaluator(gallery.vectors, network, {})(method.backward.gallery)
        log_variance_N = log_variances(h_Nd, named_map(network, "h"))
        table = pa.table({"id": gallery.id, "sigma": np.exp(0.5 * log_variance_N)})
        write_parquet(path, table.replace_schema_metadata({_KEY: key}))
    return path


@dataclass(frozen=True)
class BackfillOrders:
    """The backfill orders of a gallery; some depend on the method. named: the orders, and all methods that take part.

    classification: the new model's loss, for orders by its classifier. of_gallery: order name -> (N,) order, for orders
    that are the same for every method.
    """

    folder: EmbeddingFolder
    named: Named
    classification: ClassificationSettings
    gallery: GalleryColumns
    of_gallery: Mapping[str, IntArray]
    _carried: dict[tuple[str, str], IntArray] = field(default_factory=dict, repr=False, compare=False)
    """(order, method) -> order; several methods share the order of one."""

    def of(self, method: Method, maps: FittedMaps, pair: UpgradePair | None = None) -> dict[str, IntArray]:
        """Order name -> (N,) order for this method. pair: the method's systems, if they are already made."""
        orders = {}
        for order in self.named.orders:
            carrier = self._carrier(order, method) if order.of_method else None
            if not order.of_method:
                orders[order.name] = self.of_gallery[order.name]
            elif carrier is None:
                orders[order.name] = self._made(order)
            else:
                key = order.name, carrier.name
                if key not in self._carried:
                    given = self._given_by(carrier, order.needs[0], maps, pair if carrier is method else None)
                    self._carried[key] = self._made(order, {order.needs[0]: given})
                orders[order.name] = self._carried[key]
        return orders

    def scores(self, order: Order, method: Method, maps: FittedMaps, pair: UpgradePair) -> NDArray[np.float64]:
        """(N,) what the items are sorted by for this method, the lowest first. pair: the method's systems."""
        columns, carrier = dict(self.gallery.columns), self._carrier(order, method) if order.of_method else None
        if carrier is not None:
            columns[order.needs[0]] = self._given_by(carrier, order.needs[0], maps, pair if carrier is method else None)
        scores = order.score(replace(self.gallery, columns=columns), self.named.evaluation.order_seed)
        return np.asarray(scores, np.float64)

    def check(self) -> None:
        """Raises InputError for an order that depends on methods, if no method provides what it needs."""
        for order in self.named.orders:
            if order.of_method and self._carrier(order, self.named.methods[0]) is None:
                self._made(order)  # raises an error that says what is missing

    def _carrier(self, order: Order, method: Method) -> Method | None:
        """The method whose uncertainty or predicted embeddings make this order; None: a column of the gallery."""
        (column,) = order.needs
        train = self.folder.train
        has_labels = train is not None and train.label is not None
        has_classes = has_labels or self.folder.classifier is not None
        able = {m.name: m for m in self.named.methods if _CAN_GIVE[column](m)}
        if not {"mapped_cosine": has_labels, "mapped_confidence": has_classes}.get(column, True):
            able = {}
        if method.name in able:
            return method
        if column in self.gallery.columns:
            return None
        # For methods that have none: that of the first of these that takes part, otherwise of any method.
        return next((able[name] for name in ("fastfill", "fct", *able) if name in able), None)

    def _given_by(
        self, carrier: Method, column: str, maps: FittedMaps, pair: UpgradePair | None
    ) -> NDArray[np.floating]:
        """(N,) what a method gives as this column. pair: its systems, if they are already made."""
        if column == "sigma":
            return read_sigma(maps.folders[carrier.name] / "sigma.parquet", self.folder.gallery)
        if column == "true_loss":
            pair = pair or carrier.pair(embeddings_of(self.folder), maps.of(carrier))
            both = RetrievalSystem(pair.backward.gallery, pair.forward.gallery)
            items = np.arange(pair.n_gallery)
            return ProductForm.of(both, self.named.evaluation.distance).exact(items, items)
        mapped = pair.backward.gallery if pair else mapped_gallery(self.folder, carrier, maps)
        if column == "mapped_cosine":
            return mapped_cosine(mapped, self.folder, carrier, maps)
        return mapped_confidence(mapped, self._classifier, self.classification.cosine_scale)

    def _made(self, order: Order, more: Mapping[str, NDArray[Any]] | None = None) -> IntArray:
        columns = {**self.gallery.columns, **(more or {})}
        return make_order(order.name, replace(self.gallery, columns=columns), self.named.evaluation.order_seed)

    @cached_property
    def _classifier(self) -> Classifier:
        return new_classifier(self.folder, self.classification)


def resolve_orders(folder: EmbeddingFolder, named: Named, classification: ClassificationSettings) -> BackfillOrders:
    """Make the orders of the gallery, and check that those of methods can be made.

    named: the methods that take part, and the orders. classification: the new model's loss.

    Raises:
        InputError: An order lacks a column, or no method provides what it needs.
    """
    how, orders, seed = named.evaluation, named.orders, named.evaluation.order_seed
    needed = dict.fromkeys(column for order in orders for column in order.needs)
    changes = named.service.changes_of(folder.gallery) if named.service else None
    there = {} if changes is None else {"changed_at": changes.changed_at}  # dates have become progress
    there |= {n: values for n in needed if n not in there and (values := _column(folder, n)) is not None}
    if "first_retrieved" in needed:
        places = first_retrieved(folder, how.distance, seed, how.filter)
        there |= {} if places is None else {"first_retrieved": places}
    columns = GalleryColumns(folder.gallery.old, there)
    of_gallery = {order.name: make_order(order.name, columns, seed) for order in orders if not order.of_method}
    backfill_orders = BackfillOrders(folder, named, classification, columns, of_gallery)
    backfill_orders.check()
    return backfill_orders


def _column(folder: EmbeddingFolder, name: str) -> NDArray[Any] | None:
    """The column of this name for orders; None if the folder lacks it."""
    if name in ("label", "old_class"):
        classes = folder.gallery.label if name == "label" else folder.gallery.old_class
        return None if classes is None else np.unique(classes, return_inverse=True)[1]
    if name == "class_means":
        train = folder.train
        return None if train is None or train.label is None else class_means(train.old, train.label)
    # Users can provide the uncertainty, but not the true loss or what else depends on a method.
    return folder.gallery.numbers.get(name) if name in _CAN_GIVE else folder.gallery.find_numbers(name)


def why_not_of_images(order: Order, methods: Sequence[Method]) -> str:
    """The reason why an order cannot be made for a recipe with these methods, or ""."""
    if order.of_method:
        able = any(_CAN_GIVE[column](method) for column in order.needs for method in methods)
        return "" if able else "needs a method that provides it; add fastfill to --methods"
    # Columns that are there if images were embedded, see ``recipes.run.embed``.
    of_images = {"label", "old_score", "old_entropy", "old_margin", "old_class", "class_means"}
    if order.needs and not of_images.intersection(order.needs):
        return f"needs a column {order.needs[0]!r}, which images do not have"
    return ""


def read_sigma(path: Path, gallery: EmbeddingTable) -> NDArray[np.float64]:
    """(N,) sigma as written by ``store_sigma``. Raises InputError if it belongs to another gallery."""
    table = read_checked(path)
    if not np.array_equal(np.asarray(table["id"]), gallery.id):
        raise InputError(f"{path} belongs to another gallery; delete it and run again")
    return table["sigma"].to_numpy()


def first_retrieved(
    folder: EmbeddingFolder, distance: str, seed: int, filter_column: str = ""
) -> NDArray[np.float64] | None:
    """(N,) place of each item in the order in which traffic retrieves items for the first time.

    Traffic: queries of ``log.parquet`` (``old`` embeddings, and ``weight`` if some are asked more often), drawn with
    replacement; each sees the first 10 results of the old service. Items that nobody sees come last, in random order.
    None: there is no log. filter_column: of log and gallery; a query finds only items with its own value.

    Cost: a search of the old gallery.

    Raises:
        InputError: The log cannot be read or lacks the filter column, or its embeddings are of another model.
    """
    log, gallery = folder.log, folder.gallery
    if log is None:
        return None
    if log.old.shape[1] != gallery.old.shape[1]:
        raise InputError(
            f"column 'old' has {log.old.shape[1]} dimensions in {log.path} and {gallery.old.shape[1]} in "
            f"{gallery.path}; use embeddings of one model"
        )
    rng = np.random.default_rng(seed)
    shares = np.ones(len(log)) if log.weight is None else log.weight
    # After 20 draws for each of its queries, what is seen at all has nearly always been seen.
    asked = rng.choice(len(log), 20 * len(log), p=shares / shares.sum())
    _, first = np.unique(asked, return_index=True)
    sequence = asked[np.sort(first)]  # only the first time that a query is asked can retrieve anything new
    # Queries of the log, and the items that they can find.
    parts = [(np.arange(len(log)), np.arange(len(gallery)))]
    if filter_column:
        parts = filter_of(gallery, log, filter_column).parts()
    results = np.full((len(log), SEEN), -1)  # -1 where a query can find fewer items
    with step("find what traffic retrieves", len(log), "queries") as bar:
        for queries, items in parts:
            partition = make_partition(IndexSettings(), distance, gallery.old.shape[1], None)
            partition = partition.with_rows(gallery.old[items], np.arange(len(items)))
            k = min(SEEN, len(items))
            for start in range(0, len(queries), 512):
                some = queries[start : start + 512]
                results[some, :k] = items[partition.search(log.old[some], k).item]
                bar.advance(len(some))
    seen = results[sequence].reshape(-1)
    items, first = np.unique(seen[seen >= 0], return_index=True)
    place = len(seen) + rng.permutation(len(gallery)).astype(np.float64)
    place[items] = first
    return place
