"""Synthetic embeddings of a gallery of any size, drawn from a distribution with known distances and stored in a folder.

No model is trained and there are no images: such a folder tests scale and arithmetic, not which method is better.

In model m, item i of class c has the latent vector z = centre_cm + t_i sqrt(within_m) view_im. Centres and views are
normal with mean 0 and variance 1 in each dimension. Each is a sum of a part that both models share (1 - own_m of the
variance) and of a part of this model's own; the centres of a group of classes share ``group_share`` of their variance.
t_i, the distance of the item from a typical one, is log-normal with mean square 1. The embedding is
sqrt(offset_m) u_m + A_m (sqrt(weight_m) * z) + sqrt(noise_m / d) e, with e normal and [u_m, A_m] orthonormal columns;
the weights of the ``seen`` first latent dimensions, all that the model sees, have sum 1. So the expected inner product
of two items is offset + 1 in one class, offset + group_share in one group and offset otherwise, and the expected
squared length is offset + 1 + within + noise.

Shapes: N items, n items of a part, d dimensions, K latent dimensions, s of them seen by a model, C classes, L classes
known to the old model.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ray_backfill.compare.evaluation import Evaluation, check_memory
from ray_backfill.compare.manifest import SYNTHETIC
from ray_backfill.core.errors import InputError, require_positive
from ray_backfill.core.progress import task
from ray_backfill.core.runkey import RunKey
from ray_backfill.core.stages import begin_stage, finish_stage, remove_halves, timed
from ray_backfill.data.folder import SPLITS
from ray_backfill.data.write import vector_column, write_parquet
from ray_backfill.images.draws import class_sizes
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.workers.settings import Context

Floats32 = NDArray[np.float32]

MODELS = ("old", "new")
# The ids of a split start at its position in SPLITS times this, so that no two splits share an id.
_SPLIT_STRIDE = 1 << 40
# Random streams in addition to those of the splits' parts.
_LABELS, _CENTRES, _GROUPS, _KNOWN, _QUERIES, _AXES = range(100, 106)
# Items classified at a time; their logits fit the CPU caches.
_ROWS = 512


@dataclass(frozen=True)
class ModelView:
    """Distribution of one model's embeddings. Variances are relative to the variance of the class centres."""

    seen: int
    """Number of latent dimensions that the model sees, counted from the first."""
    within: float
    """Variance of the items within a class."""
    own: float
    """Share of both variances (centres, items) that the other model does not see, from 0 to 1."""
    offset: float
    """Squared length of the vector that all embeddings of the model have in common; 0: none."""
    noise: float = 0.03
    """Variance of the noise, summed over all dimensions; 0: none."""
    fall: float = 0.0
    """Exponent of the variances of the latent dimensions, which fall as rank ** -fall; 0: all are equal."""

    def weights(self) -> NDArray[np.float64]:
        """(s,) share of the variance in each seen dimension; sum 1."""
        weight_s = np.arange(1, self.seen + 1, dtype=np.float64) ** -self.fall
        return weight_s / weight_s.sum()


@dataclass(frozen=True)
class SyntheticGallery:
    """Synthetic gallery, by default as large as Google Landmarks v2; see docs/results/scale.md for its defaults."""

    items: int = 761_757
    """Number of gallery items."""
    queries: int = 1_129
    """Number of queries; each has the class of a random gallery item."""
    classes: int = 81_313
    """Number of classes in the gallery, at most one per item."""
    zipf: float = 0.6
    """Exponent of the class sizes, which fall as rank ** -zipf, from 0 (equal sizes) to 3; no class is empty."""
    known_classes: int = 2_000
    """Number of classes that the old model's classifier knows. The train split has these classes only."""
    train_items: int = 50_000
    """Number of items in the train split."""
    groups: int = 8_131
    """Number of groups of similar classes."""
    group_share: float = 0.5
    """Share of the class centres' variance that the classes of a group have in common, from 0 to 1."""
    dims: int = 128
    """Dimensions of both models' embeddings."""
    spread: float = 0.3
    """Standard deviation of the logarithm of an item's distance from its class centre, from 0 to 2."""
    old: ModelView = field(default_factory=lambda: ModelView(seen=20, within=0.66, own=0.12, offset=0.19, fall=0.8))
    """Distribution of the old model's embeddings."""
    new: ModelView = field(default_factory=lambda: ModelView(seen=20, within=0.42, own=0.07, offset=0.045))
    """Distribution of the new model's embeddings."""
    classifier_scale: float = 16.0
    """Factor on the cosines of the old model's classifier (the inverse temperature of its softmax)."""
    seed: int = 0
    """Random seed for the whole gallery."""
    part_rows: int = 65_536
    """Items per part file, drawn together. A stopped run keeps its finished parts."""

    def __post_init__(self) -> None:
        for name in ("items", "queries", "classes", "train_items", "known_classes", "groups", "part_rows"):
            if getattr(self, name) < 1:
                raise InputError(f"--gallery.{name.replace('_', '-')} must be at least 1, got {getattr(self, name)}")
        require_positive(self, "gallery", "classifier_scale")
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
                limits = "within, offset and noise must not be negative, own must be in [0, 1]"
                raise InputError(f"--gallery.{model}: {limits}")

    def view(self, model: str) -> ModelView:
        """The distribution of one model's embeddings, "old" or "new"."""
        return {"old": self.old, "new": self.new}[model]

    @property
    def latent(self) -> int:
        """Number of latent dimensions (K)."""
        return max(self.old.seen, self.new.seen)


def draw_gallery(settings: SyntheticGallery, folder: Path, overwrite: bool = False) -> Path:
    """Write gallery, queries and train split as a folder of the data contract, vectors in float16; returns ``folder``.

    The same settings give the same bytes on the same machine. A finished folder is kept, an unfinished one continued.
    overwrite: replace a gallery of other settings.

    Raises:
        InputError: The folder has other settings, or the disk is full.
    Cost: 2 s d + L (d + 3) multiply-adds per item; memory for one part, plus 16 bytes per item and 16 K per class.
    """
    if begin_stage(folder, RunKey(SYNTHETIC, asdict(settings)), overwrite):
        return folder
    drawing = Drawing(settings)
    total = settings.items + settings.queries + settings.train_items
    with task("draw", total, "items") as bar:
        for split in ("queries", "train", "gallery"):
            for part, first, last in drawing.parts(split):
                path = folder / f"{split}.parquet" / f"part-{part:05d}.parquet"
                if not path.exists():
                    write_parquet(path, drawing.table(split, part))
                bar.advance(last - first)
    remove_halves(folder)
    finish_stage(folder)
    return folder


def evaluate_synthetic(gallery: SyntheticGallery, evaluation: Evaluation, fits: FitSettings, context: Context) -> Path:
    """Draw a synthetic gallery into ``out/embeddings``, then ``evaluate_folder``."""
    from ray_backfill.compare.run import evaluate_folder  # slow to import, and help needs the settings alone

    check_memory(evaluation.named, len(evaluation.named.methods), gallery.queries)
    context.place.check_local()
    data = context.out / "embeddings"
    timed(data, lambda: draw_gallery(gallery, data, context.overwrite))
    return evaluate_folder(data, evaluation, fits, context)


class Drawing:
    """Draws a gallery: labels and class centres at once, items part by part."""

    def __init__(self, settings: SyntheticGallery) -> None:
        s = self.settings = settings
        # (L,) ascending: labels that the old model knows, drawn uniformly.
        self.known_L = np.sort(self._rng(_KNOWN).choice(s.classes, s.known_classes, replace=False))
        # Label 0 is the largest class. In the train split, the sizes of the known classes differ by at most one item.
        sizes = class_sizes(s.items, s.classes, s.zipf)
        gallery = self._rng(_LABELS).permutation(np.repeat(np.arange(s.classes), sizes))
        queries = self._rng(_QUERIES)
        self.labels = {
            "gallery": gallery,
            "queries": gallery[queries.integers(0, s.items, s.queries)],
            "train": self.known_L[queries.permutation(np.arange(s.train_items) % s.known_classes)],
        }
        # Model -> (C, s).
        self.centres = self._centres()
        # Model -> (1 + s, d): sqrt(offset) u, then the axes of the seen dimensions.
        self.axes = {}
        for stream, model in enumerate(MODELS):
            view = s.view(model)
            directions, _ = np.linalg.qr(self._rng(_AXES, stream).standard_normal((s.dims, 1 + view.seen)))
            lengths = np.sqrt([view.offset, *view.weights()])
            self.axes[model] = np.ascontiguousarray((directions * lengths).T, np.float32)
        # (L, d) the old model's mean embedding of each known class, scaled to length 1.
        self.known_mean_Ld = _unit(self.embed("old", self.centres["old"][self.known_L]))

    def _centres(self) -> dict[str, Floats32]:
        """Model -> (C, s). Class c belongs to group c % groups, so that groups have large and small classes."""
        s = self.settings
        groups, classes = self._rng(_GROUPS), self._rng(_CENTRES)

        def draw(dimensions: int) -> Floats32:
            of_group = _normal(groups, s.groups, dimensions) * np.float32(np.sqrt(s.group_share))
            centre = _normal(classes, s.classes, dimensions) * np.float32(np.sqrt(1 - s.group_share))
            for first in range(0, s.classes, s.groups):
                rows = centre[first : first + s.groups]
                rows += of_group[: len(rows)]
            return centre

        shared_CK = draw(s.latent)
        return {model: _mixed(shared_CK, draw(s.view(model).seen), s.view(model).own) for model in MODELS}

    def embed(self, model: str, latent_ns: Floats32) -> Floats32:
        """(n, d) embeddings of latent vectors, without noise."""
        axes = self.axes[model]
        return latent_ns @ axes[1:] + axes[0]

    def parts(self, split: str) -> Iterator[tuple[int, int, int]]:
        """(number, first row, one past the last row) of each part."""
        n, step = len(self.labels[split]), self.settings.part_rows
        return ((part, first, min(n, first + step)) for part, first in enumerate(range(0, n, step)))

    def table(self, split: str, part: int) -> pa.Table:
        """The rows of one part, as stored. Each part has its own random stream and does not depend on the others."""
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

    def vectors(self, split: str, part: int, label_n: NDArray[np.int64]) -> dict[str, NDArray[np.float16]]:
        """Model -> (n, d)."""
        s = self.settings
        rng, n = self._rng(SPLITS.index(split), part), len(label_n)
        distance_n1 = np.exp(np.float32(s.spread) * _normal(rng, n, 1) - np.float32(s.spread**2))
        shared_nK = _normal(rng, n, s.latent)
        vectors = {}
        for model in MODELS:
            view = s.view(model)
            latent_ns = _mixed(shared_nK, _normal(rng, n, view.seen), view.own)
            latent_ns *= np.float32(np.sqrt(view.within)) * distance_n1
            latent_ns += self.centres[model][label_n]
            x_nd = self.embed(model, latent_ns)
            x_nd += np.float32(np.sqrt(view.noise / s.dims)) * _normal(rng, n, s.dims)
            vectors[model] = x_nd.astype(np.float16)
        return vectors

    def classify(self, old_nd: NDArray[np.float16]) -> dict[str, NDArray[np.generic]]:
        """The columns of the old classifier: softmax of ``classifier_scale`` times the cosines with the class means.

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


def _normal(rng: np.random.Generator, rows: int, columns: int) -> Floats32:
    return rng.standard_normal((rows, columns), np.float32)


def _mixed(shared_nK: Floats32, own_ns: Floats32, own: float) -> Floats32:
    """(n, s) of the same variance, a mixture of both arrays; overwrites ``own_ns``."""
    own_ns *= np.float32(np.sqrt(own))
    own_ns += np.float32(np.sqrt(1 - own)) * shared_nK[:, : own_ns.shape[1]]
    return own_ns


def _unit(vectors_nd: Floats32) -> Floats32:
    return vectors_nd / np.linalg.norm(vectors_nd, axis=1, keepdims=True)
