"""Assumptions of a plan about the machines."""

from dataclasses import dataclass

from ray_backfill.core.errors import InputError, require_positive


@dataclass(frozen=True)
class PlanningSettings:
    """Assumptions of the plan (--dry-run) about your machines. Measure yours for a few minutes and state them here."""

    # 156: TF32 of an A100 (NVIDIA's data sheet), in which torch computes float32 convolutions by default. Matrix
    # products (ViT, heads, transformations) stay in plain float32, at 19.5 TFLOP/s at most.
    gpu_tflops: float = 156.0
    """Peak performance of one GPU in TFLOP/s. The default is that of an A100 in TF32."""
    # Not measured on an A100: NVIDIA's tuned ResNet-50 trains 938 images/s there in TF32 (DeepLearningExamples,
    # pytorch 21.03), a share of 0.146; 0.1 is 640 images/s.
    utilisation: float = 0.1
    """Share of that peak that training and embedding reach, at most 1. The default is an estimate, not measured."""
    # Less than measured on synthetic photographs (docs/results/stages.md), because real ones hold more detail.
    decode_images_per_s_per_cpu: float = 300.0
    """Image files that one CPU decodes and resizes per second. Recipes of published data sets have their own rates."""

    def __post_init__(self) -> None:
        require_positive(self, "planning", "gpu_tflops", "utilisation", "decode_images_per_s_per_cpu")
        if self.utilisation > 1:
            raise InputError(f"--planning.utilisation is a share and at most 1, got {self.utilisation}")

    @property
    def flops_per_s(self) -> float:
        """Floating-point operations per second that one GPU reaches."""
        return self.gpu_tflops * 1e12 * self.utilisation
