"""The settings of fits: what the command line calls --heads..., --transforms... and --adapters..."""

from dataclasses import dataclass, field
from typing import Literal

from ray_backfill.errors import InputError, require_positive

HEAD_DISTANCES = ("cosine", "l2")


@dataclass(frozen=True)
class ClassificationSettings:
    """How a loss compares an item with its class."""

    classification: Literal["softmax", "arcface"] = "softmax"
    """softmax, or arcface (an angular margin; for faces). Transformations take what the new model was trained with."""
    label_smoothing: float = 0.1
    """Of softmax only."""
    arcface_margin: float = 0.5
    """ArcFace: angle, in radians, by which an item must be closer to its own class."""
    arcface_scale: float = 64.0
    """ArcFace: what cosines are multiplied by."""

    @property
    def cosine_scale(self) -> float | None:
        """The classifier's (see ``Backbone``)."""
        return self.arcface_scale if self.classification == "arcface" else None


@dataclass(frozen=True)
class CompatibleLosses:
    """Losses of backbones that are trained to be compatible, and of the side-information model."""

    influence: float = 1.0
    """BCT: weight of the old classifier's loss on the new embedding."""
    ract_weight: float = 1.0
    """RACT: weight of the contrastive loss."""
    ract_tau: float = 0.5
    """RACT: temperature of cosine similarities."""
    hard_negatives: int = 10
    """RACT with hard negatives: so many of each kind (new to old, new to new) are kept an image."""
    simclr_tau: float = 0.1
    """Side information (SimCLR): temperature of cosine similarities."""
    simclr_dim: int = 128
    """SimCLR: size of the projection that its loss compares, which is used in training only."""

    def __post_init__(self) -> None:
        require_positive(self, "ract_tau", "hard_negatives", "simclr_tau", "simclr_dim")


@dataclass(frozen=True)
class ObjectiveSettings(ClassificationSettings):
    """What is settable in the losses of backbones."""

    compatible: CompatibleLosses = field(default_factory=CompatibleLosses)
    """Losses of backbones that are trained to be compatible, and of the side-information model."""


@dataclass(frozen=True)
class Augmentation:
    """How far a view of a training image may differ from it."""

    rotate_deg: float = 10.0
    """Turned by up to so many degrees."""
    shift: float = 0.1
    """Moved by up to this share of its side."""
    zoom: float = 0.15
    """Zoomed in or out by up to this share."""
    flip: bool = False
    """Mirror half of the images; not where left and right mean something, as in handwriting."""
    colour: float = 0.0
    """Each channel brightened or darkened, and its contrast changed, by up to this share."""


@dataclass(frozen=True)
class BackboneTraining(ObjectiveSettings):
    """How a backbone is trained."""

    epochs: int = 100
    """Passes over the images."""
    batch: int = 1024
    """Images a step, over all workers together."""
    lr: float = 1.024
    """Peak learning rate, at that batch."""
    momentum: float = 0.875
    """Nesterov's, of SGD."""
    weight_decay: float = 2.0**-15
    """Pull of every weight towards 0 (L2)."""
    warmup_epochs: int = 5
    """Epochs in which the learning rate rises."""
    seed: int = 0
    """Random seed for the first weights, the order of the images and their views."""
    augmentation: Augmentation = field(default_factory=Augmentation)
    """How views of the training images differ from them."""
    pair_augmentation: Augmentation = field(
        default_factory=lambda: Augmentation(rotate_deg=15.0, shift=0.15, zoom=0.2, colour=0.2)
    )
    """Of the two views that SimCLR compares (the side-information model)."""
    pair_lr_share: float = 0.3
    """SimCLR's peak learning rate as a share of lr: its gradients are steeper than a classifier's."""

    def __post_init__(self) -> None:
        require_positive(self, "epochs", "batch", "lr", "arcface_scale", "pair_lr_share")


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
