"""Training of models and maps in the published experiments: the papers' hyper-parameters.

RM: Seo et al., Metric Compatible Training for Online Backfilling in Large-Scale Retrieval, 2025, section 5.2 and
appendix B. FF: Jaeckle et al., FastFill, 2023, appendix A.2 and, where it is silent, the authors' public configuration
(momentum, label smoothing, weight decay of BatchNorm, weights of the losses, last layer of the backbones). All values
are stated here, even if they are defaults, so that a published experiment does not change with a default.
``papers/silent.py`` lists what the papers omit.
"""

from typing import Literal

from ray_backfill.learn.models.settings import BackboneSettings
from ray_backfill.learn.training.settings import (
    AdapterSettings,
    Augmentation,
    BackboneTraining,
    CompatibleLosses,
    FitSettings,
    HeadTraining,
    LossSettings,
    OrthogonalSettings,
    TransformSettings,
    TransformTraining,
)
from ray_backfill.recipes import ModelRecipe

Classification = Literal["softmax", "arcface"]

# Learning rates for a batch of 1024. That of the ViT is untested, because RM does not describe its training.
_LR = {"resnet18": 1.024, "resnet50": 1.024, "vit_b_32": 0.1}


def model(arch: str, dim: int, classification: Classification, seed: int) -> ModelRecipe:
    """A backbone trained from scratch with FF's schedule for ImageNet; faces with ArcFace."""
    return ModelRecipe(
        BackboneSettings(arch, dim=dim, last_layer="relu"),
        BackboneTraining(
            classification=classification,
            arcface_margin=0.5,
            arcface_scale=64.0,
            label_smoothing=0.1,
            compatible=CompatibleLosses(influence=1.0, ract_weight=1.0, ract_tau=0.5),
            epochs=100,
            batch=1024,
            lr=_LR[arch],
            momentum=0.875,
            nesterov=False,
            weight_decay=2.0**-15,
            warmup_epochs=5,
            seed=seed,
            augmentation=Augmentation(rotate_deg=0.0, shift=0.15, zoom=0.3, flip=True),
            pair_augmentation=Augmentation(rotate_deg=0.0, shift=0.2, zoom=0.4, flip=True, colour=0.4),
        ),
    )


def fits(blocks: int, classification: Classification, distance: str, seed: int) -> FitSettings:
    """RM's heads and FF's transformations, with the new model's classification loss. blocks: of psi and of rho."""
    return FitSettings(
        heads=HeadTraining(
            epochs=50,  # RM, section 5.2
            classes=256,  # not in RM: a batch of 1024, like those of FF
            items=4,
            lr=1e-4,  # RM, section 5.2
            blocks=blocks,  # RM, section 5.2: 1 to 5
            seed=seed,
            # RM, eq. 10 to 13 have no temperature; footnote 2 has the mining.
            loss=LossSettings(distance=distance, tau=1.0, hard_mining=True),
        ),
        transforms=TransformTraining(
            # FCT, the authors' code; FF, appendix A.2
            epochs=80,
            batch=1024,
            lr=5e-4,
            weight_decay=2.0**-15,
            warmup_epochs=5,
            fixed_norm_from=0.5,
            hidden=2048,
            seed=seed,
            loss=TransformSettings(
                # FF, the authors' public configuration
                disc_weight=1.0,
                uncertainty_weight=0.5,
                relative=False,
                label_smoothing=0.1,
                classification=classification,
                arcface_margin=0.5,
                arcface_scale=64.0,
            ),
            orthogonal=OrthogonalSettings(
                # lambda-Orthogonality: lambda = 12 for 1,024 dimensions, and a learning rate of 1e-3
                threshold=0.375,
                lr_share=2.0,
                # not in the text that we have
                forward=1.0,
                backward=1.0,
                contrastive=1.0,
                tau=0.1,
                steepness=10.0,
            ),
        ),
        # Drift-Adapter, section 3. The other adapters are not from a paper.
        adapters=AdapterSettings(drift_rank=64),
    )
