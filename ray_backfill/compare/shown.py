"""The queries that lose and gain most, with texts and thumbnails for a page: read for these rows only.

Shapes: Q scored queries.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_backfill.compare.flips import Flips, changes
from ray_backfill.compare.replay import Curves, Key
from ray_backfill.compare.replayed import Replayed
from ray_backfill.compare.summary import of_reference
from ray_backfill.compare.tables.queries import BACKWARD, BEST, FORWARD, LOST, WON, WORST, ShownQuery
from ray_backfill.compare.tables.results import OLD
from ray_backfill.data.cleaning import copied_from
from ray_backfill.data.columns import IMAGE, TEXT
from ray_backfill.data.folder import EmbeddingFolder, EmbeddingTable
from ray_backfill.engine import statistics as stats
from ray_backfill.engine.replay import NOTHING
from ray_backfill.engine.systems import IntArray
from ray_backfill.images.decode import read_inside, thumbnail

# Queries of each kind, and characters of a text that are kept.
MOST, _CHARACTERS = 10, 160
# A query whose average differs from old by less than this neither gains nor loses.
_LEAST = 1e-9


class _Shown(NamedTuple):
    """An item as a page shows it."""

    id: str
    text: str
    image: str


_NONE = _Shown("", "", "")


def flips_of(found: Replayed) -> Flips:
    """The changes of first results, without the items where these are not known: under a merge."""
    return changes(found.first_top1) if found.flips is None else found.flips


def shown_queries(folder: EmbeddingFolder, curves: Curves, key: Key, metric: str) -> tuple[ShownQuery, ...]:
    """At most 10 worst and 10 best queries of a curve, by their average over the backfill against old.

    Cost: reads the columns ``text`` and ``image`` where these queries and what stood first are stored.
    """
    found, old = curves[key], curves[of_reference(OLD, key[1])]
    values, before = found.curve.per_query[metric], old.curve.per_query[metric][:, 0]
    auc = stats.auc_draws(found.curve.t, values, found.curve.is_step)
    ranked = np.argsort(auc - before, kind="stable")
    picked = [(WORST, q) for q in ranked[:MOST] if auc[q] - before[q] < -_LEAST]
    # The reverse of a stable order: of equal queries, the first one comes first.
    picked += [(BEST, q) for q in np.argsort(before - auc, kind="stable")[:MOST] if auc[q] - before[q] > _LEAST]
    flips = flips_of(found)
    decisive = [_decisive(flips, q, kind) for kind, q in picked]
    queries, gallery = folder.queries or folder.gallery, folder.gallery
    scored = found.curve.scored
    root, _ = copied_from(folder.path)
    names = _shown(root, queries, scored[np.array([q for _, q in picked], np.int64)])
    known = [k for k in decisive if k is not None]
    items = np.unique(np.concatenate([flips.before[known], flips.after[known]]).astype(np.int64))
    shown_items = _shown(root, gallery, items[items != NOTHING])
    was_right, is_right = old.first_top1[:, 0], found.first_top1[:, 0]
    return tuple(
        ShownQuery(
            kind,
            *key,
            metric,
            *names[int(scored[q])],
            float(before[q]),
            float(values[q, 0]),
            float(values[q, -1]),
            float(auc[q]),
            "" if was_right[q] == is_right[q] else LOST if was_right[q] else WON,
            int((flips.query == q).sum()),
            "" if k is None else (LOST if flips.is_lost[k] else WON),
            float("nan") if k is None else float(found.t[flips.moment[k]]),
            *_told(shown_items, flips.before, flips.before_forward, k),
            *_told(shown_items, flips.after, flips.after_forward, k),
        )
        for (kind, q), k in zip(picked, decisive, strict=True)
    )


def _decisive(flips: Flips, query: int, kind: str) -> int | None:
    """The last loss of a worst query, or the last win of a best one; without one, the last change."""
    own = np.flatnonzero(flips.query == query)
    wanted = own[flips.is_lost[own] == (kind == WORST)]
    if len(wanted):
        return int(wanted[-1])
    return int(own[-1]) if len(own) else None


def _told(
    shown: Mapping[int, _Shown], items: NDArray[np.uint32], is_forward: NDArray[np.bool_], k: int | None
) -> tuple[str, str, str, str]:
    """Id, text, thumbnail and system of the item that was first before or after change k."""
    if k is None or items[k] == NOTHING:
        return (*_NONE, "")
    return (*shown[int(items[k])], FORWARD if is_forward[k] else BACKWARD)


def _shown(folder: Path, table: EmbeddingTable, rows: IntArray) -> dict[int, _Shown]:
    """Row -> what a page shows of it."""
    texts = table.pick(TEXT, rows)
    images = table.pick(IMAGE, rows)
    ids: Sequence[str] = table.id[rows].astype(str).tolist()
    return {
        int(row): _Shown(of_id, clean(text), thumbnail(_content(folder, image)))
        for row, of_id, text, image in zip(rows, ids, texts, images, strict=True)
    }


def clean(text: Any) -> str:
    """A text in one line, without control characters, cut if it is long; "" for anything else."""
    if not isinstance(text, str):
        return ""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 20 * _CHARACTERS]).split())
    return line if len(line) <= _CHARACTERS else f"{line[: _CHARACTERS - 1]}\u2026"


def _content(folder: Path, image: Any) -> bytes:
    """The bytes of an image: given as bytes, as a path below the folder, or as both, like Hugging Face does."""
    if isinstance(image, dict):
        image = image.get("bytes") or image.get("path")
    if isinstance(image, bytes):
        return image
    return read_inside(folder, image) if isinstance(image, str) else b""
