"""Writes what a service needs of a finished comparison into a folder, whole or not at all."""

import hashlib
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
from ray_backfill.compare.results import Variant
from ray_backfill.core.errors import InputError, why_not_installed
from ray_backfill.core.progress import step, track
from ray_backfill.core.runkey import fingerprint
from ray_backfill.core.stages import is_finished, replaced_whole, settle, write_json, write_whole
from ray_backfill.data.identity import identities_of, short_name
from ray_backfill.data.write import write_parquet
from ray_backfill.engine.lists import measure_lists
from ray_backfill.engine.merges import Merge
from ray_backfill.engine.merges.csls import mean_nearest_cosine
from ray_backfill.engine.orders import find_order
from ray_backfill.engine.replay.first import lists_at
from ray_backfill.engine.systems import IntArray, UpgradePair
from ray_backfill.export.service import describe, why_not
from ray_backfill.learn.expressions import stored_models
from ray_backfill.learn.methods import Method
from ray_backfill.learn.models.apply import save_network
from ray_backfill.learn.sides import dims_of

# Of check.json: results that are compared, queries, and moments of the backfill.
_K, _QUERIES, _MOMENTS = 10, 200, 11
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
    gallery's embeddings are read, a CSLS term for each item, and searches for 200 queries at 11 moments.

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
    # Rows that cannot be compared by area last, and so are those in an order that nobody has before the backfill.
    row = max(rows, key=lambda row: (not find_order(row.order).is_oracle, np.nan_to_num(row.auc, nan=-np.inf)))
    if finished.evaluation.get("filter"):
        raise InputError("a run with --filter cannot be exported yet: each part of the gallery has its own answers")
    if find_order(row.order).is_oracle:
        raise InputError(f"the order {row.order} uses what nobody knows before the backfill; choose another --order")
    mark = fingerprint(sorted(finished.manifest.settings.items()), method, *row.variant)[:16]
    settle(to, ())
    if to.exists() and _sums(to) == (_read(to / "SHA256SUMS")) and f'"export": "{mark}"' in _read(to / "service.json"):
        return to
    if to.exists():
        raise InputError(f"{to} exists and is not this export; choose another --to, or delete it")
    comparison = reopened(finished, results, row.variant)
    chosen = method_called(comparison, method)
    if reason := why_not(chosen):
        raise InputError(f"{method} cannot be exported: {reason}")
    with replaced_whole(to, ()) as folder:
        _write(folder, comparison, chosen, row.variant, mark, results.parent.name)
    return to


def _write(to: Path, comparison: Comparison, method: Method, variant: Variant, mark: str, run: str) -> None:
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
    service = {"export": mark, **describe(method, network, merge, distance, models, variant.order)}
    for name, places in (("queries", (0, 1)), ("items_backward", (0,)), ("items_forward", (1,))):
        graph, is_query, outputs = Graph(dims, network), name == "queries", {}
        for place in places:
            side, side_name = method.sides[place], ("backward", "forward")[place]
            value, _ = graph.add(side.query if is_query else side.gallery)
            if merge.references is not None:
                references = merge.references[place]
                value = graph.with_csls(value, references.gallery if is_query else references.query, is_query)
            outputs[side_name if is_query else "vector"] = value
        graph.write(to / f"{name}.onnx", outputs, facts)
    if network is not None:
        save_network(to / "map", network)
    if merge.references is not None:
        _write_csls(to, folder.gallery.id, pair, merge, facts)
    rank_N = np.empty(len(order_N), np.int64)
    rank_N[order_N] = np.arange(len(order_N))
    scores_N = comparison.orders.scores(find_order(variant.order), method, comparison.maps, pair)
    table = pa.table({"id": folder.gallery.id[order_N], "rank": rank_N[order_N], "score": scores_N[order_N]})
    write_parquet(to / "order.parquet", table.replace_schema_metadata(facts))
    write_whole(to / "order.csv", lambda temporary: pyarrow.csv.write_csv(table, temporary))
    write_json(to / "service.json", service)
    write_json(to / "check.json", {"export": mark} | _check(comparison, pair, order_N, merge))
    write_whole(to / "check.py", lambda temporary: temporary.write_bytes((_HERE / "check.py").read_bytes()))
    write_whole(to / "README.md", lambda temporary: temporary.write_text(_readme(service, method, merge, run)))
    sums = _sums(to)
    write_whole(to / "SHA256SUMS", lambda temporary: temporary.write_text(sums))


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
    sides = dict(zip(("backward", "forward"), (pair.backward, pair.forward), strict=True))
    references = dict(zip(sides, merge.references, strict=True))
    terms = {name: mean_nearest_cosine(side.gallery, references[name].query) for name, side in sides.items()}
    write_parquet(to / "csls.parquet", pa.table({"id": ids, **terms}).replace_schema_metadata(facts))
    arrays = {f"{name}.query": given.query for name, given in references.items()}
    arrays |= {f"{name}.gallery": given.gallery for name, given in references.items()}
    write_whole(to / "references.safetensors", lambda path: path.write_bytes(safetensors.numpy.save(arrays, facts)))


def _check(comparison: Comparison, pair: UpgradePair, order_N: IntArray, merge: Merge) -> dict[str, Any]:
    """Queries drawn at random, their right answers, and at each moment the replay's first results and nDCG@10."""
    truth, n, distance = comparison.truth, pair.n_gallery, comparison.evaluation.distance
    scored = np.setdiff1d(np.arange(truth.n_queries), truth.skipped)
    rows = np.sort(np.random.default_rng(0).permutation(scored)[:_QUERIES])
    depth = min(n, _K + max((len(truth.ignored_of(row)) for row in rows), default=0))
    items = np.stack([
        lists_at(pair, truth, rows, order_N, place * n // (_MOMENTS - 1), depth, distance, merge).item
        for place in track(range(_MOMENTS), "search for check.json", "moments")
    ], axis=1)  # fmt: skip
    ndcg_QT = measure_lists(items, truth, rows, [f"nDCG@{_K}"])[0][:, :, 0]
    ids = comparison.folder.gallery.id.astype(str)
    all_grades = np.ones(len(truth.positives)) if truth.grades is None else truth.grades
    queries = comparison.folder.queries or comparison.folder.gallery
    texts = queries.pick("text", rows)
    listed = []
    for place, row in enumerate(rows):
        positives, ignored = truth.positives_of(row), truth.ignored_of(row)
        grades = all_grades[slice(*truth.positive_starts[row : row + 2])]
        listed.append({
            "id": str(queries.id[row]),
            **({} if texts[place] is None else {"text": texts[place]}),
            "right": dict(zip(ids[positives].tolist(), grades.tolist(), strict=True)),
            "ignored": ids[ignored].tolist(),
            "items": [ids[shown[(shown >= 0) & ~np.isin(shown, ignored)][:_K]].tolist() for shown in items[place]],
            "ndcg": ndcg_QT[place].tolist(),
        })  # fmt: skip
    return {"k": _K, "moments": [place / (_MOMENTS - 1) for place in range(_MOMENTS)], "queries": listed}


def _readme(service: dict[str, Any], method: Method, merge: Merge, run: str) -> str:
    prepare = "The stored vectors stay as they are."
    if service["prepare"]["map_stored_vectors"]:
        prepare = "Replace the vector of each stored item by that of `items_backward.onnx`."
        if models := service["prepare"]["embed"]:
            prepare += f" It needs an embedding of each item by {' and '.join(models)} first."
    models = [
        f"`{model}` is {short_name(facts['identity']) if facts['identity'] else 'a model that nothing names'}, "
        f"{facts['dimensions']:,} dimensions"
        for model, facts in service["models"].items()
    ]
    has_csls = merge.references is not None
    words = {
        "models": "; ".join(models),
        "run": run,
        "prepare": prepare,
        "has_map": method.fit is not None,
        "has_csls": has_csls,
        "csls": ", with two more dimensions for CSLS" if has_csls else "",
        "query_models": " and ".join(f"`{model}`" for model in service["during"]["query"]["embed"]),
        "distance_words": _DISTANCES[service["distance"]],
    }
    template = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    return template.from_string((_HERE / "README.md.jinja").read_text(encoding="utf-8")).render(service | words)
