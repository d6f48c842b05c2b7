"""Lines of text files that other programs wrote, checked before anything makes sense of them."""

import re
import shlex
from collections.abc import Iterator
from functools import partial
from typing import BinaryIO

import numpy as np

from ray_backfill.core.errors import InputError

# Bytes of a line, and arrays and objects in each other. Arrow refuses longer lines, and dies of deeper ones.
_LONGEST = 2 << 20
_DEEPEST = 1000


def lines_of(opened: BinaryIO, name: str) -> Iterator[tuple[int, bytes]]:
    """Lines in UTF-8 with their numbers from 1 on, without a byte order mark. name: of the file, for messages.

    Raises:
        InputError: A line is not UTF-8, or too long to be one.
    """
    for number, line in enumerate(iter(partial(opened.readline, _LONGEST), b""), 1):
        if len(line) == _LONGEST and not line.endswith(b"\n"):
            raise InputError(f"{name}, line {number:,}: longer than 2 MB; give a text file with one entry in each line")
        try:
            line.isascii() or line.decode()
        except UnicodeDecodeError as error:
            encoding = "utf-16" if line[:2] in (b"\xff\xfe", b"\xfe\xff") else "latin1"
            file = name.rsplit("/", 1)[-1]
            raise InputError(
                f"{name}, line {number:,}: byte 0x{line[error.start]:02x} is not UTF-8; convert the file, for example "
                f"by: iconv -f {encoding} -t utf-8 {shlex.quote(file)} > utf8-{shlex.quote(file)}"
            ) from error
        yield number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line


def check_json_lines(opened: BinaryIO, name: str) -> None:
    """Raises InputError for lines that no reader should be given: see ``lines_of``, and values nested too deeply."""
    for number, line in lines_of(opened, name):
        if len(line) > 2 * _DEEPEST and line.count(b"[") + line.count(b"{") > _DEEPEST and _depth(line) > _DEEPEST:
            raise InputError(f"{name}, line {number:,}: arrays or objects nested more than {_DEEPEST:,} deep; drop it")


def _depth(line: bytes) -> int:
    """How deep arrays and objects are in each other. Brackets within texts do not count."""
    signs = np.frombuffer(re.sub(rb'"(?:[^"\\]|\\.)*"', b"", line), np.uint8) | 32  # of both kinds of brackets
    return int(np.cumsum((signs == ord("{")).astype(int) - (signs == ord("}"))).max())
