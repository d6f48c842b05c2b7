"""Training of small networks on CPUs."""

from ray_backfill.learn.models.settings import BackboneSettings
from ray_backfill.learn.training.settings import BackboneTraining, FitSettings, HeadTraining, TransformTraining
from ray_backfill.recipes import ModelRecipe


def small_convnet(width: int, epochs: int, seed: int) -> ModelRecipe:
    """A convnet with 128 dimensions that learns in a few epochs, with batches of 128 and a high learning rate."""
    return ModelRecipe(
        BackboneSettings("convnet", dim=128, width=width),
        BackboneTraining(
            epochs=epochs,
            batch=128,
            lr=0.1,
            momentum=0.9,
            weight_decay=5e-4,
            warmup_epochs=max(1, epochs // 6),
            seed=seed,
        ),
    )


def small_fits(seed: int, epochs: int = 50, transform_epochs: int = 80) -> FitSettings:
    """Fits for a few thousand items: narrow transformations and small batches. epochs: epochs of the heads."""
    return FitSettings(
        heads=HeadTraining(epochs=epochs, seed=seed),
        transforms=TransformTraining(epochs=transform_epochs, batch=256, hidden=512, seed=seed),
    )
