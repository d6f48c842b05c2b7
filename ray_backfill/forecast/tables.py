"""Tables of a sample and of a forecast: the row type of each table."""

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True)
class SampledItem:
    """A gallery item that the new model should embed; one row for each."""

    id: Annotated[str, "id of the gallery item, of the type that it has in the gallery"]
    reason: Annotated[
        str,
        "`pilot`: drawn uniformly from the gallery; `right answer`: of a randomly chosen query; `close`: its predicted "
        "new embedding is close to such queries; `--add` may change the reason of an earlier item",
    ]
    probability: Annotated[
        float, "probability of being drawn as pilot or right answer; 1 for close items, which are not drawn at random"
    ]
    round: Annotated[int, "1 for the first sample, 2 for what the first `--add` added, and so on"]


@dataclass(frozen=True)
class ForecastPoint:
    """A point of a forecast curve; one row for each method, order, metric and moment."""

    method: Annotated[str, "names as on the command line"]
    order: str
    metric: str
    t: Annotated[float, "share of the gallery that is backfilled, 0 to 1"]
    value: Annotated[float, "estimated M_t in [0, 1], and its 95 % interval; exact at t = 0"]
    low: float
    high: float


@dataclass(frozen=True)
class ForecastRow:
    """A forecast in numbers; one row for each method, order and metric."""

    method: Annotated[
        str,
        "as in `curves.parquet`; title is the method's name in reports, with its merge; of the merge `best`, the one "
        "chosen",
    ]
    order: str
    title: str
    merge: str
    metric: str
    start: Annotated[float, "M_0, exact"]
    end: Annotated[float, "M_1, and its 95 % interval"]
    end_low: float
    end_high: float
    auc: Annotated[float, "area under M_t by the trapezoid rule, and its 95 % interval"]
    auc_low: float
    auc_high: float
    gain: Annotated[
        float,
        "(auc - M of old) / (M of new - M of old), 1.0 = 100 %, and its 95 % interval; NaN unless new is significantly "
        "better than old; whatever the merge, relative to old and new with raw distances",
    ]
    gain_low: float
    gain_high: float
    end_vs_new: Annotated[
        float, "M_1 minus the metric of {new, new}, with CSLS that of it with CSLS, and its paired 95 % interval"
    ]
    end_vs_new_low: float
    end_vs_new_high: float
    largest_fall: Annotated[
        float,
        "largest drop of the estimated curve from an earlier to a later reported moment, and simultaneous 95 % limits "
        "of the largest drop between 11 moments",
    ]
    largest_fall_low: float
    largest_fall_high: float
    fall_start: Annotated[float, "progress t before and after the largest fall"]
    fall_end: float
    of_queries: Annotated[
        float,
        "shares of the variance of `auc` that come from choosing queries, from choosing right answers, and from the "
        "model of other items; NaN if there is no variance",
    ]
    of_answers: float
    of_model: float
    to_halve: Annotated[
        float,
        "number of further items that would halve the interval of `auc`; NaN if half of the gallery is not enough",
    ]


@dataclass(frozen=True)
class ForecastDifference:
    """The difference of two methods in one order; one row for each pair and metric."""

    method: Annotated[str, "the two methods, the order and the metric"]
    other_method: str
    order: str
    metric: str
    difference: Annotated[
        float, "auc of the first method minus auc of the other, and its 95 % interval, paired: both use one sample"
    ]
    low: float
    high: float


@dataclass(frozen=True)
class CalibrationRow:
    """Whether the model of other items predicts how many are closer; one row for each method and range."""

    method: Annotated[str, "name of the method, as on the command line"]
    expected_from: Annotated[float, "range of the expected number of closer items among those sampled at random"]
    expected_to: float
    answers: Annotated[int, "number of sampled right answers in the range"]
    expected: Annotated[float, "mean expected and mean observed number of closer items"]
    observed: float
    ratio: Annotated[float, "observed over expected over all ranges, weighted by influence and certainty; 1 is perfect"]

    @property
    def is_off(self) -> bool:
        """Whether the ratio is beyond what may be chance."""
        return not 0.8 <= self.ratio <= 1.25


TABLES = {
    "curves": ForecastPoint,
    "summary": ForecastRow,
    "differences": ForecastDifference,
    "calibration": CalibrationRow,
}
