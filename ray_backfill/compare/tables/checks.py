"""Table in RUN/results of fitted methods on the validation part."""

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True)
class CheckRow:
    """A fitted method on the validation part: a small gallery that queries itself, backfilled in random order."""

    method: Annotated[str, "as in `summary.parquet`"]
    metric: Annotated[str, "the primary metric of the run"]
    queries: Annotated[int, "number of scored validation items"]
    auc: Annotated[float, "auc of the method and of `rm_naive`, rank merge without training, over 11 moments"]
    auc_rm_naive: float
    difference: Annotated[float, "auc minus auc_rm_naive, and its paired 95 % interval"]
    low: float
    high: float
    is_worse: Annotated[bool, "the interval is below 0: reports mark the method and never recommend it"]
