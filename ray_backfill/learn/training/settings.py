"""Settings of training: backbones (--old.training, --new.training), --heads, --transforms and --adapters."""

from dataclasses import dataclass, field
from typing import Literal

from ray_backfill.core.errors import InputError, require_not_negative, require_positive

HEAD_DISTANCES = ("cosine", "l2")


@dataclass(frozen=True)
class ClassificationSettings:
    """Classification loss."""

    classification: Literal["softmax", "arcface"] = "softmax"
    """softmax, or arcface (an angular margin, for faces). Transformations must use the new model's choice."""
    label_smoothing: float = 0.1
    """Label smoothing of the softmax loss, from 0 (none) to 1; ignored for ArcFace."""
    arcface_margin: float = 0.5
    """ArcFace: angular margin in radians by which an item must be closer to its own class than to others."""
    arcface_scale: float = 64.0
    """ArcFace: factor on the cosines (the inverse temperature of the softmax)."""

    def check_classification(self, group: str) -> None:
        """Raises InputError for a setting out of its range. group: where the command line has these settings."""
        require_positive(self, group, "arcface_scale")
        require_not_negative(self, group, "label_smoothing", "arcface_margin")
        if self.label_smoothing > 1:
            raise InputError(f"--{group}.label-smoothing must be at most 1, got {self.label_smoothing}")

    @property
    def cosine_scale(self) -> float | None:
        """The classifier's scale of cosines (see ``Backbone``); None: a linear classifier."""
        return self.arcface_scale if self.classification == "arcface" else None


@dataclass(frozen=True)
class CompatibleLosses:
    """Losses of compatible backbones (BCT, RACT, AdvBCT, MixBCT) and of the side-information model."""

    influence: float = 1.0
    """BCT: weight of the old classifier's loss on the new embedding."""
    pseudo_weights: bool = False
    """BCT, AdvBCT: classes that the old model does not know take part with the mean of their old embeddings; off: only
    if it knows none."""
    ract_weight: float = 1.0
    """RACT: weight of the contrastive loss."""
    ract_tau: float = 0.5
    """RACT: temperature of cosine similarities."""
    hard_negatives: int = 10
    """RACT with hard negatives: negatives of each kind (new to old, new to new) kept per image."""
    adversarial: float = 1.0
    """AdvBCT: weight of the discriminator's loss at the start; it falls linearly to 0."""
    boundary: float = 1.0
    """AdvBCT: weight of the distance by which new embeddings lie outside the boundary of their old class."""
    boundary_limit: float = 1.0
    """AdvBCT: radius that each class's learned boundary can approach from the radius of its old embeddings."""
    discriminator: int = 100
    """AdvBCT: hidden width of the discriminator between old and new embeddings; only used in training."""
    mix_share: float = 0.3
    """MixBCT: share of a batch whose new embeddings are replaced by old ones."""
    mix_trusted: float = 0.9
    """MixBCT: share of each class, those closest to its centre, whose old embeddings may replace new ones."""
    simclr_tau: float = 0.1
    """Side information (SimCLR): temperature of cosine similarities."""
    simclr_dim: int = 128
    """Side information (SimCLR): size of the projection that the loss compares; only used in training."""

    def __post_init__(self) -> None:
        group = "{old,new}.training.compatible"
        require_positive(self, group, "ract_tau", "hard_negatives", "simclr_tau", "simclr_dim")
        require_positive(self, group, "boundary_limit", "discriminator", "mix_trusted")
        require_not_negative(self, group, "influence", "ract_weight", "adversarial", "boundary", "mix_share")
        for name in ("mix_share", "mix_trusted"):
            if getattr(self, name) > 1:
                option = name.replace("_", "-")
                raise InputError(f"--{group}.{option} must be at most 1, got {getattr(self, name)}")


@dataclass(frozen=True)
class ObjectiveSettings(ClassificationSettings):
    """Losses of backbones."""

    compatible: CompatibleLosses = field(default_factory=CompatibleLosses)
    """Losses of compatible backbones (BCT, RACT, AdvBCT, MixBCT) and of the side-information model."""


@dataclass(frozen=True)
class Augmentation:
    """Random changes of training images."""

    rotate_deg: float = 10.0
    """Largest rotation, in degrees; 0: none."""
    shift: float = 0.1
    """Largest shift, as a share of the image's side; 0: none."""
    zoom: float = 0.15
    """Largest change of scale, in or out, as a share; 0: none."""
    flip: bool = False
    """Mirror half of the images. Leave it off where left and right matter, as in handwriting."""
    colour: float = 0.0
    """Largest change of the brightness and contrast of each channel, as a share; 0: none."""

    def __post_init__(self) -> None:
        require_not_negative(self, "{old,new}.training.augmentation", "rotate_deg", "shift", "zoom", "colour")


@dataclass(frozen=True)
class BackboneTraining(ObjectiveSettings):
    """Training of a backbone by SGD: schedule, loss and augmentation."""

    epochs: int = 100
    """Number of passes over the train split."""
    batch: int = 1024
    """Images per step, over all workers together."""
    lr: float = 1.024
    """Peak learning rate of SGD. Scale it with the batch."""
    momentum: float = 0.875
    """Momentum of SGD."""
    nesterov: bool = True
    """Nesterov's kind of momentum; off: the usual kind."""
    weight_decay: float = 2.0**-15
    """Weight decay (L2 penalty on all weights, those of BatchNorm as well); 0: none."""
    warmup_epochs: int = 5
    """Epochs in which the learning rate rises linearly to its peak; a cosine decay follows."""
    seed: int = 0
    """Random seed for initial weights, image order and augmentation."""
    augmentation: Augmentation = field(default_factory=Augmentation)
    """Augmentation of the training images."""
    pair_augmentation: Augmentation = field(
        default_factory=lambda: Augmentation(rotate_deg=15.0, shift=0.15, zoom=0.2, colour=0.2)
    )
    """Augmentation of the two views that SimCLR compares (side-information model)."""
    pair_lr_share: float = 0.3
    """SimCLR: peak learning rate as a share of lr, because its gradients are steeper than a classifier's."""

    def __post_init__(self) -> None:
        group = "{old,new}.training"
        self.check_classification(group)
        require_positive(self, group, "epochs", "batch", "lr", "pair_lr_share")
        require_not_negative(self, group, "momentum", "weight_decay", "warmup_epochs", "seed")


@dataclass(frozen=True)
class LossSettings:
    """Contrastive loss of the heads psi and rho."""

    distance: str = "cosine"
    """Distance that the loss compares: cosine or l2."""
    tau: float = 0.1
    """Temperature of the loss, exp(-distance / tau): small values stress the closest items."""
    hard_mining: bool = True
    """Keep the harder half of each anchor's positives and negatives."""

    def __post_init__(self) -> None:
        require_positive(self, "heads.loss", "tau")
        if self.distance not in HEAD_DISTANCES:
            raise InputError(f"--heads.loss.distance must be {' or '.join(HEAD_DISTANCES)}, got {self.distance!r}")


@dataclass(frozen=True)
class HeadTraining:
    """Training of the heads psi and rho. The paper has lr 1e-4 and tau 1 instead (docs/results/omniglot.md)."""

    epochs: int = 50
    """Number of passes over the train split; 0: as many as 10 trillion operations allow, at most 50."""
    classes: int = 64
    """Classes per batch, over all workers together."""
    items: int = 4
    """Items of each class per batch."""
    lr: float = 1e-3
    """Peak learning rate of Adam."""
    blocks: int = 2
    """Number of blocks of psi and of rho: Linear-BatchNorm-ReLU, but the last one is Linear only."""
    seed: int = 0
    """Random seed for initial weights and batches."""
    loss: LossSettings = field(default_factory=LossSettings)
    """Contrastive loss of the heads psi and rho."""

    def __post_init__(self) -> None:
        require_positive(self, "heads", "classes", "items", "lr", "blocks")
        require_not_negative(self, "heads", "epochs", "seed")


@dataclass(frozen=True)
class TransformSettings(ClassificationSettings):
    """Loss of the transformation h."""

    disc_weight: float = 1.0
    """FastFill: weight of the classification loss relative to the l2 loss."""
    uncertainty_weight: float = 0.5
    """FastFill: weight of log sigma^2 (lambda in eq. 5)."""
    relative: bool = True
    """Losses as shares of those of a guess (variance, log of the number of classes); off: as published."""

    def __post_init__(self) -> None:
        self.check_classification("transforms.loss")
        require_positive(self, "transforms.loss", "disc_weight", "uncertainty_weight")


@dataclass(frozen=True)
class OrthogonalSettings:
    """Joint maps B (new to old) and F (old to B's space) of lambda-Orthogonality."""

    forward: float = 1.0
    """Weight of the squared distance of F(old) to B(new)."""
    backward: float = 1.0
    """Weight of the squared distance of B(new) to old."""
    contrastive: float = 1.0
    """Weight of the contrastive losses of F(old) against B(new) and against old."""
    tau: float = 0.1
    """Temperature of the contrastive losses."""
    threshold: float = 0.375
    """Deviation from orthogonality that costs nothing, lambda / sqrt(n) for n dimensions of the new model."""
    steepness: float = 10.0
    """How abruptly the penalty on larger deviations sets in (alpha)."""
    lr_share: float = 2.0
    """Peak learning rate as a multiple of --transforms.lr; the paper has 1e-3."""

    def __post_init__(self) -> None:
        group = "transforms.orthogonal"
        require_positive(self, group, "tau", "steepness", "lr_share")
        require_not_negative(self, group, "forward", "backward", "contrastive", "threshold")


@dataclass(frozen=True)
class TransformTraining:
    """Training of the transformations h of FCT and FastFill, of joint maps, and of MLP adapters."""

    epochs: int = 80
    """Number of passes over the train split; 0: as many as 10 trillion operations allow, at most 40."""
    batch: int = 1024
    """Items per step, over all workers together."""
    lr: float = 5e-4
    """Peak learning rate of Adam."""
    weight_decay: float = 2.0**-15
    """Weight decay (L2 penalty on all weights); 0: none."""
    warmup_epochs: int = 5
    """Epochs in which the learning rate rises linearly to its peak; a cosine decay follows."""
    fixed_norm_from: float = 0.5
    """Share of the epochs after which the statistics of BatchNorm are frozen; 1: never."""
    hidden: int = 2048
    """Width of the two hidden layers."""
    seed: int = 0
    """Random seed for initial weights and batches."""
    loss: TransformSettings = field(default_factory=TransformSettings)
    """Loss of the transformation h."""
    orthogonal: OrthogonalSettings = field(default_factory=OrthogonalSettings)
    """Joint maps B (new to old) and F (old to B's space) of lambda-Orthogonality."""

    def __post_init__(self) -> None:
        require_positive(self, "transforms", "batch", "lr", "hidden")
        require_not_negative(self, "transforms", "epochs", "weight_decay", "warmup_epochs", "fixed_norm_from", "seed")


@dataclass(frozen=True)
class AdapterSettings:
    """Fitting of adapters: maps between both embeddings that need no labels."""

    ridge: float | None = None
    """Ridge map: penalty that draws it to zero, in units of the inputs' mean variance per dimension; 0: none. Default:
    chosen by cross-validation on the train items."""
    relaxation: float | None = None
    """Relaxed map: penalty that draws it to the orthogonal map, in the same units; 0: plain least squares. Default:
    chosen by cross-validation."""
    rank_share: float | None = None
    """Low-rank map: rank as a share of the smaller embedding size; at most 1. Default: chosen by cross-validation."""
    drift_rank: int = 64
    """Drift-Adapter's low-rank affine map: rank, at most the smaller embedding size."""

    def __post_init__(self) -> None:
        given = [name for name in ("ridge", "relaxation") if getattr(self, name) is not None]
        require_not_negative(self, "adapters", *given)
        require_positive(self, "adapters", "drift_rank", *(("rank_share",) if self.rank_share is not None else ()))
        if (self.rank_share or 0) > 1:
            raise InputError(f"--adapters.rank-share must be at most 1, got {self.rank_share}")


@dataclass(frozen=True)
class FitSettings:
    """Fitting of everything that works on stored embeddings."""

    heads: HeadTraining = field(default_factory=HeadTraining)
    """Training of the heads psi and rho. The paper has lr 1e-4 and tau 1 instead (docs/results/omniglot.md)."""
    transforms: TransformTraining = field(default_factory=TransformTraining)
    """Training of the transformations h of FCT and FastFill, of joint maps, and of MLP adapters."""
    adapters: AdapterSettings = field(default_factory=AdapterSettings)
    """Fitting of adapters: maps between both embeddings that need no labels."""
    tune: int = 0
    """Number of settings to try for each fitted method, the given ones among them; the best on the validation split is
    used. 0 or 1: only the given ones."""

    def __post_init__(self) -> None:
        if self.tune < 0:
            raise InputError(f"--tune must not be negative, got {self.tune}")

    @classmethod
    def of_folder(cls) -> "FitSettings":
        """The defaults for a folder of embeddings of any size, whose dimensions decide how long a training takes."""
        return cls(HeadTraining(epochs=0), TransformTraining(epochs=0, batch=256, hidden=1024))


ARCHITECTURES = ("convnet", "resnet18", "resnet50", "vit_b_32", "hf:NAME_OR_FOLDER")


@dataclass(frozen=True)
class BackboneSettings:
    """Architecture of a backbone and size of its embeddings."""

    arch: str = "convnet"
    """convnet, resnet18, resnet50, vit_b_32, or hf:NAME_OR_FOLDER for any Hugging Face vision model."""
    dim: int = 128
    """Dimensions of the embedding."""
    width: int = 32
    """Channels of the convnet's first block; ignored for other architectures."""
    pretrained: bool = False
    """Start from the published weights of the hf: model instead of random ones."""
    last_layer: Literal["linear", "relu"] = "linear"
    """linear: a linear layer makes the embedding. relu: the last block does, as published, so that no value is < 0."""

    def __post_init__(self) -> None:
        require_positive(self, "{old,new}.backbone", "dim", "width")
        if self.last_layer == "relu" and self.arch.startswith("hf:"):
            raise InputError(
                f"--{{old,new}}.backbone.last-layer relu changes the last block, which {self.arch} keeps as it is; "
                "give --{old,new}.backbone.last-layer linear"
            )
