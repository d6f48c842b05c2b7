"""Right answers: ways to know them, by the words of ``--truth``, and what a comparison makes of them."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError, unknown_name
from ray_backfill.core.outcome import Remark
from ray_backfill.core.plugins import rows_from_outside
from ray_backfill.core.store_path import path_of
from ray_backfill.data.columns import as_ids, as_weights, is_text, kind_of, plain, some, unknown
from ray_backfill.data.folder import EmbeddingFolder, EmbeddingTable
from ray_backfill.data.judging import DrawnPairs, draw, first_found, read_sheet, write_sheet
from ray_backfill.data.leakage import own_items
from ray_backfill.data.qrels import read_qrels
from ray_backfill.data.sources import open_source
from ray_backfill.data.words import called, words_of
from ray_backfill.engine.systems import Filter, GroundTruth, IntArray


@dataclass(frozen=True, eq=False)
class Truth:
    """Right answers and what a report must say of them.

    ground: the right answers. facts: plain data for the manifest. notes: sentences for the report.
    """

    ground: GroundTruth
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[Remark, ...] = ()


@dataclass(frozen=True)
class TruthRequest:
    """What ``--truth`` asks for. k: the number in a name such as new-top10; 0 if it has none. argument: the word that
    follows the name. distance: of the comparison. refuse_unknown_ids: whether ids that the gallery lacks are an error.
    filter: what a query can find; None for all items.
    """

    k: int
    argument: str
    distance: str
    refuse_unknown_ids: bool = True
    filter: Filter | None = None


@dataclass(frozen=True)
class TruthKind:
    """A way to know right answers.

    name: as on the command line; a K in it stands for any number above 0. argument: what the word after the name is; ""
    if there is none. explains: a sentence for the help. make: makes the truth of a folder; raises InputError.
    is_retention: the new model's own results are taken as right, so nothing is said of how good they are.
    """

    name: str
    argument: str
    explains: str
    make: Callable[[EmbeddingFolder, TruthRequest], Truth]
    is_retention: bool = False


def _given(folder: EmbeddingFolder, request: TruthRequest) -> Truth:
    has_positives = (folder.queries or folder.gallery).positives is not None
    return _from_positives(folder, request) if has_positives else _from_labels(folder, request)


GIVEN = TruthKind("given", "", "Positives if the queries have them, labels otherwise.", _given)


def all_truths() -> dict[str, TruthKind]:
    """Every kind by name."""
    return {kind.name: kind for kind in (*TRUTHS, *rows_from_outside("TRUTHS"))}


def parse_truth(words: Sequence[str]) -> tuple[TruthKind, int, str]:
    """The kind that ``--truth`` names, its number K and its argument. No words: what the folder gives.

    Raises:
        InputError: The name is unknown, or its argument is missing or too much.
    """
    if not words:
        return GIVEN, 0, ""
    name, arguments = words[0], words[1:]
    for kind in all_truths().values():
        match = re.fullmatch(kind.name.replace("K", r"(\d+)"), name)
        if not match:
            continue
        k = int(match[1]) if match.groups() else 0
        if match.groups() and not k:
            raise InputError(f"--truth {name}: the number must be above 0")
        if len(arguments) != bool(kind.argument):
            wanted = f"one word after it, {kind.argument}" if kind.argument else "no word after it"
            raise InputError(f"--truth {name} takes {wanted}; got {len(arguments)}")
        return kind, k, arguments[0] if arguments else ""
    raise unknown_name("truth", name, (f"{kind.name} {kind.argument}".strip() for kind in all_truths().values()))


def find_truth(
    folder: EmbeddingFolder,
    words: Sequence[str] = (),
    distance: str = "cosine",
    refuse_unknown_ids: bool = True,
    filter_column: str = "",
) -> Truth:
    """The right answers of each query. Weights are those of the queries' column, if the truth has none of its own.

    A query without right answers (an unknown class, one that the gallery lacks, or an empty list) is skipped and
    counted. A query that is a gallery item ignores that item.
    words: of ``--truth``; none: positives if the queries have any, otherwise labels (and cameras if known).
    refuse_unknown_ids: if False, positives that the gallery lacks (broken images) are ignored; a recipe's manifest
    counts what was left out. filter_column: of queries and gallery; a query finds only items with its own value.

    Raises:
        InputError: The truth cannot be made of this folder, or no query has a right answer.
    """
    kind, k, argument = parse_truth(words)
    queries = folder.queries or folder.gallery
    parts = filter_of(folder.gallery, queries, filter_column) if filter_column else None
    made = kind.make(folder, TruthRequest(k, argument, distance, refuse_unknown_ids, parts))
    truth, notes = made.ground, made.notes
    if parts is not None:
        every, truth = len(truth.positives), truth.with_filter(parts)
        if lost := every - len(truth.positives):
            lacking = f"{lost:,} of {every:,} right answers have another {filter_column} than their query."
            text = f"{lacking} No query can find them, so they were left out."
            notes = (*notes, Remark.about(text, lost, every))
    if truth.weights is None:
        truth = truth.with_weights(queries.weight)
    own, items = own_items(folder)
    if len(own):
        truth = truth.without(own, items)
    if len(truth.skipped) == truth.n_queries:
        other = " other than itself" if len(own) else ""
        raise InputError(
            f"no query of {called(folder.path)} has a right answer in the gallery{other}: there is nothing to measure; "
            f"compare the labels (or positives) of {words_of(folder.path)['each']}"
        )
    facts = {"truth": {"name": " ".join(words), "is_retention": kind.is_retention} | dict(made.facts)} if words else {}
    return Truth(truth, facts | ({"filter": filter_column} if filter_column else {}), notes)


def ground_truth(folder: EmbeddingFolder, refuse_unknown_ids: bool = True) -> GroundTruth:
    """The right answers that the folder itself holds; see ``find_truth``."""
    return find_truth(folder, refuse_unknown_ids=refuse_unknown_ids).ground


def check_vectors(folder: EmbeddingFolder, distance: str) -> None:
    """Raises InputError for zero vectors under cosine; the message names file, column and row."""
    for table in (folder.gallery, folder.queries or folder.gallery):
        for column, vectors in table.vectors.items():
            zero = np.flatnonzero(~vectors.any(axis=1))
            if distance == "cosine" and len(zero):
                words = words_of(table.path)
                raise InputError(
                    f"{called(table.path, column)}: zero vector in row {zero[0]} ({len(zero)} in all), which has no "
                    f"cosine distance; {words['drop']}, or {words['l2']}"
                )


def filter_of(gallery: EmbeddingTable, queries: EmbeddingTable, column: str) -> Filter:
    """Which gallery items a query can find: those with its own value in this column.

    Raises:
        InputError: The gallery or the queries lack the column, or no query has the value of an item.
    """
    of_gallery, of_queries = gallery.texts(column), queries.texts(column)
    if of_gallery.dtype.kind != of_queries.dtype.kind:
        raise InputError(
            f"--filter {column}: the column holds {kind_of(of_gallery)} in {gallery.path} but {kind_of(of_queries)} in "
            f"{queries.path}; use one type"
        )
    values = np.unique(np.concatenate([of_gallery, of_queries]))
    found = Filter(np.searchsorted(values, of_queries), np.searchsorted(values, of_gallery))
    if not found.parts():
        raise InputError(
            f"--filter {column}: no query of {queries.path} has the value of a gallery item, so none can find anything"
        )
    return found


def usual_answers(truth: GroundTruth) -> float:
    """The median number of right answers, of the queries that have any."""
    numbers = np.diff(truth.positive_starts)
    return float(np.median(numbers[numbers > 0]))


def from_pairs(
    folder: EmbeddingFolder, where: str, queries: NDArray[Any], items: NDArray[Any], grades: NDArray[np.float64]
) -> tuple[GroundTruth, tuple[Remark, ...]]:
    """The ground truth of judged pairs, and notes on ids that the folder lacks.

    where: for messages. queries, items: (n,) ids, each pair once. grades: (n,) grades above 0.

    Raises:
        InputError: No pair has both its ids in the folder.
    """
    table = folder.queries or folder.gallery
    query_n, item_n = (  # ids are compared as text
        pd.Index(known.astype(str)).get_indexer(pd.Index(named.astype(str)))
        for known, named in ((table.id, queries), (folder.gallery.id, items))
    )
    both = (query_n >= 0) & (item_n >= 0)
    if not both.any():
        raise InputError(
            f"no line of {where} has a query and an item of {called(folder.path)}: compare its ids with "
            f"{words_of(folder.path)['ids']}"
        )
    pairs = pd.DataFrame({"query": query_n[both], "item": item_n[both], "grade": grades[both]})
    pairs = pairs.sort_values("query", kind="stable")
    starts = np.searchsorted(pairs["query"], np.arange(1, len(table)))
    positives, given = (np.split(pairs[name].to_numpy(), starts) for name in ("item", "grade"))
    ignored = [[query] for query in range(len(table))] if folder.queries is None else None
    graded = given if pairs["grade"].nunique() > 1 else None
    ground = GroundTruth.from_positives(positives, ignored, n_gallery=len(folder.gallery), grades=graded)
    notes = []
    if lost := int((query_n < 0).sum()):
        text = f"Lines of {where} about queries that are not among the queries: {lost:,}. They were not used."
        notes.append(Remark(text, matters=False))
    if lost := int(((query_n >= 0) & (item_n < 0)).sum()):
        text = f"Right answers of {where} that are not in the gallery: {lost:,}. They were left out; with them every "
        notes.append(Remark.about(f"{text}recall would be lower.", lost, len(both)))
    return ground, tuple(notes)


def _from_labels(folder: EmbeddingFolder, request: TruthRequest) -> Truth:
    """Cameras count if both sides have them. Items with the label -1, an unknown class, are positives of no query."""
    gallery, queries = folder.gallery, folder.queries or folder.gallery
    if queries.grades is not None and queries.positives is None:
        raise InputError(f"{queries.path} has a column 'grades' without a column 'positives'; add that, or rename it")
    if (gallery.camera is None) != (queries.camera is None):
        raise InputError(f"column 'camera' is in only one of {gallery.path} and {queries.path}; give both, or neither")
    for table in (gallery, queries):
        if table.label is None:
            raise InputError(
                f"{table.path} has no column 'label'; add it, or give the queries a column 'positives', or say by "
                "--truth what else is right (new-top1 needs nothing)"
            )
    return Truth(_of_labels(gallery, queries, folder.queries is None))


def _known_item(folder: EmbeddingFolder, request: TruthRequest) -> Truth:
    gallery, queries = (
        replace(table, label=table.texts(request.argument), camera=None)
        for table in (folder.gallery, folder.queries or folder.gallery)
    )
    return Truth(_of_labels(gallery, queries, folder.queries is None), {"column": request.argument})


def _of_labels(gallery: EmbeddingTable, queries: EmbeddingTable, exclude_self: bool) -> GroundTruth:
    assert gallery.label is not None
    assert queries.label is not None
    if gallery.label.dtype.kind != queries.label.dtype.kind:
        raise InputError(
            f"labels are {kind_of(gallery.label)} in {called(gallery.path)} but {kind_of(queries.label)} in "
            f"{called(queries.path)}; use one type"
        )
    names = np.unique(np.concatenate([gallery.label, queries.label]))
    gallery_N = query_Q = _numbers(gallery.label, names, len(names))
    if not exclude_self:
        query_Q = _numbers(queries.label, names, len(names) + len(gallery))
    return GroundTruth.from_labels(
        query_Q, gallery_N, exclude_self=exclude_self, query_cameras=queries.camera, gallery_cameras=gallery.camera
    )


def _numbers(labels_N: NDArray[Any], names: NDArray[Any], first_free: int) -> IntArray:
    """The number of each label among ``names``; each item with the label -1 gets its own number."""
    own_N = first_free + np.arange(len(labels_N))
    return np.where(unknown(labels_N), own_N, np.searchsorted(names, labels_N)).astype(np.int64)


def _from_positives(folder: EmbeddingFolder, request: TruthRequest) -> Truth:
    gallery, queries = folder.gallery, folder.queries or folder.gallery
    if queries.positives is None:
        raise InputError(f"{queries.path} has no column 'positives'; add it, or choose another --truth")
    index, left_out = pd.Index(gallery.id), gallery.left_out_ids()

    def positions(column: str, rows: Sequence[NDArray[Any]] | None) -> list[IntArray]:
        """The gallery position of each query's ids, -1 for those that the gallery lacks."""
        lengths = [len(ids) for ids in rows or ()]
        if rows is None or not sum(lengths):
            return [np.empty(0, np.int64)] * len(queries)
        ids = np.concatenate([ids for ids in rows if len(ids)])
        if ids.dtype.kind != gallery.id.dtype.kind:
            raise InputError(
                f"{queries.path}, column {column!r} holds {kind_of(ids)}, but the ids of {gallery.path} are "
                f"{kind_of(gallery.id)}; use one type"
            )
        at = index.get_indexer(pd.Index(ids)).astype(np.int64)
        lacking = np.flatnonzero(at < 0)
        lacking = lacking[~np.isin(ids[lacking].astype(str), left_out)]
        if request.refuse_unknown_ids and len(lacking):
            query, missing = np.repeat(np.arange(len(rows)), lengths)[lacking[0]], ids[lacking[0]]
            raise InputError(f"{queries.path}, column {column!r}, row {query}: the gallery has no id {missing!s}")
        return np.split(at, np.cumsum(lengths)[:-1])

    positives, ignored = positions("positives", queries.positives), positions("ignored", queries.ignored)
    grades = queries.grades
    if grades is not None:
        unequal = [len(own) != len(given) for own, given in zip(grades, positives, strict=True)]
        if any(unequal):
            raise InputError(
                f"{queries.path}, column 'grades', row {unequal.index(True)}: as many numbers as the row has positives "
                "are needed"
            )
        grades = [own[at >= 0] for own, at in zip(grades, positives, strict=True)]
    positives, ignored = ([at[at >= 0] for at in rows] for rows in (positives, ignored))
    if folder.queries is None:
        ignored = [np.append(row, query) for query, row in enumerate(ignored)]
    return Truth(GroundTruth.from_positives(positives, ignored, n_gallery=len(gallery), grades=grades))


def _qrels(folder: EmbeddingFolder, request: TruthRequest) -> Truth:
    """Judgements in the forms of ``data.qrels``. A grade above 0 is a right answer."""
    path = path_of(request.argument)
    lines = read_qrels(path)
    different = lines.drop_duplicates()
    if (twice := different.duplicated(["query", "item"])).any():
        query, item, _ = different[twice].iloc[0]
        raise InputError(
            f"{path}, {different.index.name} {different.index[twice][0]}: another grade of item {item} for query "
            f"{query} than in an earlier {different.index.name}; keep one"
        )
    right = different[different["grade"] > 0]
    if not len(right):
        raise InputError(f"{path} has no grade above 0, so nothing is a right answer")
    ground, notes = from_pairs(folder, str(path), *(right[name].to_numpy() for name in right))
    if repeated := len(lines) - len(different):
        text = f"Lines of {path} that repeat an earlier one: {repeated:,}. Each judgement counts once."
        notes = (*notes, Remark(text, matters=False))
    facts = {"path": str(path), "judgements": len(different), "right_answers": len(right)}
    return Truth(ground, facts, notes)


def _clicks(folder: EmbeddingFolder, request: TruthRequest) -> Truth:
    """An item's clicks (1 without that column) are its grade; all clicks of a query are its weight."""
    source = open_source(request.argument)
    source.need(("query", "item"))
    names = [name for name in ("query", "item", "clicks") if name in source.columns]
    batches = list(source.read(names, 0))
    if not any(map(len, batches)):
        raise InputError(f"{source.name} has no rows")
    table = pa.Table.from_batches(batches)
    empty = np.zeros(len(table), np.bool_)  # null, NaN or an empty text
    for column in (plain(table[name]) for name in ("query", "item")):
        empty |= column.is_null(nan_is_null=True).to_numpy()
        if is_text(column.type):
            empty |= pc.equal(column, "").fill_null(False).to_numpy()
    if empty.all():
        raise InputError(f"{source.name} has no row with both a query and an item")
    # An empty row has the values of the first one that is not, so that messages have the right numbers of rows.
    table = table.take(pa.array(np.where(empty, empty.argmin(), np.arange(len(table)))))
    read = {name: (as_weights if name == "clicks" else as_ids)(table[name], source.name, name) for name in names}
    lines = pd.DataFrame({"clicks": np.ones(len(table))} | read)[~empty]
    pairs = lines.groupby(["query", "item"], as_index=False)["clicks"].sum()
    clicks = pairs["clicks"].to_numpy(np.float64)
    ground, notes = from_pairs(folder, source.name, pairs["query"].to_numpy(), pairs["item"].to_numpy(), clicks)
    if empty.any():
        which = f"{empty.sum():,} (row {some(np.flatnonzero(empty))})"
        text = f"Rows of {source.name} without a query or an item: {which}. They were not used."
        notes = (*notes, Remark(text, matters=False))
    of_query = pairs.groupby(pairs["query"].astype(str))["clicks"].sum()
    # A query without clicks has no right answer, so its weight counts nowhere.
    weights = of_query.reindex((folder.queries or folder.gallery).id.astype(str)).fillna(1.0).to_numpy()
    return Truth(
        ground.with_weights(weights),
        {"path": source.name, "clicks": float(clicks.sum()), "weighted_by": "clicks"},
        notes,
    )


def _new_top(folder: EmbeddingFolder, request: TruthRequest) -> Truth:
    """A query that is a gallery item does not find itself. Cost: a search of the new gallery."""
    gallery, queries = folder.gallery, folder.queries or folder.gallery
    is_self = folder.queries is None
    everything = [(np.arange(len(queries)), np.arange(len(gallery)))]
    parts = request.filter.parts() if request.filter else everything
    most = max(len(items) for _, items in parts) - is_self
    if request.k >= most:
        smaller = f"; use a smaller number, such as new-top{max(1, most // 10)}" if most > 1 else ""
        raise InputError(
            f"--truth new-top{request.k}: a query can find {most:,} items, so all of them would be right, and every "
            f"method would be at 100 %{smaller}"
        )
    found = first_found(folder, "new", request.k, request.distance, request.filter)
    ignored = [[query] for query in range(len(queries))] if is_self else None
    ground = GroundTruth.from_positives(found, ignored, n_gallery=len(gallery))
    return Truth(replace(ground, weights=None), {"k": request.k})


def check_new_sheet(path: Path) -> None:
    """Raises InputError if the file is there already: it may hold judgements."""
    if path.exists():
        raise InputError(f"{path} is there already; read its judgements by --truth judged {path}, or name another")


def ask_for_judgements(folder: EmbeddingFolder, path: Path, distance: str, filter_column: str = "") -> DrawnPairs:
    """Draw the items that a person must judge, and write them. filter_column: of ``--filter``; "" for none.

    Raises:
        InputError: The vectors do not fit the distance, or there is nothing to judge.
    """
    check_vectors(folder, distance)
    queries = folder.queries or folder.gallery
    drawn = draw(folder, distance, filter_of(folder.gallery, queries, filter_column) if filter_column else None)
    write_sheet(folder, path, drawn)
    return drawn


def _judged(folder: EmbeddingFolder, request: TruthRequest) -> Truth:
    """The judged items are those of old and new alone, so methods between them are compared as by new-top1."""
    found = read_sheet(folder, path_of(request.argument), draw(folder, request.distance, request.filter))
    truth = _new_top(folder, replace(request, k=1))
    return replace(truth, facts={**truth.facts, "judged": found})


TRUTHS = (
    TruthKind("labels", "", "Items with the label of the query are right.", _from_labels),
    TruthKind("positives", "", "The ids in the queries' column 'positives' are right.", _from_positives),
    TruthKind(
        "known-item",
        "COLUMN",
        "Items with the query's value in this column are right: chunks of one document, crops of one image.",
        _known_item,
    ),
    TruthKind("qrels", "FILE", "Judgements with grades: TREC's or BEIR's format, JSON lines or Parquet.", _qrels),
    TruthKind(
        "judged",
        "FILE",
        "The file of --judge, filled: it decides which model is better. Methods are compared as by new-top1.",
        _judged,
        is_retention=True,
    ),
    TruthKind(
        "clicks", "SOURCE", "A table with the columns query, item and clicks; frequent queries weigh more.", _clicks
    ),
    TruthKind(
        "new-topK",
        "",
        "The K items that the finished upgrade finds first are right: how much of the new model's answer users get.",
        _new_top,
        is_retention=True,
    ),
)
