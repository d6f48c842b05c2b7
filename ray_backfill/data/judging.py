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

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import step
from ray_backfill.core.stages import write_whole
from ray_backfill.core.store_path import path_of, regular_file
from ray_backfill.data.columns import IMAGE, TEXT
from ray_backfill.data.folder import EmbeddingFolder, EmbeddingTable
from ray_backfill.data.leakage import own_items
from ray_backfill.data.text import lines_of
from ray_backfill.data.words import words_of
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

# docs/results/judging.md
TELLS = (
    f"{FIRST} queries nearly always tell models apart that differ by 20 points of nDCG@10, in 85 % of cases by 10 to "
    "20, in 51 % by 5 to 10. Closer models mostly stay open (docs/results/judging.md)."
)


@dataclass(frozen=True, eq=False)
class DrawnPairs:
    """What can be judged: pairs of a query and an item that only one of the models finds among its first ``DEPTH``.

    query, item: (P,) rows and gallery positions, the pairs of a query together. sign: (P,) 1 if the new model finds it,
    -1 if the old one does. share: of all queries, by weight, those for which the models find different items.
    """

    query: IntArray
    item: IntArray
    sign: IntArray
    share: float


def first_found(
    folder: EmbeddingFolder, model: str, k: int, distance: str, found_by: Filter | None, rows: IntArray | None = None
) -> list[IntArray]:
    """The k gallery items that a model finds first for each query, the nearest first: fewer in a small part.

    A query that is a gallery item does not find itself. rows: queries; None for all. Cost: a search of the gallery.
    """
    gallery, queries = folder.gallery, folder.queries or folder.gallery
    rows = np.arange(len(queries)) if rows is None else rows
    own_Q = np.full(len(queries), -1) if folder.queries else np.arange(len(queries))
    query_K, item_K = own_items(folder)
    own_Q[query_K] = item_K
    more = int((own_Q >= 0).any())
    items_of = {query: np.empty(0, np.int64) for query in rows.tolist()}
    with step(f"find what the {model} model finds", len(rows), "queries") as bar:
        for of_part, items in found_by.parts() if found_by else [(rows, np.arange(len(gallery)))]:
            asked = rows[np.isin(rows, of_part)]
            partition = make_partition(IndexSettings(), distance, gallery.vectors[model].shape[1], None)
            partition = partition.with_rows(gallery.vectors[model][items], items)
            for first in range(0, len(asked), _TOGETHER):
                some = asked[first : first + _TOGETHER]
                positions = partition.search(queries.vectors[model][some], min(k + more, len(items))).item
                for query, position in zip(some.tolist(), positions, strict=True):
                    items_of[query] = position[position != own_Q[query]][:k]
                bar.advance(len(some))
    return list(items_of.values())


def draw(folder: EmbeddingFolder, distance: str, found_by: Filter | None = None, seed: int = 0) -> DrawnPairs:
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
    weights, rng = np.ones(len(rows)) if queries.weight is None else queries.weight[rows], np.random.default_rng(seed)
    chosen = np.flatnonzero(differs)[:MOST].tolist()
    items = [rng.permutation(np.setxor1d(old[place], new[place])) for place in chosen]
    signs = [np.where(np.isin(pair, new[place]), 1, -1) for place, pair in zip(chosen, items, strict=True)]
    asked = np.repeat(rows[chosen], [len(pair) for pair in items])
    share = float(weights[differs].sum() / weights.sum())
    return DrawnPairs(asked, np.concatenate(items), np.concatenate(signs), share)


def write_sheet(folder: EmbeddingFolder, path: Path, drawn: DrawnPairs) -> None:
    """Write the items to judge as CSV, with an empty column ``right``, in the order of ``drawn``.

    It begins with a byte order mark, from which spreadsheets know UTF-8. Raises InputError if it cannot be written.
    """
    sides = ((folder.queries or folder.gallery, drawn.query), (folder.gallery, drawn.item))
    columns = [column for table, rows in sides for column in (table.id[rows].astype(str), _texts(table, rows))]
    sheet = pd.DataFrame(dict(zip(COLUMNS, columns, strict=False)) | {"right": ""})
    write_whole(path, lambda to: sheet.to_csv(to, index=False, encoding="utf-8-sig"))


def _texts(table: EmbeddingTable, rows: IntArray) -> list[str]:
    """The text of each row, or the path of its image, in one line; "" if it has neither."""
    of_row = zip(table.pick(TEXT, rows), table.pick(IMAGE, rows), strict=True)
    given = (next((value for value in pair if isinstance(value, str)), "") for pair in of_row)
    lines = (" ".join(text[: 10 * _CHARACTERS].split())[:_CHARACTERS] for text in given)
    return ["'" * line.startswith(_FORMULA) + line for line in lines]


def read_sheet(folder: EmbeddingFolder, path: Path, drawn: DrawnPairs) -> dict[str, Any]:
    """What the judgements say, as facts for the manifest: ``difference`` of precision, new minus old, over all queries.

    ``low`` and ``high`` are the limits of its 95 % interval. Queries without any judgement are left out.

    Raises:
        InputError: The file cannot be read, was written for other embeddings, or has too few or half judged queries.
    """
    queries = folder.queries or folder.gallery
    ids = {"query": queries.id[drawn.query].astype(str), "item": folder.gallery.id[drawn.item].astype(str)}
    asked = pd.DataFrame(ids | {"row": drawn.query, "sign": drawn.sign})
    pairs = asked.merge(_judgements(path), "outer", ["query", "item"]).sort_values("line")
    if len(unknown := pairs[pairs["sign"].isna()]):
        query, item, line = unknown.iloc[0][["query", "item", "line"]]
        this = words_of(folder.path)["this"]
        raise InputError(
            f"{path}, line {line:.0f}: item {item!r} of query {query!r} is not to be judged with {this} and "
            f"--distance; take the file that simulate --judge wrote for them (a spreadsheet changes ids that look like "
            "numbers or dates: have it read the columns query and item as text)"
        )
    pairs = pairs[pairs["right"].notna().groupby(pairs["row"]).transform("any")]
    if len(missing := pairs[pairs["right"].isna()]):
        query, item, line = missing.iloc[0][["query", "item", "line"]]
        where = ": a row is missing" if np.isnan(line) else f", line {line:.0f}"
        raise InputError(
            f"{path}{where}: query {query!r} is half judged, without item {item!r}; judge all of its items, or empty "
            "the column right in all of its rows"
        )
    differences = (pairs["sign"] * pairs["right"]).groupby(pairs["row"].astype(int)).sum() / DEPTH
    differences = differences.reindex(pd.unique(drawn.query)).dropna()  # as drawn, however the rows are sorted
    if (judged := len(differences)) < LEAST:
        raise InputError(f"{path} has {judged} judged queries; fill the column right of at least {LEAST}")
    weights = relative_weights(None if queries.weight is None else queries.weight[differences.index])
    values = drawn.share * differences.to_numpy(np.float64)
    low, high = interval(bootstrap_means(values[:, None], weights)[:, 0], judged)
    return {
        "path": str(path), "queries": judged, "to_judge": len(np.unique(drawn.query)), "depth": DEPTH,
        "share": drawn.share, "difference": float(np.average(values, weights=weights)),
        "low": float(low), "high": float(high),
    }  # fmt: skip


def _judgements(path: Path) -> pd.DataFrame:
    """Query, item, right (1, 0, or NaN without a judgement) and line. Commas, semicolons or tabs separate columns."""
    try:
        with regular_file(path_of(path)).open("rb") as opened:
            text = b"".join(line for _, line in lines_of(opened, str(path))).decode()
        head = text.partition("\n")[0]
        how: Any = {"dtype": str, "keep_default_na": False, "skip_blank_lines": False, "index_col": False}
        read = pd.read_csv(io.StringIO(text), sep=max(",;\t", key=head.count), **how).fillna("")
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path}: {' '.join(str(error).split())}; save it as CSV in UTF-8") from error
    read.columns = read.columns.str.strip().str.lower()
    if lacking := [name for name in ("query", "item", "right") if name not in read]:
        raise InputError(
            f"{path}: the first line has no column {lacking[0]!r}; keep that of simulate --judge: {','.join(COLUMNS)}"
        )
    read = read.assign(line=read.index + 2.0)[(read != "").any(axis=1)][["query", "item", "right", "line"]]
    word = read["right"].str.strip().str.replace(",", ".")
    grade = pd.to_numeric(word, errors="coerce")
    if len(wrong := read[(word != "") & ~np.isfinite(grade)]):
        right, line = wrong.iloc[0][["right", "line"]]
        raise InputError(f"{path}, line {line:.0f}: the column right has {right!r}; write 1, 0, a grade or nothing")
    read = read.assign(right=(grade > 0).astype(float).where(word != "")).drop_duplicates(["query", "item", "right"])
    if (twice := read.duplicated(["query", "item"])).any():
        item, line = read[twice].iloc[0][["item", "line"]]
        raise InputError(f"{path}, line {line:.0f}: another judgement of item {item!r} than before; keep one of them")
    return read
