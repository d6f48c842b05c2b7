"""Runs the examples on data that it makes, each in runs/examples/NAME, and draws the pictures of docs/examples.md.

    python -m docs.examples             # all of them
    python -m docs.examples pgvector    # one of them, to see what it prints

In a copy of each example it fills in the places marked CHANGE, as a user does, and nothing else. Needs the extra dev.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

import ray_backfill as rb
from tests.data.sources.stores import Items, in_collections, in_shop, postgres
from tests.encode.endpoint import serving

ROOT = Path(__file__).parents[1]
CATEGORIES = 60


class Filled(NamedTuple):
    """What stands at the places marked CHANGE, by name, and what the environment has beside."""

    places: Mapping[str, str] = {}
    environment: Mapping[str, str] = {}


def vectors(rows: int, seed: int) -> Items:
    """Invented items of CATEGORIES categories; the old model has half of the new one's dimensions, and more noise."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, CATEGORIES, rows)
    signal = np.random.default_rng(0).normal(size=(CATEGORIES, 96))[label]
    old, new = signal[:, :48] + 1.8 * rng.normal(size=(rows, 48)), signal + 1.5 * rng.normal(size=(rows, 96))
    return Items(np.arange(rows), old.astype(np.float32), new.astype(np.float32), label.astype(np.str_))


@contextmanager
def pgvector(folder: Path) -> Iterator[Filled]:
    """A shop with searches, and clicks on some items of the category that was searched."""
    items, searches, rng = vectors(2000, 1), vectors(400, 2), np.random.default_rng(3)
    clicks = [(s, int(i), int(n)) for s, category in enumerate(searches.label)
              for i in rng.choice(np.flatnonzero(items.label == category), 20) if (n := rng.poisson(2))]  # fmt: skip
    with postgres(folder / "postgres") as address:
        in_shop(items, searches, clicks, address)
        yield Filled({"DATABASE": f"'{address}'"})


@contextmanager
def qdrant(folder: Path) -> Iterator[Filled]:
    """Two collections, in two folders: in its local mode a folder is open once."""
    in_collections(vectors(1500, 1), folder)
    yield Filled({"OLD": f"'qdrant:{folder}/old#items'", "NEW": f"'qdrant:{folder}/new#items_v2'"})


def texts(rows: int, seed: int) -> tuple[NDArray[np.int64], list[str]]:
    """Invented texts: a few words of their topic among words that all topics have."""
    rng, syllables = np.random.default_rng(seed), np.array([c + v for c in "bdfgklmnprst" for v in "aeiou"])
    words = ["".join(each) for each in np.random.default_rng(0).choice(syllables, (CATEGORIES * 6 + 200, 3))]
    topic = np.arange(rows) % CATEGORIES
    own, common = topic[:, None] * 6 + rng.integers(0, 6, (rows, 5)), CATEGORIES * 6 + rng.integers(0, 200, (rows, 5))
    return topic, [" ".join(words[word] for word in row) for row in np.hstack([own, common])]


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@contextmanager
def endpoint(folder: Path) -> Iterator[Filled]:
    """A service on this machine, which counts hashed words: in 16 numbers if the model's name is small, else in 32."""
    topic, corpus = texts(1500, 1)
    write_lines(folder / "corpus.jsonl", [{"id": i, "text": t, "label": int(topic[i])} for i, t in enumerate(corpus)])
    with serving() as url:
        yield Filled({"TEXTS": "corpus.jsonl"}, {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none"})


@contextmanager
def beir(folder: Path) -> Iterator[Filled]:
    """Documents of a topic answer its queries."""
    (folder / "beir" / "qrels").mkdir(parents=True)
    (topic, corpus), (asked, queries) = texts(1500, 1), texts(200, 2)
    for name, of in (("corpus", corpus), ("queries", queries)):
        write_lines(folder / "beir" / f"{name}.jsonl", [{"_id": f"{name}{i}", "text": t} for i, t in enumerate(of)])
    pairs = [f"queries{q}\tcorpus{d}\t1\n" for q, about in enumerate(asked) for d in np.flatnonzero(topic == about)]
    (folder / "beir" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(pairs))
    yield Filled({"BEIR": '"beir"', **models("old", "wide")})


@contextmanager
def photographs(folder: Path) -> Iterator[Filled]:
    """A coarse pattern for each class, in another place and light each time, with noise."""
    rng = np.random.default_rng(0)
    patterns = rng.integers(60, 190, (CATEGORIES, 6, 6, 3))
    for number in range(25 * CATEGORIES):
        moved = np.roll(patterns[number % CATEGORIES], rng.integers(-1, 2, 2), (0, 1))
        pixels = moved.repeat(5, 0).repeat(5, 1) * rng.uniform(0.7, 1.3)
        image = Image.fromarray(np.clip(pixels + rng.normal(0, 40, pixels.shape), 0, 255).astype(np.uint8))
        path = folder / "photographs" / f"class-{number % CATEGORIES}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)
    yield Filled(models("means", "pixels"))


def models(old: str, new: str) -> dict[str, str]:
    return {"OLD": f'"python:tests.encode._models:{old}"', "NEW": f'"python:tests.encode._models:{new}"'}


@contextmanager
def papers(folder: Path) -> Iterator[Filled]:
    """It makes its own images."""
    yield Filled()


EXAMPLES: dict[str, Callable[[Path], AbstractContextManager[Filled]]] = {
    make.__name__: make for make in (pgvector, qdrant, endpoint, beir, photographs, papers)
}


def fill_in(example: str, places: Mapping[str, str]) -> str:
    """The example with these values at its places marked CHANGE; others stay as they are."""
    for name, value in places.items():
        example, found = re.subn(rf"(?m)^({name} ?= ?).*?( +# CHANGE)", lambda at: f"{at[1]}{value}{at[2]}", example)  # noqa: B023
        assert found == 1, name
    return example


@contextmanager
def prepared(name: str, folder: Path, **places: str) -> Iterator[tuple[Path, Mapping[str, str]]]:
    """A copy of an example in the folder, and the environment to run it in there while its data are there.

    places: further values at places marked CHANGE. Its run will be FOLDER/runs/NAME.
    """
    (example,) = (ROOT / "examples").glob(f"{name}.*")
    folder.mkdir(parents=True, exist_ok=True)
    with EXAMPLES[name](folder) as filled:
        (copy := folder / example.name).write_text(fill_in(example.read_text(), {**filled.places, **places}))
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        yield copy, {"PATH": path, "PYTHONPATH": str(ROOT), **filled.environment}


def run(name: str, folder: Path, **places: str) -> str:
    """What an example prints, in a process of its own."""
    with prepared(name, folder, **places) as (copy, environment):
        command = [sys.executable if copy.suffix == ".py" else "bash", copy.name]
        ended = subprocess.run(command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def draw(run: Path, to: Path) -> None:
    """The curves of the report, in 32 colours so that the file is small."""
    drawn = to.with_suffix(".large.png")
    rb.read_results(run).plot().savefig(drawn, dpi=75)
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(32).save(to, optimize=True)
    drawn.unlink()


if __name__ == "__main__":
    for each in sys.argv[1:] or EXAMPLES:
        shutil.rmtree(folder := ROOT / "runs" / "examples" / each, ignore_errors=True)
        print(run(each, folder))
        draw(folder / "runs" / each, ROOT / "docs" / "img" / f"example-{each}.png")
