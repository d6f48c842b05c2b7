"""Runs other tools on the vectors of a folder, for docs/comparison.md. A model is a table of vectors: none embeds.

    .venv/bin/python docs/comparison.py vectors FOLDER OUT     # gallery.parquet, queries.parquet, train.parquet -> .npy
    TOOL_VENV/bin/python docs/comparison.py TOOL OUT           # in an environment that has the tool, and NumPy

TOOL: truth (NumPy alone), rebasis, embedflow, isotrieve, vectormigrate, embspec; or, for VecShift,

    .venv/bin/python docs/comparison.py postgres OUT DSN       # the table "items", with old vectors, and queries.jsonl
    .venv/bin/python docs/comparison.py endpoint OUT           # the models "old" and "new" at http://127.0.0.1:8911/v1
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

CUT, SHARES, MODELS = 10, (0.01, 0.1, 0.5, 0.9, 0.99), ("old", "new")


def write_vectors(folder: str, out: str) -> None:
    import pyarrow.parquet as pq

    Path(out).mkdir(parents=True, exist_ok=True)
    tables = {name: pq.read_table(f"{folder}/{name}.parquet") for name in ("gallery", "queries", "train")}
    for name, table in tables.items():
        for model in MODELS:
            np.save(f"{out}/{name}_{model}.npy", np.stack(table[model].to_pylist()).astype(np.float32))
    queries, gallery = tables["queries"], tables["gallery"]
    if "positives" in queries.column_names:
        row = {item: at for at, item in enumerate(gallery["id"].to_pylist())}
        both = zip(queries["positives"].to_pylist(), queries["grades"].to_pylist(), strict=True)
        grades = [{row[item]: grade for item, grade in zip(*each, strict=True)} for each in both]
    else:
        labels = gallery["label"].to_pylist()
        grades = [{at: 1 for at, each in enumerate(labels) if each == own} for own in queries["label"].to_pylist()]
    Path(out, "grades.json").write_text(json.dumps(grades))


class Vectors:
    """Unit vectors by model. grades: of each query, gallery row -> grade."""

    def __init__(self, out: str) -> None:
        self.gallery, self.queries, self.train = (
            {model: unit(np.load(f"{out}/{name}_{model}.npy")) for model in MODELS}
            for name in ("gallery", "queries", "train")
        )
        listed = json.loads(Path(out, "grades.json").read_text())
        self.grades = [{int(row): grade for row, grade in each.items()} for each in listed]
        self.ids = [str(row) for row in range(len(self.gallery["old"]))]

    def scores(self, model: str) -> np.ndarray:
        return self.queries[model] @ self.gallery[model].T

    def mapped(self, queries: np.ndarray, gallery: np.ndarray) -> str:
        return f"{self.ndcg(ranked(unit(queries) @ unit(gallery).T)):.1f}"

    def ndcg(self, rankings: Any) -> float:
        """nDCG@10 in per cent; gains are the grades (Järvelin and Kekäläinen 2002)."""
        discount, found = 1 / np.log2(np.arange(2, CUT + 2)), []
        for rows, own in zip(rankings, self.grades, strict=True):
            if own:
                gains = np.array([own.get(int(row), 0) for row in rows[:CUT]])
                ideal = np.array(sorted(own.values(), reverse=True)[:CUT])
                found.append(gains @ discount[: len(gains)] / (ideal @ discount[: len(ideal)]))
        return 100 * float(np.mean(found))


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def ranked(scores: np.ndarray) -> np.ndarray:
    return np.argsort(-scores, axis=1, kind="stable")


def backfilled(n: int, share: float) -> np.ndarray:
    """As the replay does by default."""
    first = np.zeros(n, bool)
    first[np.argsort(np.random.default_rng(0).permutation(n))[: round(share * n)]] = True
    return first


def truth(v: Vectors) -> None:
    old, new = v.scores("old"), v.scores("new")
    for model, scores in (("old", old), ("new", new)):
        pairs = [({*map(int, rows)}, own) for rows, own in zip(ranked(scores)[:, :CUT], v.grades, strict=True) if own]
        found = [len(rows & {*own}) / len(own) for rows, own in pairs]
        print(f"{model}: nDCG@10 {v.ndcg(ranked(scores)):.1f}, recall@10 {np.mean(found):.3f}")
    for share in SHARES:
        print(f"raw at {share:.0%}: {v.ndcg(ranked(np.where(backfilled(old.shape[1], share), new, old))):.1f}")
    for k in (100, 200, 500):
        kept, top = np.full_like(new, -np.inf), ranked(old)[:, :k]
        np.put_along_axis(kept, top, np.take_along_axis(new, top, 1), 1)
        print(f"new re-ranks {k}: {v.ndcg(ranked(kept)):.1f}")


def rebasis(v: Vectors) -> None:
    from rebasis.embed.backends.precomputed import PrecomputedEmbedder
    from rebasis.probe.session import QueryLog, probe_store
    from rebasis.store.backends.memory import MemoryStore
    from rebasis.types import EncodingProfile

    names, asked = [f"item {row}" for row in v.ids], [f"query {row}" for row in range(len(v.grades))]
    models = [
        PrecomputedEmbedder(
            EncodingProfile(model, v.gallery[model].shape[1]),
            dict(zip(names, v.gallery[model], strict=True)),
            query_vectors=dict(zip([*names, *asked], [*v.gallery[model], *v.queries[model]], strict=True)),
        )
        for model in MODELS
    ]
    log = QueryLog(asked, [{*map(str, own)} for own in v.grades])
    store = MemoryStore(v.ids, v.gallery["old"], names)
    found, _ = probe_store(store, models[1], old_embedder=models[0], query_log=log, heldout=len(names) // 10)
    print(json.dumps({**found.to_dict(), "candidates": None}, default=str))
    print("true, best adapter:", v.mapped(found.adapter.apply(v.queries["new"]), v.gallery["old"]))


def embedflow(v: Vectors) -> None:
    from embedflow.compatibility import evaluate_models, run_finite_pool_probe
    from embedflow.indexes.faiss_backend import NumpyIndex

    class Table:
        def __init__(self, model: str) -> None:
            self.model_id = self.fingerprint = model
            self.own, self.asked, self.dimension = v.gallery[model], v.queries[model], v.gallery[model].shape[1]

        def encode_query(self, text: str) -> np.ndarray:
            return self.asked[int(text)]

        def encode_queries(self, texts: list[str]) -> np.ndarray:
            return self.asked[[*map(int, texts)]]

        def encode_documents(self, texts: list[str], batch_size: int | None = None) -> np.ndarray:
            return self.own[[*map(int, texts)]]

    class Documents:
        def __init__(self) -> None:
            self.documents = dict.fromkeys(v.ids)

        def get(self, ids: list[str]) -> dict[str, str]:
            return {each: each for each in ids}

        def size(self) -> int:
            return len(self.documents)

    given = {
        "source_model": Table("old"), "target_model": Table("new"), "documents": Documents(),
        "source_index": NumpyIndex.build(v.gallery["old"], v.ids),
        "queries": [(str(row), str(row)) for row in range(len(v.grades))],
    }  # fmt: skip
    probe = run_finite_pool_probe(**given)
    qrels = {str(at): {str(row): int(grade) for row, grade in own.items()} for at, own in enumerate(v.grades) if own}
    found = evaluate_models(**given, qrels=qrels)
    print(probe["diagnostic"], probe["recommended_k"], found["observed_k_epsilon"], found["source_quality"])
    for each in found["candidate_gap_curve"]:
        print({key: round(each[key], 3) for key in ("k", "restricted_target_quality", "candidate_gap")})


def isotrieve(v: Vectors) -> None:
    from isotrieve.mapping.linear import RidgeMapping
    from isotrieve.quality.gate import QualityGate

    rows = np.random.default_rng(0).permutation(len(v.train["old"]))
    fit, held = (tuple(v.train[model][half] for model in MODELS) for half in np.array_split(rows, 2))
    noise = [np.random.default_rng(seed).normal(size=v.train[model].shape) for seed, model in enumerate(MODELS)]
    mapping = RidgeMapping(alpha="auto", seed=0)
    mapping.fit(*fit)
    for name, pairs in (("pairs it was fitted on", fit), ("held-out pairs", held), ("noise", noise)):
        found = QualityGate().evaluate(mapping, *pairs)
        print(f"{name}: {found.rationale} top-1 {found.top1_retention:.3f}")
    true = v.mapped(v.queries["new"], mapping.transform(v.gallery["old"]))
    print(f"true: {true} of {v.ndcg(ranked(v.scores('new'))):.1f}")


def vectormigrate(v: Vectors) -> None:
    from vectormigrate.fusion import reciprocal_rank_fusion
    from vectormigrate.models import SearchHit

    old, new = v.scores("old"), v.scores("new")
    for share in SHARES:
        is_new = backfilled(old.shape[1], share)
        values = []
        for keeps_old in (True, False):  # vectors of backfilled items
            sides = (old if keeps_old else np.where(is_new, -np.inf, old), np.where(is_new, new, -np.inf))
            fused = []
            for pair in zip(*sides, strict=True):
                hits = [
                    [
                        SearchHit(str(row), each[row], "")
                        for row in np.argsort(-each, kind="stable")[:CUT]
                        if each[row] > -9
                    ]
                    for each in pair
                ]
                fused.append([hit.doc_id for hit in reciprocal_rank_fusion(hits, top_k=CUT)])
            values.append(v.ndcg(fused))
        print(f"RRF at {share:.0%}: {values[0]:.1f} with all old vectors, {values[1]:.1f} with those of the others")


def embspec(v: Vectors) -> None:
    from embspec import DriftAdapter, neighbor_stability

    adapter = DriftAdapter.fit(new_embeddings=v.train["new"], old_embeddings=v.train["old"], regularization=0.01)
    print(f"new queries in the old index: {v.mapped(adapter.transform(v.queries['new']), v.gallery['old'])}")
    lists = [
        {str(at): [*map(str, rows)] for at, rows in enumerate(ranked(v.scores(model))[:, :CUT])} for model in MODELS
    ]
    found = neighbor_stability(*lists, k=CUT)
    print(f"safe to deploy: {found.is_safe_to_deploy()}; overlap {found.mean_overlap_at_k:.2f}")


def postgres(v: Vectors, dsn: str) -> None:
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE EXTENSION IF NOT EXISTS vector")
        cursor.execute("DROP TABLE IF EXISTS items")
        cursor.execute(
            "CREATE TABLE items (id bigint PRIMARY KEY, content text, updated_at timestamptz DEFAULT now(), embedding "
            f"vector({v.gallery['old'].shape[1]}))"
        )
        rows = [(row, f"gallery {row}", str(own.tolist())) for row, own in enumerate(v.gallery["old"])]
        cursor.executemany("INSERT INTO items (id, content, embedding) VALUES (%s, %s, %s)", rows)
    asked = ({"query": f"queries {at}", "relevant": [*own]} for at, own in enumerate(v.grades) if own)
    Path("queries.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in asked))


def endpoint(v: Vectors) -> None:
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            data = []
            for index, text in enumerate(asked["input"]):
                split, _, row = text.partition(" ")  # a test query is something else
                of = getattr(v, split, v.gallery)[asked["model"]]
                data.append({"index": index, "embedding": of[int(row) if row.isdigit() else 0].tolist()})
            body = json.dumps({"data": data, "usage": {"prompt_tokens": 1, "total_tokens": 1}}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    ThreadingHTTPServer(("127.0.0.1", 8911), Answer).serve_forever()


if __name__ == "__main__":
    tool, *given = sys.argv[1:]
    if tool == "vectors":
        write_vectors(*given)
    else:
        globals()[tool](Vectors(given[0]), *given[1:])
