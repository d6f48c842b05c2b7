"""The command ``ray-backfill``. Imports only the requested subcommand, so that help and errors appear quickly."""

import sys
from collections.abc import Sequence

from ray_backfill.cli.shell import run_job
from ray_backfill.core.errors import unknown_name


def main(command: str | None = None) -> None:
    """Run a subcommand: ``command`` if given (by a job script), otherwise the first word of the command line."""
    run_job(lambda: _main(sys.argv[1:] if command is None else [command, *sys.argv[1:]]))


def _main(words: Sequence[str]) -> None:
    # Everything is imported in here, where ``run_job`` handles Ctrl-C.
    import importlib
    import keyword

    from ray_backfill import __version__
    from ray_backfill.cli.pages import COMMANDS, overview, page

    if not words or words[0] in ("-h", "--help", "help"):
        print(overview())
        return
    if words[0] == "--version":
        print(f"ray-backfill {__version__}")
        return
    command, *arguments = words
    if command not in COMMANDS:
        raise unknown_name("command", command, COMMANDS)
    group = _help_asked_for(arguments)
    if group == "":
        print(page(command))
        return
    name = f"{command}_" if keyword.iskeyword(command) else command
    module = importlib.import_module(f"ray_backfill.cli.commands.{name}")
    if group is not None:
        from ray_backfill.cli.groups import group_help

        print(group_help(module.read, arguments, group))
    else:
        module.run(arguments)


def _help_asked_for(arguments: Sequence[str]) -> str | None:
    """The group of options whose help is requested; "" for the first page; None if no help is requested."""
    for place, argument in enumerate(arguments):
        if argument in ("-h", "--help"):
            following = arguments[place + 1 : place + 2]
            return following[0] if following and not following[0].startswith("-") else ""
    return None
