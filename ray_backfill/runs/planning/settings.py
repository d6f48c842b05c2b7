"""What a plan assumes of the machines."""

from dataclasses import dataclass

from ray_backfill.errors import InputError, require_positive


@dataclass(frozen=True)
class PlanningSettings:
    """What a plan (--dry-run) assumes of the machines; measure a few minutes of your own and give them here."""

    gpu_tflops: float = 156.0
    """Peak of one GPU in TFLOP/s. 156: TF32 of an A100 (NVIDIA's data sheet), in which torch by default computes
    convolutions of float32. Matrix products (ViT, heads, transformations) stay in plain float32: there at most 19.5."""
    utilisation: float = 0.1
    """Share of that peak which training and embedding reach. A guess, not measured by us on an A100: NVIDIA's tuned
    ResNet-50 trains 938 images/s there in TF32 (DeepLearningExamples, pytorch 21.03), 0.146; 0.1 is 640 images/s."""
    decode_images_per_s_per_cpu: float = 300.0
    """Image files that one CPU decodes and resizes to 224 x 224 in a second. Less than ours did on invented photographs
    (docs/results/stages.md), since real ones hold more detail. Recipes of published sets have rates of their own."""

    def __post_init__(self) -> None:
        require_positive(self, "gpu_tflops", "utilisation", "decode_images_per_s_per_cpu")
        if self.utilisation > 1:
            raise InputError(f"PlanningSettings.utilisation is a share, at most 1, got {self.utilisation}")

    @property
    def flops_per_s(self) -> float:
        """What one GPU computes."""
        return self.gpu_tflops * 1e12 * self.utilisation
