"""Forecasts of a backfill from the new embeddings of a few items.

A sample of the gallery is embedded by the new model. The curve of a method is then estimated with an interval:

- ``sample`` draws the items: some at random (the pilot), some right answers of randomly chosen queries, and items that
  are probably close to these queries.
- ``stand_in`` predicts new embeddings from old ones, by a map that is fitted on pairs of both.
- ``others`` and ``answers`` model the distances of items that are not sampled, given those of their stand-ins: of items
  that are no right answers, and of right answers.
- ``counts`` counts, for each chosen query, the items that are closer than its right answers: exactly where distances
  are known, otherwise their expected number. ``expected`` turns counts into the expected value of a metric.
- ``estimate`` goes from the chosen queries to all queries, with an interval.

Shapes: Q queries, m chosen queries, N gallery items, n sampled items, T moments, O orders, R metrics, K entries of a
query (its right answers or draws for them), C cells of predicted distance.
"""

from ray_backfill.forecast.engine import Forecast, forecast_pair
from ray_backfill.forecast.estimate import Estimate, Units
from ray_backfill.forecast.metrics import why_not_forecast
from ray_backfill.forecast.models import Known, KnownForms
from ray_backfill.forecast.sample import REASONS, Sample, draw_sample
from ray_backfill.forecast.slices import Forms, Slices

__all__ = [
    "REASONS",
    "Estimate",
    "Forecast",
    "Forms",
    "Known",
    "KnownForms",
    "Sample",
    "Slices",
    "Units",
    "draw_sample",
    "forecast_pair",
    "why_not_forecast",
]
