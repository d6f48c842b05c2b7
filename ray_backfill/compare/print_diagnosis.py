"""A diagnosis in the terminal."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from ray_backfill.compare.diagnose import Diagnosis
from ray_backfill.core.printable import printable

_MARKS = {"error": "✗", "warning": "!", "note": "–"}


def print_diagnosis(diagnosis: Diagnosis, folder: str, console: Console | None = None) -> None:
    """Print two tables and a sentence on what can be evaluated."""
    console = console or Console(highlight=False, markup=False)
    console.print(_contents(diagnosis))
    if diagnosis.findings:
        console.print(_findings(diagnosis))
    else:
        console.print("Nothing is wrong.")
    if diagnosis.methods:
        console.print(f"{len(diagnosis.methods)} methods can run: {', '.join(diagnosis.methods)}.")
        reasons: dict[str, list[str]] = {}
        for name, reason in diagnosis.left_out.items():
            reasons.setdefault(reason, []).append(name)
        for reason, names in reasons.items():
            console.print(printable(f"Not {', '.join(names)}: {reason}."))
        # Without right answers, what the new model finds can stand in for them.
        truth = "" if diagnosis.has_truth else " --truth new-top1 --metrics recall@10"
        dropped = " --drop-broken" if diagnosis.needs_drop_broken else ""
        words = f"ray-backfill simulate --data {shlex.quote(folder)}{truth}{dropped}"
        # In one piece, so that it can be copied.
        console.print(f"Next{', without the zero vectors' if dropped else ''}: {words}", soft_wrap=True)


def _contents(diagnosis: Diagnosis) -> Table:
    table = Table(
        "split", "rows", "column", "dim.", "type", "length (min, median, max)", "cosines (1 to 99 %)", "broken"
    )
    for name, facts in diagnosis.facts.items():
        models = [model for model, value in facts.items() if isinstance(value, Mapping) and "dimensions" in value]
        for number, model in enumerate(models or [""]):
            first = (name, f"{facts['rows']:,}") if number == 0 else ("", "")
            table.add_row(*first, model, *(_vector_cells(facts[model]) if model else ["–"] * 5))
        labels = facts.get("labels")
        if labels:
            table.add_row("", "", "label", *_label_cells(labels))
    return table


def _vector_cells(facts: Mapping[str, Any]) -> Sequence[str]:
    norms = ", ".join(f"{norm:.3g}" for norm in facts["norm"]) or "–"
    cosines = " to ".join(f"{cosine:.2f}" for cosine in facts["cosines"]) or "–"
    return str(facts["dimensions"]), facts["type"], norms, cosines, f"{facts['broken']:,}"


def _label_cells(facts: Mapping[str, Any]) -> Sequence[str]:
    sizes = ", ".join(f"{size:,}" for size in facts["items_of_a_class"])
    return "", f"{facts['classes']:,} classes", f"of {sizes or '–'} items", "", f"{facts['unknown']:,} unknown"


def _findings(diagnosis: Diagnosis) -> Table:
    table = Table("", "where", "finding", "what to do")
    for each in diagnosis.findings:
        table.add_row(_MARKS[each.level], *(printable(text) for text in (each.where, each.what, each.remedy)))
    return table
