"""Which queries lose or win their right first result on the way, and how many of them at every moment.

The table has every change of a first result with the items; ``replay`` finds them. The report shows shares of
queries, from the curves.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ray_backfill.compare.analyses import Analysis
from ray_backfill.compare.charts import notes_on, panel_curves
from ray_backfill.compare.results import ResultsData, Variant
from ray_backfill.compare.tables import FLIP_METRICS, NEGATIVE_FLIPS, NEGATIVE_FLIPS_VS_OLD
from ray_backfill.core.schema import block, frame
from ray_backfill.page.charts import Chart, range_of
from ray_backfill.page.sections import Charts, Note, Section

if TYPE_CHECKING:
    from ray_backfill.compare.replay import Curves
    from ray_backfill.compare.resolve import Comparison
    from ray_backfill.engine.lists import RankedLists

# Values of the column ``kind``, and of the columns that name a system.
LOST, WON = "lost", "won"
BACKWARD, FORWARD = "backward", "forward"


@dataclass(frozen=True)
class FlipRow:
    """A change of a query's first result between right and wrong during a backfill, with the raw merge."""

    query: Annotated[str, "id of the query, as in `queries.parquet`"]
    method: Annotated[
        str, "as in `curves.parquet`, without old, new, offline and cascades, which change at one moment only"
    ]
    order: Annotated[str, "of a random order with several permutations, the first permutation"]
    t: Annotated[float, "progress at the first replayed moment after the change, as in `moments.parquet`"]
    kind: Annotated[str, f"`{LOST}`: the first result was right and is wrong now; `{WON}`: the reverse"]
    first: Annotated[
        str, "id of the gallery item that is first now, in the place of the one before; empty if nothing can be found"
    ]
    first_system: Annotated[
        str, f"`{BACKWARD}` if it is not backfilled yet, `{FORWARD}` if it is; empty if nothing can be found"
    ]
    before: Annotated[str, "id and system of the item that was first at the moment before"]
    before_system: str


def compute(comparison: "Comparison", curves: "Curves", _: object) -> pd.DataFrame:
    """``FlipRow``s of the curves whose first items were searched."""
    query_ids, item_ids = (comparison.folder.queries or comparison.folder.gallery).id, comparison.folder.gallery.id
    blocks = [
        block(
            FlipRow,
            query_ids[curve.curve.scored[flips.query]].astype(str),
            method,
            order,
            curve.t[flips.moment],
            np.where(flips.is_lost, LOST, WON),
            *_told(flips.after, item_ids),
            *_told(flips.before, item_ids),
        )
        for (method, order, _), curve in curves.items()
        if (flips := curve.flips) is not None
    ]
    return pd.concat(blocks, ignore_index=True) if blocks else frame(FlipRow, []).astype(str)


def _told(first: "RankedLists", item_ids: NDArray[np.generic]) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    """Ids and systems; both empty where there is no item."""
    item, is_forward = first.item[:, 0], first.is_forward[:, 0]
    ids = item_ids[np.maximum(item, 0)].astype(str)
    return np.where(item < 0, "", ids), np.where(item < 0, "", np.where(is_forward, FORWARD, BACKWARD))


def section(results: ResultsData) -> Section | None:
    """The shares of flipped queries at every moment, in the order and merge of the best method."""
    charts, variant = flip_charts(results, results.best_variant), results.best_variant
    several = f", {results.label(variant)}" if len(results.variants) > 1 else ""
    words = (
        "A negative flip is a query whose first result was right before and is wrong now. Users notice and report such "
        "errors even while the average improves. A positive flip is the reverse."
    )
    note = Note(f"Share of all queries{several}.")
    return Section("Which queries change for users?", [words, Charts(charts, "flips"), note]) if charts else None


def flip_charts(results: ResultsData, variant: Variant) -> list[Chart]:
    """Negative and positive flips over progress in one order and merge; [] if the folder has no flip curves."""
    notes, charts = notes_on(results.panel(results.primary, variant)), []
    for metric, title in FLIP_METRICS.items():
        if curves := panel_curves(results, metric, variant):
            header = "largest" if metric in (NEGATIVE_FLIPS, NEGATIVE_FLIPS_VS_OLD) else "at the end"
            ends = range_of(curves, from_zero=True)
            charts.append(Chart(title, "queries (%)", header, tuple(curves), (title,), notes, y_range=ends))
    return charts


ANALYSES = (Analysis("flips", FlipRow, compute, section, is_read=False, place=20),)
