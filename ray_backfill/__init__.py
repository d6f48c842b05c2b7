"""Quality of image retrieval while a gallery is backfilled: replayed exactly, before the backfill starts.

The Python face: every public name stands in ``__all__`` and is loaded when it is first used, so ``import ray_backfill``
itself loads nothing, not even numpy.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ray_backfill.core import __version__ as __version__

__all__ = [
    "RAW",
    "Curve",
    "Differences",
    "EmbeddingFolder",
    "ForecastResults",
    "GalleryColumns",
    "GroundTruth",
    "InputError",
    "Merge",
    "MergeKind",
    "Order",
    "PlanResults",
    "Results",
    "RetrievalSystem",
    "ScoreMap",
    "UpgradePair",
    "embed",
    "export",
    "fit_merge",
    "forecast",
    "judge",
    "make_order",
    "merges",
    "methods",
    "orders",
    "plan",
    "read_folder",
    "read_results",
    "replay",
    "replay_moment",
    "replay_streamed",
    "sample",
    "simulate",
    "stream_vectors",
    "write_folder",
]

# Where the public names are defined. tests/test_api.py keeps this table, __all__ and the imports below the same.
_NAMES_IN = {
    "api": ("embed", "export", "forecast", "judge", "merges", "methods", "orders", "plan", "sample", "simulate"),
    "compare.report": ("Results", "read_results"),
    "core.errors": ("InputError",),
    "data.folder": ("EmbeddingFolder", "read_folder"),
    "data.vectors": ("stream_vectors",),
    "data.write": ("write_folder",),
    "engine.merges": ("RAW", "Merge", "MergeKind", "ScoreMap", "fit_merge"),
    "engine.orders": ("GalleryColumns", "Order", "make_order"),
    "engine.replay": ("Curve", "replay", "replay_moment"),
    "engine.streamed": ("replay_streamed",),
    "engine.systems": ("GroundTruth", "RetrievalSystem", "UpgradePair"),
    "forecast.report": ("ForecastResults",),
    "page": ("Differences",),
    "plan.report": ("PlanResults",),
}
_MODULE_OF = {name: f"ray_backfill.{module}" for module, names in _NAMES_IN.items() for name in names}

if TYPE_CHECKING:  # for type checkers, editors and the API pages, which do not run __getattr__
    from ray_backfill.api import embed, export, forecast, judge, merges, methods, orders, plan, sample, simulate
    from ray_backfill.compare.report import Results, read_results
    from ray_backfill.core.errors import InputError
    from ray_backfill.data.folder import EmbeddingFolder, read_folder
    from ray_backfill.data.vectors import stream_vectors
    from ray_backfill.data.write import write_folder
    from ray_backfill.engine.merges import RAW, Merge, MergeKind, ScoreMap, fit_merge
    from ray_backfill.engine.orders import GalleryColumns, Order, make_order
    from ray_backfill.engine.replay import Curve, replay, replay_moment
    from ray_backfill.engine.streamed import replay_streamed
    from ray_backfill.engine.systems import GroundTruth, RetrievalSystem, UpgradePair
    from ray_backfill.forecast.report import ForecastResults
    from ray_backfill.page import Differences
    from ray_backfill.plan.report import PlanResults
else:

    def __getattr__(name: str) -> Any:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
        return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


class _Package(ModuleType):
    """Keeps ``ray_backfill.engine.replay``, ``forecast``, ``export``, ``plan`` and others functions.

    Python binds a subpackage to its name in the package when it is first imported, over a function of that name.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _MODULE_OF and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
