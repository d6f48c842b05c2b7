"""The primary metric of each query of a run, with the raw merge. Shape: Q queries."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ray_backfill.compare.tables import QueryValues, ScoredQuery
from ray_backfill.core.schema import read_table
from ray_backfill.engine.statistics import Weights, relative_weights

_AGAIN = "run ray-backfill reproduce again"


@dataclass(frozen=True)
class PerQuery:
    """values: (method, order, quantity) -> (Q,); the order is empty where it makes no difference. weights: (Q,)."""

    values: dict[tuple[str, str, str], NDArray[np.float64]]
    weights: Weights

    def of(self, method: str, order: str, quantity: str) -> NDArray[np.float64] | None:
        """(Q,) one quantity of a method; None if the run lacks it."""
        found = self.values.get((method, order, quantity))
        return self.values.get((method, "", quantity)) if found is None else found


def read_per_query(folder: Path) -> PerQuery:
    """Read a results folder.

    Raises:
        InputError: A table is missing or unreadable.
    """
    weights = read_table(folder / "queries.parquet", ScoredQuery, _AGAIN)["weight"].to_numpy(dtype=np.float64)
    table = read_table(folder / "query_values.parquet", QueryValues, _AGAIN)
    keys = zip(table["method"], table["order"], table["quantity"], strict=True)
    values = {key: np.asarray(own, np.float64) for key, own in zip(keys, table["values"], strict=True)}
    return PerQuery(values, relative_weights(weights))
