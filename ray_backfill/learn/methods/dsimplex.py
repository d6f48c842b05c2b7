"""d-Simplex: old and new model learn towards the same fixed classifier and are compatible without a loss for it.

Source: Biondi et al., "CoReS: Compatible Representations via Stationarity", TPAMI 2023. The classifier is in
``losses.dsimplex``. Its cost: the embedding has one dimension less than there are classes, and the old model must have
been trained with this classifier, too. So the old gallery is that of a model of its own, ``dsimplex_old``, not of old.
"""

from typing import Any

from ray_backfill.core.plugins import Deferred
from ray_backfill.engine.systems import RetrievalSystem, UpgradePair
from ray_backfill.learn.methods import BackboneKind, Embeddings, Method

_FIXED = Deferred("ray_backfill.learn.papers.dsimplex", "FixedSimplex")


def _dim_of(classes: int) -> int:
    """A simplex in d dimensions has d + 1 vertices."""
    return classes - 1


BACKBONES = (
    BackboneKind("dsimplex_old", "d-Simplex old", "CoReS, 2023", "old", _FIXED, needs_old=False, dim_of=_dim_of),
    BackboneKind("dsimplex", "d-Simplex", "CoReS, 2023", "new", _FIXED, needs_old=False, dim_of=_dim_of),
)


def _pair(e: Embeddings, network: Any) -> UpgradePair:
    """{dsimplex, dsimplex_old} and {dsimplex, dsimplex}."""
    forward = RetrievalSystem(e.query["dsimplex"], e.gallery["dsimplex"])
    return UpgradePair(RetrievalSystem(forward.query, e.gallery["dsimplex_old"]), forward)


METHODS = (
    Method(
        "dsimplex",
        "d-Simplex",
        "CoReS, 2023: {dsimplex, dsimplex_old}, {dsimplex, dsimplex}",
        _pair,
        "A new backbone",
        models=("old", "new", "dsimplex_old", "dsimplex"),
        forward="dsimplex",
        glossary={
            "d-Simplex": "Both models are trained with the same fixed classifier, whose weights are the vertices of a "
            "regular simplex, so that the new model's queries search the old gallery without any loss for "
            "compatibility. The old model must have been trained in this way, too."
        },
    ),
)
