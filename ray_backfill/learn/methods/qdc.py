"""Query drift compensation: new queries minus the mean drift of queries search the old gallery.

Source: Goswami et al., "Query Drift Compensation: Enabling Compatibility in Continual Learning of Retrieval Embedding
Models", CoLLAs 2025. Made for a model that was fine-tuned from the old one; drifts are those of the train split here.
Deviates: between models of unequal dimensions, dimensions are cut off or filled with zeros, where the paper has none.

Shapes: N train items; p dimensions of the new model, q of the old one.
"""

import numpy as np

from ray_backfill.learn.expressions import plain
from ray_backfill.learn.methods import Method
from ray_backfill.learn.methods.adapters import MAPPED_QUERY, FormulaFit, Pairs, about_means
from ray_backfill.learn.models.apply import Wide
from ray_backfill.learn.training.settings import AdapterSettings


def mean_drift(pairs: Pairs, settings: AdapterSettings) -> tuple[Wide, Wide]:
    """The (p, q) identity and the (q,) mean of old minus new embeddings."""
    return about_means(pairs, np.eye(pairs.x.shape[1], pairs.y.shape[1]))


METHODS = (
    Method(
        "qdc", "query drift compensation", "Goswami et al. 2025: queries minus their drift", MAPPED_QUERY, plain("new"),
        "Adapters", FormulaFit(mean_drift, "new", "old"),
        glossary={
            "QDC": "Query drift compensation: old items are searched with the new query minus the mean difference "
            "between new and old embeddings. Made for a model that was fine-tuned from the old one."
        },
    ),
)  # fmt: skip
