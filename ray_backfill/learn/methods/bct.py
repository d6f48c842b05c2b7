"""Backward-compatible training: the old classifier must recognise the new embedding.

Source: Shen et al., "Towards Backward-Compatible Representation Learning", 2020, eq. 5 and section 3.3 (classes that
the old classifier does not know: its weights are synthesised as class means of old embeddings).
Deviates: if the old classifier knows some of the classes, images of the others have no influence loss, unless
``pseudo_weights`` is on. Class means are
scaled to the length of the old classifier's own weights, because embeddings are far longer and logits of several
hundred prevented learning (Omniglot, open class: mAP 2 instead of 51).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ray_backfill.core.plugins import Deferred
from ray_backfill.engine.systems import FloatArray, RetrievalSystem, UpgradePair
from ray_backfill.learn.methods import BackboneKind, Embeddings, Method


def backbone_method(name: str, title: str, source: str, glossary: Mapping[str, str] | None = None) -> Method:
    """{x, old} and {x, x}, where x is the backbone of this name. glossary: word -> meaning, for reports."""

    def pair(e: Embeddings, network: Any) -> UpgradePair:
        query, old = e.query[name], e.gallery["old"]
        return UpgradePair(
            RetrievalSystem(fit_width(query, old.shape[1]), old), RetrievalSystem(query, e.gallery[name])
        )

    return Method(
        name, title, source, pair, "A new backbone", models=("old", "new", name), forward=name, glossary=glossary or {}
    )


def fit_width(vectors_Nd: FloatArray, width: int) -> FloatArray:
    """Truncate or zero-pad vectors to ``width``, as in the training, which compared them with the old model."""
    missing = width - vectors_Nd.shape[1]
    return np.pad(vectors_Nd.astype(np.float32), ((0, 0), (0, missing))) if missing > 0 else vectors_Nd[:, :width]


BACKBONES = (
    BackboneKind(
        "bct",
        "BCT",
        "Shen et al. 2020, eq. 5",
        like="new",
        objective=Deferred("ray_backfill.learn.papers.bct", "BackwardCompatible"),
        needs_old=True,
    ),
)

_GLOSSARY = {
    "BCT": "Backward-compatible training: a new model that is trained so that the old model's classifier also works on "
    "its embeddings. Its queries search the old gallery as it is."
}

METHODS = (backbone_method("bct", "BCT", "Shen et al. 2020: {bct, old}, {bct, bct}", _GLOSSARY),)
