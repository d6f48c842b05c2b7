"""Training protocols: which classes the old and the new model are trained on, and what neither of them sees.

Shapes: N items of a split.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError, require_not_negative
from ray_backfill.images.source import ImageSource, Items, Pixels

# The split that is held out of the train split.
VALIDATION = "validation"
# Makes the draw of the validation split independent of that of the classes.
_VALIDATION_STREAM = 1


@dataclass(frozen=True)
class Protocol:
    """Which classes each model is trained on.

    Source: rank merge, section 5.1 (extended) and 5.3 (open); FastFill, section 5.3 and appendix A.1 (biased).
    """

    kind: Literal["extended", "open", "same", "biased"] = "extended"
    """extended: the old model learns the first old_share of the classes, the new model all.
    open: the old model learns a random old_share, the new model the other classes.
    same: both models learn all classes.
    biased: the old model learns few classes of the first subgroup (old_share) and all others, the new model all."""
    old_share: float = 0.5
    """Share of the classes that the old model learns, above 0 and at most 1."""
    seed: int = 0
    """Random seed for the draw of classes (open, biased)."""
    old_counts: tuple[int, ...] = ()
    """biased: classes of each subgroup that the old model learns, as in 50 500; empty: old_share decides."""
    new_counts: tuple[int, ...] = ()
    """biased: classes of each subgroup that the new model learns, including the old model's; empty: all."""
    validation: float = 0.0
    """Share of the train images held out for --tune, which no model and no map is trained on: images of each class, or
    whole classes if the gallery shows none of the train images' classes. At least 0, below 1."""

    def __post_init__(self) -> None:
        if not 0 <= self.validation < 1:
            raise InputError(f"--protocol.validation must be at least 0 and below 1, got {self.validation}")
        require_not_negative(self, "protocol", "seed")


def split_classes(
    labels_N: NDArray[np.int64], protocol: Protocol, groups_N: NDArray[np.int64] | None = None
) -> tuple[list[int], list[int]]:
    """Return the classes of the old and of the new model, each ascending. groups_N: subgroup of each item, if known.

    Raises:
        InputError: The kind is unknown, a biased protocol has no subgroups, the counts do not match the subgroups, or a
            model would get fewer than 2 classes.
    """
    if not 0 < protocol.old_share <= 1:
        raise InputError(f"--protocol.old-share must be greater than 0 and at most 1, got {protocol.old_share}")
    if (protocol.old_counts or protocol.new_counts) and protocol.kind != "biased":
        raise InputError(f"old_counts and new_counts need the protocol 'biased', not {protocol.kind!r}; leave them out")
    classes = np.unique(labels_N)
    n_old = round(protocol.old_share * len(classes))
    if protocol.kind == "extended":
        old, new = classes[:n_old], classes
    elif protocol.kind == "open":
        drawn = np.random.default_rng(protocol.seed).permutation(classes)
        old, new = np.sort(drawn[:n_old]), np.sort(drawn[n_old:])
    elif protocol.kind == "same":
        old, new = classes, classes
    elif protocol.kind == "biased":
        if groups_N is None:
            raise InputError("the biased protocol needs a data set with subgroups (omniglot: --images.groups)")
        old, new = _biased(labels_N, groups_N, protocol)
    else:
        raise InputError(f"unknown protocol {protocol.kind!r}; known: extended, open, same, biased")
    if min(len(old), len(new)) < 2:
        raise InputError(
            f"{len(classes)} classes with old_share {protocol.old_share} leave {len(old)} for the old model and "
            f"{len(new)} for the new one; each needs at least 2: change old_share or the counts"
        )
    return old.tolist(), new.tolist()


def validation_mask(labels_N: NDArray[np.int64], protocol: Protocol, whole_classes: bool = False) -> NDArray[np.bool_]:
    """(N,) which items of the train images are the validation split: as new to the models as the gallery is.

    Some images of each class, but never its last one.
    whole_classes: the gallery shows no class of the train images, so whole classes are held out instead.
    """
    rng = np.random.default_rng([protocol.seed, _VALIDATION_STREAM])
    classes, counts = np.unique(labels_N, return_counts=True)
    if whole_classes:
        return np.isin(labels_N, rng.permutation(classes)[: round(protocol.validation * len(classes))])
    held_N = np.zeros(len(labels_N), bool)
    for of_class in np.split(np.argsort(labels_N, kind="stable"), np.cumsum(counts)[:-1]):
        held_N[rng.permutation(of_class)[: min(round(protocol.validation * len(of_class)), len(of_class) - 1)]] = True
    return held_N


def _biased(
    labels_N: NDArray[np.int64], groups_N: NDArray[np.int64], protocol: Protocol
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Take the first classes of each shuffled subgroup, so that the new model's classes include the old model's.

    Without counts, the old model learns old_share of the first subgroup and all of the others.
    """
    rng = np.random.default_rng(protocol.seed)
    shuffled = [rng.permutation(np.unique(labels_N[groups_N == group])) for group in np.unique(groups_N)]
    sizes = [len(classes) for classes in shuffled]
    new_counts = list(protocol.new_counts) or sizes
    old_counts = list(protocol.old_counts) or [round(protocol.old_share * sizes[0]), *new_counts[1:]]
    for name, counts, limits in (("new_counts", new_counts, sizes), ("old_counts", old_counts, new_counts)):
        fits = len(counts) == len(limits) and all(0 <= n <= most for n, most in zip(counts, limits, strict=True))
        if not fits:
            raise InputError(
                f"{name} must give one number of classes for each of {len(sizes)} subgroups, at most "
                f"{', '.join(map(str, limits))}; got {', '.join(map(str, counts))}"
            )
    old, new = (
        np.unique(np.concatenate([classes[:n] for classes, n in zip(shuffled, counts, strict=True)]))
        for counts in (old_counts, new_counts)
    )
    return old, new


@dataclass(frozen=True)
class Divided:
    """A data set whose train images are divided into train and validation as a protocol says. images: its settings."""

    images: Any
    protocol: Protocol


def hold_out(whole: ImageSource, protocol: Protocol) -> ImageSource:
    """``whole`` with a split "validation"; without one if the share is too small for a single image or class."""
    labels_N = whole.items("train").labels_N
    is_unseen = not np.isin(whole.items("gallery").labels_N, labels_N).any()
    held_N = validation_mask(labels_N, protocol, is_unseen)
    facts = {"share": protocol.validation, "of": "classes" if is_unseen else "images", "seed": protocol.seed}
    return HeldOut(whole, held_N, facts) if held_N.any() else whole


class HeldOut:
    """``source`` with two splits instead of its train split.

    held_N: (N,) rows that are held out, at least one. facts: how they were chosen, for the fingerprint.
    """

    def __init__(self, source: ImageSource, held_N: NDArray[np.bool_], facts: dict[str, Any]) -> None:
        self.source, self.facts = source, facts
        self.splits = (*source.splits, VALIDATION)
        self.image_size, self.channels = source.image_size, source.channels
        self._rows = {"train": np.flatnonzero(~held_N), VALIDATION: np.flatnonzero(held_N)}

    def items(self, split: str) -> Items:
        whole = self.source.items("train" if split in self._rows else split)
        return whole.take(self._rows[split]) if split in self._rows else whole

    def read(self, split: str, rows: NDArray[np.int64]) -> Pixels:
        return self.source.read(*self._there(split, rows))

    def names(self, split: str, rows: NDArray[np.int64]) -> list[str] | None:
        return self.source.names(*self._there(split, rows))

    def fingerprint(self) -> dict[str, Any]:
        return self.source.fingerprint() | {VALIDATION: self.facts}

    def _there(self, split: str, rows: NDArray[np.int64]) -> tuple[str, NDArray[np.int64]]:
        """The split of the source, and the rows in it."""
        return ("train", self._rows[split][rows]) if split in self._rows else (split, rows)
