"""The side-information model of FCT: a backbone like the old one, trained without labels on the old model's images.

Source: Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations" (SimCLR), 2020, eq. 1;
Ramanujan et al., "Forward Compatible Training", 2022, section 4.3 (SimCLR embeddings as side information).
"""

from ray_backfill.core.plugins import Deferred
from ray_backfill.learn.methods import BackboneKind

BACKBONES = (
    BackboneKind(
        "side",
        "side information",
        "SimCLR (Chen et al. 2020), as in FCT",
        "old",
        Deferred("ray_backfill.learn.papers.simclr", "SimClr"),
        needs_old=False,
    ),
)
