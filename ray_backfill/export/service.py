"""What a service does for each query and item before, during and after a backfill, as plain data: ``service.json``."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ray_backfill.core import __version__
from ray_backfill.engine.merges import Merge, ScoreMap
from ray_backfill.learn.expressions import Stored, macs_of, stored_models, to_json
from ray_backfill.learn.methods import Method, OnlyBackfilled
from ray_backfill.learn.sides import SIDES

SCHEMA = 1


def why_not(method: Method) -> str:
    """Why a method cannot be exported; "" if it can."""
    if method.recalls:
        return f"it embeds {method.recalls} items for every query, which no file can do for a service"
    if method.is_reference:
        return "it serves one model at a time; build the new index beside the old one, and switch"
    if isinstance(method.policy, OnlyBackfilled):
        return "it shows what is backfilled and nothing else; search the new index alone"
    return ""


def describe(
    method: Method, network: Any, merge: Merge, distance: str, models: Mapping[str, Mapping[str, Any]], order: str
) -> dict[str, Any]:
    """The content of ``service.json``, but for the mark of the export; docs/schema/service.json says what it means.

    network: the fitted maps. models: model -> its ``dimensions``, and ``identity`` if that is known.
    """
    backward, forward = method.sides
    has_csls = merge.references is not None
    old_inputs, new_inputs = (list(stored_models(side.gallery)) for side in method.sides)
    write = {"embed": new_inputs, "inputs": new_inputs, "partition": "new", "vector": "forward"}
    scores = {
        name: None if score_map is None else _knots(score_map)
        for name, score_map in zip(SIDES, (merge.backward, merge.forward), strict=True)
    }
    sides = {
        name: {
            "query": to_json(side.query),
            "item": to_json(side.gallery),
            "query_macs": macs_of(network, side.query),
            "item_macs": macs_of(network, side.gallery),
        }
        for name, side in zip(SIDES, method.sides, strict=True)
    }
    return {
        "schema": SCHEMA,
        "ray_backfill": __version__,
        "method": {"name": method.name, "title": method.title, "source": method.source, "systems": str(method)},
        "models": {model: dict(facts) for model, facts in models.items()},
        "distance": "inner_product" if has_csls else distance,
        "sides": sides,
        "merge": {"name": merge.name, "by_rank": merge.by_rank, **scores},
        "order": order,
        "before": {
            "query": {"embed": ["old"], "search": {"old": "old"}},
            "write": {"embed": ["old"], "inputs": ["old"], "partition": "old", "vector": "old"},
        },
        "prepare": {
            "map_stored_vectors": has_csls or backward.gallery != Stored("old"),
            "embed": [model for model in old_inputs if model != "old"],
            "inputs": old_inputs,
        },
        "during": {
            "query": {"embed": list(method.query_models), "search": {"old": "backward", "new": "forward"}},
            "write": write,
            "backfill": write | {"embed": list(method.new_models)},
        },
        "after": {
            "query": {"embed": list(stored_models(forward.query)), "search": {"new": "forward"}},
            "write": write,
        },
        "way_back": [model for model in dict.fromkeys(("old", *old_inputs)) if model not in new_inputs],
    }


def _knots(score_map: ScoreMap) -> dict[str, list[float]]:
    """At least two knots, so that whoever reads them needs no case of its own for a constant."""
    x, y = score_map.distances, score_map.scores
    if len(x) == 1:
        x, y = np.append(x, x[0] + 1), np.append(y, y[0])
    return {"distances": x.tolist(), "scores": y.tolist()}
