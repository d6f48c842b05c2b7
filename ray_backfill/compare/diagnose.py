"""Examines a folder of embeddings before anything runs on it, or a store: what it holds, what is wrong, what can run.

``diagnose`` and ``diagnose_store`` examine, and ``print_diagnosis`` prints what they found.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ray_backfill.compare.resolve import find_left_out
from ray_backfill.core.errors import InputError
from ray_backfill.core.printable import printable
from ray_backfill.core.progress import step
from ray_backfill.data.alignment import misaligned
from ray_backfill.data.columns import MODELS, some, unknown
from ray_backfill.data.doctor import (
    Finding,
    SplitScan,
    cosines_of,
    find,
    find_in_store,
    has_truth,
    scan_source,
    scan_split,
)
from ray_backfill.data.folder import read_folder
from ray_backfill.data.identity import identities_of, short_names
from ray_backfill.data.truth import find_truth
from ray_backfill.data.vectors import FINE
from ray_backfill.data.words import words_of
from ray_backfill.encode.encoder import TEXT, Device, Model
from ray_backfill.encode.kinds import load_model, parse_spec
from ray_backfill.engine.distances import normalise
from ray_backfill.engine.replay import usable_cpus
from ray_backfill.learn.methods import CONTROLS, all_methods
from ray_backfill.learn.training.settings import FitSettings

# Texts that are embedded once more, each alone, to see how much a model's own vectors differ between batches.
_ALONE = 16
# Cosines from 1 less this on are of one model: those of its own vectors, stored as float16, computed elsewhere.
_LEAST = 1e-3


@dataclass(frozen=True)
class Diagnosis:
    """What ``diagnose`` found.

    facts: split, or "store" -> what it holds, plain numbers and texts. findings: errors first. methods: names of
    methods that can run. left_out: method -> why it cannot. has_truth: whether there are labels or positives. models:
    column -> its model in short, if the folder states any.
    """

    facts: dict[str, dict[str, Any]]
    findings: list[Finding]
    methods: list[str]
    left_out: dict[str, str]
    has_truth: bool
    models: dict[str, str]

    @property
    def is_sound(self) -> bool:
        """Whether a run accepts the folder and nothing in it looks misleading."""
        return not any(finding.level in ("error", "warning") for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """The diagnosis as plain data."""
        return asdict(self) | {"is_sound": self.is_sound}


def diagnose(path: Path) -> Diagnosis:
    """Examine a folder of embeddings. Cost: one pass over each column of vectors.

    Raises:
        InputError: There is no gallery, or a file cannot be read as Parquet.
    """
    if not path.is_dir():
        raise InputError(f"{path} is not a folder; give a folder that contains gallery.parquet")
    splits = ("gallery", "queries", "train", "validation", "log")
    there = [name for name in splits if name == "gallery" or (path / f"{name}.parquet").exists()]
    scans = {name: scan_split(path / f"{name}.parquet") for name in there}
    findings, models_in_short = find(scans), dict[str, str]()
    try:
        models_in_short = short_names(identities_of(path))
    except InputError as problem:
        findings.insert(0, Finding("error", path.name, str(problem)))
    methods: list[str] = []
    left_out: dict[str, str] = {}
    if not any(finding.level == "error" for finding in findings):
        try:
            models = tuple({model for m in all_methods().values() for model in m.models})
            folder = read_folder(path, models, gallery_needs=MODELS[:1])
            join = words_of(path)["join"]
            findings[:0] = strange = [Finding("error", where, what, join) for where, what in misaligned(folder)]
            if not strange and "new" in folder.gallery.vectors:
                if has_truth(scans):
                    find_truth(folder)
                known = [method for method in all_methods().values() if method.family != CONTROLS]
                gone = find_left_out(folder, known, (), FitSettings(), "cosine")
                left_out = {missing.name: missing.reason for missing in gone if missing.kind == "method"}
                methods = [method.name for method in known if method.name not in left_out]
        except InputError as problem:  # what only a run looks at
            findings.insert(0, Finding("error", path.name, str(problem)))
    facts = {name: _facts(scan) for name, scan in scans.items()}
    return Diagnosis(facts, findings, methods, left_out, has_truth(scans), models_in_short)


def diagnose_store(
    text: str, id: str = "id", column: Sequence[str] = (), model: str = "", text_column: str = "text", sample: int = 200
) -> Diagnosis:
    """Examine a table of vectors: any source of ``data.sources``. Cost: one pass over its rows.

    id, column: its columns of ids and of vectors; by default all lists of numbers. model: that should have made the
        vectors, in the words of docs/models.md; it embeds ``sample`` texts of ``text_column`` again.

    Raises:
        InputError: The store cannot be read, or lacks a column; the model cannot be loaded or fails.
    """
    if model and len(column) != 1:
        raise InputError("--model made one column; name it with --column")
    if not 1 <= sample <= 8_192:
        raise InputError(f"--sample must be from 1 to 8,192, got {sample}")
    loaded = load_model(parse_spec(model, "--model"), TEXT, Device(threads=usable_cpus())) if model else None
    scan, texts = scan_source(text, id, column, text_column if model else "")
    findings = find_in_store(scan)
    if loaded:
        findings.append(_embedded_again(column[0], scan, texts, loaded, sample))
    return Diagnosis({"store": _facts(scan)}, findings, [], {}, False, {})


def _embedded_again(where: str, scan: SplitScan, texts: Mapping[int, str], model: Model, size: int) -> Finding:
    """What texts of the sample say when the model embeds them again. where: the column. texts: row -> its text."""
    column, ids = scan.vectors[where], scan.ids
    assert ids is not None
    has_both = [row in texts for row in column.sample_rows.tolist()] & (column.problems[column.sample_rows] == FINE)
    if not has_both.any():
        return Finding("error", where, "no row has both a text and a vector", "name the texts with --text-column")
    chosen = np.random.default_rng(0).permutation(np.flatnonzero(has_both))[:size]
    rows = column.sample_rows[chosen]
    with step(f"embed {len(rows):,} texts by {model.spec}"):
        again = model.embed([texts[row] for row in rows.tolist()], "document")
        alone = np.concatenate([model.embed([texts[row]], "document") for row in rows[:_ALONE].tolist()])
    if again.shape[1] != column.dim:
        what = f"{model.spec} gives {again.shape[1]:,} dimensions, and the column has {column.dim:,}"
        return Finding("error", where, what, "name the model that made the column")
    unit = normalise(again)
    noise = 1 - (unit[: len(alone)] * normalise(alone)).sum(axis=1).min()
    cosines = (unit * normalise(column.sample[chosen])).sum(axis=1)
    others = rows[cosines < 1 - max(_LEAST, 10 * noise)]
    if not len(others):
        chances = (f"{1 - (1 - share) ** len(rows):.0%} if they are {share:.1%}" for share in (0.001, 0.01, 0.1))
        return Finding("note", where, f"{len(rows):,} texts, embedded again by {model.spec}, give the stored vectors; "
                       f"so many meet a row of another model with a chance of {', '.join(chances)} of all")  # fmt: skip
    what = f"{len(others):,} of {len(rows):,} vectors are not what {model.spec} gives"
    if 2 * len(others) > len(rows):
        return Finding("error", where, f"{what}; the median cosine is {np.median(cosines):.3f}",
                       "check the model and its options (prompt, pooling, dims), and --text-column")  # fmt: skip
    return Finding("error", where, f"{what}: id {some(np.sort(ids[others]))}", "embed these rows again, by one model")


def _facts(scan: SplitScan) -> dict[str, Any]:
    facts: dict[str, Any] = {"rows": scan.rows}
    for model, column in scan.vectors.items():
        fine, cosines = column.norms[column.problems == FINE], cosines_of(column)
        facts[model] = {
            "dimensions": column.dim,
            "type": column.dtype,
            "norm": [float(of(fine)) for of in (np.min, np.median, np.max)] if len(fine) else [],
            "cosines": [cosines.low, cosines.high] if cosines else [],
            "broken": int((column.problems != FINE).sum()),
        }
    label = scan.others.get("label")
    if label is not None:
        sizes = np.unique(label[~unknown(label)], return_counts=True)[1]
        facts["labels"] = {
            "classes": len(sizes),
            "items_of_a_class": [int(of(sizes)) for of in (np.min, np.median, np.max)] if len(sizes) else [],
            "classes_of_one_item": int((sizes == 1).sum()),
            "unknown": int(unknown(label).sum()),
        }
    facts["further"] = sorted(set(scan.others) - {"label"})
    return facts


def print_diagnosis(diagnosis: Diagnosis, folder: str, console: Console | None = None) -> None:
    """Print two tables and a sentence on what can be evaluated."""
    console = console or Console(highlight=False, markup=False)
    contents = Table(
        "split", "rows", "column", "dim.", "type", "length (min, median, max)", "cosines (1 to 99 %)", "broken"
    )
    for name, facts in diagnosis.facts.items():
        first = (name, f"{facts['rows']:,}")
        models = [model for model, value in facts.items() if isinstance(value, Mapping) and "dimensions" in value]
        for model in models:
            column = facts[model]
            norms = ", ".join(f"{norm:.3g}" for norm in column["norm"]) or "–"
            cosines = " to ".join(f"{cosine:.2f}" for cosine in column["cosines"]) or "–"
            cells = str(column["dimensions"]), column["type"], norms, cosines, f"{column['broken']:,}"
            contents.add_row(*first, model, *cells)
            first = ("", "")
        if not models:
            contents.add_row(*first, "", *["–"] * 5)
        if labels := facts.get("labels"):
            sizes = ", ".join(f"{size:,}" for size in labels["items_of_a_class"])
            classes, without = f"{labels['classes']:,} classes", f"{labels['unknown']:,} unknown"
            contents.add_row("", "", "label", "", classes, f"of {sizes or '–'} items", "", without)
    console.print(contents)
    for column, model in diagnosis.models.items():
        console.print(printable(f"Model of {column}: {model}"))
    if diagnosis.findings:
        marks = {"error": "✗", "warning": "!", "note": "–"}
        findings = Table("", "where", "finding", "what to do")
        for finding in diagnosis.findings:
            findings.add_row(marks[finding.level], *map(printable, (finding.where, finding.what, finding.remedy)))
        console.print(findings)
    else:
        console.print("Nothing is wrong.")
    if diagnosis.methods:
        console.print(f"{len(diagnosis.methods)} methods can run: {', '.join(diagnosis.methods)}.")
        reasons: dict[str, list[str]] = {}
        for name, reason in diagnosis.left_out.items():
            reasons.setdefault(reason, []).append(name)
        for reason, names in reasons.items():
            console.print(printable(f"Not {', '.join(names)}: {reason}."))
        # Without right answers, nothing but judgements says which model is better.
        truth = "" if diagnosis.has_truth else " --judge judgements.csv"
        # A run by cosine distance refuses rows that --drop-broken leaves out.
        splits = [facts for name, facts in diagnosis.facts.items() if name != "log"]
        has_broken = any(facts[model]["broken"] for facts in splits for model in MODELS if model in facts)
        dropped = " --drop-broken" if has_broken else ""
        words = f"ray-backfill simulate --data {shlex.quote(folder)}{truth}{dropped}"
        # In one piece, so that it can be copied.
        console.print(f"Next{', without the zero vectors' if dropped else ''}: {words}", soft_wrap=True)
