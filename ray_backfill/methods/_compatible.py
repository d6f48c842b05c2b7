"""The pair of a backbone that was trained to be compatible with the old one."""

from typing import Any

import numpy as np

from ray_backfill.methods import Embeddings, Method
from ray_backfill.systems import FloatArray, RetrievalSystem, UpgradePair


def backbone_method(name: str, title: str, source: str) -> Method:
    """{x, old} and {x, x}, where x is the backbone of this name."""

    def pair(e: Embeddings, network: Any) -> UpgradePair:
        query, old = e.query[name], e.gallery["old"]
        return UpgradePair(
            RetrievalSystem(_fit_width(query, old.shape[1]), old), RetrievalSystem(query, e.gallery[name])
        )

    return Method(name, title, source, pair, "A new backbone", models=("old", "new", name), forward=name)


def _fit_width(vectors_Nd: FloatArray, width: int) -> FloatArray:
    """The first ``width`` dimensions, or zeros added: as its training compared it with the old model."""
    if vectors_Nd.shape[1] >= width:
        return vectors_Nd[:, :width]
    wider = np.zeros((len(vectors_Nd), width), np.float32)
    wider[:, : vectors_Nd.shape[1]] = vectors_Nd
    return wider
