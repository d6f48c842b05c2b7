"""What the published experiments share: models, training, fits and evaluation with the papers' hyper-parameters.

RM: Seo et al., Metric Compatible Training for Online Backfilling in Large-Scale Retrieval, 2025, section 5.2 and
appendix B. FF: Jaeckle et al., FastFill, 2023, appendix A.2. All values stand here, also where they are the defaults
elsewhere: a published experiment does not change when a default does.

Deviates, in all of them: views of training images are shifted, zoomed and mirrored, where FF's reference code (NVIDIA's
ResNet-50 v1.5) takes random resized crops and RM says nothing; that code has no weight decay on BatchNorm, ours has.
FF names neither label smoothing (0.1 in that code, and here) nor the kind of momentum (here Nesterov's).
The model of side information is SimCLR on the old model's images, as in FCT; RM's was trained on ImageNet for every
data set. Compatible backbones (BCT, RACT) are trained like the new model; RM used the authors' codes.
The papers do not say: batches of heads (here 256 classes x 4 items, 1024 as elsewhere); FF's lambda (here 1).
"""

from dataclasses import replace
from typing import TypeVar

from ray_backfill.cluster.embed import EmbedSettings
from ray_backfill.comparison.evaluation import Evaluation
from ray_backfill.methods._objective import CompatibleLosses
from ray_backfill.methods.fastfill import TransformSettings
from ray_backfill.methods.rank_merge import LossSettings
from ray_backfill.models.backbones import BackboneSettings
from ray_backfill.protocols import Protocol
from ray_backfill.recipes import ModelRecipe, Recipe
from ray_backfill.training.augment import Augmentation
from ray_backfill.training.backbone_loop import BackboneTraining
from ray_backfill.training.fits import FitSettings
from ray_backfill.training.head_loop import HeadTraining
from ray_backfill.training.transform_loop import TransformTraining

ImagesT = TypeVar("ImagesT")

# What must lie below --data-root, each in one line.
IMAGENET = "ImageNet-1K with train/ (a folder a wnid) and val/ (the same, or flat with the ground-truth file)"
CIFAR100 = "CIFAR-100 with cifar-100-python/ or cifar-100-binary/; any folder with --download, which fetches it"
PLACES365 = "Places-365 in the easy format, with train/ and val/ (a folder a category)"
MARKET1501 = "Market-1501 with bounding_box_train/, bounding_box_test/ and query/"
VGGFACE2 = "VGGFace2 with train/ and test/ (a folder an identity) and identity_meta.csv"
GLDV2 = "Google Landmarks v2 with train/, index/, test/ and the csv files of train (clean) and retrieval"

# The rows of RM's tables 1 and A2; what its figures 7 (by its text, not all of the curves) and 9 (open class) show.
RM_TABLE_1 = ("old", "new", "rm_naive", "bct", "fct", "fct_side", "bict", "rm")
RM_TABLE_A2 = (*RM_TABLE_1[:-1], "ract", "rm")
RM_FIGURE_7 = ("old", "new", "rm_naive", "rqt", "rm")
RM_FIGURE_9 = ("old", "new", "rm_naive", "ract", "rm")
# What FF compares, and its ablation (table 5).
FF_TABLES = ("old", "new", "bct", "ract", "fct", "fastfill")
FF_TABLE_5 = (*FF_TABLES, "fastfill_disc", "fastfill_l2_disc", "fastfill_l2_u", "fastfill_disc_u")
FF_ORDERS = ("random", "entropy", "sigma")


def model(arch: str, seed: int, dim: int = 128, lr: float = 1.024) -> ModelRecipe:
    """A backbone from scratch on images of 224 x 224, by FF's schedule. lr: at a batch of 1024."""
    return ModelRecipe(
        BackboneSettings(arch, dim=dim),
        BackboneTraining(
            classification="softmax",
            label_smoothing=0.1,
            compatible=CompatibleLosses(influence=1.0, ract_weight=1.0, ract_tau=0.5),
            epochs=100,
            batch=1024,
            lr=lr,
            momentum=0.875,
            weight_decay=2.0**-15,
            warmup_epochs=5,
            seed=seed,
            augmentation=Augmentation(rotate_deg=0.0, shift=0.15, zoom=0.3, flip=True),
            pair_augmentation=Augmentation(rotate_deg=0.0, shift=0.2, zoom=0.4, flip=True, colour=0.4),
        ),
    )


def faces(plain: ModelRecipe) -> ModelRecipe:
    """The same, trained by ArcFace with margin 0.5 and scale 64 (FF, appendix A.2)."""
    training = replace(plain.training, classification="arcface", arcface_margin=0.5, arcface_scale=64.0)
    return replace(plain, training=training)


def fits(blocks: int, seed: int, distance: str = "cosine") -> FitSettings:
    """blocks: of psi and of rho: 2 for CIFAR-100, Market-1501 and GLDv2, 5 for ImageNet-1K and Places-365."""
    return FitSettings(
        heads=HeadTraining(
            epochs=50,
            classes=256,
            items=4,
            lr=1e-4,
            blocks=blocks,
            seed=seed,
            loss=LossSettings(distance=distance, tau=1.0, hard_mining=True),
        ),
        transforms=TransformTraining(
            epochs=80,
            batch=1024,
            lr=5e-4,
            weight_decay=2.0**-15,
            warmup_epochs=5,
            fixed_norm_from=0.5,
            hidden=2048,
            seed=seed,
            loss=TransformSettings(disc_weight=1.0, label_smoothing=0.1),
        ),
    )


def face_fits(seed: int) -> FitSettings:
    """FF's transformations for faces: classified by ArcFace, as the new model is."""
    plain = fits(blocks=2, seed=seed)
    loss = replace(plain.transforms.loss, classification="arcface", arcface_margin=0.5, arcface_scale=64.0)
    return replace(plain, transforms=replace(plain.transforms, loss=loss))


def rank_merge(
    images: ImagesT,
    old: ModelRecipe,
    new: ModelRecipe,
    blocks: int,
    seed: int,
    methods: tuple[str, ...] = RM_TABLE_1,
    protocol: Protocol | None = None,
    metrics: tuple[str, ...] = ("mAP", "CMC@1"),
) -> Recipe[ImagesT]:
    """An experiment of RM: cosine distance, the order of the old classifier's score, eleven moments.

    protocol: default extended class, by halves.
    """
    return Recipe(
        images=images,
        protocol=protocol or Protocol("extended", old_share=0.5),
        old=old,
        new=new,
        embed=EmbedSettings(part_rows=8192, batch=256),
        fits=fits(blocks, seed),
        evaluation=Evaluation(
            methods=methods, orders=("classifier_score",), metrics=metrics, points=11, distance="cosine"
        ),
    )


def fastfill(
    images: ImagesT,
    old: ModelRecipe,
    new: ModelRecipe,
    fitted: FitSettings,
    methods: tuple[str, ...] = FF_TABLES,
    protocol: Protocol | None = None,
    distance: str = "l2",
) -> Recipe[ImagesT]:
    """An experiment of FF, in its three orders. protocol: default extended class, by halves."""
    return Recipe(
        images=images,
        protocol=protocol or Protocol("extended", old_share=0.5),
        old=old,
        new=new,
        embed=EmbedSettings(part_rows=8192, batch=256),
        fits=fitted,
        evaluation=Evaluation(
            methods=methods, orders=FF_ORDERS, metrics=("mAP", "CMC@1"), points=11, distance=distance
        ),
    )
