"""The published experiments: one table, a row a recipe. ``docs/published.md`` has them with the figures of the papers.

RM: Seo et al., Metric Compatible Training for Online Backfilling in Large-Scale Retrieval, 2025. FF: Jaeckle et al.,
FastFill: Efficient Compatible Model Update, 2023.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ray_backfill.cluster.settings import EmbedSettings
from ray_backfill.comparison.evaluation import Evaluation
from ray_backfill.datasets import cifar100, gldv2, imagenet, market1501, places365, vggface2
from ray_backfill.protocols import Protocol
from ray_backfill.recipes import NamedRecipe, Recipe, needs_root
from ray_backfill.recipes._papers import Classification, fits, model


@dataclass(frozen=True)
class Paper:
    """What the experiments of one paper share."""

    name: str
    orders: tuple[str, ...]
    distance: str


RM = Paper("rank merge", ("classifier_score",), "cosine")
FF = Paper("FastFill", ("random", "entropy", "sigma"), "l2")


class Split(NamedTuple):
    """Which classes the models learn, and the same in words."""

    protocol: Protocol
    words: str


@dataclass(frozen=True)
class DataSet:
    """What the experiments on one data set share.

    images: its ``Settings``. layout: what must lie below --data-root. dim: of the embeddings. blocks: of psi and of
    rho.
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
    imagenet.Settings,
    "ImageNet-1K with train/ (a folder a wnid) and val/ (the same, or flat with the ground-truth file)",
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
    places365.Settings,
    "Places-365 in the easy format, with train/ and val/ (a folder a category)",
    Split(_HALF, "The old model learns the first 182 categories, the new one all 365."),
    dim=512,
    blocks=5,
)
MARKET1501 = DataSet(
    "Market-1501",
    market1501.Settings,
    "Market-1501 with bounding_box_train/, bounding_box_test/ and query/",
    Split(
        Protocol("extended", old_share=375 / 751),
        "The old model learns the first 375 identities, the new one all 751; queries of their own, other cameras.",
    ),
)
VGGFACE2 = DataSet(
    "VGGFace2",
    vggface2.Settings,
    "VGGFace2 with train/ and test/ (a folder an identity) and identity_meta.csv",
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

# The rows of RM's tables 1 and A2; what its figures 7 (by its text, not all of the curves) and 9 (open class) show.
RM_TABLE_1 = ("old", "new", "rm_naive", "bct", "fct", "fct_side", "bict", "rm")
RM_TABLE_A2 = (*RM_TABLE_1[:-1], "ract", "rm")
RM_FIGURE_7 = ("old", "new", "rm_naive", "rqt", "rm")
RM_FIGURE_9 = ("old", "new", "rm_naive", "ract", "rm")
# What FF compares, and its ablation (table 5).
FF_TABLES = ("old", "new", "bct", "ract", "fct", "fastfill")
FF_TABLE_5 = (*FF_TABLES, "fastfill_disc", "fastfill_l2_disc", "fastfill_l2_u", "fastfill_disc_u")
FF_FACES = ("old", "new", "ract", "fct", "fastfill")
FF_BIASED = ("old", "new", "rm_naive", "fct", "fastfill")

_KINDS = {"extended": "extended class", "open": "open class", "same": "same data", "biased": "biased"}
_ARCHS = {"resnet18": "ResNet-18", "resnet50": "ResNet-50", "vit_b_32": "ViT-B/32"}


@dataclass(frozen=True)
class PublishedRecipe:
    """A row of the table.

    where: the tables and figures of the paper. split: where it is not the usual one of the data set.
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
        """FF's on faces is l2 of normalized features, which ranks as cosine does."""
        return "cosine" if self.data.classification == "arcface" else self.paper.distance

    @property
    def description(self) -> str:
        """Data set, protocol, models and source in one sentence, and who learns what."""
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
                points=11,
                distance=self.distance,
            ),
        )


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
