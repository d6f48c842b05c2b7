"""Help on request: the options of one group, or a list of methods, orders, merges or recipes."""

import io
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout, suppress

from ray_backfill.core.errors import unknown_name
from ray_backfill.engine.merges import MergeKind, all_merges
from ray_backfill.engine.orders import Order, all_orders
from ray_backfill.learn.methods import Method, all_methods
from ray_backfill.recipes import describe_recipe, recipe_names

# Heading of a group in the full help of a command, as tyro writes it if it cannot draw boxes.
_HEADING = re.compile(r"^ (?:(\S+) )?options *\n -+ *\n", re.MULTILINE)
# What tyro says of one option: a line per line of the docstring, each wrapped by itself.
_TEXT = re.compile(r"(?:^ {8}\S.*\n?)+", re.MULTILINE)
# A default that says nothing; the text says what is done without the option.
_NO_DEFAULT = re.compile(r"\s*\(default: (?:None|'')?\)")


def group_help(read: Callable[[Sequence[str]], object], arguments: Sequence[str], group: str) -> str:
    """The options of ``group`` with their defaults, or a list of methods, orders, merges or recipes.

    "all": every group; "run": the options without a group. read: reads the command line of the command.

    Raises:
        InputError: The group is unknown; the message names similar ones.
    """
    tables: dict[str, Callable[[], Iterable[Method | Order | MergeKind]]] = {
        "methods": lambda: all_methods().values(),
        "orders": lambda: all_orders().values(),
        "merges": lambda: all_merges().values(),
    }
    if group in tables:
        return "\n".join(map(_explained, tables[group]()))
    if group == "recipes":
        return "\n".join(f"{name}\n    {describe_recipe(name)}" for name in recipe_names())
    sections = _sections(read, [word for word in arguments if word not in ("-h", "--help", group)])
    wanted = [(title, text) for title, text in sections if group in ("all", title, title.split(".")[0])]
    if not wanted:
        known = dict.fromkeys(title.split(".")[0] for title, _ in sections)
        raise unknown_name("group of options", group, (*known, "all", *tables, "recipes"))
    return "\n\n".join(f"{title}\n{text}" for title, text in wanted)


def _explained(row: Method | Order | MergeKind) -> str:
    source = f" ({row.source})" if row.source else ""
    return "\n".join([f"{row.name}: {row.title}{source}", *(f"    {meaning}" for meaning in row.glossary.values())])


def _sections(read: Callable[[Sequence[str]], object], arguments: Sequence[str]) -> list[tuple[str, str]]:
    """(title, text) of each group in the full help of a command."""
    full, width = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "80"  # in a wide terminal tyro sets groups side by side
    try:
        with redirect_stdout(full), suppress(SystemExit):  # --help ends by it
            read([*arguments, "--help"])
    finally:
        os.environ.pop("COLUMNS")
        os.environ.update({"COLUMNS": width} if width else {})
    _, *parts = _HEADING.split(_TEXT.sub(_wrapped, _NO_DEFAULT.sub("", full.getvalue())))
    texts = ("\n".join(line.rstrip() for line in text.rstrip().splitlines()) for text in parts[1::2])
    return [(title or "run", text) for title, text in zip(parts[::2], texts, strict=True)]


def _wrapped(text: re.Match[str]) -> str:
    lines = textwrap.wrap(" ".join(text[0].split()), 72, break_on_hyphens=False)
    return textwrap.indent("\n".join(lines), " " * 8) + "\n"
