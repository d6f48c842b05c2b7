"""Examines the splits of a folder of embeddings, or a store: looks at every row once, and says what is wrong.

Shapes: N rows, d dimensions.
"""

from collections.abc import Iterator, Mapping, Sequence
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
from ray_backfill.data.columns import COLUMNS, MODELS, as_ids, part_files, some, unknown
from ray_backfill.data.foreign import foreign_rows, jump, two_lengths
from ray_backfill.data.sources import open_source
from ray_backfill.data.vectors import FINE, PROBLEMS, ZERO, decode, hash_rows, may_be_vectors
from ray_backfill.engine.bands import Band, band_of, do_compare

# error: a run refuses the folder. warning: a run works, and its figures may mislead.
Level = Literal["error", "warning", "note"]
_BATCH_ROWS = 16_384
# Vectors that are kept for a closer look, drawn at random: all of the first 16,384, otherwise at least so many.
_SAMPLE = 8_192
# Share of equal vectors from which they are told.
_EQUAL_SHARE = 0.001
# With fewer items per dimension than this, a map without a penalty fits noise: docs/results/atlas.md.
ITEMS_PER_DIMENSION = 5

FIT_NOISE = (
    "Maps without a penalty, such as least squares, fit noise there; ridge and relaxed Procrustes choose their "
    "penalty by cross-validation"
)


@dataclass(frozen=True)
class VectorColumn:
    """What a column of vectors holds.

    problems: (N,) a key of ``vectors.PROBLEMS`` for each row, or FINE. norms: (N,) lengths, 0 where there is no
    vector. hashes: (N,) equal for equal vectors. sample: (n, d) vectors of rows that were drawn at random;
    sample_rows: (n,) these rows, sorted.
    """

    dim: int
    dtype: str
    problems: NDArray[np.uint8]
    norms: NDArray[np.float32]
    hashes: NDArray[np.uint64]
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


class VectorScan:
    """Looks at a column of vectors piece by piece, in some 20 bytes a row and at most 16,384 vectors."""

    def __init__(self) -> None:
        self.dim, self.dtype, self.rows = 0, "", 0
        self._rng, self._share = np.random.default_rng(0), 1.0
        self._of_rows: list[tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.uint64]]] = []
        self._sample: list[tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float64]]] = []

    def add(self, array: pa.Array) -> NDArray[np.int64]:
        """Look at the next rows. Returns those of them that are in the sample by now, counted within the column."""
        vectors, problems = decode(array, self.dim)
        self.dim, self.dtype = self.dim or vectors.shape[1], str(vectors.dtype)
        values = np.nan_to_num(vectors.astype(np.float32), posinf=0, neginf=0)
        self._of_rows.append((problems, np.linalg.norm(values, axis=1), hash_rows(values)))
        draws = self._rng.random(len(array))
        kept = np.flatnonzero(draws < self._share) if self.dim else np.empty(0, np.int64)
        if len(kept):
            self._sample.append((values[kept], self.rows + kept, draws[kept]))
        if sum(len(rows) for _, rows, _ in self._sample) > 2 * _SAMPLE:
            self._share /= 2
            stays = [draws < self._share for *_, draws in self._sample]
            self._sample = [(v[s], r[s], d[s]) for (v, r, d), s in zip(self._sample, stays, strict=True)]
        self.rows += len(array)
        return self.rows - len(array) + kept[draws[kept] < self._share]

    def column(self) -> VectorColumn:
        """What was seen."""
        none = np.empty((0, self.dim), np.float32), np.empty(0, np.int64), np.empty(0)
        sample, rows, _ = (np.concatenate(parts) for parts in zip(none, *self._sample, strict=True))
        empty = np.empty(0, np.uint8), np.empty(0, np.float32), np.empty(0, np.uint64)
        problems, norms, hashes = (np.concatenate(parts) for parts in zip(empty, *self._of_rows, strict=True))
        return VectorColumn(self.dim, self.dtype, problems, norms, hashes, sample, rows)


def _scan_vectors(path: Path, opened: list[pq.ParquetFile], name: str, rows: int) -> VectorColumn:
    scan = VectorScan()
    with step(f"look at {path.name}, {name}", rows, "rows") as bar:
        for array in _arrays(path, opened, name):
            scan.add(array)
            bar.advance(len(array))
    return scan.column()


def scan_source(
    text: str, id_column: str, columns: Sequence[str] = (), text_column: str = ""
) -> tuple[SplitScan, dict[int, str]]:
    """Read a source of vectors (``data.sources``) once. Cost: some 20 bytes a row and column, and the ids.

    columns: of vectors; by default all lists of numbers. text_column: of texts to keep; "" for none.
    Returns what it holds, and row -> text of the rows in the samples.

    Raises:
        InputError: It cannot be opened or read, lacks a column or has no vectors, or an id is missing.
    """
    source = open_source(text)
    names = tuple(columns) or tuple(
        name for name, kind in source.columns.items() if name != id_column and may_be_vectors(kind, or_text=False)
    )
    if not names:
        has = ", ".join(source.columns)
        raise InputError(f"{source.name} has no column of vectors; name one with --column; it has: {has}")
    wanted = list(dict.fromkeys((id_column, *names, *([text_column] if text_column else ()))))
    source.need(wanted)
    scans = {name: VectorScan() for name in names}
    ids: list[pa.Array] = []
    texts: dict[int, str] = {}
    with step(f"look at {source.name}", source.rows, "rows") as bar:
        for batch in source.read(wanted, 0):
            ids.append(batch.column(id_column))
            for name, scan in scans.items():
                before, kept = scan.rows, scan.add(batch.column(name))
                if text_column:
                    said = batch.column(text_column).take(pa.array(kept - before)).to_pylist()
                    texts |= {row: str(text) for row, text in zip(kept.tolist(), said, strict=True) if text}
            bar.advance(len(batch))
    if not ids:
        raise InputError(f"{source.name} has no rows")
    id_N = as_ids(pa.chunked_array(ids), source.name, id_column)
    return SplitScan(len(id_N), id_N, {name: scan.column() for name, scan in scans.items()}), texts


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


def find_in_store(scan: SplitScan) -> list[Finding]:
    """All findings of one table of vectors, errors first."""
    of_vectors = (finding for name, of in scan.vectors.items() for finding in _of_vectors(name, of, scan.ids))
    return sorted([*_of_ids("id", scan), *of_vectors], key=lambda finding: get_args(Level).index(finding.level))


def _of_split(name: str, scan: SplitScan) -> Iterator[Finding]:
    for column, why in scan.unreadable.items():
        yield Finding("error", f"{name}.{column}", why, "fix or drop the column")
    if scan.ids is None and "id" not in scan.unreadable:
        yield Finding(
            "error", name, "there is no column 'id'", "add one; ray-backfill import --id names another column"
        )
    yield from _of_ids(f"{name}.id", scan)
    for model in MODELS if name != "log" else MODELS[:1]:
        if model not in scan.vectors:
            level: Level = "warning" if model == "new" and name == "gallery" else "error"
            remedy = "embed the items, or import them"
            if level == "warning":
                remedy += "; before that, ray-backfill sample and forecast need few of them"
            yield Finding(level, name, f"there are no embeddings in a column {model!r}", remedy)
    for model, vectors in scan.vectors.items():
        yield from _of_vectors(f"{name}.{model}", vectors, scan.ids)


def _of_ids(where: str, scan: SplitScan) -> Iterator[Finding]:
    if scan.ids is not None and (repeated := len(scan.ids) - len(np.unique(scan.ids))):
        yield Finding(
            "error",
            where,
            f"{repeated:,} duplicate ids",
            "import and simulate keep the first of each with --drop-broken",
        )


def _of_vectors(where: str, column: VectorColumn, ids: NDArray[Any] | None) -> Iterator[Finding]:
    for problem, words in PROBLEMS.items():
        rows = np.flatnonzero(column.problems == problem)
        if len(rows):
            level: Level = "warning" if problem == ZERO else "error"
            more = "; cosine distance refuses them" if problem == ZERO else ""
            yield Finding(
                level, where, f"{len(rows):,} rows have {words}, the first is row {rows[0]:,}{more}",
                "embed them again; import and simulate leave them out with --drop-broken",
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
    if mixed := two_lengths(column.norms[column.problems == FINE]) or _foreign(column, ids):
        yield Finding(
            "warning", where, f"there may be several models in this column: {mixed}",
            "embed all items by one model; distances between models mean nothing",
        )  # fmt: skip


def _foreign(column: VectorColumn, ids: NDArray[Any] | None) -> str:
    """What to say of rows that seem to be of another model; "" if there are none."""
    is_fine = column.problems[column.sample_rows] == FINE
    looked_at, sample = column.sample_rows[is_fine], column.sample[is_fine]
    if split := jump(sample):
        return f"the mean changes at about row {looked_at[split]:,}, as if another model had made all from there on"
    with step(f"look for rows of another model among {len(looked_at):,}"):
        rows = looked_at[foreign_rows(sample)]
    if not len(rows):
        return ""
    named = f"row {some(rows)}" if ids is None else f"id {some(ids[rows])}"
    return f"{len(rows):,} of {len(looked_at):,} rows that were looked at share no direction with the others: {named}"


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
