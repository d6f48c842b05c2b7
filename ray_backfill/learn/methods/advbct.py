"""Adversarial backward-compatible training with an elastic boundary for each class.

Source: Pan et al., "Boundary-Aware Backward-Compatible Representation via Adversarial Learning in Image Retrieval",
CVPR 2023, section 3, and the authors' public code. The loss is in ``losses.advbct``.
"""

from ray_backfill.core.plugins import Deferred
from ray_backfill.learn.methods import BackboneKind
from ray_backfill.learn.methods.bct import backbone_method

BACKBONES = (
    BackboneKind(
        "advbct",
        "AdvBCT",
        "Pan et al. 2023, section 3",
        like="new",
        objective=Deferred("ray_backfill.learn.papers.advbct", "AdversarialCompatible"),
        needs_old=True,
    ),
)

_GLOSSARY = {
    "AdvBCT": "Adversarial backward-compatible training: a new model whose embeddings a discriminator cannot tell from "
    "old ones, and which stay within a learned boundary around the old embeddings of their class."
}

METHODS = (backbone_method("advbct", "AdvBCT", "Pan et al. 2023: {advbct, old}, {advbct, advbct}", _GLOSSARY),)
