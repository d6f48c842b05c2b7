"""What is wrong with a folder of embeddings, from the scans of its splits."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ray_backfill.data.doctor.mixed import find_mixed
from ray_backfill.data.doctor.scan import SplitScan, VectorColumn
from ray_backfill.data.few_items import FIT_NOISE, few_items_per_dimension
from ray_backfill.data.store.loose import FINE, PROBLEMS, ZERO
from ray_backfill.engine.distances import Band, band_of, do_compare

# error: a run refuses the folder. warning: a run works, and its figures may mislead.
Level = Literal["error", "warning", "note"]
MODELS = ("old", "new")
# Share of equal vectors from which they are told.
_EQUAL_SHARE = 0.001


@dataclass(frozen=True)
class Finding:
    """One thing that a user should know. what: a sentence without its full stop. remedy: what to do; "" if nothing."""

    level: Level
    where: str
    what: str
    remedy: str = ""


def find(scans: Mapping[str, SplitScan]) -> list[Finding]:
    """All findings, errors first. scans: split -> its scan; the gallery is there."""
    found = [each for name, scan in scans.items() for each in _of_split(name, scan)]
    found += _of_widths(scans)
    found += _of_twins(scans)
    found += _of_labels(scans)
    found += _of_train(scans)
    found += _of_bands(scans["gallery"])
    rank = {"error": 0, "warning": 1, "note": 2}
    return sorted(found, key=lambda each: rank[each.level])


def _of_split(name: str, scan: SplitScan) -> Iterator[Finding]:
    for column, why in scan.unreadable.items():
        yield Finding("error", f"{name}.{column}", why, "fix or drop the column")
    if scan.ids is None and "id" not in scan.unreadable:
        yield Finding(
            "error", name, "there is no column 'id'", "add one; ray-backfill import --id names another column"
        )
    elif scan.ids is not None:
        repeated = len(scan.ids) - len(np.unique(scan.ids))
        if repeated:
            yield Finding("error", f"{name}.id", f"{repeated:,} duplicate ids", "--drop-broken keeps the first of each")
    for model in MODELS if name != "log" else MODELS[:1]:
        if model not in scan.vectors:
            level: Level = "warning" if model == "new" and name == "gallery" else "error"
            remedy = "embed the items, or import them"
            if level == "warning":
                remedy += "; before that, ray-backfill sample and forecast need few of them"
            yield Finding(level, name, f"there are no embeddings in a column {model!r}", remedy)
    for model, vectors in scan.vectors.items():
        yield from _of_vectors(f"{name}.{model}", vectors)


def _of_vectors(where: str, column: VectorColumn) -> Iterator[Finding]:
    for problem, words in PROBLEMS.items():
        rows = np.flatnonzero(column.problems == problem)
        if len(rows):
            level: Level = "warning" if problem == ZERO else "error"
            more = "; cosine distance refuses them" if problem == ZERO else ""
            yield Finding(
                level, where, f"{len(rows):,} rows have {words}, the first is row {rows[0]:,}{more}",
                "--drop-broken leaves them out",
            )  # fmt: skip
    hashes = column.hashes[column.problems == FINE]
    if not len(hashes):
        return
    equal = len(hashes) - len(np.unique(hashes))
    if equal > _EQUAL_SHARE * len(hashes):
        yield Finding(
            "warning", where, f"{equal:,} of {len(hashes):,} vectors equal an earlier one",
            "look for items that are stored twice, or for a failed embedding of many items",
        )  # fmt: skip
    mixed = find_mixed(column)
    if mixed:
        yield Finding(
            "warning", where, f"there may be several models in this column: {mixed.where}",
            "embed all items by one model; distances between models mean nothing",
        )  # fmt: skip


def _of_widths(scans: Mapping[str, SplitScan]) -> Iterator[Finding]:
    for model in MODELS:
        dims = {name: scan.vectors[model].dim for name, scan in scans.items() if model in scan.vectors}
        if len(set(dims.values())) > 1:
            said = ", ".join(f"{dim:,} in {name}" for name, dim in dims.items())
            yield Finding("error", model, f"dimensions differ: {said}", "use embeddings of one model")


def _of_train(scans: Mapping[str, SplitScan]) -> Iterator[Finding]:
    if (train := scans.get("train")) is None or not train.vectors:
        return
    items = max(len(column.problems) for column in train.vectors.values())
    said = few_items_per_dimension(items, max(column.dim for column in train.vectors.values()))
    if said:
        yield Finding(
            "warning", "train", f"{said}. {FIT_NOISE}",
            "embed more train items by both models",
        )  # fmt: skip


def _of_twins(scans: Mapping[str, SplitScan]) -> Iterator[Finding]:
    for name, scan in scans.items():
        hashes = [scan.vectors[model].hashes for model in MODELS if model in scan.vectors]
        if len(hashes) > 1 and np.array_equal(hashes[0], hashes[1]):
            yield Finding(
                "warning", name, "old and new hold the same vectors, so there is nothing to compare",
                "import the new model's embeddings as new",
            )  # fmt: skip


def cosines_of(column: VectorColumn) -> Band | None:
    """The band of the cosines of a column; None of fewer than two vectors."""
    fine = column.sample[column.problems[column.sample_rows] == FINE]
    return band_of(fine) if len(fine) > 1 else None


def _of_bands(gallery: SplitScan) -> Iterator[Finding]:
    bands = [cosines_of(gallery.vectors[model]) for model in MODELS if model in gallery.vectors]
    old, new = bands if len(bands) == len(MODELS) else (None, None)
    if old is not None and new is not None and not do_compare(old, new):
        yield Finding(
            "warning", "gallery",
            f"the two models' distances do not compare: cosines of random items are from {old} with old, from {new} "
            "with new",
            "leave --merges best (the default) as it is, and give a train.parquet; never merge raw distances",
        )  # fmt: skip


def has_truth(scans: Mapping[str, SplitScan]) -> bool:
    """Whether there are positives, or labels of both gallery and queries."""
    gallery, queries = scans["gallery"], scans.get("queries", scans["gallery"])
    return "positives" in queries.others or ("label" in gallery.others and "label" in queries.others)


def _of_labels(scans: Mapping[str, SplitScan]) -> Iterator[Finding]:
    gallery, queries = scans["gallery"], scans.get("queries", scans["gallery"])
    if "positives" in queries.others:
        return
    if "label" in gallery.unreadable or "label" in queries.unreadable:
        return
    labels = [scan.others.get("label") for scan in (gallery, queries)]
    if labels[0] is None or labels[1] is None:
        yield Finding(
            "note", "label", "there are no right answers: neither labels in gallery and queries nor positives",
            "run with --truth new-top1, known-item, qrels or clicks, or add labels",
        )  # fmt: skip
        return
    if labels[0].dtype.kind != labels[1].dtype.kind:
        yield Finding("error", "label", "labels are numbers in one split and text in the other", "use one type")
        return
    known = labels[1][~unknown(labels[1])]
    without = int((~np.isin(known, labels[0])).sum()) + int(unknown(labels[1]).sum())
    if "queries" not in scans:
        sizes = np.unique(known, return_counts=True)[1]
        without = int(unknown(labels[1]).sum() + (sizes == 1).sum())
    if without:
        level: Level = "error" if without == len(labels[1]) else "note"
        yield Finding(
            level, "label", f"{without:,} of {len(labels[1]):,} queries have no right answer in the gallery",
            "compare the labels of both files" if level == "error" else "they are skipped and listed",
        )  # fmt: skip


def unknown(labels: NDArray[Any]) -> NDArray[np.bool_]:
    """(N,) whether a label is -1, which means unknown."""
    return labels == -1 if labels.dtype.kind == "i" else np.zeros(len(labels), bool)
