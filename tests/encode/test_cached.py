"""Vectors that a run of MTEB has kept: looked up as mteb itself does, and nothing else."""

import contextlib
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ray_backfill as rb
from ray_backfill.core.errors import InputError
from ray_backfill.data.identity import identities_of, short_names
from ray_backfill.encode.encoder import TEXT, Device, Model
from ray_backfill.encode.kinds import load_model, parse_spec
from tests.encode.test_items import lines

DOCUMENTS, QUERIES = [f"T text {i}" for i in range(40)], [f"query {i}" for i in range(6)]
DIMS = 8


def vectors(texts: list[str], seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(len(texts), DIMS)).astype(np.float32)


def write(folder: Path, texts: list[str], rows: NDArray[np.float32], kind: str = "numpy") -> None:
    """As NumpyCache and FaissCache of mteb 2.26 write: the file of the first has no header, and rows to spare."""
    folder.mkdir(parents=True)
    index = {hashlib.sha256(text.encode()).hexdigest(): row for row, text in enumerate(texts)}
    (folder / "index.json").write_text(json.dumps(index, indent=2))
    if kind == "numpy":
        np.concatenate([rows, np.zeros((100, DIMS), np.float32)]).tofile(folder / "vectors.npy")
        (folder / "dimension").write_text(str(DIMS))
    else:
        faiss = pytest.importorskip("faiss")
        flat = faiss.IndexFlatL2(DIMS)
        flat.add(rows)
        faiss.write_index(flat, str(folder / "vectors.faiss"))


def cache(folder: Path, seed: int = 0, kind: str = "numpy") -> Path:
    write(folder / "query", QUERIES, vectors(QUERIES, seed), kind)
    write(folder / "document", DOCUMENTS, vectors(DOCUMENTS, seed + 100), kind)
    return folder


def load(folder: Path, options: str = "") -> Model:
    return load_model(parse_spec(f"cached:{folder}{options}"), TEXT, Device())


@pytest.mark.parametrize("kind", ["numpy", "faiss"])
def test_each_text_gets_the_vector_of_its_side(kind: str, tmp_path: Path) -> None:
    model = load(cache(tmp_path / "task", kind=kind))
    order = [3, 0, 5, 3]
    np.testing.assert_array_equal(model.embed([QUERIES[i] for i in order], "query"), vectors(QUERIES, 0)[order])
    np.testing.assert_array_equal(model.embed(DOCUMENTS, "document"), vectors(DOCUMENTS, 100))
    short = load(tmp_path / "task", "#dims=3")
    np.testing.assert_array_equal(short.embed(QUERIES, "query"), vectors(QUERIES, 0)[:, :3])


def test_the_cache_of_mteb_1_has_both_sides_in_one_folder(tmp_path: Path) -> None:
    write(tmp_path / "task", QUERIES + DOCUMENTS, vectors(QUERIES + DOCUMENTS, 0))
    model = load(tmp_path / "task")
    for side in ("query", "document"):
        np.testing.assert_array_equal(model.embed(DOCUMENTS, side), vectors(QUERIES + DOCUMENTS, 0)[len(QUERIES) :])


@pytest.mark.full
@pytest.mark.parametrize("kind", ["NumpyCache", "FaissCache"])
def test_what_mteb_writes_is_read_as_mteb_reads_it(kind: str, tmp_path: Path) -> None:
    backends = pytest.importorskip("mteb.models.cache_wrappers.cache_backends")
    sides, wanted = {"query": QUERIES, "document": DOCUMENTS}, {}
    for side, texts in sides.items():
        kept = getattr(backends, kind)(tmp_path / side)
        for some in (texts[:4], texts[4:]):
            kept.add([{"text": text} for text in some], vectors(some, len(some)))
        kept.save()
        again = getattr(backends, kind)(tmp_path / side)
        again.load()
        wanted[side] = np.stack([np.array(again.get_vector({"text": text})) for text in texts])
    model = load(tmp_path)
    for side, texts in sides.items():
        np.testing.assert_array_equal(model.embed(texts, side), wanted[side])


@pytest.mark.full
def test_a_cache_in_which_mteb_finds_wrong_vectors_is_refused(tmp_path: Path) -> None:
    """If this fails because mteb finds the right ones, FaissCache was mended, and the error should not name it."""
    backends = pytest.importorskip("mteb.models.cache_wrappers.cache_backends")
    kept = backends.FaissCache(tmp_path)
    given = vectors(["a", "b", "c"], 0)
    kept.add([{"text": text} for text in "aab"], given[[0, 0, 1]])
    kept.add([{"text": "c"}], given[2:])
    kept.save()
    np.testing.assert_array_equal(kept.get_vector({"text": "b"}), given[2])
    with pytest.raises(InputError, match="are not those of the 3 vectors beside it"):
        load(tmp_path)


def test_a_text_that_was_not_kept_is_named(tmp_path: Path) -> None:
    model = load(cache(tmp_path / "task"))
    with pytest.raises(
        InputError, match="has no vector of 2 of 3 texts on the side query, such as 'T text 1'; give the"
    ):
        model.embed([QUERIES[0], DOCUMENTS[1], DOCUMENTS[2]], "query")
    with pytest.raises(InputError, match=r"'find: query 0'; give the task's own data set .* without prompts"):
        load(tmp_path / "task", "#prompt=query:find: ").embed(QUERIES[:1], "query")


def test_a_cache_is_known_by_its_content(tmp_path: Path) -> None:
    first = load(cache(tmp_path / "task"))
    shutil.copytree(tmp_path / "task", tmp_path / "moved")
    assert load(tmp_path / "moved").identity() == first.identity()
    np.testing.assert_array_equal(load(tmp_path / "moved").probes(), first.probes())
    other = load(cache(tmp_path / "other", seed=1))
    assert other.identity() != first.identity()
    assert abs(other.probes() - first.probes()).max() > 0.1
    changed = vectors(DOCUMENTS, 100)
    changed[-1, -1] += 1
    shutil.rmtree(tmp_path / "moved" / "document")
    write(tmp_path / "moved" / "document", DOCUMENTS, changed)
    assert load(tmp_path / "moved").identity() != first.identity()


def shifted(task: Path) -> None:
    """As FaissCache of mteb 2.26 does if a batch has a text twice."""
    index = json.loads((task / "document" / "index.json").read_text())
    write_json(task / "document" / "index.json", {text: row + (row > 3) for text, row in index.items()})


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shifted, "rows in index.json are not those of the 140 vectors beside it; let mteb write the cache again"),
        (lambda task: (task / "document" / "vectors.npy").write_bytes(b"\0" * 4 * DIMS * 3), "of the 3 vectors beside"),
        (lambda task: (task / "document" / "dimension").write_text("0"), "cannot be read as a cache of mteb"),
        (lambda task: (task / "document" / "dimension").unlink(), "cannot be read as a cache of mteb"),
        (lambda task: (task / "document" / "vectors.npy").write_bytes(b""), "cannot be read as a cache of mteb"),
        (lambda task: write_json(task / "query" / "index.json", {}), "rows in index.json are not those"),
        (lambda task: write_json(task / "query" / "index.json", [1]), "cannot be read as a cache of mteb"),
        (lambda task: write_json(task / "query" / "index.json", {"a": None}), "cannot be read as a cache of mteb"),
        (lambda task: (task / "query" / "index.json").write_text("{"), "cannot be read as a cache of mteb"),
        (lambda task: shutil.rmtree(task / "query"), "query has no index.json; name CACHE/TASK of mteb's"),
        (lambda task: task.rename(task.parent / "inner"), "there is no"),
    ],
)  # fmt: skip
def test_a_cache_that_is_not_whole_is_refused(damage: Any, message: str, tmp_path: Path) -> None:
    damage(cache(tmp_path / "task"))
    with pytest.raises(InputError, match=message) as error:
        load(tmp_path / "task")
    assert "\n" not in str(error.value)


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.mkdir, (self.path,)


def test_nothing_of_a_cache_is_unpickled(tmp_path: Path) -> None:
    task = cache(tmp_path / "task")
    with (task / "query" / "vectors.npy").open("wb") as file:
        np.save(file, np.array([Trap(tmp_path / "sprung")] * 100, object), allow_pickle=True)
    with contextlib.suppress(InputError):  # its bytes may be as many as those of enough vectors
        load(task)
    assert not (tmp_path / "sprung").exists()
    np.load(task / "query" / "vectors.npy", allow_pickle=True)
    assert (tmp_path / "sprung").exists(), "it is a trap"


def test_a_folder_of_beir_gets_the_vectors_of_the_cache(tmp_path: Path) -> None:
    root = tmp_path / "beir"
    lines(root / "corpus.jsonl", [{"_id": f"d{i}", "title": "T", "text": f"text {i}"} for i in range(len(DOCUMENTS))])
    lines(root / "queries.jsonl", [{"_id": f"q{i}", "text": text} for i, text in enumerate(QUERIES)])
    lines(root / "qrels" / "test.jsonl", [{"query-id": f"q{i}", "corpus-id": f"d{i}", "score": 1} for i in range(6)])
    cache(tmp_path / "task")

    def old(texts: list[str]) -> NDArray[np.float32]:
        return np.stack([np.full(3, len(text)) + np.arange(3) for text in texts]).astype(np.float32)

    folder = rb.embed(old=old, new=f"cached:{tmp_path / 'task'}", texts=root, out=tmp_path / "run")
    assert folder.queries is not None
    np.testing.assert_array_equal(folder.gallery.new, vectors(DOCUMENTS, 100))
    np.testing.assert_array_equal(folder.queries.new, vectors(QUERIES, 0))
    assert [name.partition("@")[0] for name in short_names(identities_of(folder.path)).values()] == [
        "tests.encode.test_cached:test_a_folder_of_beir_gets_the_vectors_of_the_cache.<locals>.old",
        f"{tmp_path.name}/task",
    ]
