"""Finished results opened again: a run stores what lists and figures depend on, and not the lists."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.fitted import resolve_merges
from ray_backfill.compare.orders import resolve_orders
from ray_backfill.compare.report import AGAIN
from ray_backfill.compare.resolve import Comparison, resolve_truth
from ray_backfill.compare.results import ResultsData, Row, Variant
from ray_backfill.compare.run import with_sample
from ray_backfill.compare.write import STAGE, results_key
from ray_backfill.core.errors import InputError, unknown_name
from ray_backfill.core.progress import step
from ray_backfill.core.stages import is_finished
from ray_backfill.core.store_path import path_of
from ray_backfill.engine.merges import all_merges
from ray_backfill.engine.orders import find_order
from ray_backfill.learn.methods import Method, find_methods, models_of
from ray_backfill.learn.training.settings import ClassificationSettings
from ray_backfill.pipeline.service import ServiceSettings


def rows_called(finished: ResultsData, method: str, order: str, merge: str) -> list[Row]:
    """The rows of a method, one for each order, merge and metric; "" stands for any. Raises InputError without one."""
    why = {missing.name: missing.reason for missing in finished.manifest.left_out if missing.kind == "method"}
    if method in why:
        raise InputError(f"{method} was left out of this run: {why[method]}")
    if method not in finished.methods:
        raise unknown_name("method", method, finished.methods)
    rows = [row for row in finished.rows if row.method == method and {order, merge} <= {"", row.order, row.merge}]
    if not rows:
        known = dict.fromkeys(f"{row.order} {row.merge}" for row in finished.rows if row.method == method)
        raise unknown_name(f"order and merge of {method}", " ".join(filter(None, (order, merge))), known)
    return rows


def reopened(finished: ResultsData, results: Path, variant: Variant) -> Comparison:
    """The comparison of finished results, for one order and one merge.

    Raises InputError if its embeddings are gone or others.
    """
    run, settings, data = results.parent, finished.manifest.settings, path_of(finished.manifest.data["path"])
    recorded: Any = {name: tuple(v) if isinstance(v, list) else v for name, v in settings["evaluation"].items()}
    service = recorded.pop("service", None)
    how = Evaluation(**recorded)
    if any(word.startswith("python:") for word in how.truth):  # only a command line may name code to run
        raise InputError(f"{how.truth[-1]} is not called again for right answers; make a table of them, and {AGAIN}")
    places = run / "cleaned", data, run / data.name, run.parent / data.name
    path = next((place for place in places if (place / "gallery.parquet").exists()), None)
    if path is None:
        raise InputError(f"the embeddings of this run are not in {data} any more; put them back, or a link to them")
    named = replace(how.named, methods=tuple(find_methods(how.methods)))
    if service is not None:
        named = replace(named, service=ServiceSettings.of(service))
    with TemporaryDirectory() as scratch, step("read embeddings"):
        folder = with_sample(path, models_of(named.methods), Path(scratch))
    truth, named = resolve_truth(folder, named, bool(finished.manifest.recipe))
    more = {name: settings[name] for name in ("fits", "chosen") if name in settings}
    if difference := results_key(folder, truth.ground, named, more).difference({"stage": STAGE, "settings": settings}):
        raise InputError(f"{path} is not what {results} was computed from ({difference}); {AGAIN}")
    one = replace(named, orders=(find_order(variant.order),), merges=(all_merges()[variant.merge],))
    loss = {name: more["fits"]["transforms"]["loss"][name] for name in ClassificationSettings.__dataclass_fields__}
    orders = resolve_orders(folder, one, ClassificationSettings(**loss))
    merges = resolve_merges(folder, one.merges, how.distance, how.order_seed)
    maps = {method.name: run / "maps" / method.name for method in one.methods if method.fit}
    return Comparison(folder, one, truth.ground, orders, merges).fitted(maps)


def method_called(comparison: Comparison, name: str) -> Method:
    """A method of a comparison that was opened again. Raises InputError if its map is gone."""
    (method,) = (method for method in comparison.methods if method.name == name)
    if method.fit and not is_finished(path := comparison.maps.folders[name]):
        raise InputError(f"{path} does not hold the fitted map any more; {AGAIN}")
    return method
