"""What a metric says about itself."""

from collections.abc import Callable
from dataclasses import dataclass

from ray_backfill.core.kernels import Array

# (ranks, n_right, cut, grades, ideal) -> the metric of one ranking. Compiled.
#
# ranks: 1-based ranks of the query's right answers among all items that are not ignored, ascending; those above the
# cut-off may be missing. n_right: number of the query's right answers. cut: the last rank that counts. grades: of the
# right answers, in the order of ``ranks``; empty if all are 1. ideal: the value, computed with ideal = 1, of the
# ranking that has all right answers first, the highest grades at the top.
Value = Callable[[Array, int, int, Array, float], float]


@dataclass(frozen=True)
class MetricKind:
    """A metric, for every cut-off."""

    name: str
    """Name without its cut-off."""
    is_whole: bool
    """Whether the name alone, without @k, stands for the metric of the whole ranking."""
    meaning: str
    """One or two sentences for reports."""
    source: str
    """Definition that it follows."""
    value: Value
    uses_grades: bool = False
    """Whether ``grades`` and ``ideal`` count. They are computed for such metrics only."""

    @property
    def forms(self) -> tuple[str, ...]:
        """The names that it takes: "mAP" and "mAP@k"."""
        return (self.name, f"{self.name}@k") if self.is_whole else (f"{self.name}@k",)
