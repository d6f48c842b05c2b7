"""Which classes the old and the new model are trained on."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ray_backfill.errors import InputError


@dataclass(frozen=True)
class Protocol:
    """Source: rank merge, section 5.1 (extended) and 5.3 (open)."""

    # extended: the old model knows the first old_share of the classes, the new one all. open: the old model knows a
    # random old_share, the new one the OTHER classes. same: both know all.
    kind: Literal["extended", "open", "same"] = "extended"
    # Share of the classes that the old model knows.
    old_share: float = 0.5
    # Of the random draw of classes.
    seed: int = 0


def split_classes(labels_N: NDArray[np.int64], protocol: Protocol) -> tuple[list[int], list[int]]:
    """The classes of the old and of the new model, each ascending.

    Raises:
        InputError: unknown kind, or a model would get fewer than 2 classes.
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
    else:
        raise InputError(f"unknown protocol {protocol.kind!r}; known: extended, open, same")
    if min(len(old), len(new)) < 2:
        raise InputError(
            f"{len(classes)} classes with old_share {protocol.old_share} leave {len(old)} to the old model and "
            f"{len(new)} to the new one; each needs at least 2"
        )
    return old.tolist(), new.tolist()
