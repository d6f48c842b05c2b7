"""Examines the splits of a folder of embeddings: looks at every row once, and says what is wrong.

Shapes: N rows, d dimensions.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import step
from ray_backfill.core.schema import open_checked, reading
from ray_backfill.data.columns import COLUMNS, MODELS, part_files, unknown
from ray_backfill.data.vectors import FINE, MISSING, PROBLEMS, ZERO, decode, hash_rows, may_be_vectors
from ray_backfill.engine.bands import Band, band_of, do_compare

# error: a run refuses the folder. warning: a run works, and its figures may mislead.
Level = Literal["error", "warning", "note"]
_BATCH_ROWS = 16_384
# Rows of which a mean is kept, to find where a column changes its model.
BLOCK_ROWS = 1_024
# Vectors that are kept for a closer look.
_SAMPLE = 8_192
# Share of equal vectors from which they are told.
_EQUAL_SHARE = 0.001
# With fewer items per dimension than this, a map without a penalty fits noise: docs/results/atlas.md.
ITEMS_PER_DIMENSION = 5

FIT_NOISE = (
    "Maps without a penalty, such as least squares, fit noise there; ridge and relaxed Procrustes choose their "
    "penalty by cross-validation"
)
# Blocks on each side of a jump.
_FEWEST_BLOCKS = 2
# Two groups of lengths: the gap between them, as a multiple of the larger spread within.
_GAP = 4.0
_FEWEST_SHARE = 0.02
# A jump of the mean: the distance of both means over the length of the larger one (about 1.4 between the unrelated
# directions of two models), and over the spread of the blocks' means on each side.
_JUMP, _JUMP_OVER_SPREAD = 0.7, 3.0


@dataclass(frozen=True)
class VectorColumn:
    """What a column of vectors holds.

    problems: (N,) a key of ``vectors.PROBLEMS`` for each row, or FINE. norms: (N,) lengths, 0 where there is no
    vector. hashes: (N,) equal for equal vectors. block_means: (B, d) means of ``BLOCK_ROWS`` rows that follow each
    other. sample: (n, d) vectors from all over the column; sample_rows: (n,) their rows.
    """

    dim: int
    dtype: str
    problems: NDArray[np.uint8]
    norms: NDArray[np.float32]
    hashes: NDArray[np.uint64]
    block_means: NDArray[np.float64]
    sample: NDArray[np.float32]
    sample_rows: NDArray[np.int64]


@dataclass(frozen=True)
class SplitScan:
    """What a split holds.

    rows: N. ids: (N,) ids, None if the column cannot be read. others: the further columns of the data contract that
    can be read. unreadable: column -> why it cannot be read.
    """

    rows: int
    ids: NDArray[Any] | None
    vectors: Mapping[str, VectorColumn]
    others: Mapping[str, Any] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)


def scan_split(path: Path) -> SplitScan:
    """Read a split: a Parquet file or a folder of them. Cost: one pass, and some 20 bytes a row and column of vectors.

    Raises:
        InputError: It is missing or cannot be read as Parquet.
    """
    files = part_files(path)
    opened = [open_checked(file) for file in files]
    rows = sum(file.metadata.num_rows for file in opened)
    schema = opened[0].schema_arrow
    others: dict[str, Any] = {}
    unreadable: dict[str, str] = {}
    for name, read in COLUMNS.items():
        if name not in schema.names:
            continue
        try:
            with reading(path):
                column = pa.chunked_array([chunk for file in opened for chunk in file.read([name]).column(0).chunks])
            others[name] = read(column, path, name)
        except InputError as problem:
            unreadable[name] = str(problem)
    vectors = {
        name: _scan_vectors(path, opened, name, rows)
        for name in schema.names
        if name not in COLUMNS and may_be_vectors(schema.field(name).type, or_text=False)
    }
    return SplitScan(rows, others.pop("id", None), vectors, others, unreadable)


def _scan_vectors(path: Path, opened: list[pq.ParquetFile], name: str, rows: int) -> VectorColumn:
    problems, norms = np.full(rows, MISSING, np.uint8), np.zeros(rows, np.float32)
    hashes = np.zeros(rows, np.uint64)
    sums: list[NDArray[np.float64]] = []
    every = max(1, rows // _SAMPLE)
    sample, sample_rows, dim, at, dtype = [], [], 0, 0, ""
    with step(f"look at {path.name}, {name}", rows, "rows") as bar:
        for array in _arrays(path, opened, name):
            vectors, wrong = decode(array, dim)
            dim = dim or vectors.shape[1]
            here = slice(at, at + len(array))
            problems[here], dtype = wrong, str(vectors.dtype)
            if dim:
                values = np.nan_to_num(vectors.astype(np.float32), posinf=0, neginf=0)
                norms[here] = np.linalg.norm(values, axis=1)
                hashes[here] = hash_rows(values)
                sums += [values[i : i + BLOCK_ROWS].mean(axis=0, dtype=np.float64)
                         for i in range(0, len(values), BLOCK_ROWS)]  # fmt: skip
                kept = np.arange(-at % every, len(values), every)
                sample.append(values[kept])
                sample_rows.append(at + kept)
            at += len(array)
            bar.advance(len(array))
    means = np.stack(sums) if sums else np.empty((0, 0))
    looked_at = np.concatenate(sample or [np.empty((0, 0), np.float32)])
    rows_of = np.concatenate(sample_rows or [np.empty(0, np.int64)])
    return VectorColumn(dim, dtype, problems, norms, hashes, means, looked_at, rows_of)


def _arrays(path: Path, opened: list[pq.ParquetFile], name: str) -> Iterator[pa.Array]:
    with reading(path):
        for file in opened:
            for batch in file.iter_batches(_BATCH_ROWS, columns=[name]):
                yield batch.column(0)


@dataclass(frozen=True)
class Finding:
    """One thing that a user should know. what: a sentence without its full stop. remedy: what to do; "" if nothing."""

    level: Level
    where: str
    what: str
    remedy: str = ""


def find(scans: Mapping[str, SplitScan]) -> list[Finding]:
    """All findings, errors first. scans: split -> its scan; the gallery is there."""
    findings = [finding for name, scan in scans.items() for finding in _of_split(name, scan)]
    for of_all in (_of_widths, _of_twins, _of_labels, _of_train, _of_bands):
        findings += of_all(scans)
    return sorted(findings, key=lambda finding: get_args(Level).index(finding.level))


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
    if mixed := _two_lengths(column) or _jump(column):
        yield Finding(
            "warning", where, f"there may be several models in this column: {mixed}",
            "embed all items by one model; distances between models mean nothing",
        )  # fmt: skip


def _of_widths(scans: Mapping[str, SplitScan]) -> Iterator[Finding]:
    for model in MODELS:
        dims = {name: scan.vectors[model].dim for name, scan in scans.items() if model in scan.vectors}
        if len(set(dims.values())) > 1:
            said = ", ".join(f"{dim:,} in {name}" for name, dim in dims.items())
            yield Finding("error", model, f"dimensions differ: {said}", "use embeddings of one model")


def _of_train(scans: Mapping[str, SplitScan]) -> Iterator[Finding]:
    train = scans.get("train")
    dims = [column.dim for column in train.vectors.values()] if train else []
    if train and dims and (said := few_items_per_dimension(train.rows, max(dims))):
        yield Finding("warning", "train", f"{said}. {FIT_NOISE}", "embed more train items by both models")


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


def _of_bands(scans: Mapping[str, SplitScan]) -> Iterator[Finding]:
    vectors = scans["gallery"].vectors
    bands = [cosines_of(vectors[model]) for model in MODELS if model in vectors]
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
    if "positives" in queries.others or "label" in gallery.unreadable or "label" in queries.unreadable:
        return
    labels = [scan.others.get("label") for scan in (gallery, queries)]
    if labels[0] is None or labels[1] is None:
        yield Finding(
            "note", "label", "there are no right answers: neither labels in gallery and queries nor positives",
            "judge 50 queries (simulate --judge FILE), run with --truth known-item, qrels or clicks, or add labels",
        )  # fmt: skip
        return
    if labels[0].dtype.kind != labels[1].dtype.kind:
        yield Finding("error", "label", "labels are numbers in one split and text in the other", "use one type")
        return
    known = labels[1][~unknown(labels[1])]
    sizes = np.unique(known, return_counts=True)[1]
    answered = np.isin(known, labels[0]).sum() if "queries" in scans else sizes[sizes > 1].sum()
    without = len(labels[1]) - int(answered)
    if without:
        level: Level = "error" if without == len(labels[1]) else "note"
        yield Finding(
            level, "label", f"{without:,} of {len(labels[1]):,} queries have no right answer in the gallery",
            "compare the labels of both files" if level == "error" else "they are skipped and listed",
        )  # fmt: skip


def few_items_per_dimension(items: int, dims: int) -> str:
    """What to tell a user of train items that are few for their vectors' larger dimension; "" if they are enough."""
    if items >= ITEMS_PER_DIMENSION * dims:
        return ""
    return f"{items:,} train items, {items / dims:.3g} per dimension of the embeddings ({dims:,})"


# Embeddings of one model have a common mean, which is far from that of another model, and usually a common length. So
# those of several models fall into two groups of lengths with nothing between, or their mean jumps once in the file. In
# a file that is sorted by class the mean changes all the time, which is no sign.


def _two_lengths(column: VectorColumn) -> str:
    lengths = np.sort(np.log(column.norms[column.problems == FINE]))
    few = max(2, int(_FEWEST_SHARE * len(lengths)))
    if len(lengths) < 4 * few:
        return ""
    gaps = np.diff(lengths)[few:-few]
    at = few + int(np.argmax(gaps))
    low, high = lengths[: at + 1], lengths[at + 1 :]
    spread = max(_spread(low), _spread(high))
    if gaps.max() <= max(_GAP * spread, 0.05):
        return ""
    return (
        f"lengths fall into two groups: {len(low):,} vectors of about {np.exp(np.median(low)):.3g} and "
        f"{len(high):,} of about {np.exp(np.median(high)):.3g}"
    )


def _spread(values: NDArray[np.float32]) -> float:
    return float(np.subtract(*np.percentile(values, [90, 10])))


def _jump(column: VectorColumn) -> str:
    means = column.block_means
    if len(means) < 2 * _FEWEST_BLOCKS:
        return ""
    sums = np.cumsum(means, axis=0)
    counts = np.arange(1, len(means) + 1)[:, None]
    before, after = sums / counts, (sums[-1] - sums) / np.maximum(len(means) - counts, 1)
    inner = slice(_FEWEST_BLOCKS - 1, len(means) - _FEWEST_BLOCKS)
    apart = np.linalg.norm(before - after, axis=1)[inner]
    larger = np.maximum(np.linalg.norm(before, axis=1), np.linalg.norm(after, axis=1))[inner]
    at = int(np.argmax(apart))
    split = at + _FEWEST_BLOCKS
    sides = (means[:split] - means[:split].mean(axis=0), means[split:] - means[split:].mean(axis=0))
    spread = float(np.sqrt((np.concatenate(sides) ** 2).sum(axis=1).mean()))
    typical = float(np.median(column.norms[column.problems == FINE]))
    # A mean of nothing is nothing, whose direction is noise.
    if apart[at] < max(_JUMP * larger[at], _JUMP_OVER_SPREAD * spread) or larger[at] < 0.1 * typical:
        return ""
    row = split * BLOCK_ROWS
    return f"the mean changes at about row {row:,}, as if another model had made the vectors from there on"
