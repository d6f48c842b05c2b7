"""The backfill orders of a comparison: most belong to the gallery, some to each method."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ray_backfill.comparison.maps import FittedMaps
from ray_backfill.distances import ProductForm
from ray_backfill.errors import InputError
from ray_backfill.methods import Embeddings, Method
from ray_backfill.methods.fastfill import TransformSettings, item_losses, log_variances, pseudo_classifier
from ray_backfill.orders import ORDERS, GalleryColumns, make_order
from ray_backfill.store import Classifier, EmbeddingFolder, EmbeddingTable, write_parquet
from ray_backfill.systems import IntArray, RetrievalSystem, UpgradePair

# In the metadata of sigma.parquet: the fingerprint of its gallery.
_GALLERY = b"gallery"
# Whose uncertainty and whose stand-ins order the gallery for methods that have none of their own: the first of these
# that takes part, else any method that has them.
_CARRIERS = ("fastfill", "fct")


def embeddings_of(folder: EmbeddingFolder) -> Embeddings:
    """What methods make their pairs of."""
    return Embeddings((folder.queries or folder.gallery).vectors, folder.gallery.vectors)


def store_sigma(folder: EmbeddingFolder, method: Method, maps: FittedMaps) -> Path:
    """Write ``sigma.parquet`` (id, sigma) of the gallery beside a network with uncertainty, if it is not there."""
    path = maps.folders[method.name] / "sigma.parquet"
    of_gallery = folder.fingerprint(method.models, ("gallery",)).encode()
    if not path.exists() or (pq.read_schema(path).metadata or {}).get(_GALLERY) != of_gallery:
        gallery = folder.gallery
        log_variance_N = log_variances(method, Embeddings({}, gallery.vectors), maps.of(method))
        table = pa.table({"id": gallery.id, "sigma": np.exp(0.5 * log_variance_N)})
        write_parquet(path, table.replace_schema_metadata({_GALLERY: of_gallery}))
    return path


@dataclass(frozen=True)
class BackfillOrders:
    """The named orders over a gallery; some depend on the method. methods: all that take part.

    of_gallery: the orders that are the same for every method, (N,) each.
    """

    folder: EmbeddingFolder
    names: tuple[str, ...]
    seed: int
    distance: str
    methods: tuple[Method, ...]
    columns: GalleryColumns
    of_gallery: Mapping[str, IntArray]
    # By order and method: several methods share the order of one.
    _carried: dict[tuple[str, str], IntArray] = field(default_factory=dict, repr=False, compare=False)

    def of(self, method: Method, maps: FittedMaps, pair: UpgradePair | None = None) -> dict[str, IntArray]:
        """Each order for this method. pair: the method's pair of systems, where it is at hand."""
        return {
            name: self._of_method(name, method, maps, pair) if ORDERS[name].of_method else self.of_gallery[name]
            for name in self.names
        }

    def check(self) -> None:
        """Raises InputError for an order of a method that nothing here can give."""
        for name in self.names:
            if ORDERS[name].of_method and self._carrier(name, self.methods[0]) is None and self._column(name) is None:
                make_order(name, self.columns, self.seed)  # says what is missing

    def _column(self, name: str) -> NDArray[np.float64] | None:
        return self.folder.gallery.sigma if name == "sigma" else None

    def _carrier(self, name: str, method: Method) -> Method | None:
        """Whose uncertainty or stand-ins this order of this method takes."""
        able = {m.name: m for m in self.methods if (m.has_sigma if name == "sigma" else m.aligned)}
        if method.name in able:
            return method
        if self._column(name) is not None:
            return None
        return next((able[c] for c in _CARRIERS if c in able), next(iter(able.values()), None))

    def _of_method(self, name: str, method: Method, maps: FittedMaps, pair: UpgradePair | None) -> IntArray:
        carrier = self._carrier(name, method)
        if carrier is None:
            return make_order(name, self.columns, self.seed)
        if (name, carrier.name) not in self._carried:
            own = pair if carrier is method else None
            self._carried[name, carrier.name] = self._of_carrier(name, carrier, maps, own)
        return self._carried[name, carrier.name]

    def _of_carrier(self, name: str, carrier: Method, maps: FittedMaps, pair: UpgradePair | None) -> IntArray:
        if name == "sigma":
            sigma = read_sigma(maps.folders[carrier.name] / "sigma.parquet", self.folder.gallery)
            return make_order(name, replace(self.columns, sigma=sigma), self.seed)
        if pair is None:
            pair = carrier.pair(embeddings_of(self.folder), maps.of(carrier))
        form = ProductForm.of(RetrievalSystem(pair.backward.gallery, pair.forward.gallery), self.distance)
        items = np.arange(pair.n_gallery)
        return make_order(name, replace(self.columns, true_loss=form.exact(items, items)), self.seed)


def resolve_orders(
    folder: EmbeddingFolder, names: Sequence[str], seed: int, distance: str, methods: Sequence[Method]
) -> BackfillOrders:
    """Make the orders of the gallery, and check that those of methods can be made.

    Raises:
        InputError: an order lacks a column, or no method gives what it needs.
    """
    columns = _columns(folder, names)
    of_gallery = {name: make_order(name, columns, seed) for name in names if not ORDERS[name].of_method}
    orders = BackfillOrders(folder, tuple(names), seed, distance, tuple(methods), columns, of_gallery)
    orders.check()
    return orders


def _columns(folder: EmbeddingFolder, names: Sequence[str]) -> GalleryColumns:
    gallery = folder.gallery
    label, old_class = (
        None if column is None else np.unique(column, return_inverse=True)[1]
        for column in (gallery.label, gallery.old_class)
    )
    return GalleryColumns(
        gallery.old, label, gallery.old_score, gallery.old_entropy, gallery.old_margin, old_class,
        class_means=_class_means(folder.train) if "class_mean_distance" in names else None,
        sigma=gallery.sigma, popularity=gallery.popularity, order_score=gallery.order_score,
    )  # fmt: skip


def true_losses(
    table: EmbeddingTable, classifier: Classifier | None, network: Any, settings: TransformSettings
) -> NDArray[np.float64]:
    """(N,) FastFill's loss of each item, l2 + lambda disc, which sigma should foretell.

    Without a classifier its stand-in over these very items takes its place.
    """
    assert table.label is not None
    known = pseudo_classifier(table.new, table.label) if classifier is None else classifier
    return item_losses(network, known, table.old, table.new, table.label, settings)


def read_sigma(path: Path, gallery: EmbeddingTable) -> NDArray[np.float64]:
    """(N,) what ``store_sigma`` wrote. Raises InputError if it is of another gallery."""
    table = pq.read_table(path)
    if not np.array_equal(np.asarray(table["id"]), gallery.id):
        raise InputError(f"{path} is of another gallery; delete it and run again")
    return table["sigma"].to_numpy()


def _class_means(train: EmbeddingTable | None) -> NDArray[np.float64] | None:
    if train is None or train.label is None:
        return None
    names, class_of_item = np.unique(train.label, return_inverse=True)
    means = np.zeros((len(names), train.old.shape[1]))
    np.add.at(means, class_of_item, train.old.astype(np.float64))
    return means / np.bincount(class_of_item)[:, None]
