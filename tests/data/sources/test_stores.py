"""Every store gives back what was put in, to the last bit, from any row on."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ray_backfill as rb
from ray_backfill.data.folder import read_table
from ray_backfill.data.importing import ColumnNames, import_split, imported
from ray_backfill.data.sources import Source, open_source
from ray_backfill.encode.items import ItemSettings, ItemSources, write_items
from tests.data.sources.stores import IN_FILES, Items, Stored, in_postgres, items, postgres

OF = items()


@pytest.fixture(params=[*IN_FILES, "PostgreSQL"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stored]:
    if request.param != "PostgreSQL":
        yield IN_FILES[request.param](OF, tmp_path)
        return
    with postgres(tmp_path / "postgres") as address:
        yield in_postgres(OF, address)


def names_of(stored: Stored) -> ColumnNames:
    given = dict(zip(stored.options[::2], stored.options[1::2], strict=True))
    return replace(ColumnNames(), **{option.removeprefix("--"): name for option, name in given.items()})  # type: ignore[arg-type]


def test_it_gives_back_what_it_holds(stored: Stored, tmp_path: Path) -> None:
    path = import_split(tmp_path / "gallery.parquet", stored.sources, names_of(stored), False, False)
    read = read_table(path)
    row_of = {item: row for row, item in enumerate(OF.id.tolist())}
    rows = np.array([row_of[item] for item in read.id.tolist()])
    assert sorted(rows) == list(range(len(OF.id)))
    assert np.array_equal(read.old, OF.old[rows])
    assert np.array_equal(read.new, OF.new[rows])
    assert read.label is None or np.array_equal(read.label, OF.label[rows])
    assert (read.label is not None) == stored.has_label
    assert imported(path)["rows"] == len(OF.id)


@pytest.mark.full
@pytest.mark.parametrize(
    ("made", "written"),
    [
        ('"Items"', "Items"),
        ('"Shop"."Items Of 2026"', "Shop.Items Of 2026"),
        ('"a.b""c"', '"a.b""c"'),
        ("items", "public.items"),
    ],
)
def test_names_of_tables_keep_their_case(made: str, written: str, tmp_path: Path) -> None:
    import psycopg

    with postgres(tmp_path / "server") as address:
        with psycopg.connect(address) as connection:
            connection.execute('CREATE SCHEMA "Shop"')
            connection.execute(f'CREATE TABLE {made} ("Key" bigint PRIMARY KEY, "V" real[], "select" text)')
            connection.execute(f"INSERT INTO {made} VALUES (2, '{{1,2}}', 'b'), (1, '{{3,4}}', 'a')")
        source = open_source(f"{address}#{written}")
        (batch,) = source.read(["Key", "V", "select"], 0)
        assert batch.to_pylist() == [{"Key": 1, "V": [3, 4], "select": "a"}, {"Key": 2, "V": [1, 2], "select": "b"}]
        with pytest.raises(rb.InputError, match="does not exist"):
            open_source(f"{address}#ITEMS")


@pytest.mark.full
def test_a_query_is_a_source_of_vectors_and_of_texts(tmp_path: Path) -> None:
    import psycopg

    with postgres(tmp_path / "server") as address:
        with psycopg.connect(address) as connection:
            connection.execute("CREATE TABLE posts (id bigint PRIMARY KEY, body text, topic int, v real[])")
            rows = [(row, f"100 % of post {row}", row % 4, [float(row), 1.0]) for row in range(200)]
            connection.cursor().executemany("INSERT INTO posts VALUES (%s, %s, %s, %s)", rows)
            connection.execute("CREATE SEQUENCE s")
            connection.execute("CREATE VIEW even AS SELECT * FROM posts WHERE id % 2 = 0")
        query = "SELECT -id AS id, body AS text, topic AS label, v FROM even WHERE body LIKE '100 %';"
        source = open_source(f"{address}#{query}")
        assert source.rows == 100
        assert not source.tells_changes
        (batch,) = source.read(["v", "id"], 90)
        assert batch.to_pylist() == [{"v": [row, 1], "id": -row} for row in range(18, -1, -2)], "by the first column"
        given = ItemSources("text", f"{address}#{query}")
        out = write_items(tmp_path / "items", given, ItemSettings(draw_queries=10, draw_train=0))
        gallery = pq.read_table(out / "gallery.parquet").to_pydict()
        assert len(gallery["id"]) == 90
        assert gallery["text"] == [f"100 % of post {-item}" for item in gallery["id"]]
        assert gallery["label"] == [-item % 4 for item in gallery["id"]]
        for wrong, says in (("SELECT nothing", "nothing"), ("WITH x AS (DELETE FROM posts) SELECT 1", "WITH")):
            with pytest.raises(rb.InputError, match=says) as error:
                open_source(f"{address}#{wrong}")
            assert "\n" not in str(error.value)
        with pytest.raises(rb.InputError, match="read-only"):
            open_source(f"{address}#SELECT nextval('s') AS id FROM generate_series(1, 2)")


def test_it_can_be_read_from_any_row_on(stored: Stored) -> None:
    source = open_source(stored.sources[0])
    names = list(source.columns)[:2]
    assert source.rows in (None, len(OF.id))
    whole = read_from(source, names, 0)
    assert whole.num_rows == len(OF.id)
    for skip in (1, 137, 299, 300):
        assert read_from(source, names, skip).to_pylist() == whole.slice(skip).to_pylist(), skip


def read_from(source: Source, names: list[str], skip: int) -> pa.Table:
    empty = pa.table({name: pa.array([], source.columns[name]) for name in names})
    batches = list(source.read(names, skip))
    return pa.Table.from_batches(batches) if batches else empty


@pytest.mark.full
@pytest.mark.parametrize("store", ["npy", "faiss", "Qdrant", "PostgreSQL"])
def test_results_are_the_same_whatever_store_the_vectors_come_from(store: str, tmp_path: Path) -> None:
    rows = np.argsort(OF.id)  # a random order of the backfill depends on the order of rows
    of = Items(OF.id[rows], OF.old[rows], OF.new[rows], OF.label[rows])

    def results(name: str) -> pd.DataFrame:
        (tmp_path / name).mkdir()
        with ExitStack() as stack:
            if name == "PostgreSQL":
                stored = in_postgres(of, stack.enter_context(postgres(tmp_path / name / "server")))
            else:
                stored = IN_FILES[name](of, tmp_path / name)
            data = tmp_path / name / "data"
            import_split(data / "gallery.parquet", stored.sources, names_of(stored), False, False)
        found = rb.simulate(data, methods=["rm_naive", "slerp", "instant"], truth="new-top10", points=5)
        return found.frame

    pd.testing.assert_frame_equal(results(store), results("Parquet"), check_exact=True)
