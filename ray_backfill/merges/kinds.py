"""The merges by name. To add one, write its fit and name it in ``MERGES``."""

from collections.abc import Callable
from dataclasses import dataclass

from ray_backfill.distances import check_distance
from ray_backfill.errors import InputError
from ray_backfill.merges.csls import fit_csls, require_cosine
from ray_backfill.merges.fitting import Maps, fit_isotonic, fit_logistic, fit_quantile
from ray_backfill.merges.merge import RAW, Merge
from ray_backfill.systems import IntArray, UpgradePair

# Train pair, labels, distance and seed to a merge. Train and labels are there if the kind needs them.
Fit = Callable[[UpgradePair | None, IntArray | None, str, int], Merge]
FitMaps = Callable[[UpgradePair, IntArray | None, str, int], Maps]


@dataclass(frozen=True)
class MergeKind:
    """One way to merge. name: as typed. title: as shown. source: paper and equation.

    needs_train, needs_labels: what it is fitted on. is_monotone: it keeps each system's own ranking, so that M_0 and
    M_1 are those of raw distances.
    """

    name: str
    title: str
    source: str
    needs_train: bool
    needs_labels: bool
    is_monotone: bool
    fit: Fit


def _raw(train: UpgradePair | None, label: IntArray | None, distance: str, seed: int) -> Merge:
    return RAW


def _rrf(train: UpgradePair | None, label: IntArray | None, distance: str, seed: int) -> Merge:
    return Merge("rrf", by_rank=True)


def _csls(train: UpgradePair | None, label: IntArray | None, distance: str, seed: int) -> Merge:
    assert train is not None
    return Merge("csls", references=fit_csls(train, distance, seed))


def _by_maps(name: str, fit_maps: FitMaps) -> Fit:
    def fit(train: UpgradePair | None, label: IntArray | None, distance: str, seed: int) -> Merge:
        assert train is not None
        backward, forward = fit_maps(train, label, distance, seed)
        return Merge(name, backward, forward)

    return fit


MERGES = {
    kind.name: kind
    for kind in (
        MergeKind("raw", "raw distances", "rank merge, eq. 5", False, False, True, _raw),
        MergeKind(
            "quantile", "quantile mapping", "Bolstad et al. 2003, section 2.2, of distances", True, False, True,
            _by_maps("quantile", fit_quantile),
        ),
        MergeKind(
            "isotonic", "isotonic calibration", "Zadrozny and Elkan 2002, section 3", True, True, True,
            _by_maps("isotonic", fit_isotonic),
        ),
        MergeKind(
            "logistic", "logistic calibration", "Platt 1999, section 2", True, True, True,
            _by_maps("logistic", fit_logistic),
        ),
        MergeKind("csls", "CSLS", "Conneau et al. 2018, section 2.3", True, False, False, _csls),
        MergeKind("rrf", "reciprocal rank fusion", "Cormack et al. 2009, section 2", False, False, True, _rrf),
    )
}  # fmt: skip


def check_merge_name(name: str) -> None:
    """Raises InputError for an unknown name; the message lists the known ones."""
    if name not in MERGES:
        raise InputError(f"unknown merge {name!r}; known: {', '.join(MERGES)}")


def fit_merge(name: str, train: UpgradePair | None, label: IntArray | None, distance: str, seed: int = 0) -> Merge:
    """The merge ``name``, fitted for one pair of systems.

    train: the method's pair on the train split; row i of every query side and of every gallery side is train item i.
    label: (train items,) classes.

    Raises:
        InputError: unknown name (the message lists the known ones), train or labels that the merge needs and that are
            not there or do not fit together, csls with another distance than cosine.
    Cost: at most ``fitting.MOST_PAIRS`` distances a system, and a sort of them.
    """
    check_merge_name(name)
    check_distance(distance)
    if name == "csls":
        require_cosine(distance)
    kind = MERGES[name]
    if kind.needs_train:
        if train is None:
            raise InputError(f"merge {name!r} is fitted on train embeddings, which are not there; add them or use raw")
        if train.n_queries != train.n_gallery:
            raise InputError(
                f"a merge is fitted on train items that are query and gallery in one, got {train.n_queries} queries "
                f"and {train.n_gallery} gallery items"
            )
        if train.n_gallery < 2:
            raise InputError(f"merge {name!r} needs at least two train items; add some or use raw")
    if kind.needs_labels:
        if label is None:
            raise InputError(f"merge {name!r} needs the labels of the train items; add them or use merge 'quantile'")
        if train is not None and len(label) != train.n_gallery:
            raise InputError(f"{len(label)} labels of {train.n_gallery} train items: give one for each")
    return kind.fit(train, label, distance, seed)
