"""All kinds of merges. To add one, add a module with a tuple ``MERGES`` here, or in another distribution."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from numpy.typing import ArrayLike

from ray_backfill.core.errors import InputError, unknown_name
from ray_backfill.core.plugins import own_rows, rows_from_outside
from ray_backfill.engine.distances import check_distance
from ray_backfill.engine.merges.best import FitMerge, choose
from ray_backfill.engine.merges.csls import fit_csls
from ray_backfill.engine.merges.merge import RAW, Merge
from ray_backfill.engine.merges.score_map import Maps, fit_isotonic, fit_logistic, fit_quantile, fit_zscore
from ray_backfill.engine.systems import IntArray, UpgradePair, as_labels

# The merge that is chosen for each method, and among which. Of the two that learn how likely a match is, isotonic
# assumes less.
BEST = "best"
MERGES_TO_CHOOSE = ("raw", "quantile", "zscore", "isotonic", "csls")

FitMaps = Callable[[UpgradePair, IntArray | None, str, int], Maps]


@dataclass(frozen=True)
class MergeKind:
    """A kind of merge: how it is fitted, and its properties."""

    name: str
    """Name on the command line."""
    title: str
    """Name in tables and reports."""
    source: str
    """Paper and equation."""
    fit: FitMerge
    """Function of train pair, labels, distance and seed that returns the fitted merge."""
    needs_train: bool = True
    """Whether it is fitted on train embeddings."""
    needs_labels: bool = False
    """Whether it is fitted on the labels of the train items."""
    distances: tuple[str, ...] = ()
    """Supported distances; empty for all."""
    is_monotone: bool = True
    """Whether it keeps each system's own ranking, so that metrics at t = 0 and t = 1 equal those of raw distances."""
    is_by_rank: bool = False
    """Whether it compares ranks in the two lists instead of distances."""
    is_choice: bool = False
    """Whether it is one of the other merges, chosen by a trial on train items; raw without these."""
    glossary: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Term -> meaning, for reports."""
    takes_queries: bool = False
    """Whether the train pair may have queries that are no items."""
    version: int = 1
    """Part of the key of a run: increase it when a change alters its results."""

    def suits(self, distance: str) -> bool:
        """Return whether the merge supports this distance."""
        return not self.distances or distance in self.distances

    @property
    def uses_train(self) -> bool:
        """Whether it is fitted on train embeddings where there are some."""
        return self.needs_train or self.is_choice

    @property
    def why_no_cutoffs(self) -> str:
        """Why a score cut-off of one system has no counterpart in another one by this merge; "" if it has one."""
        if self.is_by_rank:
            return "compares ranks, which have no cut-off"
        if self.is_choice:
            return "differs from method to method"
        return "" if self.is_monotone else "has no cut-off: it changes each similarity by the neighbours of its vectors"


def _csls(train: UpgradePair | None, label: IntArray | None, distance: str, seed: int) -> Merge:
    assert train is not None
    return Merge("csls", references=fit_csls(train, seed))


def _best(train: UpgradePair | None, label: IntArray | None, distance: str, seed: int) -> Merge:
    if train is None:
        return RAW
    kinds = [kind for kind in map(all_merges().__getitem__, MERGES_TO_CHOOSE) if kind.suits(distance)]
    fits = {kind.name: kind.fit for kind in kinds if label is not None or not kind.needs_labels}
    return fits[choose(fits, train, label, distance, seed)](train, label, distance, seed)


def _by_maps(name: str, fit_maps: FitMaps) -> FitMerge:
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
            "quantile": "A merge that replaces a backward distance by the forward distance of the same quantile: equal "
            "shares of train pairs are closer. Needs train embeddings, but no labels.",
        },
    ),
    MergeKind(
        "zscore", "z-scores", "Montague and Aslam 2001: zero mean, unit variance",
        _by_maps("zscore", fit_zscore),
        glossary={
            "z-score": "A merge that subtracts the mean of train pairs' distances from each distance and divides by "
            "their standard deviation. Needs train embeddings, but no labels.",
        },
    ),
    MergeKind(
        "isotonic", "isotonic calibration", "Zadrozny and Elkan 2002, section 3", _by_maps("isotonic", fit_isotonic),
        needs_labels=True,
        glossary={
            "isotonic": "A merge that replaces each distance by the probability that two items at this distance match, "
            "a falling step function fitted on pairs of train items. Needs train embeddings with labels.",
        },
    ),
    MergeKind(
        "logistic", "logistic calibration", "Platt 1999, section 2", _by_maps("logistic", fit_logistic),
        needs_labels=True,
        glossary={
            "logistic": "A merge like isotonic, with a logistic curve instead of the step function. Needs train "
            "embeddings with labels.",
        },
    ),
    MergeKind(
        "csls", "CSLS", "Conneau et al. 2018, section 2.3", _csls,
        distances=("cosine",),
        is_monotone=False,
        takes_queries=True,
        glossary={
            "CSLS": "A merge (cross-domain similarity local scaling) that reduces the similarity of vectors that are "
            "close to many queries or train vectors. Needs train embeddings and the cosine distance, but no labels. It "
            "changes what old and new find alone: the old service could have it without an upgrade.",
        },
        version=3,
    ),
    MergeKind(
        "rrf", "reciprocal rank fusion", "Cormack et al. 2009, section 2",
        lambda *_: Merge("rrf", by_rank=True),
        needs_train=False,
        is_by_rank=True,
        glossary={
            "RRF": "A merge (reciprocal rank fusion) in which each system ranks its own items and items are compared "
            "by these ranks instead of distances. Needs no train data.",
        },
    ),
    MergeKind(
        BEST, "best of raw, quantile, z-scores, isotonic and CSLS", "cross-validation: docs/results/atlas.md", _best,
        needs_train=False,
        is_monotone=False,
        is_choice=True,
        glossary={
            "best": "For each method the merge, of raw distances, quantile, z-scores, isotonic and CSLS, that ranks "
            "held-out train items best. Without labels of these, CSLS where the cosine distance is used. Raw without "
            "train items. CSLS changes what old and new find alone: the old service could have it without an upgrade.",
        },
        version=5,
    ),
)  # fmt: skip


def all_merges() -> dict[str, MergeKind]:
    """Return every known merge by name: those above, of other modules of this package, of other distributions."""
    own = own_rows(sys.modules[__package__], "MERGES", first="kinds")
    return {kind.name: kind for kind in (*own, *rows_from_outside("MERGES"))}


def check_merge(name: str, distance: str) -> None:
    """Raise InputError for an unknown name (the message names similar ones) or an unsupported distance."""
    known = all_merges()
    if name not in known:
        raise unknown_name("merge", name, known)
    if not known[name].suits(distance):
        distances = " or ".join(known[name].distances)
        raise InputError(
            f"the {name} merge supports only the {distances} distance, not {distance}; use {distances} or another merge"
        )


def fit_merge(name: str, train: UpgradePair | None, label: ArrayLike | None, distance: str, seed: int = 0) -> Merge:
    """Fit a merge for one pair of systems.

    Cost: at most ``fitting.MOST_PAIRS`` distances per system, and a sort of them.

    Args:
        name: Name of the merge, see ``all_merges``.
        train: The method's pair on the train split; row i of every query and gallery array is train item i. For csls,
            its queries may be real ones, in any number. None if the merge needs no train embeddings.
        label: (train items,) classes, integers or text. None if the merge needs no labels.
        distance: "cosine", "l2" or "inner_product".
        seed: Seed for sampling train items.

    Returns:
        The fitted merge, for ``replay``.

    Raises:
        InputError: The name is unknown (the message names similar ones), the merge does not support the distance, or
            train embeddings or labels are missing or do not match.
    """
    check_distance(distance)
    check_merge(name, distance)
    kind = all_merges()[name]
    if kind.needs_train:
        if train is None:
            raise InputError(f"merge {name!r} needs train embeddings; provide them or use the merge 'raw'")
        if train.n_queries != train.n_gallery and not kind.takes_queries:
            raise InputError(
                f"merge {name!r} needs a train pair whose queries are its gallery items, got {train.n_queries} queries "
                f"and {train.n_gallery} gallery items"
            )
        if train.n_gallery < 2:
            raise InputError(f"merge {name!r} needs at least two train items; add some or use the merge 'raw'")
    if kind.needs_labels and label is None:
        raise InputError(f"merge {name!r} needs labels of the train items; add them or use the merge 'quantile'")
    (classes,) = as_labels((label, "labels")) if label is not None else (None,)
    if kind.needs_labels and train is not None and classes is not None and len(classes) != train.n_gallery:
        raise InputError(f"got {len(classes)} labels for {train.n_gallery} train items; give one for each")
    return kind.fit(train, classes, distance, seed)
