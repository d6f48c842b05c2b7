"""MixBCT: backward-compatible training by one classification loss on mixed old and new embeddings.

Source: Liang et al., "MixBCT: Towards Self-Adapting Backward-Compatible Training", 2023 (arXiv 2308.06948), and the
authors' public code. The loss is in ``losses.mixbct``.
"""

from ray_backfill.core.plugins import Deferred
from ray_backfill.learn.methods import BackboneKind
from ray_backfill.learn.methods.bct import backbone_method

BACKBONES = (
    BackboneKind(
        "mixbct",
        "MixBCT",
        "Liang et al. 2023",
        like="new",
        objective=Deferred("ray_backfill.learn.papers.mixbct", "MixedCompatible"),
        needs_old=True,
    ),
)

_GLOSSARY = {
    "MixBCT": "Backward-compatible training by one loss: the new model's classifier has to recognise batches in which "
    "old embeddings replace a share of the new ones."
}

METHODS = (backbone_method("mixbct", "MixBCT", "Liang et al. 2023: {mixbct, old}, {mixbct, mixbct}", _GLOSSARY),)
