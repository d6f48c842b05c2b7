"""The first help page of each command: handwritten texts in ``pages``, with the names of plugins filled in."""

import textwrap
from collections.abc import Iterable
from importlib.resources import files

# Command -> description, in the order in which users need them.
COMMANDS = {
    "import": "Make a folder of embeddings from vectors in files, databases and vector stores.",
    "doctor": "Examine a folder of embeddings: what it holds, what is wrong, what can run.",
    "sample": "Choose the gallery items to embed for a forecast.",
    "forecast": "Forecast the backfill from the new embeddings of a sample.",
    "simulate": "Compare upgrade methods: quality at every moment of the backfill, exactly.",
    "drill": "Backfill a gallery for real, under query traffic, and measure what users get.",
    "report": "Print the table of a finished run and write its report again.",
    "fit": "Only fit the maps and heads that methods need.",
    "embed": "Only embed the images of a recipe with its models.",
    "train": "Only train one backbone of a recipe.",
    "reproduce": "Run a recipe with several seeds and write a page beside the papers' tables.",
}

_WIDTH = 80


def overview() -> str:
    """The page of ``ray-backfill --help``."""
    commands = "\n".join(f"  {name:<11}{does}" for name, does in COMMANDS.items())
    return _text("overview").replace("{commands}", commands)


def page(command: str) -> str:
    """The first page of a command. Lists replace lines with {methods}, {orders}, {merges}, {metrics} or {recipes}."""
    return "\n".join(_filled(line) for line in _text(command).splitlines())


def _text(name: str) -> str:
    return (files("ray_backfill.cli") / "pages" / f"{name}.txt").read_text(encoding="utf-8").rstrip()


def _filled(line: str) -> str:
    for word, names in _NAMES.items():
        if f"{{{word}}}" in line:
            indent = " " * (len(line) - len(line.lstrip()))
            text = line.strip().replace(f"{{{word}}}", ", ".join(names()))
            return textwrap.fill(text, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    return line


def _methods() -> Iterable[str]:
    from ray_backfill.learn.methods import all_methods

    return all_methods()


def _recommended() -> Iterable[str]:
    from ray_backfill.learn.methods import all_methods

    return (method.name for method in all_methods().values() if method.is_recommended)


def _orders() -> Iterable[str]:
    from ray_backfill.engine.orders import all_orders

    known = all_orders().values()
    return (f"{order.name} (upper bound: it uses the result)" if order.is_oracle else order.name for order in known)


def _merges() -> Iterable[str]:
    from ray_backfill.engine.merges import all_merges

    return all_merges()


def _metrics() -> Iterable[str]:
    from ray_backfill.engine.metrics import metric_forms

    return metric_forms()


def _recipes() -> Iterable[str]:
    from ray_backfill.recipes import recipe_names

    return recipe_names()


def _sources() -> Iterable[str]:
    from ray_backfill.data.sources import all_kinds

    return (kind.example for kind in all_kinds())


# Functions, so that plugins are imported only for pages that list them.
_NAMES = {
    "methods": _methods,
    "recommended": _recommended,
    "orders": _orders,
    "merges": _merges,
    "metrics": _metrics,
    "recipes": _recipes,
    "sources": _sources,
}
