"""The backfill orders of a simulation: most belong to the gallery, some to each method."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ray_backfill.distances import ProductForm
from ray_backfill.errors import InputError
from ray_backfill.methods import Embeddings, Method
from ray_backfill.methods.fastfill import TransformSettings, item_losses, log_variances, pseudo_classifier
from ray_backfill.models.checkpoints import load_network
from ray_backfill.orders import ORDERS, GalleryColumns, make_order
from ray_backfill.store import Classifier, EmbeddingFolder, EmbeddingTable, write_parquet
from ray_backfill.systems import IntArray, RetrievalSystem, UpgradePair

# Whose uncertainty and whose stand-ins order the gallery for methods that have none of their own: the first that is
# among the methods, else any.
# In the metadata of sigma.parquet: of which gallery it is.
_GALLERY = b"gallery"
_CARRIERS = ("fastfill", "fct")


def embeddings_of(folder: EmbeddingFolder) -> Embeddings:
    """What methods make their pairs of."""
    return Embeddings((folder.queries or folder.gallery).vectors, folder.gallery.vectors)


def load_fitted(networks: Mapping[str, Path], method: Method) -> object | None:
    """The method's fitted network; None where it needs none."""
    return load_network(networks[method.name]) if method.fit else None


def store_sigma(folder: EmbeddingFolder, method: Method, network_folder: Path) -> Path:
    """Write ``sigma.parquet`` (id, sigma) of the gallery beside a network with uncertainty, if it is not there."""
    path = network_folder / "sigma.parquet"
    of_gallery = folder.fingerprint(method.models, ("gallery",)).encode()
    if not path.exists() or (pq.read_schema(path).metadata or {}).get(_GALLERY) != of_gallery:
        gallery = folder.gallery
        log_variance_N = log_variances(method, Embeddings({}, gallery.vectors), load_network(network_folder))
        table = pa.table({"id": gallery.id, "sigma": np.exp(0.5 * log_variance_N)})
        write_parquet(path, table.replace_schema_metadata({_GALLERY: of_gallery}))
    return path


class BackfillOrders:
    """The named orders over a gallery, for each method.

    methods: all that take part. networks: method -> folder of its fitted network, as far as they are fitted.
    """

    def __init__(
        self,
        folder: EmbeddingFolder,
        names: Sequence[str],
        seed: int,
        distance: str,
        methods: Sequence[Method],
        networks: Mapping[str, Path],
    ) -> None:
        self.folder, self.names, self.seed, self.distance = folder, names, seed, distance
        self.methods, self.networks = methods, networks
        # Of carriers: by order and method. Several methods share them.
        self._carried: dict[tuple[str, str], IntArray] = {}

    def check(self) -> None:
        """Raises InputError for an order that cannot be made. Makes those of the gallery."""
        assert self.of_gallery is not None
        for name in self.names:
            if ORDERS[name].of_method and self._carrier(name, self.methods[0]) is None and self._column(name) is None:
                make_order(name, self._columns, self.seed)  # says what is missing

    def of(self, method: Method, pair: UpgradePair | None = None) -> dict[str, IntArray]:
        """Each order for this method. pair: of the method, where it is at hand."""
        return {
            name: self._of_method(name, method, pair) if ORDERS[name].of_method else self.of_gallery[name]
            for name in self.names
        }

    @cached_property
    def of_gallery(self) -> dict[str, IntArray]:
        """Orders that do not depend on the method."""
        return {name: make_order(name, self._columns, self.seed) for name in self.names if not ORDERS[name].of_method}

    @cached_property
    def _columns(self) -> GalleryColumns:
        gallery = self.folder.gallery
        label, old_class = (
            None if column is None else np.unique(column, return_inverse=True)[1]
            for column in (gallery.label, gallery.old_class)
        )
        return GalleryColumns(
            gallery.old, label, gallery.old_score, gallery.old_entropy, gallery.old_margin, old_class,
            class_means=_class_means(self.folder.train) if "class_mean_distance" in self.names else None,
            sigma=gallery.sigma, popularity=gallery.popularity, order_score=gallery.order_score,
        )  # fmt: skip

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

    def _of_method(self, name: str, method: Method, pair: UpgradePair | None) -> IntArray:
        carrier = self._carrier(name, method)
        if carrier is None:
            return make_order(name, self._columns, self.seed)
        if (name, carrier.name) not in self._carried:
            self._carried[name, carrier.name] = self._of_carrier(name, carrier, pair if carrier is method else None)
        return self._carried[name, carrier.name]

    def _of_carrier(self, name: str, carrier: Method, pair: UpgradePair | None) -> IntArray:
        if name == "sigma":
            sigma = read_sigma(self.networks[carrier.name] / "sigma.parquet", self.folder.gallery)
            return make_order(name, replace(self._columns, sigma=sigma), self.seed)
        if pair is None:
            pair = carrier.pair(embeddings_of(self.folder), load_fitted(self.networks, carrier))
        form = ProductForm.of(RetrievalSystem(pair.backward.gallery, pair.forward.gallery), self.distance)
        items = np.arange(pair.n_gallery)
        return make_order(name, replace(self._columns, true_loss=form.exact(items, items)), self.seed)


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
