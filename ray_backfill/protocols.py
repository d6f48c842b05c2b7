"""Which classes the old and the new model are trained on."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ray_backfill.errors import InputError


@dataclass(frozen=True)
class Protocol:
    """Source: rank merge, section 5.1 (extended) and 5.3 (open); FastFill, section 5.3 (biased)."""

    # extended: the old model knows the first old_share of the classes, the new one all. open: the old model knows a
    # random old_share, the new one the OTHER classes. same: both know all. biased: of the first subgroup the old model
    # knows only a random old_share of the classes, of the others all; the new one knows all.
    kind: Literal["extended", "open", "same", "biased"] = "extended"
    # Share of the classes that the old model knows.
    old_share: float = 0.5
    # Of the random draw of classes.
    seed: int = 0


def split_classes(
    labels_N: NDArray[np.int64], protocol: Protocol, groups_N: NDArray[np.int64] | None = None
) -> tuple[list[int], list[int]]:
    """The classes of the old and of the new model, each ascending. groups_N: the subgroup of each item, if known.

    Raises:
        InputError: unknown kind, no subgroups for a biased one, or a model would get fewer than 2 classes.
    """
    if not 0 < protocol.old_share <= 1:
        raise InputError(f"old_share must be above 0 and at most 1, got {protocol.old_share}")
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
        minority = np.unique(labels_N[groups_N == groups_N.min()])
        drawn = np.random.default_rng(protocol.seed).permutation(minority)
        old = np.setdiff1d(classes, drawn[round(protocol.old_share * len(minority)) :])
        new = classes
    else:
        raise InputError(f"unknown protocol {protocol.kind!r}; known: extended, open, same, biased")
    if min(len(old), len(new)) < 2:
        raise InputError(
            f"{len(classes)} classes with old_share {protocol.old_share} leave {len(old)} to the old model and "
            f"{len(new)} to the new one; each needs at least 2"
        )
    return old.tolist(), new.tolist()
