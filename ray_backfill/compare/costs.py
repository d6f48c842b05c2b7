"""Cost of each method: multiply-accumulates and parameters, counted while it processes a query and an item.

Source: rank merge, appendix B.3.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ray_backfill.compare.maps import FittedMaps
from ray_backfill.compare.tables.results import CostRow
from ray_backfill.core.schema import frame
from ray_backfill.engine.systems import FloatArray
from ray_backfill.learn.methods import Embeddings, Method
from ray_backfill.learn.models.apply import counted, n_parameters


@dataclass(frozen=True)
class _Recorder(Mapping[str, FloatArray]):
    """Model name -> vectors; records which models are requested."""

    vectors: Mapping[str, FloatArray]
    asked: list[str] = field(default_factory=list)

    def __getitem__(self, name: str) -> FloatArray:
        self.asked.append(name)
        return self.vectors[name]

    def __iter__(self) -> Any:
        return iter(self.vectors)

    def __len__(self) -> int:
        return len(self.vectors)


def cost_table(
    methods: Sequence[Method],
    dims: Mapping[str, int],
    maps: FittedMaps,
    backbones: Mapping[str, Mapping[str, Any]],
) -> pd.DataFrame:
    """One ``CostRow`` per method.

    dims: model -> embedding size. backbones: model -> its known facts (macs, parameters, training_flops); {} if the
    embeddings came without their models.
    """
    return frame(CostRow, [_costs(method, dims, maps, backbones) for method in methods])


def _costs(
    method: Method,
    dims: Mapping[str, int],
    maps: FittedMaps,
    backbones: Mapping[str, Mapping[str, Any]],
) -> CostRow:
    network = maps.of(method)
    asked_query: list[str] = []
    asked_gallery: list[str] = []

    def macs(queries: int, items: int) -> int:
        sides = (
            _Recorder({name: np.ones((rows, d), np.float32) for name, d in dims.items()}) for rows in (queries, items)
        )
        query, gallery = sides
        with counted(network) as flops:
            method.pair(Embeddings(query, gallery), network)
        asked_query.extend(query.asked)
        asked_gallery.extend(gallery.asked)
        return flops() // 2

    one = macs(1, 1)
    query_macs, gallery_macs = macs(2, 1) - one, macs(1, 2) - one
    query_models = [name for name in dims if name in asked_query]
    fitted_on = method.fit.models if method.fit else ()
    # The old model already exists.
    needed = [name for name in dims if name in {*asked_query, *asked_gallery, *fitted_on} and name != "old"]
    switches = " then " if len(query_models) > 1 and method.is_reference else " + "
    return CostRow(
        method=method.name,
        title=method.title,
        query_models=switches.join(query_models),
        query_backbone_macs=_sum(backbones, [query_models[-1]] if method.is_reference else query_models, "macs"),
        query_parameters=n_parameters(network) if query_macs else 0,
        query_macs=query_macs,
        gallery_macs=gallery_macs,
        training_flops=maps.training_flops(method),
        trained_models=" + ".join(needed),
        backbone_training_flops=_sum(backbones, needed, "training_flops"),
    )


def _sum(backbones: Mapping[str, Mapping[str, Any]], names: Sequence[str], fact: str) -> float:
    """The sum of a fact over models; NaN if it is unknown for one of them."""
    return float(sum(backbones.get(name, {}).get(fact, np.nan) for name in names))
