"""Quality of image retrieval while a gallery is backfilled: replayed exactly, before the backfill starts.

The Python face: every public name stands in ``__all__`` and is loaded when it is first used, so ``import ray_backfill``
itself loads nothing, not even numpy.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

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
    "Results",
    "RetrievalSystem",
    "ScoreMap",
    "UpgradePair",
    "fit_merge",
    "forecast",
    "make_order",
    "merges",
    "methods",
    "orders",
    "read_folder",
    "read_results",
    "replay",
    "replay_moment",
    "sample",
    "simulate",
    "write_folder",
]

# Where each public name is defined. tests/test_face.py keeps this table, __all__ and the imports below the same.
_MODULE_OF = {
    "RAW": "ray_backfill.merges",
    "Curve": "ray_backfill.replay",
    "Differences": "ray_backfill.display",
    "EmbeddingFolder": "ray_backfill.store",
    "ForecastResults": "ray_backfill.report.forecast",
    "GalleryColumns": "ray_backfill.orders",
    "GroundTruth": "ray_backfill.systems",
    "InputError": "ray_backfill.errors",
    "Merge": "ray_backfill.merges",
    "MergeKind": "ray_backfill.merges",
    "Order": "ray_backfill.orders",
    "Results": "ray_backfill.report",
    "RetrievalSystem": "ray_backfill.systems",
    "ScoreMap": "ray_backfill.merges",
    "UpgradePair": "ray_backfill.systems",
    "fit_merge": "ray_backfill.merges",
    "forecast": "ray_backfill.face",
    "make_order": "ray_backfill.orders",
    "merges": "ray_backfill.face",
    "methods": "ray_backfill.face",
    "orders": "ray_backfill.face",
    "read_folder": "ray_backfill.store",
    "read_results": "ray_backfill.report",
    "replay": "ray_backfill.replay",
    "replay_moment": "ray_backfill.replay",
    "sample": "ray_backfill.face",
    "simulate": "ray_backfill.face",
    "write_folder": "ray_backfill.store.folders",
}

if TYPE_CHECKING:  # for type checkers, editors and the API pages, which do not run __getattr__
    from ray_backfill.display import Differences
    from ray_backfill.errors import InputError
    from ray_backfill.face import forecast, merges, methods, orders, sample, simulate
    from ray_backfill.merges import RAW, Merge, MergeKind, ScoreMap, fit_merge
    from ray_backfill.orders import GalleryColumns, Order, make_order
    from ray_backfill.replay import Curve, replay, replay_moment
    from ray_backfill.report import Results, read_results
    from ray_backfill.report.forecast import ForecastResults
    from ray_backfill.store import EmbeddingFolder, read_folder
    from ray_backfill.store.folders import write_folder
    from ray_backfill.systems import GroundTruth, RetrievalSystem, UpgradePair
else:

    def __getattr__(name: str) -> Any:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
        return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


class _Package(ModuleType):
    """Keeps ``ray_backfill.replay``, ``forecast``, ``methods``, ``orders`` and ``merges`` the public functions.

    Python binds a subpackage to its name in the package when it is first imported, over a function of that name.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _MODULE_OF and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
