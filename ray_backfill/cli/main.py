"""The command ``ray-backfill``. Imports only the requested subcommand, so that help and errors appear quickly.

The first help page of each subcommand is a text in ``pages``, in which the names of plugins are filled in.
"""

import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from ray_backfill.cli import check_process, run_job
from ray_backfill.core.errors import InputError, unknown_name
from ray_backfill.core.job import say_job

# Subcommand -> its module, in the order in which users need them, as in ``pages/overview.txt``.
COMMANDS = {
    "import": "imports",
    "doctor": "reports",
    "sample": "samples",
    "forecast": "samples",
    "simulate": "backfills",
    "drill": "backfills",
    "measure": "measures",
    "report": "reports",
    "plan": "plans",
    "export": "exports",
    "fit": "stages",
    "embed": "stages",
    "train": "stages",
    "reproduce": "",
}

# What pages list -> the function that knows it, which is imported for those pages only.
_LISTS = {
    "methods": ("ray_backfill.learn.methods", "all_methods"),
    "orders": ("ray_backfill.engine.orders", "all_orders"),
    "merges": ("ray_backfill.engine.merges", "all_merges"),
    "metrics": ("ray_backfill.engine.metrics", "metric_forms"),
    "recipes": ("ray_backfill.recipes", "all_recipes"),
    "sources": ("ray_backfill.data.sources", "all_kinds"),
    "models": ("ray_backfill.encode.kinds", "all_kinds"),
}
_HELP = ("-h", "--help")
# Subcommand -> words that choose another kind of it, which has groups of options of its own.
_KINDS: dict[str, tuple[str, ...]] = dict.fromkeys(("sample", "forecast", "drill", "fit", "embed"), ("--texts=",))
_KINDS |= {"simulate": ("--texts=", "--scale=full")}


def main(command: str | None = None) -> None:
    """Run a subcommand: ``command`` if given (by a job script), otherwise the first word of the command line."""
    run_job(lambda: _main(sys.argv[1:] if command is None else [command, *sys.argv[1:]]))


def _main(words: Sequence[str]) -> None:
    from ray_backfill.core import __version__  # whatever is imported in here, ``run_job`` handles Ctrl-C

    if not words or words[0] in (*_HELP, "help"):
        print(page("overview"))
        return
    if words[0] == "--version":
        print(f"ray-backfill {__version__}")
        return
    command, *arguments = words
    if command not in COMMANDS:
        raise unknown_name("command", command, COMMANDS)
    asked = next((place for place, argument in enumerate(arguments) if argument in _HELP), None)
    if asked is None:
        say_job(command=command)
        check_process()
        getattr(subcommand(command), f"run_{command}")(options_of(command, arguments).read())
    elif arguments[asked + 1 :] and not arguments[asked + 1].startswith("-"):
        print(group_help(command, arguments[:asked] + arguments[asked + 2 :], arguments[asked + 1]))
    else:
        print(page(command))


def subcommand(command: str) -> Any:
    """The module of a subcommand. Raises InputError for reproduce, which is no part of the wheel, if it is missing."""
    if command != "reproduce":
        return import_module(f"ray_backfill.cli.commands.{COMMANDS[command]}")
    checkout = Path(__file__).parents[2]
    if not (checkout / "reproduction" / "command.py").is_file():
        raise InputError(
            "reproduce runs the papers' experiments and needs their claims, which an installed package does not hold; "
            "run it from a checkout of the source: python -m pip install --editable '.[cpu]'"
        )
    if str(checkout) not in sys.path:
        sys.path.append(str(checkout))
    return import_module("reproduction.command")


def options_of(command: str, arguments: Sequence[str]) -> Any:
    """The ``Options`` of a command line. --order_seed is --order-seed."""
    named = (argument.partition("=") for argument in arguments)
    words = [n.replace("_", "-") + sign + v if n.startswith("--") else n + sign + v for n, sign, v in named]
    return getattr(subcommand(command), f"{command}_options")(words)


def page(name: str) -> str:
    """The first page of a command, or "overview"; with names in place of lines such as {orders}."""
    from importlib.resources import files

    text = (files("ray_backfill.cli") / "pages" / f"{name}.txt").read_text(encoding="utf-8").rstrip()

    def filled(line: re.Match[str]) -> str:
        names, indent = ", ".join(_names(line[2])), line[1]
        return textwrap.fill(names, 80, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)

    return re.sub(r"^( *)\{(\w+)\}$", filled, text, flags=re.MULTILINE)


def _listed(name: str) -> Any:
    module, function = _LISTS[name]
    return getattr(import_module(module), function)()


def _names(listed: str) -> Iterable[str]:
    """What {recommended}, {orders} and so on stand for."""
    if listed == "recommended":
        return (method.name for method in _listed("methods").values() if method.is_recommended)
    if listed == "orders":
        note = " (upper bound: it uses the result)"
        return (order.name + note * order.is_oracle for order in _listed("orders").values())
    if listed in ("sources", "models"):
        return (kind.example for kind in (_listed("sources") if listed == "sources" else _listed("models").values()))
    return iter(_listed(listed))


def group_help(command: str, arguments: Sequence[str], group: str) -> str:
    """The options of a group with their defaults, or a list of methods, orders, merges or recipes.

    group: "all": every group; "run": the options without a prefix.

    Raises:
        InputError: The group is unknown; the message names similar ones.
    """
    if group in ("methods", "orders", "merges"):
        lines = []
        for row in _listed(group).values():
            lines.append(f"{row.name}: {row.title}{f' ({row.source})' if row.source else ''}")
            lines += [f"    {meaning}" for meaning in row.glossary.values()]
        return "\n".join(lines)
    if group == "recipes":
        return "\n".join(f"{recipe.name}\n    {recipe.description}" for recipe in _listed(group).values())
    known = _groups(command, arguments)
    for kind in _KINDS.get(command, ()):
        known |= {} if group in known else _groups(command, [kind])
    if group not in known:
        groups = (name for name in known if "." not in name and name != "all")
        raise unknown_name("group of options", group, (*groups, "all", "methods", "orders", "merges", "recipes"))
    return "\n\n".join(known[group])


def _groups(command: str, arguments: Sequence[str]) -> dict[str, list[str]]:
    """Group -> help on it and on the groups within it; "all": on every group."""
    groups: dict[str, list[str]] = {}
    for title, text in options_of(command, [*arguments, "--help"]).help().items():
        for name in dict.fromkeys((title.split(".")[0], title, "all")):
            groups.setdefault(name, []).append(text)
    return groups
