"""Every recipe: small ones for CPUs, and the published experiments.

RM: Seo et al., Metric Compatible Training for Online Backfilling in Large-Scale Retrieval, 2025, section 5.2 and
appendix B. FF: Jaeckle et al., FastFill: Efficient Compatible Model Update, 2023, appendix A.2 and, where it is silent,
the authors' public configuration (momentum, label smoothing, weight decay of BatchNorm, weights of the losses, last
layer of the backbones). All their values are stated here, even if they are defaults, so that a published experiment
does not change with a default. ``reproduction/silent.py`` lists what the papers omit; ``docs/published.md`` adds their
results.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.images.class_split import Protocol
from ray_backfill.images.datasets import cifar100, folders, gldv2, image_folder, landmarks, manifest, omniglot
from ray_backfill.learn.training.settings import (
    AdapterSettings,
    Augmentation,
    BackboneSettings,
    BackboneTraining,
    CompatibleLosses,
    FitSettings,
    HeadTraining,
    LossSettings,
    OrthogonalSettings,
    TransformSettings,
    TransformTraining,
)
from ray_backfill.recipes import EmbedSettings, ModelRecipe, NamedRecipe, Recipe, needs_root

_HALF, _OPEN = Protocol("extended", old_share=0.5), Protocol("open", old_share=0.3)


def _seeded(protocol: Protocol, seed: int) -> Protocol:
    """The protocol with this seed, if it draws classes."""
    return replace(protocol, seed=seed) if protocol.kind in ("open", "biased") else protocol


def _small(
    name: str,
    description: str,
    images: Callable[..., Any],
    needs: str,
    protocol: Protocol,
    widths: tuple[int, int] = (16, 32),
    epochs: tuple[int, int] = (12, 12),
    head_epochs: int = 50,
    transform_epochs: int = 80,
    augmentation: Augmentation | None = None,
    embed: EmbedSettings | None = None,
    evaluation: Evaluation | None = None,
) -> NamedRecipe:
    """A recipe for CPUs: convnets that learn in a few epochs; narrow transformations for a few thousand items.

    needs: expected content of --data-root; empty: the images need no files, only a seed. widths, epochs: of the old and
    the new model.
    """

    def model(width: int, epochs: int, seed: int) -> ModelRecipe:
        training = BackboneTraining(
            epochs=epochs,
            batch=128,
            lr=0.1,
            momentum=0.9,
            weight_decay=5e-4,
            warmup_epochs=max(1, epochs // 6),
            seed=seed,
            augmentation=augmentation or Augmentation(),
        )
        return ModelRecipe(BackboneSettings("convnet", dim=128, width=width), training)

    def build(data_root: Path | None, seed: int) -> Recipe[Any]:
        return Recipe(
            images=images(root=needs_root(data_root, needs)) if needs else images(seed=seed),
            protocol=_seeded(protocol, seed),
            old=model(widths[0], epochs[0], seed=2 * seed),
            new=model(widths[1], epochs[1], seed=2 * seed + 1),
            embed=embed or EmbedSettings(),
            fits=FitSettings(
                heads=HeadTraining(epochs=head_epochs, seed=seed),
                transforms=TransformTraining(epochs=transform_epochs, batch=256, hidden=512, seed=seed),
            ),
            evaluation=evaluation or Evaluation(),
        )

    return NamedRecipe(name, description, build)


_OMNIGLOT = "the folder with omniglot_small1.zip and omniglot_small2.zip"
# At 64 pixels, the size of the files, --images.image-size 64 takes four times as long. With --images.queries 0 all
# photographs of the gallery are queries, ten times as many.
_tiny_imagenet = partial(
    _small,
    images=partial(folders.TinyImageNetSettings, image_size=32, queries=5),
    needs="the folder with tiny_imagenet.zip",
    epochs=(8, 8),
    head_epochs=10,
    transform_epochs=10,
    augmentation=Augmentation(flip=True),
)
# On GPUs: --images.image-size 224 --old.backbone.arch resnet18 --new.backbone.arch resnet50 --workers.number 4
_own = partial(_small, protocol=_HALF, epochs=(20, 20))
_LEARNS = "The old model learns the first half of the classes, the new one all of them and is twice as wide."

SMALL = (
    _small(
        "landmarks",
        "Rendered landmarks in the protocol of Google Landmarks v2: open class (30 % / 70 %), separate queries, "
        "mAP@100. Demo size. The old model learns other landmarks than the new one, and fewer.",
        landmarks.Settings,
        "",
        replace(_OPEN, validation=0.1),
        widths=(16, 24),
        epochs=(6, 5),
        head_epochs=20,
        transform_epochs=30,
        embed=EmbedSettings(part_rows=1024),
        evaluation=Evaluation(metrics=("mAP@100", "CMC@1")),
    ),
    _small(
        "omniglot",
        "Handwritten characters (real images), extended class: the old model knows half of the 242 characters. Both "
        "models are trained alike; the new one is twice as wide and sees all characters.",
        omniglot.Settings,
        _OMNIGLOT,
        replace(_HALF, validation=0.2),
        head_epochs=100,
    ),
    _small(
        "omniglot_biased",
        "Handwritten characters, with an old model that was trained on few characters of one of two subgroups, as in "
        "FastFill 5.3. A quarter of the characters of each subgroup is left to the gallery, which shows no others. Of "
        "the rest, the old model knows a tenth of the first subgroup and all of the second, the new model all.",
        partial(omniglot.Settings, groups=True, unseen=0.25),
        _OMNIGLOT,
        Protocol("biased", old_share=0.1, validation=0.2),
        head_epochs=100,
        evaluation=Evaluation(
            methods=("rm_naive", "fct", "fastfill", "rm"),
            orders=(
                *("random", "classifier_score", "entropy", "sigma"),
                *("mapped_class_mean_distance", "mapped_least_confidence"),
            ),
            points=21,  # t = 0.25 is one of them
        ),
    ),
    _tiny_imagenet(
        "tiny_imagenet",
        "Photographs (real images) of 200 classes of ImageNet at 32 pixels, extended class: the old model knows the "
        "first 100 classes. Both models are trained alike; the new one is twice as wide and sees all classes.",
        protocol=replace(_HALF, validation=0.1),
    ),
    _tiny_imagenet(
        "tiny_imagenet_open",
        "Photographs (real images) of 200 classes of ImageNet at 32 pixels, open class (30 % / 70 %): the old model "
        "knows 60 classes drawn at random, the new one the other 140 and is twice as wide.",
        protocol=replace(_OPEN, validation=0.1),
    ),
    _own(
        "image_folder",
        "Your own images, a folder per class (or zip files of that), extended class, a convnet for CPUs. " + _LEARNS,
        image_folder.Settings,
        "a folder of class folders, or zip files of them",
    ),
    _own(
        "manifest",
        "Your own images, listed in a CSV or Parquet file of paths or URIs, extended class, a convnet for CPUs. "
        + _LEARNS,
        manifest.Settings,
        "a .csv or .parquet file with columns path and label",
    ),
)


ClassificationLoss = Literal["softmax", "arcface"]
# Learning rates for a batch of 1024. That of the ViT is untested, because RM does not describe its training.
_LR = {"resnet18": 1.024, "resnet50": 1.024, "vit_b_32": 0.1}


def _model(arch: str, dim: int, classification: ClassificationLoss, seed: int) -> ModelRecipe:
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


def fits_of_papers(blocks: int, classification: ClassificationLoss, distance: str, seed: int) -> FitSettings:
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


@dataclass(frozen=True)
class Paper:
    """Common settings of the experiments of one paper."""

    name: str
    orders: tuple[str, ...]
    distance: str
    points: int


# RM: t = 0, 0.1, ..., 1 (section 5.1). FF: 20 steps between 0 and 1 (the authors' public configuration).
RM = Paper("rank merge", ("classifier_score",), "cosine", points=11)
FF = Paper("FastFill", ("random", "entropy", "sigma"), "l2", points=22)


class _Split(NamedTuple):
    """The classes that the models learn, as a protocol and as text."""

    protocol: Protocol
    words: str


@dataclass(frozen=True)
class _DataSet:
    """Common settings of the experiments on one data set.

    images: its ``Settings``. layout: expected content of --data-root. dim: size of the embeddings. blocks: blocks of
    psi and of rho.
    """

    title: str
    images: Callable[..., Any]
    layout: str
    split: _Split
    dim: int = 128
    blocks: int = 2
    metric: str = "mAP"
    classification: ClassificationLoss = "softmax"


_IMAGENET = _DataSet(
    "ImageNet-1K",
    folders.ImageNetSettings,
    "ImageNet-1K with train/ (a folder per wnid) and val/ (the same, or flat with the ground-truth file)",
    _Split(_HALF, "The old model learns the first 500 classes, the new one all 1000."),
    blocks=5,
)
_CIFAR100 = _DataSet(
    "CIFAR-100",
    cifar100.Settings,
    "CIFAR-100 with cifar-100-binary/; any folder with --download, which fetches it",
    _Split(_HALF, "The old model learns the first 50 classes, the new one all 100."),
)
_PLACES365 = _DataSet(
    "Places-365",
    folders.Places365Settings,
    "Places-365 in the easy format, with train/ and val/ (a folder per category)",
    _Split(_HALF, "The old model learns the first 182 categories, the new one all 365."),
    dim=512,
    blocks=5,
)
_MARKET1501 = _DataSet(
    "Market-1501",
    folders.Market1501Settings,
    "Market-1501 with bounding_box_train/, bounding_box_test/ and query/",
    _Split(
        Protocol("extended", old_share=375 / 751),
        "The old model learns the first 375 identities, the new one all 751; queries of their own, other cameras.",
    ),
)
_VGGFACE2 = _DataSet(
    "VGGFace2",
    folders.VGGFace2Settings,
    "VGGFace2 with train/ and test/ (a folder per identity) and identity_meta.csv",
    _Split(
        Protocol("extended", old_share=0.1),
        "The old model learns 863 identities, the new one all 8631; 50 images of each of 500 others are the gallery.",
    ),
    classification="arcface",
)
_GLDV2 = _DataSet(
    "Google Landmarks v2",
    partial(gldv2.Settings, queries="private"),
    "Google Landmarks v2 with train/, index/, test/ and the csv files of train (clean) and retrieval",
    _Split(
        _OPEN,
        "The old model learns a random 30 % of the landmarks, the new one the other 70 %; the 750 private queries.",
    ),
    metric="mAP@100",
)

_KINDS = {"extended": "extended class", "open": "open class", "same": "same data", "biased": "biased"}
_ARCHS = {"resnet18": "ResNet-18", "resnet50": "ResNet-50", "vit_b_32": "ViT-B/32"}


def _published(
    name: str,
    data: _DataSet,
    archs: tuple[str, str],
    paper: Paper,
    where: str,
    methods: tuple[str, ...],
    split: _Split | None = None,
) -> NamedRecipe:
    """A recipe with the hyper-parameters of the papers.

    archs: of the old and the new model. where: tables and figures of the paper. split: if not the usual one of the data
    set.
    """
    protocol, words = split or data.split
    is_arcface = data.classification == "arcface"
    # FF uses l2 on normalized features of faces, which ranks like cosine.
    distance = "cosine" if is_arcface else paper.distance

    def build(data_root: Path | None, seed: int) -> Recipe[Any]:
        old, new = (_model(arch, data.dim, data.classification, 2 * seed + i) for i, arch in enumerate(archs))
        return Recipe(
            images=data.images(root=needs_root(data_root, data.layout), image_size=224),
            protocol=_seeded(protocol, seed),
            old=old,
            new=new,
            embed=EmbedSettings(part_rows=8192, batch=256),
            fits=fits_of_papers(data.blocks, data.classification, distance, seed),
            evaluation=Evaluation(
                methods=methods,
                orders=paper.orders,
                metrics=(data.metric, "CMC@1"),
                points=paper.points,
                distance=distance,
            ),
        )

    models = " to ".join(_ARCHS[arch] for arch in archs) + " by ArcFace" * is_arcface
    details = f"{_KINDS[protocol.kind]}, {models}{', l2 distance' * (distance == 'l2')} ({paper.name}, {where})"
    return NamedRecipe(name, f"{data.title}, {details}. {words}", build)


# Methods in RM's tables 1 and A2, and in its figures 7 (as in its text, not all curves) and 9 (open class).
_RM_TABLE_1 = ("old", "new", "rm_naive", "bct", "fct", "fct_side", "bict", "rm")
_RM_TABLE_A2 = (*_RM_TABLE_1[:-1], "ract", "rm")
_RM_FIGURE_7 = ("old", "new", "rm_naive", "rqt", "rm")
_RM_FIGURE_9 = ("old", "new", "rm_naive", "ract", "rm")
# Methods that FF compares, and its ablation (table 5).
_FF_TABLES = ("old", "new", "bct", "ract", "fct", "fastfill")
_FF_TABLE_5 = (*_FF_TABLES, "fastfill_disc", "fastfill_l2_disc", "fastfill_l2_u", "fastfill_disc_u")
_FF_FACES = ("old", "new", "ract", "fct", "fastfill")
_FF_BIASED = ("old", "new", "rm_naive", "fct", "fastfill")
_18, _50 = ("resnet18", "resnet18"), ("resnet50", "resnet50")
_18_TO_50, _18_TO_VIT = ("resnet18", "resnet50"), ("resnet18", "vit_b_32")

PUBLISHED = (
    _published("imagenet", _IMAGENET, _50, RM, "table 1", _RM_TABLE_1),
    _published("imagenet_18_to_50", _IMAGENET, _18_TO_50, RM, "table A2", _RM_TABLE_A2),
    _published("imagenet_fastfill", _IMAGENET, _50, FF, "tables 1 and 5", _FF_TABLE_5),
    _published(
        *("imagenet_fastfill_18_to_50", _IMAGENET, _18_TO_50, FF, "table 4", _FF_TABLES),
        split=_Split(Protocol("same"), "Both models learn all 1000 classes; only the architecture changes."),
    ),
    _published("cifar100", _CIFAR100, _18, RM, "table 1", _RM_TABLE_1),
    _published("cifar100_18_to_50", _CIFAR100, _18_TO_50, RM, "table A2", _RM_TABLE_A2),
    _published("cifar100_18_to_vit", _CIFAR100, _18_TO_VIT, RM, "figure 7b", _RM_FIGURE_7),
    _published(
        *("cifar100_open", _CIFAR100, _18, RM, "figure 9a", _RM_FIGURE_9),
        split=_Split(_OPEN, "The old model learns a random 30 of the classes, the new one the other 70."),
    ),
    _published("places365", _PLACES365, _18, RM, "table 1", _RM_TABLE_1),
    _published("places365_18_to_50", _PLACES365, _18_TO_50, RM, "table A2", _RM_TABLE_A2),
    _published("places365_fastfill", _PLACES365, _50, FF, "table 3", _FF_TABLES),
    _published("market1501", _MARKET1501, _18, RM, "table 1", _RM_TABLE_1),
    _published("market1501_18_to_50", _MARKET1501, _18_TO_50, RM, "table A2", _RM_TABLE_A2),
    _published("vggface2", _VGGFACE2, _18_TO_50, FF, "table 2", _FF_FACES),
    _published(
        *("vggface2_biased", _VGGFACE2, _18_TO_50, FF, "section 5.3", _FF_BIASED),
        split=_Split(
            Protocol("biased", old_counts=(50, 500), new_counts=(2183, 2183)),
            "The old model learns 50 women and 500 men, the new one 2183 of each, the old model's among them.",
        ),
    ),
    _published("gldv2", _GLDV2, _18, RM, "figure 9b", _RM_FIGURE_9),
)
RECIPES = (*SMALL, *PUBLISHED)
