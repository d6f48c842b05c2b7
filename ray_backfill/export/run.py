"""Writes what a service needs of a finished comparison into a folder, whole or not at all."""

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pyarrow as pa
import pyarrow.csv
import safetensors.numpy

from ray_backfill.compare.reopen import method_called, reopened, rows_called
from ray_backfill.compare.report import AGAIN, read_data
from ray_backfill.compare.resolve import Comparison
from ray_backfill.compare.results import ResultsData, Row
from ray_backfill.core.errors import InputError, why_not_installed
from ray_backfill.core.progress import step, track
from ray_backfill.core.runkey import fingerprint
from ray_backfill.core.stages import is_finished, replaced_whole, settle, write_json, write_whole
from ray_backfill.data.identity import identities_of, short_name
from ray_backfill.data.write import write_parquet
from ray_backfill.engine.lists import measure_lists
from ray_backfill.engine.merges import Merge
from ray_backfill.engine.merges.csls import mean_nearest_cosine
from ray_backfill.engine.metrics import parse_metric
from ray_backfill.engine.orders import find_order
from ray_backfill.engine.replay.first import lists_at
from ray_backfill.engine.systems import IntArray, UpgradePair
from ray_backfill.export.service import describe, why_not
from ray_backfill.learn.expressions import stored_models
from ray_backfill.learn.methods import Method, find_methods
from ray_backfill.learn.models.apply import save_network, weights_of
from ray_backfill.learn.sides import SIDES, dims_of

# Of check.json: results that are compared, queries, and shares of the backfill in per cent.
_K, _QUERIES = 10, 200
_SHARES = (0, 1, 5, 10, 20, 25, 30, 40, 50, 60, 70, 75, 80, 90, 95, 99, 100)
# Largest difference of a figure from the run's tables; lists are searched again in the same arithmetic.
_SAME = 1e-6
_HERE = Path(__file__).parent
_DISTANCES = {
    "cosine": "1 - cosine (pgvector: `<=>`)",
    "l2": "the Euclidean distance, not its square (pgvector: `<->`)",
    "inner_product": "minus the inner product (pgvector: `<#>`)",
}


def export_run(run: Path, to: Path, method: str, merge: str = "", order: str = "") -> Path:
    """Write the files of a method of a finished simulation into the folder ``to``; returns it.

    A folder that is this export already stays as it is.

    merge, order: of the run; by default those with which the method is best by the metric that leads. Cost: the
    gallery's embeddings are read, a CSLS term for each item, and two searches of all queries, and 17 of 200 queries.

    Raises:
        InputError: The run is not finished or has no such row, its embeddings or maps are gone or others, the method
            cannot be exported, or ``to`` is anything else.
    """
    if lacking := why_not_installed("onnx"):
        raise InputError(f"export {lacking}")
    finished = read_data(run)
    results = run if (run / "manifest.json").exists() and run.name == "results" else run / "results"
    if not is_finished(results):
        raise InputError(f"{results} is not finished; {AGAIN}, which continues it")
    rows = [row for row in rows_called(finished, method, order, merge) if row.metric == finished.primary]
    rows = [row for row in rows if not row.is_oracle] or rows
    row = max(rows, key=lambda row: np.nan_to_num(row.auc, nan=-np.inf))
    (chosen,) = find_methods((method,))
    if reason := why_not(chosen):
        raise InputError(f"{method} cannot be exported: {reason}")
    if row.is_oracle:
        raise InputError(f"the order {row.order} uses what nobody knows before the backfill; choose another --order")
    if finished.evaluation.get("filter"):
        raise InputError("a run with --filter cannot be exported yet: each part of the gallery has its own answers")
    settle(to, ())
    is_there = to.exists() and (not to.is_dir() or any(to.iterdir()))
    if is_there and not (to / "service.json").exists():
        raise InputError(f"{to} exists and is not this export; choose another --to")
    comparison = reopened(finished, results, row.variant)
    chosen = method_called(comparison, method)
    weights = sorted(weights_of(comparison.maps.of(chosen)).items()) if chosen.fit else []
    settings = sorted(finished.manifest.settings.items())
    mark = fingerprint(settings, method, *row.variant, *(part for pair in weights for part in pair))[:16]
    if is_there:
        if _sums(to) == _read(to / "SHA256SUMS") and f'"export": "{mark}"' in _read(to / "service.json"):
            return to
        raise InputError(f"{to} exists and is not this export; choose another --to")
    with replaced_whole(to, ()) as folder:
        _write(folder, comparison, chosen, finished, row, mark)
    return to


def _write(to: Path, comparison: Comparison, method: Method, finished: ResultsData, row: Row, mark: str) -> None:
    from ray_backfill.export.graph import Graph

    with step("apply the maps"):
        pair, network = comparison.pair(method), comparison.maps.of(method)
    (order_N,), (merge,) = comparison.orders_of(method, pair).values(), comparison.merges_of(method).values()
    folder, distance = comparison.folder, comparison.evaluation.distance
    dims = dims_of(table.vectors for table in (folder.gallery, folder.queries) if table is not None)
    served = stored_models(*(side.query for side in method.sides), *(side.gallery for side in method.sides))
    identities = identities_of(folder.path)
    models: dict[str, dict[str, Any]] = {
        model: {"dimensions": dims[model], "identity": identities.get(model)}
        for model in dict.fromkeys(("old", *served))
    }
    facts = {"export": mark}
    check = _check(comparison, pair, order_N, merge, finished, row)
    stages = comparison.named.service
    service = {
        "export": mark,
        **describe(method, network, merge, distance, models, row.order),
        "pipeline": stages and {name: value for name, value in stages.recorded().items() if name != "files"},
    }
    references = merge.references or (None, None)
    for name, side, of_side in zip(SIDES, method.sides, references, strict=True):
        for what, expression in (("queries", side.query), ("items", side.gallery)):
            graph, is_query = Graph(dims, network), what == "queries"
            value, _ = graph.add(expression)
            if of_side is not None:
                value = graph.with_csls(value, of_side.gallery if is_query else of_side.query, is_query)
            graph.write(to / f"{what}_{name}.onnx", value, facts)
    if network is not None:
        save_network(to / "map", network, facts)
    if merge.references is not None:
        _write_csls(to, folder.gallery.id, pair, merge, facts)
    rank_N = np.empty(len(order_N), np.int64)
    rank_N[order_N] = np.arange(len(order_N))
    scores_N = comparison.orders.scores(find_order(row.order), method, comparison.maps, pair)
    table = pa.table({"id": folder.gallery.id[order_N], "rank": rank_N[order_N], "score": scores_N[order_N]})
    write_parquet(to / "order.parquet", table.replace_schema_metadata(facts))
    write_whole(to / "order.csv", lambda temporary: pyarrow.csv.write_csv(table, temporary))
    write_json(to / "service.json", service)
    write_json(to / "check.json", {"export": mark} | check)
    write_whole(to / "check.py", lambda temporary: temporary.write_bytes((_HERE / "check.py").read_bytes()))
    readme = _readme(service, method, merge, finished)
    write_whole(to / "README.md", lambda temporary: temporary.write_text(readme, encoding="utf-8"))
    sums = _sums(to)
    write_whole(to / "SHA256SUMS", lambda temporary: temporary.write_text(sums, encoding="utf-8"))


def _sums(folder: Path) -> str:
    """The sums of all files, as ``sha256sum`` writes them."""
    lines = []
    for file in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "SHA256SUMS"):
        with file.open("rb") as opened:
            lines.append(f"{hashlib.file_digest(opened, 'sha256').hexdigest()}  {file.relative_to(folder)}\n")
    return "".join(lines)


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def _write_csls(to: Path, ids: Any, pair: UpgradePair, merge: Merge, facts: dict[str, str]) -> None:
    """The CSLS term r of each item in both systems, and what it is computed from."""
    assert merge.references is not None
    terms: dict[str, Any] = {}
    arrays: dict[str, Any] = {}
    for name, system, references in zip(SIDES, (pair.backward, pair.forward), merge.references, strict=True):
        terms[name] = mean_nearest_cosine(system.gallery, references.query)
        arrays |= {f"{name}.query": references.query, f"{name}.gallery": references.gallery}
    write_parquet(to / "csls.parquet", pa.table({"id": ids, **terms}).replace_schema_metadata(facts))
    write_whole(
        to / "references.safetensors", lambda temporary: temporary.write_bytes(safetensors.numpy.save(arrays, facts))
    )


def _check(
    comparison: Comparison, pair: UpgradePair, order_N: IntArray, merge: Merge, finished: ResultsData, row: Row
) -> dict[str, Any]:
    """Queries drawn at random, their right answers, and at each share the replay's first results and nDCG@10.

    Raises InputError if the maps do not give the figures of the run's tables: they are those of another run.
    """
    truth, n, distance = comparison.truth, pair.n_gallery, comparison.evaluation.distance
    # A service ranks what a query ignores, too, such as itself; who compares leaves it out afterwards.
    served = replace(truth, ignored=truth.ignored[:0], ignored_starts=0 * truth.ignored_starts)
    scored = np.setdiff1d(np.arange(truth.n_queries), truth.skipped)
    most_ignored = int(np.diff(truth.ignored_starts).max(initial=0))
    alone = comparison.named.service is None  # otherwise the tables are of lists that are fused and re-ranked
    if alone and (k := parse_metric(finished.primary).k) and truth.weights is None and not merge.by_rank:
        for backfilled, expected in ((0, row.start), (n, row.end)):
            items = lists_at(pair, served, scored, order_N, backfilled, min(n, k + most_ignored), distance, merge).item
            value = measure_lists(items, truth, scored, [finished.primary])[0].mean()
            if abs(value - expected) > _SAME:
                raise InputError(
                    f"the maps give {finished.primary} {value:.4f}, the tables of the run {expected:.4f}: {AGAIN}"
                )
    rows = np.sort(np.random.default_rng(0).permutation(scored)[:_QUERIES])
    depth = min(n, _K + most_ignored)
    items = np.stack([
        lists_at(pair, served, rows, order_N, share * n // 100, depth, distance, merge).item
        for share in track(_SHARES, "search for check.json", "moments")
    ], axis=1)  # fmt: skip
    ndcg_QT = measure_lists(items, truth, rows, [f"nDCG@{_K}"])[0][:, :, 0]
    ids = comparison.folder.gallery.id.astype(str)
    all_grades = np.ones(len(truth.positives)) if truth.grades is None else truth.grades
    queries = comparison.folder.queries or comparison.folder.gallery
    texts = queries.pick("text", rows)
    listed = []
    for place, query in enumerate(rows):
        positives, ignored = truth.positives_of(query), truth.ignored_of(query)
        grades = all_grades[slice(*truth.positive_starts[query : query + 2])]
        facts: dict[str, Any] = {
            "id": str(queries.id[query]),
            "right": dict(zip(ids[positives].tolist(), grades.tolist(), strict=True)),
            "ignored": ids[ignored].tolist(),
            "items": [ids[shown[(shown >= 0) & ~np.isin(shown, ignored)][:_K]].tolist() for shown in items[place]],
            "ndcg": ndcg_QT[place].tolist(),
        }
        listed.append(facts if texts[place] is None else facts | {"text": texts[place]})
    return {"k": _K, "shares": _SHARES, "queries": listed}


def _readme(service: dict[str, Any], method: Method, merge: Merge, finished: ResultsData) -> str:
    def listed(models: Iterable[str]) -> str:
        return " and ".join(f"`{model}`" for model in models)

    models = [
        f"`{model}` is {short_name(facts['identity']) if facts['identity'] else 'a model that nothing names'}, "
        f"{facts['dimensions']:,} dimensions"
        for model, facts in service["models"].items()
    ]
    has_csls = merge.references is not None
    words = {
        "names": "; ".join(models),
        "has_map": method.fit is not None,
        "has_csls": has_csls,
        "csls": ", with two more dimensions for CSLS" if has_csls else "",
        "query_models": listed(service["during"]["query"]["embed"]),
        "after_models": listed(service["after"]["query"]["embed"]),
        "backward_inputs": listed(service["prepare"]["inputs"]),
        "backfill_models": listed(service["during"]["backfill"]["embed"]),
        "forward_inputs": listed(service["during"]["backfill"]["inputs"]),
        "distance_words": _DISTANCES[service["distance"]],
        "command": finished.manifest.command,
    }
    template = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    return template.from_string((_HERE / "README.md.jinja").read_text(encoding="utf-8")).render(service | words)
