"""What a new user gets wrong: command lines, and folders of embeddings that do not fit.

``{data}`` is a folder of embeddings that is in order but for the change of its case, ``{tmp}`` the folder above it, and
``--out`` a folder that does not exist. Each word must occur in the one line of the error. Run by ``test_bad_input``.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from ray_backfill.data.write import write_parquet
from tests.bad_folder import (
    ROWS,
    VIEWS,
    Change,
    all_of,
    empty,
    flipped,
    half,
    in_parts,
    leaked,
    twice,
    vectors,
    with_bytes,
    with_classifier,
    with_columns,
    with_file,
    with_folder,
    with_row,
    with_views,
    without,
    write_split,
)


@dataclass(frozen=True)
class Case:
    """Arguments after the command, what must occur in the error, and what is wrong with the folder."""

    arguments: str
    words: tuple[str, ...]
    change: Change | None = None
    command: str = "simulate"

    @property
    def name(self) -> str:
        return f"{self.command} {self.arguments}: {self.words[0]}"


def on_folder(options: str, *words: str, change: Change | None = None, command: str = "simulate") -> Case:
    return Case(f"--data {{data}} --out {{tmp}}/out {options}".strip(), words, change, command)


def of_recipe(options: str, *words: str, change: Change | None = None, command: str = "simulate") -> Case:
    return Case(f"--out {{tmp}}/out {options}", words, change, command)


OPTIONS = [
    on_folder("--poinst 5", "--poinst", "did you mean --points?"),
    on_folder("--points many", "--points must be a whole number, not 'many'"),
    on_folder("--points 1", "--points must be at least 2", "got 1"),
    on_folder("--points -3", "--points must be at least 2", "got -3"),
    on_folder("extra", "unrecognized options: extra"),
    on_folder("--recipe omniglot", "unrecognized options: --recipe"),
    on_folder("--methods rn", "unknown method 'rn'; known: old, new"),
    on_folder("--orders alphabetical", "unknown order 'alphabetical'; known: random"),
    on_folder("--orders given", "order 'given' needs the gallery column 'order_score'", "add it"),
    on_folder("--orders popularity", "order 'popularity' needs the gallery column 'popularity'"),
    on_folder("--orders sigma --methods rm_naive", "order 'sigma' needs a method with uncertainty among --methods"),
    on_folder("--merges magic", "unknown merge 'magic'; known: raw"),
    on_folder("--merges csls --distance l2", "the csls merge supports only the cosine distance, not l2"),
    on_folder("--metrics accuracy", "unknown metric 'accuracy'; known: mAP"),
    on_folder("--metrics mAPs", "unknown metric 'mAPs'"),
    on_folder("--metrics mAP@0", "unknown metric 'mAP@0'"),
    on_folder("--metrics CMC@one", "unknown metric 'CMC@one'"),
    on_folder("--metrics recall", "unknown metric 'recall'", "CMC@k, recall@k, MRR, MRR@k, AP@k, P@k, nDCG, nDCG@k"),
    on_folder("--distance hamming", "unknown distance 'hamming'; known: cosine"),
    on_folder("--order-seed -1", "--order-seed must not be negative, got -1"),
    on_folder("--slices colour", "has no column 'colour'; it has: "),
    on_folder("--filter tenant", "has no column 'tenant'; it has: "),
    of_recipe("--slices colour", "--slices: a recipe's queries have no column 'colour'", "choose from group, label"),
    of_recipe("--filter tenant", "--filter needs a folder of embeddings (--data)"),
    on_folder("--truth new-top20 --metrics recall@10", "recall@10 cannot reach 100 %", "use recall@20 or another"),
    on_folder("--cutoffs nan", "--cutoffs are similarities under the cosine distance, from -1 to 1; got nan"),
    on_folder("--cutoffs 0.85 1.5", "--cutoffs are similarities", "from -1 to 1; got 1.5"),
    on_folder("--cutoffs -0.1 --distance l2", "--cutoffs are distances under the l2 distance, from 0 on; got -0.1"),
    on_folder("--cutoffs high", "--cutoffs", "'high'"),
    on_folder("--cutoffs 0.85 --merges rrf", "--cutoffs cannot be translated by the rrf merge", "add raw, or quantile"),
    on_folder("--margin 2", "--margin must be at least 0 and below 1"),
    on_folder("--workers.number 0", "--workers.number must be greater than 0, got 0"),
    on_folder("--heads.loss.tau 0", "--heads.loss.tau must be greater than 0"),
    on_folder("--heads.loss.tau cold", "--heads.loss.tau must be a number, not 'cold'"),
    on_folder("--heads.loss.distance hamming", "--heads.loss.distance must be cosine or l2"),
    on_folder("--heads.blocks 0", "--heads.blocks must be greater than 0"),
    on_folder("--transforms.batch 0", "--transforms.batch must be"),
    on_folder("--adapters.ridge -1", "--adapters.ridge must be"),
    on_folder("--shards -1", "--shards must not be negative"),
    on_folder("--device tpu", "unknown device 'tpu'; known: cpu, cuda"),
    on_folder("--shards 2 --device cuda:1", "each shard has one GPU of its own; give --device cuda"),
    Case("--data", ("--data: expected one argument",)),
    Case("--scale fulll", ("invalid choice 'fulll' for argument '--scale'",)),
    of_recipe("--scale full --gallery.items 5", "81,313 classes need as many items", "lower --gallery.classes"),
    of_recipe("--scale full --gallery.zipf 9", "zipf must be in [0, 3]"),
]

COMMANDS = [
    Case("--data {data}", ("unknown command 'simulat'; did you mean simulate?",), command="simulat"),
    Case("", ("missing: PATH", "Folder of the run"), command="report"),
    Case("/nowhere", ("/nowhere holds no results", "--out"), command="report"),
    Case("{data}", ("holds no results: give the folder that simulate, forecast or drill wrote",), command="report"),
    Case("{data}/gallery.parquet", ("holds no results",), command="report"),
    of_recipe("", "missing: --model", command="train"),
    of_recipe("--model newer", "unknown model 'newer'; did you mean new?", command="train"),
    of_recipe("", "missing: --recipe", command="reproduce"),
    of_recipe("--recipe nope", "unknown recipe 'nope'; known: ", command="reproduce"),
    of_recipe("--recipe landmarks --seeds one", "--seeds does not accept 'one'", command="reproduce"),
    of_recipe("--recipe nope", "unknown recipe 'nope'; known: ", command="embed"),
    on_folder("--live.method magic", "unknown method 'magic'", command="drill"),
    on_folder("--orders oracle_loss", "order 'oracle_loss' needs embeddings of the future", command="drill"),
    on_folder("--live.shards.number 0", "--live.shards.number must be", command="drill"),
    on_folder("--methods rm_naive", "none of these methods has anything to fit", command="fit"),
    on_folder("--methods rm", "rm needs train.parquet to be fitted on", change=without("train.parquet"), command="fit"),
]

IMAGES = [
    of_recipe("--recipe imagenet22k", "unknown recipe 'imagenet22k'; did you mean imagenet"),
    of_recipe("--recipe omniglot", "this recipe needs --data-root: the folder with omniglot_small1.zip"),
    of_recipe("--recipe omniglot --data-root /nowhere", "omniglot_small1.zip"),
    *(
        of_recipe(f"--recipe {name} --data-root /nowhere", f"{name}: there is no ")
        for name in ("imagenet", "cifar100", "places365", "market1501", "vggface2", "gldv2")
    ),
    of_recipe("--recipe image_folder --data-root /nowhere", "no folder or zip file at '/nowhere'"),
    of_recipe(
        "--recipe image_folder --data-root {data}/images", "no images in", "in a folder per class",
        change=with_folder("images"),
    ),
    of_recipe("--recipe manifest --data-root /nowhere", "no manifest at '/nowhere'", ".csv or .parquet file"),
    of_recipe(
        "--recipe manifest --data-root {data}/list.csv", "list.csv has no column 'label'", "it has: 'path'",
        change=with_file("list.csv", "path\na.jpg\n"),
    ),
    of_recipe("--recipe manifest --data-root {data}/gallery.parquet", "has no column 'path'", "path and label"),
    of_recipe("--download", "landmarks has nothing to download"),
    of_recipe("--seed -1", "--seed must not be negative"),
    of_recipe("--seed x", "--seed must be a whole number, not 'x'"),
    of_recipe("--protocol.old-share 0", "--protocol.old-share must be greater than 0 and at most 1"),
    of_recipe("--protocol.old-share 0.001", "leave 0 for the old model"),
    of_recipe("--old.backbone.arch vgg", "unknown architecture 'vgg'; known: convnet"),
    of_recipe("--old.backbone.arch vit_b_32 --images.image-size 16", "vit_b_32 does not accept images of 16 x 16"),
    of_recipe("--distance inner_product", "or only --methods without heads"),
    of_recipe("--distance l2", "for the cosine distance but compared by l2; give both"),
    of_recipe("--orders given", "needs a column 'order_score', which images do not have"),
    of_recipe("--methods old magic", "unknown method 'magic'; known: old, new"),
]  # fmt: skip

PATHS = [
    Case("--data /nowhere --out {tmp}/out", ("/nowhere is not a folder; give a folder that contains gallery.parquet",)),
    Case("--data {data}/gallery.parquet --out {tmp}/out", ("gallery.parquet is not a folder",)),
    Case("--data {tmp} --out {tmp}/out", ("gallery.parquet is missing", "folder of Parquet parts")),
    Case("--data {data} --out {data}/gallery.parquet", ("gallery.parquet", "is a file; give a folder")),
    Case("--data {data} --out {data}/gallery.parquet/run", ("gallery.parquet is a file; give",)),
]

DOWNLOADS = [
    Case(
        "--model old --recipe cifar100 --download --data-root s3://bucket/run",
        ("a folder on a disk to download to", "s3://bucket/run"),
        command="train",
    ),
]

# Every option that names a file or folder, in a store for which there are no credentials, or that is none of ours.
REMOTE = [
    Case(arguments, (uri, "no credentials" if uri.startswith("s3:") else "neither on a disk nor in"), command=command)
    for command, arguments, uri in (
        ("simulate", "--data {data} --out s3://bucket/run", "s3://bucket"),
        ("simulate", "--data s3://bucket/data --out {tmp}/out", "s3://bucket"),
        ("simulate", "--data=abfss://bucket/data", "abfss://bucket/data"),
        ("simulate", "--data {data} --out {tmp}/out --truth qrels s3://bucket/q.txt", "s3://bucket"),
        ("simulate", "--scale full --out abfss://host/run", "abfss://host/run"),
        ("simulate", "--recipe image_folder --data-root s3://bucket/images", "s3://bucket"),
        ("simulate", "--images.root s3://bucket --recipe image_folder --data-root {data}", "s3://bucket"),
        ("drill", "--data {data} --out s3://bucket/run", "s3://bucket"),
        ("drill", "--data s3://bucket/data --out {tmp}/out", "s3://bucket"),
        ("drill", "--out s3://bucket/run", "s3://bucket"),
        ("fit", "--data {data} --out s3://bucket/run", "s3://bucket"),
        ("train", "--model old --out s3://bucket/run", "s3://bucket"),
        ("embed", "--out hdfs://host:8020/run", "hdfs://host:8020/run"),
        ("embed", "--only s3://bucket/sample.parquet --out {tmp}/out", "s3://bucket"),
        ("sample", "s3://bucket/data --budget 5", "s3://bucket"),
        ("sample", "{data} --budget 5 --out s3://bucket/s.parquet", "s3://bucket"),
        ("forecast", "s3://bucket/data", "s3://bucket"),
        ("forecast", "{data} --out s3://bucket/run", "s3://bucket"),
        ("forecast", "{data} --sample s3://bucket/s.parquet --out {tmp}/out", "s3://bucket"),
        ("import", "--gallery {data}/gallery.parquet --out s3://bucket/run", "s3://bucket"),
        ("import", "--gallery {data}/gallery.parquet --out postgresql://host/db", "postgresql://host/db"),
        ("report", "s3://bucket/run", "s3://bucket"),
        ("reproduce", "--recipe landmarks --out s3://bucket/run", "s3://bucket"),
    )
]

# In order of the checks.
fit = partial(on_folder, "--methods rm_naive procrustes_query rm")
FILES = [
    fit("gallery.parquet is missing", change=without("gallery.parquet")),
    fit("gallery.parquet is missing", change=all_of(without("gallery.parquet"), with_folder("gallery.parquet"))),
    *(
        fit(
            f"{split}.parquet cannot be read as Parquet", "restore the file", change=with_bytes(f"{split}.parquet", how)
        )
        for split in ROWS
        for how in (half, flipped)
    ),
    fit("gallery.parquet cannot be read as Parquet", change=with_file("gallery.parquet", "id,old,new\n1,2,3\n")),
    fit("gallery.parquet cannot be read as Parquet", change=with_file("gallery.parquet")),
    fit("gallery.parquet has no rows", change=lambda f: write_parquet(f / "gallery.parquet", empty("gallery"))),
    fit("queries.parquet has no rows", change=lambda f: write_parquet(f / "queries.parquet", empty("queries"))),
    fit("train.parquet has no rows", change=lambda f: write_parquet(f / "train.parquet", empty("train"))),
    fit("has two columns 'label'; remove one", change=twice),
    fit(
        "part-1.parquet has the columns", "all parts need the same columns", change=in_parts("gallery", camera=[1] * 12)
    ),
    fit("column 'label' holds text in", "but numbers in", change=in_parts("gallery", label=["a"] * 12)),
    fit("column 'new': 5 dimensions", "but 6 in", change=in_parts("gallery", new=vectors(12, 5))),
    fit("classifier.parquet has no column 'bias'", change=with_classifier(bias=None)),
    fit("classifier.parquet, column 'label': duplicate classes", change=with_classifier(label=np.zeros(4, int))),
    fit("column 'weight': NaN or infinite", change=with_classifier(weight=np.full((4, 6), np.nan, np.float32))),
    fit("column 'bias' must hold numbers, not text", change=with_classifier(bias=["a"] * 4)),
    fit("train_views.parquet has no column 'new'", change=with_views(new=None)),
    fit("column 'new' has 7 dimensions", "and 6 in train.parquet", change=with_views(new=vectors(48, 7))),
    fit("column 'old': NaN or infinite", "train_views", change=with_views(old=np.full((48, 4), np.nan, np.float32))),
    fit("column 'id': 0 in row 0, not 200", "repeat the ids of train.parquet", change=with_views(id=np.arange(48))),
    fit(
        "column 'id': 200 in row 1, not 201",
        "once for each view",  # the views of an item beside each other
        change=with_views(id=np.repeat(VIEWS["id"][:24], 2)),
    ),
    fit("column 'id' holds text, that of train.parquet numbers", change=with_views(id=list(map(str, VIEWS["id"])))),
    fit("has 40 rows, no multiple of the 24 train items", change=with_views(**{n: v[:40] for n, v in VIEWS.items()})),
    fit("has 0 rows, no multiple of the 24", change=with_views(**{n: v[:0] for n, v in VIEWS.items()})),
    fit(
        "train_views.parquet has views of train items, but there is no train.parquet",
        "add it",
        change=all_of(with_views(), without("train.parquet")),
    ),
    on_folder(
        "--merges quantile",
        "no merge can be fitted on this folder (quantile needs train.parquet",
        "use raw",
        change=without("train.parquet"),
    ),
]


def column(split: str, name: str, values: Any, *words: str) -> Case:
    """A split in which one column is wrong."""
    return fit(f"{split}.parquet", *words, change=with_columns(split, **{name: values}))


NAN, INF, ZERO = np.nan, np.inf, 0.0
RAGGED = pa.array([[1.0, 2.0]] * 5 + [[1.0]] + [[1.0, 2.0]] * 18)
COLUMNS = [
    column("gallery", "old", None, "has no column 'old'; it has: id, new, label"),
    column("queries", "new", None, "has no column 'new'"),
    column("train", "old", None, "has no column 'old'"),
    column("gallery", "id", None, "has no column 'id'"),
    column("gallery", "id", np.arange(24) // 2, "column 'id': duplicate ids 0, 1, 2 and 9 more; drop them"),
    column("queries", "id", [0, None, *range(2, 8)], "column 'id': missing value in row 1; fill or drop them"),
    column("gallery", "id", np.arange(24) / 2, "column 'id' must hold integers or text, not fractions"),
    column("gallery", "id", [b"a%d" % i for i in range(24)], "column 'id' must hold integers or text, not bytes"),
    fit("column 'old': NaN or infinite values in row 3; drop them", change=with_row("gallery", "old", NAN)),
    fit("column 'new': NaN or infinite values in row 3", "queries.parquet", change=with_row("queries", "new", INF)),
    fit("column 'new': NaN or infinite values in row 3", "train.parquet", change=with_row("train", "new", NAN)),
    fit("column 'old': zero vector in row 3", "simulate --drop-broken", change=with_row("gallery", "old", ZERO)),
    fit("queries.parquet, column 'new': zero vector in row 3", change=with_row("queries", "new", ZERO)),
    column("gallery", "old", RAGGED, "lists of different lengths, 2 in row 0 but 1 in row 5"),
    column("gallery", "old", pa.array([[]] * 24, pa.list_(pa.float32())), "the lists are empty"),
    column("gallery", "old", pa.array([["x"]] * 24), "lists of numbers (float16 or float32), not lists of text"),
    column("gallery", "new", pa.array([[1, 2]] * 24), "lists of numbers (float16 or float32), not lists of integers"),
    column("gallery", "new", np.ones(24), "must hold lists of numbers (float16 or float32), not fractions"),
    column("gallery", "new", ["[1, 2]"] * 24, "must hold lists of numbers (float16 or float32), not text"),
    column("queries", "old", vectors(8, 5), "column 'old' has 5 dimensions", "and 4 in", "use embeddings of one model"),
    column("train", "new", vectors(24, 7), "column 'new' has 7 dimensions", "and 6 in"),
    column("gallery", "label", None, "has no column 'label'; add it, or give the queries a column 'positives'"),
    column("queries", "label", None, "has no column 'label'; add it"),
    column("queries", "label", list("abcdabcd"), "labels are numbers in", "but text in", "use one type"),
    column("queries", "label", np.arange(8) + 0.5, "column 'label' must hold integers or text, not fractions"),
    column("queries", "label", [0.0, None, *[1.0] * 6], "column 'label': missing value in row 1"),
    column("train", "label", [True, False] * 12, "must hold integers or text, not true/false values; convert it"),
    column("gallery", "label", [[1]] * 24, "must hold integers or text, not lists of integers"),
    column("gallery", "label", np.full(24, 1 << 63, np.uint64), "an integer needs more than 64 bits; use text"),
    column("gallery", "label", np.full(24, np.datetime64("2024-01-01")), "integers or text, not dates or times"),
    fit("no query of", "nothing to measure", change=with_columns("queries", label=np.full(8, -1))),
    fit("no query of", "nothing to measure", change=with_columns("queries", label=np.full(8, 77))),
    fit("queries.parquet, column 'weight': 0 in row 0", change=with_columns("queries", weight=np.arange(8))),
    fit("column 'grades' without a column 'positives'", change=with_columns("queries", grades=pa.array([[1]] * 8))),
    fit(
        "no query of", "nothing to measure",
        change=all_of(with_columns("gallery", label=np.arange(24)), without("queries.parquet")),
    ),
    fit(
        "other than itself: there is nothing to measure",
        change=all_of(
            with_columns("gallery", label=np.arange(24)), lambda folder: write_split(folder, "queries", leaked())
        ),
    ),
    column("queries", "positives", [[1]] * 7 + [[777]], "column 'positives', row 7: the gallery has no id 777"),
    column("queries", "positives", [["1"]] * 8, "column 'positives' holds text, but the ids of", "are numbers"),
    column("queries", "positives", [1] * 8, "column 'positives' must hold lists of ids, not integers"),
    column("queries", "positives", [[1], [None], *[[2]] * 6], "column 'positives': missing id in row 1"),
    fit("no query of", "nothing to measure", change=with_columns("queries", positives=pa.array([[]] * 8))),
    column("gallery", "camera", np.zeros(24, int), "column 'camera' is in only one of"),
    fit(
        "query cameras are text but gallery cameras are numbers",
        change=all_of(with_columns("gallery", camera=np.zeros(24, int)), with_columns("queries", camera=["n"] * 8)),
    ),
    column("gallery", "camera", np.full(24, 0.5), "column 'camera' must hold integers or text, not fractions"),
    on_folder(
        "--orders classifier_score", "column 'old_score' must hold numbers, not text",
        change=with_columns("gallery", old_score=["high"] * 24),
    ),
    on_folder(
        "--orders classifier_score", "order 'classifier_score': the score of gallery row 0 is NaN", "correct",
        change=with_columns("gallery", old_score=np.full(24, np.nan)),
    ),
    on_folder(
        "--orders given", "column 'order_score' must hold numbers, not lists of fractions",
        change=with_columns("gallery", order_score=vectors(24, 2)),
    ),
]  # fmt: skip


CASES = [*OPTIONS, *COMMANDS, *IMAGES, *PATHS, *REMOTE, *DOWNLOADS, *FILES, *COLUMNS]
