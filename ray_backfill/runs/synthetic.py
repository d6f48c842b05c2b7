"""Embeddings of an invented gallery of any size: drawn from a model with known distances, written as a folder.

Nothing is learnt and nothing is seen: such a folder proves scale and arithmetic, not which method is better on images.

In model m item i of class c has the latent vector z = centre_cm + t_i sqrt(within_m) view_im. Centres and views are
normal with mean 0 and variance 1 in each dimension, and each is a sum of what both models make of it (share
1 - own_m of the variance) and of what only this one does; the centres of a group of classes have ``group_share`` of
their variance in common; t_i, how far the item is from typical, is log-normal with mean square 1. The embedding is
sqrt(offset_m) u_m + A_m (sqrt(weight_m) * z) + sqrt(noise_m / d) e, with e normal and [u_m, A_m] orthonormal columns;
the weights of the ``seen`` first latent dimensions, all that the model sees, have sum 1. So the expected inner product
of two items is offset + 1 in one class, offset + group_share in one group and offset otherwise, and the expected
squared length is offset + 1 + within + noise.

Shapes: N items, n of a part, d dimensions, K latent dimensions, s those that a model sees, C classes, L known classes.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ray_backfill.errors import InputError
from ray_backfill.files import begin_stage, finish_stage, remove_halves
from ray_backfill.progress import stage
from ray_backfill.store import SPLITS, vector_column, write_parquet

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

# Of the folder that is written.
STAGE = "synthetic embeddings"
MODELS = ("old", "new")
# Ids of a split start at its position in SPLITS times this, so that no two splits share an id.
_SPLIT_STRIDE = 1 << 40
# Streams of random numbers beside those of the splits' parts.
_LABELS, _CENTRES, _GROUPS, _KNOWN, _QUERIES, _AXES = range(100, 106)
# Items that the classifier takes at a time: their logits stay in the caches.
_ROWS = 512


@dataclass(frozen=True)
class ModelView:
    """What a model makes of an item; variances in units of that of the class centres."""

    seen: int
    """Latent dimensions that it sees: the first ones."""
    within: float
    """Variance of the items of a class."""
    own: float
    """Share of both variances that is this model's own: the other model has none of it."""
    offset: float
    """Squared length of what all its embeddings have in common."""
    noise: float = 0.03
    """Variance of noise in all dimensions."""
    fall: float = 0.0
    """How unequal the dimensions are: their variances fall as rank ** -fall."""

    def weights(self) -> NDArray[np.float64]:
        """(s,) share of the variance along each seen dimension; sum 1."""
        weight_s = np.arange(1, self.seen + 1, dtype=np.float64) ** -self.fall
        return weight_s / weight_s.sum()


@dataclass(frozen=True)
class SyntheticGallery:
    """What to draw; by default at the size of Google Landmarks v2. How the figures were set: docs/results/scale.md."""

    items: int = 761_757
    """Items of the gallery."""
    queries: int = 1_129
    """Queries; each shows the class of a random item."""
    classes: int = 81_313
    """Classes of the gallery."""
    zipf: float = 0.6
    """Sizes of classes fall as rank ** -zipf, above the one item that each has."""
    known_classes: int = 2_000
    """Classes that the old model knows: its classifier tells them apart, and the train split shows them."""
    train_items: int = 50_000
    """Items of the train split."""
    groups: int = 8_131
    """Groups of classes that look alike."""
    group_share: float = 0.5
    """Share of the class centres' variance that a group has in common."""
    dims: int = 128
    """Dimensions of both models' embeddings."""
    spread: float = 0.3
    """Spread (of the logarithm) of the distances of a class's items from its centre."""
    old: ModelView = field(default_factory=lambda: ModelView(seen=20, within=0.66, own=0.12, offset=0.19, fall=0.8))
    """The old model."""
    new: ModelView = field(default_factory=lambda: ModelView(seen=20, within=0.42, own=0.07, offset=0.045))
    """The new model."""
    classifier_scale: float = 16.0
    """What the old classifier multiplies cosines by."""
    seed: int = 0
    """Random seed for everything that is drawn."""
    part_rows: int = 65_536
    """Items of a part: what is drawn at a time, and what is kept when a run is stopped."""

    def __post_init__(self) -> None:
        for name in ("items", "queries", "classes", "train_items", "known_classes", "groups", "part_rows"):
            if getattr(self, name) < 1:
                raise InputError(f"--gallery.{name.replace('_', '-')} must be at least 1, got {getattr(self, name)}")
        if self.classes > self.items:
            few = f"{self.classes:,} classes need as many items, got --gallery.items {self.items:,}"
            raise InputError(f"{few}; lower --gallery.classes")
        if self.known_classes > self.classes:
            few = f"the old model cannot know {self.known_classes:,} of {self.classes:,} classes"
            raise InputError(f"{few}; lower --gallery.known-classes")
        if not 0 <= self.zipf <= 3 or not 0 <= self.group_share <= 1 or not 0 <= self.spread <= 2 or self.seed < 0:
            limits = "zipf must be in [0, 3], group-share in [0, 1], spread in [0, 2], seed not negative"
            raise InputError(f"--gallery: {limits}")
        for model in MODELS:
            view = self.view(model)
            if not 1 <= view.seen < self.dims:
                raise InputError(f"--gallery.{model}.seen must be at least 1 and below {self.dims} dimensions")
            if min(view.within, view.offset, view.noise) < 0 or not 0 <= view.own <= 1:
                raise InputError(f"--gallery.{model}: variances must not be negative, and own be a share")

    def view(self, model: str) -> ModelView:
        """Of old or new."""
        return {"old": self.old, "new": self.new}[model]

    @property
    def latent(self) -> int:
        """K."""
        return max(self.old.seen, self.new.seen)


def draw_gallery(settings: SyntheticGallery, folder: Path) -> Path:
    """Write gallery, queries and train split as a folder of the data contract, vectors in float16; returns ``folder``.

    The same settings give the same bytes on the same machine. A finished folder is kept, a half-done one continued.

    Raises:
        InputError: the folder is of other settings, or the disk is full.
    Cost: of an item 2 s d + L (d + 3) multiply-adds; memory of one part, 16 bytes an item and 16 K a class.
    """
    if begin_stage(folder, STAGE, asdict(settings)):
        return folder
    drawing = Drawing(settings)
    total = settings.items + settings.queries + settings.train_items
    with stage("draw", total, "items") as bar:
        for split in ("queries", "train", "gallery"):
            for part, first, last in drawing.parts(split):
                path = folder / f"{split}.parquet" / f"part-{part:05d}.parquet"
                if not path.exists():
                    write_parquet(path, drawing.table(split, part))
                bar.advance(last - first)
    remove_halves(folder)
    finish_stage(folder)
    return folder


class Drawing:
    """A gallery as it is drawn: labels and class centres at once, items part by part."""

    def __init__(self, settings: SyntheticGallery) -> None:
        s = self.settings = settings
        # (L,) ascending: labels that the old model knows, any with the same chance.
        self.known_L = np.sort(self._rng(_KNOWN).choice(s.classes, s.known_classes, replace=False))
        # Label 0 is the largest class. In the train split known classes have the same number of items, but for one.
        sizes = class_sizes(s.items, s.classes, s.zipf)
        gallery = self._rng(_LABELS).permutation(np.repeat(np.arange(s.classes), sizes))
        queries = self._rng(_QUERIES)
        self.labels = {
            "gallery": gallery,
            "queries": gallery[queries.integers(0, s.items, s.queries)],
            "train": self.known_L[queries.permutation(np.arange(s.train_items) % s.known_classes)],
        }
        # By model (C, s).
        self.centres = self._centres()
        # By model (1 + s, d): sqrt(offset) u, then the axes that the seen dimensions are laid along.
        self.axes = {model: self._axes(model) for model in MODELS}
        # (L, d) the old model's mean embedding of each known class, scaled to length 1.
        self.known_mean_Ld = _unit(self.embed("old", self.centres["old"][self.known_L]))

    def _centres(self) -> dict[str, Floats]:
        """Class c belongs to group c % groups, so that groups have large and small classes."""
        s = self.settings
        groups, classes = self._rng(_GROUPS), self._rng(_CENTRES)

        def draw(dimensions: int) -> Floats:
            of_group = _normal(groups, s.groups, dimensions) * np.float32(np.sqrt(s.group_share))
            centre = _normal(classes, s.classes, dimensions) * np.float32(np.sqrt(1 - s.group_share))
            for first in range(0, s.classes, s.groups):
                rows = centre[first : first + s.groups]
                rows += of_group[: len(rows)]
            return centre

        shared_CK = draw(s.latent)
        return {model: _mixed(shared_CK, draw(s.view(model).seen), s.view(model).own) for model in MODELS}

    def _axes(self, model: str) -> Floats:
        view = self.settings.view(model)
        rng = self._rng(_AXES, MODELS.index(model))
        directions, _ = np.linalg.qr(rng.standard_normal((self.settings.dims, 1 + view.seen)))
        lengths = np.sqrt([view.offset, *view.weights()])
        return np.ascontiguousarray((directions * lengths).T, np.float32)

    def embed(self, model: str, latent_ns: Floats) -> Floats:
        """(n, d) of what the model sees of latent vectors, without noise."""
        axes = self.axes[model]
        embedded: Floats = latent_ns @ axes[1:] + axes[0]
        return embedded

    def parts(self, split: str) -> Iterator[tuple[int, int, int]]:
        """(number, first row, one past the last row) of each part."""
        n, step = len(self.labels[split]), self.settings.part_rows
        return ((part, first, min(n, first + step)) for part, first in enumerate(range(0, n, step)))

    def table(self, split: str, part: int) -> pa.Table:
        """The rows of one part, as they are stored: from its own random numbers, whatever was drawn before."""
        first = part * self.settings.part_rows
        label_n = self.labels[split][first : first + self.settings.part_rows]
        vectors = self.vectors(split, part, label_n)
        columns: dict[str, NDArray[np.generic]] = {
            "id": np.arange(first, first + len(label_n)) + SPLITS.index(split) * _SPLIT_STRIDE,
            "label": label_n,
        }
        if split == "gallery":
            columns |= self.classify(vectors["old"])
        return pa.table(columns | {model: vector_column(v) for model, v in vectors.items()})

    def vectors(self, split: str, part: int, label_n: Ints) -> dict[str, NDArray[np.float16]]:
        """By model (n, d)."""
        s = self.settings
        rng, n = self._rng(SPLITS.index(split), part), len(label_n)
        distance_n1 = np.exp(np.float32(s.spread) * _normal(rng, n, 1) - np.float32(s.spread**2))
        shared_nK = _normal(rng, n, s.latent)
        found = {}
        for model in MODELS:
            view = s.view(model)
            latent_ns = _mixed(shared_nK, _normal(rng, n, view.seen), view.own)
            latent_ns *= np.float32(np.sqrt(view.within)) * distance_n1
            latent_ns += self.centres[model][label_n]
            x_nd = self.embed(model, latent_ns)
            x_nd += np.float32(np.sqrt(view.noise / s.dims)) * _normal(rng, n, s.dims)
            found[model] = x_nd.astype(np.float16)
        return found

    def classify(self, old_nd: NDArray[np.float16]) -> dict[str, NDArray[np.generic]]:
        """The columns of the old classifier: softmax of ``classifier_scale`` cosines with the known classes' means.

        Cost: n L (d + 3) multiply-adds.
        """
        n = len(old_nd)
        score, entropy, margin = (np.empty(n, np.float32) for _ in range(3))
        best = np.empty(n, np.int64)
        rows = np.arange(_ROWS)
        for first in range(0, n, _ROWS):
            part = slice(first, min(n, first + _ROWS))
            logit = _unit(old_nd[part].astype(np.float32)) @ self.known_mean_Ld.T
            best[part] = logit.argmax(axis=1)
            at = rows[: len(logit)], best[part]
            top = logit[at]
            logit -= top[:, None]
            logit *= np.float32(self.settings.classifier_scale)
            chance = np.exp(logit)
            total = chance.sum(axis=1)
            # -sum p log p, where log p = logit - log total
            entropy[part] = np.log(total) - np.einsum("nl,nl->n", chance, logit) / total
            chance[at] = 0
            score[part] = 1 / total
            margin[part] = (1 - chance.max(axis=1)) / total
        return {"old_score": score, "old_entropy": entropy, "old_margin": margin, "old_class": self.known_L[best]}

    def _rng(self, *stream: int) -> np.random.Generator:
        return np.random.default_rng([self.settings.seed, *stream])


def class_sizes(items: int, classes: int, zipf: float) -> Ints:
    """(C,) largest first, with sum ``items``: one item each, the rest as rank ** -zipf, by largest remainders."""
    weight_C = np.arange(1, classes + 1, dtype=np.float64) ** -zipf
    exact_C = (items - classes) * weight_C / weight_C.sum()
    sizes_C = np.floor(exact_C).astype(np.int64)
    more = np.argsort(sizes_C - exact_C, kind="stable")[: items - classes - int(sizes_C.sum())]
    sizes_C[more] += 1
    return 1 + sizes_C


def _normal(rng: np.random.Generator, rows: int, columns: int) -> Floats:
    return rng.standard_normal((rows, columns), np.float32)


def _mixed(shared_nK: Floats, own_ns: Floats, own: float) -> Floats:
    """(n, s) of the same variance; ``own_ns`` is used up."""
    own_ns *= np.float32(np.sqrt(own))
    own_ns += np.float32(np.sqrt(1 - own)) * shared_nK[:, : own_ns.shape[1]]
    return own_ns


def _unit(vectors_nd: Floats) -> Floats:
    return vectors_nd / np.linalg.norm(vectors_nd, axis=1, keepdims=True)
