"""The papers' results as printed. Data only, without any computation.

RM: Seo et al., Metric Compatible Training for Online Backfilling in Large-Scale Retrieval, 2025 (table 1 is the same in
the earlier version, Online Backfilling with No Regret for Large-Scale Image Retrieval, 2023).
FF: Jaeckle et al., FastFill: Efficient Compatible Model Update, ICLR 2023.
All numbers are percentages.
"""

from dataclasses import dataclass
from typing import NamedTuple


class Figures(NamedTuple):
    """One cell. gain: None if the paper prints none."""

    auc_map: float
    auc_cmc1: float
    gain: float | None = None


class Entry(NamedTuple):
    """One row: the paper's name, ours, the order if the paper names one for this row, and the cells by data set."""

    name: str
    method: str
    order: str | None
    cells: tuple[Figures | None, ...]


class Column(NamedTuple):
    """One data set of a table, and the recipe that reproduces it."""

    data_set: str
    recipe: str


@dataclass(frozen=True)
class PublishedTable:
    """One table of a paper."""

    source: str
    setting: str
    """Conditions that a reader must know to compare."""
    columns: tuple[Column, ...]
    plain_mean: bool
    """Whether the paper takes the plain mean of its points (auc_mean) instead of the trapezoid rule (auc)."""
    rows: tuple[Entry, ...]
    digits: int = 1


@dataclass(frozen=True)
class PublishedCurves:
    """Results that a paper gives in curves and text only."""

    source: str
    recipe: str
    words: str


def _rm_columns(suffix: str) -> tuple[Column, ...]:
    data_sets = ("ImageNet-1K", "CIFAR-100", "Places-365", "Market-1501")
    recipes = ("imagenet", "cifar100", "places365", "market1501")
    return tuple(Column(data_set, recipe + suffix) for data_set, recipe in zip(data_sets, recipes, strict=True))


def _rm(name: str, method: str, *numbers: float) -> Entry:
    """A row of RM's tables as printed: AUC mAP, AUC CMC@1 and gain, four times."""
    cells = tuple(Figures(*numbers[i : i + 3]) for i in range(0, len(numbers), 3))
    return Entry(name, method, None, cells)


RM_TABLE_1 = PublishedTable(
    "RM, table 1",
    "Extended class, one architecture (ImageNet ResNet-50, else ResNet-18), cosine distance, classifier-score order",
    _rm_columns(""),
    False,
    (
        _rm("Old", "old", 31.2, 49.7, 0, 21.6, 34.3, 0, 16.5, 30.7, 0, 62.7, 82.7, 0),
        _rm("New", "new", 51.3, 70.3, 100, 47.4, 62.6, 100, 23.4, 39.1, 100, 77.3, 90.9, 100),
        _rm("RM naive", "rm_naive", 40.0, 63.9, 44, 30.8, 49.1, 36, 19.5, 35.8, 43, 69.2, 87.0, 45),
        _rm("BCT", "bct", 32.0, 46.3, 4, 26.4, 43.5, 19, 17.5, 37.0, 14, 66.6, 84.3, 27),
        _rm("FCT", "fct", 36.9, 58.7, 28, 27.1, 49.4, 21, 22.5, 37.3, 87, 66.4, 84.2, 25),
        _rm("FCT (w/ side-info)", "fct_side", 43.6, 65.0, 62, 37.0, 53.9, 60, 23.7, 38.3, 104, 66.4, 84.4, 25),
        _rm("BiCT", "bict", 35.1, 59.7, 19, 29.0, 48.3, 29, 19.0, 34.9, 36, 65.0, 82.4, 16),
        _rm("RM", "rm", 53.4, 68.1, 110, 41.4, 60.7, 78, 28.2, 41.7, 170, 70.7, 87.6, 55),
    ),
)

RM_TABLE_A2 = PublishedTable(
    "RM, table A2",
    "Extended class, ResNet-18 to ResNet-50, cosine distance, classifier-score order",
    _rm_columns("_18_to_50"),
    False,
    (
        _rm("Old", "old", 22.3, 43.6, 0, 21.6, 34.3, 0, 16.5, 30.7, 0, 62.7, 82.7, 0),
        _rm("New", "new", 51.3, 70.3, 100, 50.0, 67.5, 100, 23.4, 39.4, 100, 82.1, 92.9, 100),
        _rm("RM naive", "rm_naive", 36.5, 61.5, 49, 33.8, 48.9, 43, 20.3, 35.6, 55, 72.2, 82.3, 49),
        _rm("BCT", "bct", 30.4, 53.3, 28, 27.1, 45.9, 19, 18.6, 34.2, 30, 66.6, 85.0, 20),
        _rm("FCT", "fct", 43.2, 63.6, 72, 28.9, 54.2, 26, 23.7, 38.5, 104, 67.6, 85.3, 25),
        _rm("FCT (w/ side-info)", "fct_side", 47.5, 65.0, 87, 41.5, 64.2, 70, 24.9, 39.5, 122, 68.0, 85.1, 27),
        _rm("BiCT", "bict", 33.8, 58.8, 40, 29.9, 50.7, 29, 21.4, 36.7, 71, 65.1, 84.4, 12),
        _rm("RACT", "ract", 38.9, 55.1, 57, 36.9, 60.9, 54, 22.8, 39.3, 89, 73.0, 89.9, 53),
        _rm("RM", "rm", 50.9, 67.3, 99, 45.6, 64.5, 85, 29.2, 41.8, 184, 74.7, 90.0, 62),
    ),
)

# FF prints CMC@1 first; here mAP comes first, as everywhere.
FF_TABLES_1_TO_3 = PublishedTable(
    "FF, tables 1, 2 and 3",
    "Extended class, l2 distance, five seeds; RACT in entropy order, BCT and FCT in random order",
    (
        Column("ImageNet-1k (table 1)", "imagenet_fastfill"),
        Column("VGGFace2 (table 2)", "vggface2"),
        Column("Places-365 (table 3)", "places365_fastfill"),
    ),
    True,
    (
        Entry("BCT", "bct", "random", (Figures(37.02, 58.92), None, Figures(15.15, 33.3))),
        Entry("RACT", "ract", "entropy", (Figures(39.47, 60.91), Figures(45.65, 91.04), None)),
        Entry("FCT", "fct", "random", (Figures(40.47, 62.80), Figures(70.26, 95.87), Figures(16.81, 35.73))),
        Entry("FastFill", "fastfill", "sigma", (Figures(44.84, 66.49), Figures(71.57, 96.35), Figures(19.48, 38.32))),
    ),
    digits=2,
)

FF_TABLE_4 = PublishedTable(
    "FF, table 4",
    "ResNet-18 to ResNet-50, both trained on all classes, l2 distance, five seeds",
    (Column("ImageNet-1k", "imagenet_fastfill_18_to_50"),),
    True,
    (
        Entry("Old model", "old", None, (Figures(26.41, 54.04),)),
        Entry("FastFill", "fastfill", "sigma", (Figures(45.94, 67.77),)),
        Entry("FCT", "fct", "random", (Figures(43.43, 64.91),)),
        Entry("RACT", "ract", "entropy", (Figures(42.04, 64.80),)),
        Entry("BCT", "bct", "random", (Figures(36.56, 59.26),)),
    ),
    digits=2,
)

FF_TABLE_5 = PublishedTable(
    "FF, table 5",
    "Ablation; extended class, ResNet-50, l2 distance",
    (Column("ImageNet-1k", "imagenet_fastfill"),),
    True,
    (
        Entry("l2", "fct", "random", (Figures(40.47, 62.80),)),
        Entry("disc", "fastfill_disc", "random", (Figures(39.45, 65.51),)),
        Entry("l2 + disc", "fastfill_l2_disc", "random", (Figures(41.95, 65.06),)),
        Entry("l2 + uncertainty", "fastfill_l2_u", "random", (Figures(40.08, 62.58),)),
        Entry("l2 + disc + uncertainty", "fastfill", "random", (Figures(42.05, 64.51),)),
        Entry("l2 + uncertainty", "fastfill_l2_u", "sigma", (Figures(43.61, 65.76),)),
        Entry("disc + uncertainty", "fastfill_disc_u", "sigma", (Figures(27.59, 55.21),)),
        Entry("l2 + disc + uncertainty", "fastfill", "sigma", (Figures(44.84, 66.49),)),
    ),
    digits=2,
)

TABLES = (RM_TABLE_1, RM_TABLE_A2, FF_TABLES_1_TO_3, FF_TABLE_4, FF_TABLE_5)
# Pages of runs print those that are comparable with ours: the models of table 4 differ in nothing but architecture.
PAGE_TABLES = tuple(table for table in TABLES if table is not FF_TABLE_4)
_ABOVE = "Curves only: RM stands above RACT throughout, and at the end above the new model."
CURVES = (
    PublishedCurves(
        *("RM, figure 7b", "cifar100_18_to_vit"),
        "Curves only: RM naive rises all the way, and RM is significantly better.",
    ),
    PublishedCurves("RM, figure 9a", "cifar100_open", _ABOVE),
    PublishedCurves("RM, figure 9b", "gldv2", _ABOVE),
    PublishedCurves(
        *("FF, section 5.3", "vggface2_biased"),
        "CMC@1 of men / women, in per cent: old 90.6 / 68.7, new 98.3 / 97.1. FastFill starts with a gap of 9.4 "
        "between the two and has the new model's gap at t = 0.25; FCT in random order only at t = 1.",
    ),
)
# FF, section 4.2 and appendix E: between the order by sigma and the order by the true loss l2 + disc, on ImageNet.
FF_KENDALL_TAU = 0.67
