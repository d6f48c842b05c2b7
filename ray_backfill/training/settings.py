"""The settings of fits: what the command line calls --heads..., --transforms... and --adapters..."""

from dataclasses import dataclass, field

from ray_backfill.errors import InputError, require_positive
from ray_backfill.training.objective import ClassificationSettings

HEAD_DISTANCES = ("cosine", "l2")


@dataclass(frozen=True)
class LossSettings:
    """What is settable in the losses of heads."""

    distance: str = "cosine"
    """cosine or l2."""
    tau: float = 0.1
    """Temperature of exp(-distance / tau)."""
    hard_mining: bool = True
    """Keep the harder half of each anchor's positives and negatives."""

    def __post_init__(self) -> None:
        require_positive(self, "tau")
        if self.distance not in HEAD_DISTANCES:
            raise InputError(f"heads train under the cosine or the l2 distance, not {self.distance!r}")


@dataclass(frozen=True)
class HeadTraining:
    """How heads are trained. Deviates: the paper has lr 1e-4 and tau 1 (see docs/results/omniglot.md)."""

    epochs: int = 50
    """Passes over the train items."""
    classes: int = 64
    """Classes in a batch, over all workers together."""
    items: int = 4
    """Items of each class in a batch."""
    lr: float = 1e-3
    """Peak learning rate, of Adam."""
    blocks: int = 2
    """Linear-BatchNorm-ReLU blocks of psi and of rho; the last one is Linear only."""
    seed: int = 0
    """Random seed of the first weights and of the batches."""
    loss: LossSettings = field(default_factory=LossSettings)
    """The loss."""

    def __post_init__(self) -> None:
        require_positive(self, "epochs", "classes", "items", "lr", "blocks")


@dataclass(frozen=True)
class TransformSettings(ClassificationSettings):
    """What is settable in the loss of a transformation."""

    disc_weight: float = 1.0
    """Weight of the classification loss beside the l2 loss (lambda of FastFill, eq. 5)."""

    def __post_init__(self) -> None:
        require_positive(self, "disc_weight")


@dataclass(frozen=True)
class TransformTraining:
    """How FCT's and FastFill's transformations are trained, and the MLPs of adapters."""

    epochs: int = 80
    """Passes over the train items."""
    batch: int = 1024
    """Items a step, over all workers together."""
    lr: float = 5e-4
    """Peak learning rate, of Adam."""
    weight_decay: float = 2.0**-15
    """Pull of every weight towards 0 (L2)."""
    warmup_epochs: int = 5
    """Epochs in which the learning rate rises."""
    fixed_norm_from: float = 0.5
    """After this share of the epochs BatchNorm keeps the statistics it has."""
    hidden: int = 2048
    """Width of the two hidden layers of the mixer."""
    seed: int = 0
    """Random seed of the first weights and of the batches."""
    loss: TransformSettings = field(default_factory=TransformSettings)
    """The loss."""

    def __post_init__(self) -> None:
        require_positive(self, "epochs", "batch", "lr", "hidden")


@dataclass(frozen=True)
class AdapterSettings:
    """How adapters are fitted."""

    ridge: float = 0.1
    """Of ridge, in units of the inputs' mean variance a dimension: how strongly the map is drawn to zero."""
    relaxation: float = 1.0
    """Of the relaxed map, in the same units: how strongly it is drawn to the orthogonal one. 0 is least squares."""
    rank_share: float = 0.5
    """Of the low-rank map: its rank as a share of the smaller dimension."""

    def __post_init__(self) -> None:
        require_positive(self, "rank_share")
        if self.ridge < 0 or self.relaxation < 0:
            raise InputError("--adapters.ridge and --adapters.relaxation must not be negative")
        if self.rank_share > 1:
            raise InputError(f"--adapters.rank-share must be at most 1, got {self.rank_share}")


@dataclass(frozen=True)
class FitSettings:
    """How everything that works on stored embeddings is fitted."""

    heads: HeadTraining = field(default_factory=HeadTraining)
    transforms: TransformTraining = field(default_factory=TransformTraining)
    adapters: AdapterSettings = field(default_factory=AdapterSettings)
