"""Texts that others wrote: lines of files, and columns of a folder, checked before anything makes sense of them."""

import re
import shlex
from collections.abc import Iterator
from functools import partial
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ray_backfill.core.errors import InputError
from ray_backfill.data.columns import in_words, is_text
from ray_backfill.data.folder import EmbeddingTable
from ray_backfill.data.words import called

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


def texts_of(table: EmbeddingTable, name: str) -> pa.LargeStringArray:
    """A column of texts, (N,), in the order of the table's rows; a missing text is empty. Cost: a copy of the texts.

    Raises:
        InputError: A file does not have the column, or it holds something else.
    """
    column = table.column(name)
    if not is_text(column.type):
        raise InputError(f"{called(table.path, name)} must hold text, not {in_words(column.type)}; name another column")
    return pc.fill_null(column.cast(pa.large_string()), "").combine_chunks()
