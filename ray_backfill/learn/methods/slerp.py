"""SLERP: queries between the old embedding and the new one, which is rotated into the old space. Nothing is trained.

Source: Ricci, Biondi and Pernici, "Spherical Interpolation for Backward-Compatible Multimodal Representations",
NeurIPS 2026 (arXiv 2609.39836), and the authors' public code: orthogonal Procrustes on a support set, then one point
of the arc for all queries, the alpha in 0, 0.1, ..., 1 with the best Recall@1 on that set; if several are best, the
smallest.
Deviates: the support set is the train split, where the items of a class are the right answers and an item never finds
itself; the paper has pairs of images and texts. Without labels alpha is 0.5, as in the authors' example.
"""

from typing import Any

from ray_backfill.engine.systems import RetrievalSystem, UpgradePair
from ray_backfill.learn.methods import Embeddings, Method
from ray_backfill.learn.methods.adapters import procrustes
from ray_backfill.learn.methods.baselines import new_system
from ray_backfill.learn.models.apply import transform
from ray_backfill.learn.training.slerp import SlerpFit


def _pair(e: Embeddings, network: Any) -> UpgradePair:
    """{slerp(old, new), old} and {new, new}: a query is embedded by both models."""
    between = transform(network, e.query["old"], e.query["new"])
    return UpgradePair(RetrievalSystem(between, e.gallery["old"]), new_system(e))


METHODS = (
    Method(
        "slerp",
        "SLERP",
        "Ricci et al. 2026: Procrustes, then spherical interpolation",
        _pair,
        "Adapters",
        SlerpFit(procrustes, "new", "old"),
        forward="new",
        glossary={
            "SLERP": "Spherical interpolation: old items are searched with a point between the old query and the new "
            "one, which is rotated into the old space. Each query is embedded by both models."
        },
    ),
)
