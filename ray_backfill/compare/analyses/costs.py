"""Cost of each method: multiply-accumulates and parameters for a query and an item, by the shapes of its maps.

Source: rank merge, appendix B.3.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from markupsafe import Markup

from ray_backfill.compare.analyses import Analysis
from ray_backfill.compare.results import ResultsData
from ray_backfill.compare.selection import is_large, shown_rows
from ray_backfill.page.numbers import NOTHING, amount
from ray_backfill.page.sections import Cell, Folded, Section, number, table_of, word

if TYPE_CHECKING:
    from ray_backfill.compare.fitted import FittedMaps
    from ray_backfill.compare.resolve import Comparison
    from ray_backfill.learn.methods import Method

# Column -> its heading.
_HEADS = {
    "query_models": "models that embed a query",
    "query_backbone_macs": "their MACs per query",
    "query_macs": "other MACs per query",
    "query_parameters": "other parameters",
    "gallery_macs": "MACs per gallery item",
    "training_flops": "FLOPs to fit",
    "trained_models": "models to train",
    "backbone_training_flops": "FLOPs to train them",
}


@dataclass(frozen=True)
class CostRow:
    """The cost of a method for a query and an item."""

    method: Annotated[str, "as in `summary.parquet`"]
    title: str
    query_models: Annotated[
        str, "models that embed a query: `new`, `old + new` (both while the backfill runs) or `old then new`"
    ]
    query_backbone_macs: Annotated[
        float, "multiply-accumulates of these models per query; NaN if the embeddings came without models"
    ]
    query_parameters: Annotated[int, "parameters and multiply-accumulates per query in addition to these models"]
    query_macs: int
    gallery_macs: Annotated[
        int,
        "multiply-accumulates per gallery item in addition to the models (stand-ins of old items, rho of new items)",
    ]
    training_flops: Annotated[
        int,
        "floating-point operations to fit the method's map; of a formula only two products of the train items, without "
        "the choice of a penalty or a rank",
    ]
    trained_models: Annotated[str, "models that the method needs in addition to the old one"]
    backbone_training_flops: Annotated[float, "floating-point operations to train these models; NaN if unknown"]


def compute(comparison: "Comparison", _: object, so_far: ResultsData) -> list[CostRow]:
    """One row for each method."""
    folder, backbones = comparison.folder, so_far.manifest.backbones
    dims = {model: folder.gallery.vectors[model].shape[1] for model in folder.models}
    return [cost_of(method, dims, comparison.maps, backbones) for method in comparison.methods]


def cost_of(
    method: "Method", dims: Mapping[str, int], maps: "FittedMaps", backbones: Mapping[str, Mapping[str, Any]]
) -> CostRow:
    """The cost of a method.

    dims: model -> embedding size. backbones: model -> its known facts (macs, parameters, training_flops); {} if the
    embeddings came without their models.
    """
    from ray_backfill.learn.expressions import macs_of, stored_models
    from ray_backfill.learn.models.apply import n_parameters

    network = maps.of(method)
    queries, items = ([getattr(side, of) for side in method.sides] for of in ("query", "gallery"))
    query_macs = macs_of(network, *queries)
    query_models = [name for name in dims if name in method.query_models]
    fitted_on = method.fit.models if method.fit else ()
    # The old model already exists.
    needed = [name for name in dims if name in {*query_models, *stored_models(*items), *fitted_on} and name != "old"]
    switches = " then " if len(query_models) > 1 and method.is_reference else " + "
    return CostRow(
        method=method.name,
        title=method.title,
        query_models=switches.join(query_models),
        query_backbone_macs=_sum(backbones, [query_models[-1]] if method.is_reference else query_models, "macs"),
        query_parameters=n_parameters(network) if query_macs else 0,
        query_macs=query_macs,
        gallery_macs=macs_of(network, *items),
        training_flops=maps.training_flops(method),
        trained_models=" + ".join(needed),
        backbone_training_flops=_sum(backbones, needed, "training_flops"),
    )


def _sum(backbones: Mapping[str, Mapping[str, Any]], names: Sequence[str], fact: str) -> float:
    """The sum of a fact over models; NaN if it is unknown for one of them."""
    return float(sum(backbones.get(name, {}).get(fact, np.nan) for name in names))


def section(results: ResultsData) -> Section | None:
    """A line per method, in the order of the first table, without columns of unknown values."""
    rows: tuple[CostRow, ...] = results.table_of("costs")
    if not rows:
        return None
    place = {row.method: index for index, row in enumerate(shown_rows(results, results.primary))}
    known = []
    for name in _HEADS:
        numbers = [value for cost in rows if not isinstance(value := getattr(cost, name), str)]
        # Uninformative: some numbers are unknown and all others are 0.
        if not any(math.isnan(n) for n in numbers) or any(n > 0 for n in numbers):
            known.append(name)
    lines = []
    for cost in sorted(rows, key=lambda cost: place.get(cost.method, len(place))):
        traits = results.manifest.traits.methods[cost.method]
        stays = "its maps stay" if traits.stays else "only the new model"
        values = {_HEADS[name]: getattr(cost, name) for name in known}
        lines.append(
            [
                ("method", Cell(cost.title)),
                *((h, word(x or NOTHING) if isinstance(x, str) else number(amount(x), x)) for h, x in values.items()),
                ("needs labels", word("yes" if traits.needs_labels else "no")),
                ("after the backfill", word(stays if cost.method != "old" else NOTHING)),
            ]
        )
    table = table_of("What each method costs", lines, "sortable costs")
    words = Markup(
        "<p>Each of the named models embeds a query once; \u201cother\u201d is what the method adds to that. MACs are "
        "multiply-accumulate operations for one query and one item.\nk, M, G, T and P stand for "
        "10<sup>3</sup>, 10<sup>6</sup>, 10<sup>9</sup>, 10<sup>12</sup> and 10<sup>15</sup>; a dash means unknown. "
        "FLOPs to fit a formula are those of two matrix products; choosing a penalty or a rank is not counted.</p>"
    )
    shown = Folded(f"All {len(rows)} methods", [table]) if is_large(results) else table
    return Section("What each method costs", [words, shown])


ANALYSES = (Analysis("costs", CostRow, compute, section, place=50),)
