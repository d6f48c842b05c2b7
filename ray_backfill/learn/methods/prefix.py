"""A common Matryoshka prefix: new queries search the old gallery in the first dimensions that both models have.

Source: Kusupati et al., "Matryoshka Representation Learning", NeurIPS 2022: the leading dimensions of an embedding are
an embedding. Of use only if the new model was trained so that they agree with the old one's, as versions of one
truncated model do.
"""

from typing import Any

import numpy as np

from ray_backfill.engine.systems import RetrievalSystem, UpgradePair
from ray_backfill.learn.methods import Embeddings, Method


def _pair(e: Embeddings, network: Any) -> UpgradePair:
    """{new, old} in the first min(d_old, d_new) dimensions, and {new, new}."""
    query: Any = e.query["new"]
    gallery: Any = e.gallery["old"]
    common = min(query.shape[1], gallery.shape[1])
    prefix = RetrievalSystem(np.ascontiguousarray(query[:, :common]), np.ascontiguousarray(gallery[:, :common]))
    return UpgradePair(prefix, e.system("new"))


METHODS = (
    Method(
        "common_prefix", "common prefix", "Kusupati et al. 2022: leading dimensions", _pair, "Adapters", forward="new",
        glossary={
            "Common prefix": "Old items are searched with the new query in the first dimensions that both models have. "
            "Of use only for models that were trained to agree there."
        },
    ),
)  # fmt: skip
