"""The complaints of the option parser as one line, like all other errors."""

import argparse
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from typing import NoReturn

from ray_backfill.core.errors import InputError

# A line between two sections of tyro's box, which it draws in ASCII where standard output is not UTF-8.
_RULE = re.compile(r"^(─+|-{5,})$")
# What Python says about a value, in plain words. Our own checks name the option themselves.
_PLAIN = (
    (r"^Error parsing (--\S+): invalid literal for int\(\) with base 10:", r"\1 must be a whole number, not"),
    (r"^Error parsing (--\S+): could not convert string to float:", r"\1 must be a number, not"),
    (r"^Error parsing (--\S+): Could not find valid parse for arguments: \[(.*)\]", r"\1 does not accept \2"),
    (r"^Error parsing \S+: (?=--)", ""),
    (r"^Missing from ray-backfill: ", "missing: "),
)


class Parser(argparse.ArgumentParser):
    """Reads some options before all of them are known. Its complaints are InputErrors."""

    def __init__(self) -> None:
        super().__init__(add_help=False, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Raise InputError instead of ending the process."""
        raise InputError(f"{message.removeprefix('argument ')}; see --help")


@contextmanager
def in_one_line() -> Iterator[None]:
    """Turn a complaint of tyro, which it draws as a box before it exits, into an InputError."""
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            yield
    except SystemExit as end:
        if not end.code:
            raise
        raise InputError(_line_of(said.getvalue())) from end


def _line_of(box: str) -> str:
    """The message of a box in one line, and the first option that each other section proposes."""
    sections: list[list[str]] = [[]]
    for line in box.splitlines():
        text = line.strip().strip("│").strip()
        if _RULE.match(text):
            sections.append([])
        elif text and not text.startswith(("╭", "╰")):
            sections[-1].append(text)
    if "╭" not in box:  # then the title is a section of its own
        sections = sections[1:]
    message = " ".join(sections[0])
    for pattern, words in _PLAIN:
        message = re.sub(pattern, words, message)
    proposals = (re.match(r"--[\w.-]+", text) for section in sections[1:] for text in section[1:2])
    options = " or ".join(dict.fromkeys(found[0] for found in proposals if found))
    advice = f"did you mean {options}?" if options and "nrecognized" in message else "see --help"
    return f"{message[:1].lower()}{message[1:].rstrip('.')}; {advice}"
