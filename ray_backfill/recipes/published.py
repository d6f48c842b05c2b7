"""The published experiments: one table with a row per recipe. ``docs/published.md`` adds the papers' results.

RM: Seo et al., Metric Compatible Training for Online Backfilling in Large-Scale Retrieval, 2025. FF: Jaeckle et al.,
FastFill: Efficient Compatible Model Update, 2023.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.images.class_split import Protocol
from ray_backfill.images.datasets import cifar100, gldv2
from ray_backfill.images.datasets.folders import (
    ImageNetSettings,
    Market1501Settings,
    Places365Settings,
    VGGFace2Settings,
)
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.recipes import NamedRecipe, Recipe, needs_root
from ray_backfill.recipes._papers import Classification, fits, model
from ray_backfill.workers.settings import EmbedSettings


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


class Split(NamedTuple):
    """The classes that the models learn, as a protocol and as text."""

    protocol: Protocol
    words: str


@dataclass(frozen=True)
class DataSet:
    """Common settings of the experiments on one data set.

    images: its ``Settings``. layout: expected content of --data-root. dim: size of the embeddings. blocks: blocks of
    psi and of rho.
    """

    title: str
    images: Callable[..., Any]
    layout: str
    split: Split
    dim: int = 128
    blocks: int = 2
    metric: str = "mAP"
    classification: Classification = "softmax"


_HALF = Protocol("extended", old_share=0.5)
_OPEN = Protocol("open", old_share=0.3)
IMAGENET = DataSet(
    "ImageNet-1K",
    ImageNetSettings,
    "ImageNet-1K with train/ (a folder per wnid) and val/ (the same, or flat with the ground-truth file)",
    Split(_HALF, "The old model learns the first 500 classes, the new one all 1000."),
    blocks=5,
)
CIFAR100 = DataSet(
    "CIFAR-100",
    cifar100.Settings,
    "CIFAR-100 with cifar-100-binary/; any folder with --download, which fetches it",
    Split(_HALF, "The old model learns the first 50 classes, the new one all 100."),
)
PLACES365 = DataSet(
    "Places-365",
    Places365Settings,
    "Places-365 in the easy format, with train/ and val/ (a folder per category)",
    Split(_HALF, "The old model learns the first 182 categories, the new one all 365."),
    dim=512,
    blocks=5,
)
MARKET1501 = DataSet(
    "Market-1501",
    Market1501Settings,
    "Market-1501 with bounding_box_train/, bounding_box_test/ and query/",
    Split(
        Protocol("extended", old_share=375 / 751),
        "The old model learns the first 375 identities, the new one all 751; queries of their own, other cameras.",
    ),
)
VGGFACE2 = DataSet(
    "VGGFace2",
    VGGFace2Settings,
    "VGGFace2 with train/ and test/ (a folder per identity) and identity_meta.csv",
    Split(
        Protocol("extended", old_share=0.1),
        "The old model learns 863 identities, the new one all 8631; 50 images of each of 500 others are the gallery.",
    ),
    classification="arcface",
)
GLDV2 = DataSet(
    "Google Landmarks v2",
    partial(gldv2.Settings, queries="private"),
    "Google Landmarks v2 with train/, index/, test/ and the csv files of train (clean) and retrieval",
    Split(
        _OPEN,
        "The old model learns a random 30 % of the landmarks, the new one the other 70 %; the 750 private queries.",
    ),
    metric="mAP@100",
)

# Methods in RM's tables 1 and A2, and in its figures 7 (as in its text, not all curves) and 9 (open class).
RM_TABLE_1 = ("old", "new", "rm_naive", "bct", "fct", "fct_side", "bict", "rm")
RM_TABLE_A2 = (*RM_TABLE_1[:-1], "ract", "rm")
RM_FIGURE_7 = ("old", "new", "rm_naive", "rqt", "rm")
RM_FIGURE_9 = ("old", "new", "rm_naive", "ract", "rm")
# Methods that FF compares, and its ablation (table 5).
FF_TABLES = ("old", "new", "bct", "ract", "fct", "fastfill")
FF_TABLE_5 = (*FF_TABLES, "fastfill_disc", "fastfill_l2_disc", "fastfill_l2_u", "fastfill_disc_u")
FF_FACES = ("old", "new", "ract", "fct", "fastfill")
FF_BIASED = ("old", "new", "rm_naive", "fct", "fastfill")

_KINDS = {"extended": "extended class", "open": "open class", "same": "same data", "biased": "biased"}
_ARCHS = {"resnet18": "ResNet-18", "resnet50": "ResNet-50", "vit_b_32": "ViT-B/32"}


@dataclass(frozen=True)
class PublishedRecipe:
    """A row of the table.

    where: tables and figures of the paper. split: the split, if it is not the usual one of the data set.
    """

    name: str
    data: DataSet
    old: str
    new: str
    paper: Paper
    where: str
    methods: tuple[str, ...]
    split: Split | None = None

    @property
    def distance(self) -> str:
        """Distance of the comparison. FF uses l2 on normalized features of faces, which ranks like cosine."""
        return "cosine" if self.data.classification == "arcface" else self.paper.distance

    @property
    def description(self) -> str:
        """Data set, protocol, models and source in one sentence, and which model learns which classes."""
        split = self.split or self.data.split
        models = f"{_ARCHS[self.old]} to {_ARCHS[self.new]}"
        models += " by ArcFace" if self.data.classification == "arcface" else ""
        distance = ", l2 distance" if self.distance == "l2" else ""
        where = f"{self.paper.name}, {self.where}"
        return f"{self.data.title}, {_KINDS[split.protocol.kind]}, {models}{distance} ({where}). {split.words}"

    def recipe(self, data_root: Path | None, seed: int) -> Recipe[Any]:
        """The settings, with the hyper-parameters of the papers."""
        data, (protocol, _) = self.data, self.split or self.data.split
        if protocol.kind in ("open", "biased"):
            protocol = replace(protocol, seed=seed)
        return Recipe(
            images=data.images(root=needs_root(data_root, data.layout), image_size=224),
            protocol=protocol,
            old=model(self.old, data.dim, data.classification, seed=2 * seed),
            new=model(self.new, data.dim, data.classification, seed=2 * seed + 1),
            embed=EmbedSettings(part_rows=8192, batch=256),
            fits=fits(data.blocks, data.classification, self.distance, seed),
            evaluation=Evaluation(
                methods=self.methods,
                orders=self.paper.orders,
                metrics=(data.metric, "CMC@1"),
                points=self.paper.points,
                distance=self.distance,
            ),
        )


def published_fits(recipe: Recipe[Any]) -> FitSettings:
    """The papers' settings of all fits, for a recipe that is not the papers'.

    The recipe keeps its classification loss, its distance, the blocks of psi and rho, and its seed.
    """
    own = recipe.fits
    return fits(own.heads.blocks, own.transforms.loss.classification, recipe.evaluation.distance, own.heads.seed)


PUBLISHED = (
    PublishedRecipe("imagenet", IMAGENET, "resnet50", "resnet50", RM, "table 1", RM_TABLE_1),
    PublishedRecipe("imagenet_18_to_50", IMAGENET, "resnet18", "resnet50", RM, "table A2", RM_TABLE_A2),
    PublishedRecipe("imagenet_fastfill", IMAGENET, "resnet50", "resnet50", FF, "tables 1 and 5", FF_TABLE_5),
    PublishedRecipe(
        *("imagenet_fastfill_18_to_50", IMAGENET, "resnet18", "resnet50", FF, "table 4", FF_TABLES),
        split=Split(Protocol("same"), "Both models learn all 1000 classes; only the architecture changes."),
    ),
    PublishedRecipe("cifar100", CIFAR100, "resnet18", "resnet18", RM, "table 1", RM_TABLE_1),
    PublishedRecipe("cifar100_18_to_50", CIFAR100, "resnet18", "resnet50", RM, "table A2", RM_TABLE_A2),
    PublishedRecipe("cifar100_18_to_vit", CIFAR100, "resnet18", "vit_b_32", RM, "figure 7b", RM_FIGURE_7),
    PublishedRecipe(
        *("cifar100_open", CIFAR100, "resnet18", "resnet18", RM, "figure 9a", RM_FIGURE_9),
        split=Split(_OPEN, "The old model learns a random 30 of the classes, the new one the other 70."),
    ),
    PublishedRecipe("places365", PLACES365, "resnet18", "resnet18", RM, "table 1", RM_TABLE_1),
    PublishedRecipe("places365_18_to_50", PLACES365, "resnet18", "resnet50", RM, "table A2", RM_TABLE_A2),
    PublishedRecipe("places365_fastfill", PLACES365, "resnet50", "resnet50", FF, "table 3", FF_TABLES),
    PublishedRecipe("market1501", MARKET1501, "resnet18", "resnet18", RM, "table 1", RM_TABLE_1),
    PublishedRecipe("market1501_18_to_50", MARKET1501, "resnet18", "resnet50", RM, "table A2", RM_TABLE_A2),
    PublishedRecipe("vggface2", VGGFACE2, "resnet18", "resnet50", FF, "table 2", FF_FACES),
    PublishedRecipe(
        *("vggface2_biased", VGGFACE2, "resnet18", "resnet50", FF, "section 5.3", FF_BIASED),
        split=Split(
            Protocol("biased", old_counts=(50, 500), new_counts=(2183, 2183)),
            "The old model learns 50 women and 500 men, the new one 2183 of each, the old model's among them.",
        ),
    ),
    PublishedRecipe("gldv2", GLDV2, "resnet18", "resnet18", RM, "figure 9b", RM_FIGURE_9),
)
RECIPES = tuple(NamedRecipe(row.name, row.description, row.recipe) for row in PUBLISHED)
