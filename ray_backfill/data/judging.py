"""Judgements of a few queries that tell which of two models is better: what to judge, and what the filled file says.

Precision at a depth is the share of right answers among so many first items. Its difference between two models depends
only on the items that one of them finds and the other does not, so a person judges only these (Carterette, Allan,
Sitaraman, "Minimal Test Collections for Retrieval Evaluation", 2006). Queries for which both find the same items have
the difference 0 without judgement. The others are drawn with equal probability: the mean over the judged ones, times
their share of all queries, is unbiased for all queries (stratified sampling). An equal probability is also the best
one if each item takes the same time to judge: a query with m such items costs m, and its difference has a standard
deviation of about sqrt(m) (Neyman's allocation with costs).

Shapes: Q queries, n judged queries.
"""

import csv
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ray_backfill.core.errors import InputError, local_path, regular_file
from ray_backfill.core.progress import step
from ray_backfill.core.stages import write_whole
from ray_backfill.data.columns import IMAGE, TEXT
from ray_backfill.data.folder import EmbeddingFolder, EmbeddingTable
from ray_backfill.data.leakage import own_items
from ray_backfill.data.text import lines_of
from ray_backfill.engine.index import IndexSettings, make_partition
from ray_backfill.engine.statistics import bootstrap_means, interval, relative_weights
from ray_backfill.engine.systems import Filter, IntArray

# First items of each model that are compared; queries to judge first, and at most; the fewest that are read.
DEPTH, FIRST, MOST, LEAST = 3, 50, 100, 10
COLUMNS = ("query", "query_text", "item", "item_text", "right")
# Queries that search together; and in how many, drawn at random, those that differ are looked for.
_TOGETHER, _SEARCHED = 512, 10_000
# Characters of a text. What begins with one of these signs is a formula to a spreadsheet.
_CHARACTERS, _FORMULA = 1_000, ("=", "+", "-", "@")
_CHANGED = "a spreadsheet changes ids that look like numbers or dates: have it read the columns query and item as text"

Key = tuple[str, str]


# docs/results/judging.md
TELLS = (
    f"{FIRST} queries nearly always tell models apart that differ by 20 points of nDCG@10, in 85 % of cases by 10 to 20, "
    "in 51 % by 5 to 10. Closer models mostly stay open (docs/results/judging.md)."
)


@dataclass(frozen=True, eq=False)
class Drawn:
    """The queries that can be judged.

    query: (n,) rows, in random order. only_old, only_new: for each, the gallery positions that this model alone finds
    among its first ``DEPTH``. share: of all queries, by weight, those for which the models find different items.
    """

    query: IntArray
    only_old: list[IntArray]
    only_new: list[IntArray]
    share: float

    def keys(self, folder: EmbeddingFolder) -> list[dict[Key, int]]:
        """For each query its pairs of ids, as text: -1 for an item of the old model, 1 for one of the new."""
        of_query, of_item = (folder.queries or folder.gallery).id, folder.gallery.id
        return [
            {(str(of_query[q]), str(of_item[i])): sign for sign, items in ((-1, old), (1, new)) for i in items}
            for q, old, new in zip(self.query.tolist(), self.only_old, self.only_new, strict=True)
        ]


def first_found(
    folder: EmbeddingFolder, model: str, k: int, distance: str, found_by: Filter | None, rows: IntArray | None = None
) -> list[IntArray]:
    """The k gallery items that a model finds first for each query, the nearest first: fewer in a small part.

    A query that is a gallery item does not find itself. rows: queries; None for all. Cost: a search of the gallery.
    """
    gallery, queries = folder.gallery, folder.queries or folder.gallery
    rows = np.arange(len(queries)) if rows is None else rows
    own_Q = np.full(len(queries), -1)
    if folder.queries is None:
        own_Q = np.arange(len(queries))
    else:
        query_K, item_K = own_items(folder)
        own_Q[query_K] = item_K
    more = int((own_Q >= 0).any())
    found: dict[int, IntArray] = {}
    with step(f"find what the {model} model finds", len(rows), "queries") as bar:
        for of_part, items in found_by.parts() if found_by else [(rows, np.arange(len(gallery)))]:
            asked = rows[np.isin(rows, of_part)]
            partition = make_partition(IndexSettings(), distance, gallery.vectors[model].shape[1], None)
            partition = partition.with_rows(gallery.vectors[model][items], items)
            for first in range(0, len(asked), _TOGETHER):
                some = asked[first : first + _TOGETHER]
                positions = partition.search(queries.vectors[model][some], min(k + more, len(items))).position
                for query, position in zip(some.tolist(), positions, strict=True):
                    others = position[position != own_Q[query]]
                    found[query] = others[:k]
                bar.advance(len(some))
    return [found.get(query, np.empty(0, np.int64)) for query in rows.tolist()]


def draw(folder: EmbeddingFolder, distance: str, found_by: Filter | None = None, seed: int = 0) -> Drawn:
    """Draw the queries to judge, the same for a seed. Cost: two searches of the gallery, for at most 10,000 queries.

    Raises:
        InputError: The models find the same first items for every query.
    """
    queries = folder.queries or folder.gallery
    rows = np.random.default_rng(seed).permutation(len(queries))[:_SEARCHED]
    old, new = (first_found(folder, model, DEPTH, distance, found_by, rows) for model in ("old", "new"))
    differs = np.array([len(np.setxor1d(a, b)) > 0 for a, b in zip(old, new, strict=True)])
    if not differs.any():
        raise InputError(
            f"both models find the same first {DEPTH} items for every query of {folder.path}: there is nothing to judge"
        )
    weights = np.ones(len(rows)) if queries.weight is None else queries.weight[rows]
    chosen = np.flatnonzero(differs)[:MOST]
    return Drawn(
        rows[chosen],
        [np.setdiff1d(old[place], new[place]) for place in chosen],
        [np.setdiff1d(new[place], old[place]) for place in chosen],
        float(weights[differs].sum() / weights.sum()),
    )


def write_sheet(folder: EmbeddingFolder, path: Path, drawn: Drawn) -> int:
    """Write the items to judge as CSV, with an empty column ``right``; returns their number.

    The rows of a query are together, the items of both models shuffled. The file begins with a byte order mark, from
    which spreadsheets know UTF-8. Raises InputError if it cannot be written.
    """
    queries, rng = folder.queries or folder.gallery, np.random.default_rng(1)
    pooled = [rng.permutation(np.concatenate(pair)) for pair in zip(drawn.only_old, drawn.only_new, strict=True)]
    asked, items = np.repeat(drawn.query, [len(each) for each in pooled]), np.concatenate(pooled)
    ids = (queries.id[asked].astype(str), folder.gallery.id[items].astype(str))
    columns = (ids[0], _texts(queries, asked), ids[1], _texts(folder.gallery, items), [""] * len(items))
    written = io.StringIO()
    csv.writer(written).writerows([COLUMNS, *zip(*columns, strict=True)])
    write_whole(path, lambda to: to.write_text(written.getvalue(), encoding="utf-8-sig", newline=""))
    return len(items)


def _texts(table: EmbeddingTable, rows: IntArray) -> list[str]:
    """The text of each row, or the path of its image, in one line; "" if it has neither."""
    of_row = zip(table.pick(TEXT, rows), table.pick(IMAGE, rows), strict=True)
    given = (next((each for each in pair if isinstance(each, str)), "") for pair in of_row)
    lines = (" ".join(text[: 10 * _CHARACTERS].split())[:_CHARACTERS] for text in given)
    return ["'" * line.startswith(_FORMULA) + line for line in lines]


def read_sheet(folder: EmbeddingFolder, path: Path, drawn: Drawn) -> dict[str, Any]:
    """What the judgements say, as facts for the manifest: ``difference`` of precision, new minus old, over all queries.

    ``low`` and ``high`` are the limits of its 95 % interval. Queries without any judgement are left out.

    Raises:
        InputError: The file cannot be read, was written for other embeddings, or has too few or half judged queries.
    """
    given, line_of = _judgements(path)
    keys = drawn.keys(folder)
    if unknown := given.keys() - {key for of_query in keys for key in of_query}:
        query, item = min(unknown, key=lambda key: line_of[key])
        raise InputError(
            f"{path}, line {line_of[query, item]}: item {item!r} of query {query!r} is not to be judged with this "
            f"folder and --distance; take the file that simulate --judge wrote for them ({_CHANGED})"
        )
    differences, judged = [], []
    for place, of_query in enumerate(keys):
        missing = [key for key in of_query if given.get(key) is None]
        if len(missing) == len(of_query):
            continue
        if missing:
            query, item = missing[0]
            where = f", line {line_of[query, item]}" if (query, item) in line_of else ": a row is missing"
            raise InputError(
                f"{path}{where}: query {query!r} is half judged, without item {item!r}; judge all of its items, or "
                "empty the column right in all of its rows"
            )
        differences.append(sum(sign * (given[key] or 0) for key, sign in of_query.items()) / DEPTH)
        judged.append(int(drawn.query[place]))
    if len(judged) < LEAST:
        raise InputError(f"{path} has {len(judged)} judged queries; fill the column right of at least {LEAST}")
    weight = (folder.queries or folder.gallery).weight
    weights = relative_weights(None if weight is None else weight[judged])
    values = drawn.share * np.array(differences)
    low, high = interval(bootstrap_means(values[:, None], weights)[:, 0], len(values))
    return {
        "path": str(path), "queries": len(judged), "to_judge": len(keys), "depth": DEPTH, "share": drawn.share,
        "difference": float(np.average(values, weights=weights)), "low": float(low), "high": float(high),
    }  # fmt: skip


def _judgements(path: Path) -> tuple[dict[Key, bool | None], dict[Key, int]]:
    """Whether each pair is right, None without a judgement, and the line of each."""
    given: dict[Key, bool | None] = {}
    line_of: dict[Key, int] = {}
    for line, query, item, word in _rows(path):
        key = (query, item)
        try:
            grade = float(word.replace(",", ".")) if word else None
        except ValueError:
            grade = math.nan
        if grade is not None and not math.isfinite(grade):
            raise InputError(f"{path}, line {line}: the column right has {word!r}; write 1, 0, a grade or nothing")
        right = None if grade is None else grade > 0
        if key in given and given[key] != right:
            raise InputError(f"{path}, line {line}: another judgement than in line {line_of[key]}; keep one of them")
        given[key], line_of[key] = right, line
    return given, line_of


def _rows(path: Path) -> Iterator[tuple[int, str, str, str]]:
    """Line, query, item and judgement of each row. Commas, semicolons or tabs separate them."""
    try:
        with regular_file(local_path(path)).open("rb") as opened:
            text = b"".join(line for _, line in lines_of(opened, str(path))).decode()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    head = text.partition("\n")[0]
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=head.count))
    try:
        names = [name.strip().lower() for name in next(rows, [])]
        if lacking := [name for name in ("query", "item", "right") if name not in names]:
            raise InputError(
                f"{path}: the first line has no column {lacking[0]!r}; keep the one that simulate --judge wrote: "
                f"{','.join(COLUMNS)}"
            )
        query, item, right = map(names.index, ("query", "item", "right"))
        for row in rows:
            if any(row):
                cells = [*row, *[""] * len(names)]
                yield rows.line_num, cells[query].strip(), cells[item].strip(), cells[right].strip()
    except csv.Error as error:
        raise InputError(f"{path}, line {rows.line_num}: {error}; save it as CSV in UTF-8") from error
