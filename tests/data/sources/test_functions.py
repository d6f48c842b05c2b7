"""Functions of a user's as sources: those of docs/contributing/sources.md, and what their authors get wrong."""

import json
import os
import re
import subprocess
import sys
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.data import importing
from ray_backfill.data.folder import read_table
from ray_backfill.data.importing import ColumnNames, import_split, imported
from ray_backfill.data.sources import BATCH_ROWS, open_source
from tests.command import Command

PAGE = Path(__file__).parents[3] / "docs" / "contributing" / "sources.md"
NAMES = ColumnNames(id="item_id", old="vector")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with the modules of the page; what it gives to import is forgotten at the end."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    known = set(sys.modules)
    for name, text in re.findall(r"```python\n# (my_\w+\.py)\n(.*?)```", PAGE.read_text(), re.DOTALL):
        (tmp_path / name).write_text(text)
    yield tmp_path
    for name in set(sys.modules) - known:
        if name.startswith(("my_", "their_")):
            del sys.modules[name]


class Index(BaseHTTPRequestHandler):
    """As Elasticsearch's reference has it ("Paginate search results"): sort, size, _source and search_after.

    Documents lie in no order. Some answers are errors: ``fails`` counts the requests down to them.
    """

    documents: ClassVar[list[dict[str, Any]]]
    ordered: ClassVar[list[dict[str, Any]]]
    fails = asked = 0

    def do_POST(self) -> None:
        index = type(self)
        index.asked += 1
        index.fails -= 1
        assert self.path == "/items/_search?allow_partial_search_results=false"
        assert self.headers["Authorization"] == "ApiKey s3cret"
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        ((field, way),) = body["sort"][0].items()
        assert (way, len(body["sort"])) == ("asc", 1)
        assert body["size"] <= 10_000, "index.max_result_window"
        if not index.ordered:
            index.ordered = sorted(index.documents, key=lambda of: of[field])
        first = (
            bisect_right(index.ordered, body["search_after"][0], key=lambda of: of[field])
            if "search_after" in body
            else 0
        )
        found = index.ordered[first : first + body["size"]]
        hits = [
            {
                "_index": "items", "_id": f"x{of[field]}", "_score": None, "sort": [of[field]],
                "_source": {name: value for name, value in of.items() if name in body["_source"]},
            }
            for of in found
        ]  # fmt: skip
        total = {"value": min(len(index.documents), 10_000), "relation": "gte"}
        answer = {"took": 1, "timed_out": False, "hits": {"total": total, "max_score": None, "hits": hits}}
        self.send_response(503 if index.fails == 0 else 200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: object) -> None:
        """No words."""


@contextmanager
def served(rows: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Index]]:
    """An index of so many documents, and the environment that my_search.py needs."""
    rng = np.random.default_rng(0)
    vectors, order = rng.normal(size=(rows, 3)).tolist(), rng.permutation(rows).tolist()
    documents = [
        {"item_id": i, "vector": vectors[i], "label": i % 7, "title": "no field that is asked for"} for i in order
    ]
    index = type("OneIndex", (Index,), {"documents": documents, "ordered": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), index)
    Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("SEARCH_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("SEARCH_AUTHORIZATION", "ApiKey s3cret")
    try:
        yield index
    finally:
        server.shutdown()
        server.server_close()


def test_an_index_is_imported(here: Path, monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    with served(2500, monkeypatch) as index:
        words = ("--gallery", "python:my_search:rows", "--id", "item_id", "--old", "vector")
        ended = command("import", "--out", "mine", *words)
        assert (ended.code, ended.out) == (0, "mine/gallery.parquet: 2,500 rows\n")
        again = command("import", "--out", "mine", *words)
        assert "does not tell whether its vectors have changed" in again.err
    read, documents = (
        read_table(here / "mine" / "gallery.parquet", ("old",), ("old",)),
        sorted(index.documents, key=lambda of: of["item_id"]),
    )
    assert read.id.tolist() == [*range(2500)]
    np.testing.assert_array_equal(read.old, np.array([of["vector"] for of in documents], np.float32))
    assert read.label is not None
    assert read.label.tolist() == [of["label"] for of in documents]


@pytest.mark.full
def test_an_import_of_an_index_that_failed_is_continued(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = importing.PART_ROWS + 3000
    with served(rows, monkeypatch) as index:
        index.documents.sort(key=lambda of: of["item_id"])
        index.fails = 1 + (rows // 1000 + 2) + importing.PART_ROWS // 1000 + 3  # columns, ids, then the second part
        with pytest.raises(InputError, match=r"^python:my_search:rows: <HTTPError 503") as error:
            import_split(here / "gallery.parquet", ["python:my_search:rows"], NAMES, False, False)
        assert "\n" not in str(error.value)
        (first,) = here.glob(".gallery.parquet.unfinished/part-*.parquet")
        seen = first.stat().st_mtime_ns
        path = import_split(here / "gallery.parquet", ["python:my_search:rows"], NAMES, False, False)
    assert (path / first.name).stat().st_mtime_ns == seen, "not written again"
    assert imported(path)["rows"] == rows
    np.testing.assert_array_equal(
        read_table(path, ("old",), ("old",)).old, np.array([of["vector"] for of in index.documents], np.float32)
    )


def test_a_file_of_another_format_is_joined_with_a_table(here: Path) -> None:
    """.fvecs as documented by its authors: of each row the dimension, 4 bytes, then its numbers."""
    vectors = np.random.default_rng(1).normal(size=(25_000, 2)).astype("<f4")
    (here / "items.fvecs").write_bytes(b"".join((2).to_bytes(4, "little") + row.tobytes() for row in vectors))
    new = pd.DataFrame({"id": [7, 24_999, 3], "vector": [[1.0, 2.0, 3.0]] * 3})
    new.to_parquet(here / "new.parquet")
    names = ColumnNames(old="vector", new="vector")
    path = import_split(here / "gallery.parquet", ["python:my_fvecs:rows", "new.parquet"], names, False, False)
    read = read_table(path)
    assert read.id.tolist() == [3, 7, 24_999]
    np.testing.assert_array_equal(read.old, vectors[[3, 7, 24_999]])
    source = open_source("python:my_fvecs:rows")
    for skip in (0, 1, 10_001, 24_999):
        batches = list(source.read(["id"], skip))
        assert max(map(len, batches)) <= BATCH_ROWS
        assert pa.Table.from_batches(batches)["id"].to_pylist() == [*range(skip, 25_000)]


GIVEN = {
    "dicts of lists": "yield {'id': ['a', 'b'], 'old': [[1.0, 2.0], None]}; yield {'id': ['c'], 'old': [[3, 4]]}",
    "tables of Arrow": "import pyarrow as pa; yield pa.table({'id': ['a', 'b'], 'old': [[1.0, 2.0], None]}); "
    "yield pa.record_batch({'old': [[3.0, 4.0]], 'id': ['c'], 'more': [1]})",
    "frames of pandas": "import pandas as pd; yield pd.DataFrame({'id': [*'abc'], 'old': [[1.0, 2], None, [3.0, 4]]})",
}


@pytest.mark.parametrize("given", GIVEN)
def test_what_a_function_may_yield(given: str, here: Path) -> None:
    (here / "their_rows.py").write_text(f"def rows():\n    {GIVEN[given]}\n")
    source = open_source("python:their_rows:rows")
    assert [*source.columns] == ["id", "old"]
    assert pa.Table.from_batches(source.read(["old", "id"], 0)).to_pydict() == {
        "old": [[1.0, 2.0], None, [3.0, 4.0]], "id": ["a", "b", "c"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "def rows():\n    yield {'id': [1], 'old': [[1.0]], 'new': [[1.0]]}\n    1 / 0",
            "ZeroDivisionError('division by zero')",
        ),
        ("def rows():\n    raise KeyError('two\\nlines')\n    yield", r"KeyError('two\nlines')"),
        ("def rows():\n    yield {'id': [1]}\n    yield {'ids': [2]}", "id"),
        ("def rows():\n    return iter(())", "yields 0 rows"),
        ("def rows(host):\n    yield {'id': [1]}", "missing 1 required positional argument: 'host'"),
        ("import no_such_client\ndef rows(): ...", "No module named 'no_such_client'"),
        ("def rows(:", "SyntaxError"),
        ("rows = 3", "'int' object is not callable"),
        ("", "has no attribute 'rows'"),
        (
            "n = [1, 2, 3]\ndef rows():\n    ids = [*range(n.pop())]\n    v = [[1.0] for _ in ids]\n"
            "    yield {'id': ids, 'old': v, 'new': v}",
            "yields 1 rows; it must yield some, and the same at each call",
        ),
    ],
)
def test_errors_are_one_line_with_the_name_of_the_function(code: str, said: str, here: Path, command: Command) -> None:
    (here / "their_rows.py").write_text(code)
    line = command("import", "--out", "mine", "--gallery", "python:their_rows:rows").error
    assert line.startswith("python:their_rows:rows")
    assert said in line


def test_a_module_is_found_on_the_path_and_in_the_current_folder(here: Path) -> None:
    """As the installed script sees it, whose own folder is not the current one; PYTHONPATH goes first."""
    (here / "other").mkdir()
    for place, rows in ((here, 1), (here / "other", 2)):
        (place / "their_rows.py").write_text(
            f"def rows():\n    yield {{'id': [*range({rows})], 'old': [[1.0]] * {rows}}}\n"
        )
    script = "import sys; sys.path.remove(''); from ray_backfill.cli.main import main; main()"
    words = [sys.executable, "-c", script, "import", "--gallery", "python:their_rows:rows", "--out"]
    root = str(PAGE.parents[2])
    for path, out, said in ((root, "a", "1 rows"), (f"{root}{os.pathsep}other", "b", "2 rows")):
        done = subprocess.run(
            [*words, out], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
        )
        assert done.stdout == f"{out}/gallery.parquet: {said}\n", done.stderr
    with pytest.raises(InputError, match="python:their_lost:rows: ModuleNotFoundError"):
        open_source("python:their_lost:rows")
