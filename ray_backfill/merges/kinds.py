"""The kinds of merges. To add one, add a row to ``MERGES``, here or in a module of another distribution."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ray_backfill.distances import check_distance
from ray_backfill.errors import InputError
from ray_backfill.merges.csls import fit_csls
from ray_backfill.merges.fitting import Maps, fit_isotonic, fit_logistic, fit_quantile
from ray_backfill.merges.merge import RAW, Merge
from ray_backfill.plugins import rows_from_outside
from ray_backfill.systems import IntArray, UpgradePair

# Train pair, labels, distance and seed to a merge. Train and labels are there if the kind needs them.
Fit = Callable[[UpgradePair | None, IntArray | None, str, int], Merge]
FitMaps = Callable[[UpgradePair, IntArray | None, str, int], Maps]


@dataclass(frozen=True)
class MergeKind:
    """One way to merge. name: as typed. title: as shown. source: paper and equation.

    fit: makes the merge. needs_train, needs_labels: what it is fitted on. distances: those that it is made for; () for
    any. is_monotone: it keeps each system's own ranking, so that M_0 and M_1 are those of raw distances. is_by_rank: it
    compares places in the two lists. glossary: word -> meaning, for reports.
    """

    name: str
    title: str
    source: str
    fit: Fit
    needs_train: bool = True
    needs_labels: bool = False
    distances: tuple[str, ...] = ()
    is_monotone: bool = True
    is_by_rank: bool = False
    glossary: Mapping[str, str] = field(default_factory=dict, hash=False)

    def suits(self, distance: str) -> bool:
        """Whether it is made for this distance."""
        return not self.distances or distance in self.distances


def _csls(train: UpgradePair | None, label: IntArray | None, distance: str, seed: int) -> Merge:
    assert train is not None
    return Merge("csls", references=fit_csls(train, seed))


def _by_maps(name: str, fit_maps: FitMaps) -> Fit:
    def fit(train: UpgradePair | None, label: IntArray | None, distance: str, seed: int) -> Merge:
        assert train is not None
        backward, forward = fit_maps(train, label, distance, seed)
        return Merge(name, backward, forward)

    return fit


MERGES = (
    MergeKind("raw", "raw distances", "rank merge, eq. 5", lambda *_: RAW, needs_train=False),
    MergeKind(
        "quantile", "quantile mapping", "Bolstad et al. 2003, section 2.2, of distances",
        _by_maps("quantile", fit_quantile),
        glossary={
            "quantile": "A merge: a distance of the backward system becomes the forward distance that equally many "
            "pairs of train items fall below. Needs train embeddings, no labels.",
        },
    ),
    MergeKind(
        "isotonic", "isotonic calibration", "Zadrozny and Elkan 2002, section 3", _by_maps("isotonic", fit_isotonic),
        needs_labels=True,
        glossary={
            "isotonic": "A merge: each system's distance becomes the chance that two items so far apart belong "
            "together, a falling staircase fitted on pairs of train items. Needs train embeddings with labels.",
        },
    ),
    MergeKind(
        "logistic", "logistic calibration", "Platt 1999, section 2", _by_maps("logistic", fit_logistic),
        needs_labels=True,
        glossary={
            "logistic": "A merge: as isotonic, with an S-shaped curve in place of the staircase. Needs train "
            "embeddings with labels.",
        },
    ),
    MergeKind(
        "csls", "CSLS", "Conneau et al. 2018, section 2.3", _csls,
        distances=("cosine",),
        is_monotone=False,
        glossary={
            "CSLS": "A merge (cross-domain similarity local scaling): a similarity counts for less between vectors "
            "that are close to many train vectors. Needs train embeddings, no labels, and the cosine distance.",
        },
    ),
    MergeKind(
        "rrf", "reciprocal rank fusion", "Cormack et al. 2009, section 2",
        lambda *_: Merge("rrf", by_rank=True),
        needs_train=False,
        is_by_rank=True,
        glossary={
            "RRF": "A merge (reciprocal rank fusion): each system ranks its own items, and items are compared by "
            "their places there, not by distance. Needs nothing.",
        },
    ),
)  # fmt: skip


def all_merges() -> dict[str, MergeKind]:
    """Every known merge by name: ours, then those of other distributions."""
    return {kind.name: kind for kind in (*MERGES, *rows_from_outside("MERGES"))}


def check_merge(name: str, distance: str) -> None:
    """Raises InputError for an unknown name (the message lists the known ones), or a distance that it is not for."""
    known = all_merges()
    if name not in known:
        raise InputError(f"unknown merge {name!r}; known: {', '.join(known)}")
    if not known[name].suits(distance):
        distances = " or ".join(known[name].distances)
        raise InputError(
            f"the {name} merge is made for the {distances} distance, not {distance}; use {distances} or another merge"
        )


def fit_merge(name: str, train: UpgradePair | None, label: IntArray | None, distance: str, seed: int = 0) -> Merge:
    """The merge ``name``, fitted for one pair of systems.

    train: the method's pair on the train split; row i of every query side and of every gallery side is train item i.
    label: (train items,) classes.

    Raises:
        InputError: unknown name (the message lists the known ones), train or labels that the merge needs and that are
            not there or do not fit together, a distance that the merge is not for.
    Cost: at most ``fitting.MOST_PAIRS`` distances a system, and a sort of them.
    """
    check_distance(distance)
    check_merge(name, distance)
    kind = all_merges()[name]
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
