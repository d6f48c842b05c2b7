"""Collections of the atlas: what is searched, with which queries and answers, and on which items maps are fitted."""

import csv
import json
import re
import tarfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.stages import write_whole
from ray_backfill.encode.encoder import IMAGE, TEXT
from ray_backfill.encode.items import ItemSources
from reproduction.atlas.tuned import TUNE

# Most texts, and images, on which maps are fitted; queries; and items of a gallery of images.
_TRAIN_TEXTS, _TRAIN, _QUERIES, _GALLERY = 5000, 2000, 500, 4000
# Pixels of a side of rendered images.
_SIDE = 128


@dataclass(frozen=True)
class Collection:
    """A collection. prepare: takes the folder of the data and one to write to; returns what encode reads.

    needs: its folder or file below the data; "" if it is made here. licence: of the data.
    """

    name: str
    modality: str
    prepare: Callable[[Path, Path], ItemSources]
    explains: str
    needs: str = ""
    licence: str = ""


def _write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, lambda to: to.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8"))
    return str(path)


def _read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.open(encoding="utf-8")]


def _banking77(data: Path, to: Path) -> ItemSources:
    """Questions to a bank in 77 intents: gallery and train items are its train part, queries of its test part."""
    rng = np.random.default_rng(0)
    rows = {
        part: [{"text": text, "label": intent} for text, intent in list(csv.reader(lines))[1:]]
        for part in ("train", "test")
        for lines in [(data / "banking77" / f"{part}.csv").open(encoding="utf-8")]
    }
    shuffled = [rows["train"][row] for row in rng.permutation(len(rows["train"]))]
    drawn = rng.permutation(len(rows["test"]))
    queries = [rows["test"][row] for row in drawn[: 2 * _QUERIES]]
    _write_lines(to / f"{TUNE}.jsonl", (rows["test"][row] for row in drawn[2 * _QUERIES :]))
    given = {"gallery": shuffled[_TRAIN_TEXTS:], "queries": queries, "train": shuffled[:_TRAIN_TEXTS]}
    return ItemSources(TEXT, *(_write_lines(to / f"{split}.jsonl", own) for split, own in given.items()))


def _beir(
    to: Path,
    documents: Mapping[str, tuple[str, str]],
    queries: Mapping[str, str],
    judged: Iterable[tuple[str, str, str]],
) -> ItemSources:
    """A collection with judgements. documents: id -> title, text. Maps are fitted on titles, which are not searched.

    Models are tuned on the documents themselves, without judgements.
    """
    kept = {item: (title, text) for item, (title, text) in documents.items() if text.strip()}
    _write_lines(to / "corpus.jsonl", ({"_id": item, "title": own[0], "text": own[1]} for item, own in kept.items()))
    _write_lines(to / f"{TUNE}.jsonl", ({"text": text} for _, text in kept.values()))
    _write_lines(to / "queries.jsonl", ({"_id": query, "text": text} for query, text in queries.items()))
    lines = "".join(f"{query}\t{item}\t{grade}\n" for query, item, grade in judged if item in kept)
    (to / "qrels").mkdir(parents=True, exist_ok=True)
    write_whole(to / "qrels" / "test.tsv", lambda path: path.write_text(lines, encoding="utf-8"))
    titles = sorted({title for title, _ in documents.values() if title.strip()})
    drawn = np.random.default_rng(0).permutation(np.array(titles, object))[:_TRAIN_TEXTS].tolist()
    train = _write_lines(to / "train.jsonl", ({"text": title} for title in drawn))
    return ItemSources(TEXT, str(to), train=train)


def _nfcorpus(data: Path, to: Path) -> ItemSources:
    own = data / "nfcorpus"
    documents = {each["_id"]: (each["title"], each["text"]) for each in _read_lines(own / "corpus.jsonl")}
    queries = {each["_id"]: each["text"] for each in _read_lines(own / "queries.jsonl")}
    with (own / "qrels" / "test.tsv").open(encoding="utf-8") as lines:
        judged = [(query, item, grade) for query, item, grade in list(csv.reader(lines, delimiter="\t"))[1:]]
    return _beir(to, documents, queries, judged)


def _cranfield(data: Path, to: Path) -> ItemSources:
    own = data / "cranfield"

    def read(name: str, item: str, *parts: str) -> list[list[str]]:
        found = re.findall(rf"<{item}>(.*?)</{item}>", (own / name).read_text(encoding="utf-8"), re.DOTALL)
        matches = ([re.search(rf"<{part}>(.*?)</{part}>", each, re.DOTALL) for part in parts] for each in found)
        return [[" ".join(match[1].split()) if match else "" for match in of_item] for of_item in matches]

    documents = {i: (title, text) for i, title, text in read("cran.all.1400.xml", "doc", "docno", "title", "text")}
    # The judgements count the queries from 1 on, in the order of the file.
    queries = {str(place + 1): text for place, (text,) in enumerate(read("cran.qry.xml", "top", "title"))}
    lines = (line.split() for line in (own / "cranqrel.trec.txt").read_text(encoding="utf-8").splitlines())
    return _beir(to, documents, queries, [(query, item, grade) for query, _, item, grade in lines if float(grade) > 0])


def drawn_rows(sizes: Mapping[str, int]) -> dict[str, tuple[str, NDArray[np.int64]]]:
    """Split of the collection -> the split of the images it is drawn from, and sorted rows. sizes: items of each split.

    Queries are taken out of the gallery if there are none; models are tuned on what train leaves.
    """
    rng = np.random.default_rng(0)
    rows = {split: (split, rng.permutation(size)) for split, size in sizes.items()}
    if "queries" not in rows:
        gallery = rows["gallery"][1]
        rows |= {"queries": ("gallery", gallery[:_QUERIES]), "gallery": ("gallery", gallery[_QUERIES:])}
    rows[TUNE] = ("train", rows["train"][1][_TRAIN:])
    numbers = {"gallery": _GALLERY, "queries": _QUERIES, "train": _TRAIN, TUNE: _TRAIN}
    return {split: (rows[split][0], np.sort(rows[split][1][:number])) for split, number in numbers.items()}


def _of_recipe(name: str, **changes: Any) -> Callable[[Path, Path], ItemSources]:
    """Images of a recipe as tar shards with classes. changes: of the settings of its data set."""

    def prepare(data: Path, to: Path) -> ItemSources:
        from PIL import Image

        from ray_backfill.images.datasets import open_images
        from ray_backfill.recipes import load_recipe

        images = open_images(replace(load_recipe(name, data).images, **changes))
        drawn = drawn_rows({split: len(images.items(split)) for split in images.splits})
        for split, (source, own) in drawn.items():
            labels = images.items(source).labels_N[own]

            def write(path: Path, source: str = source, own: Any = own, labels: Any = labels) -> None:
                with tarfile.open(path, "w:") as tar:
                    for first in range(0, len(own), 256):
                        pixels = images.read(source, own[first : first + 256]).pixels_BSSC
                        for i, each in enumerate(pixels, first):
                            png = BytesIO()
                            Image.fromarray(each.squeeze()).save(png, "png")
                            for kind, content in (("png", png.getvalue()), ("cls", str(labels[i]).encode())):
                                member = tarfile.TarInfo(f"{own[i]}.{kind}")
                                member.size = len(content)
                                tar.addfile(member, BytesIO(content))

            if not (to / f"{split}.tar").exists():
                to.mkdir(parents=True, exist_ok=True)
                write_whole(to / f"{split}.tar", write)
        return ItemSources(IMAGE, *(str(to / f"{split}.tar") for split in drawn if split != TUNE))

    return prepare


COLLECTIONS = (
    Collection("cranfield", TEXT, _cranfield, "abstracts of aerodynamics with judged questions", "cranfield",
               "none stated"),
    Collection("nfcorpus", TEXT, _nfcorpus, "medical abstracts with judged questions", "nfcorpus",
               "free for academic use"),
    Collection("banking77", TEXT, _banking77, "questions to a bank in 77 intents", "banking77", "CC BY 4.0"),
    Collection("photographs", IMAGE, _of_recipe("tiny_imagenet"), "photographs of tiny ImageNet", "tiny_imagenet.zip",
               "for research, not to be passed on"),
    Collection("omniglot", IMAGE, _of_recipe("omniglot", image_size=64), "handwritten characters of 50 alphabets",
               "omniglot_small1.zip", "MIT"),
    Collection("landmarks", IMAGE, _of_recipe("landmarks", image_size=_SIDE), "rendered landmarks"),
)  # fmt: skip
