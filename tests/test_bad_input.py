"""Whatever is wrong: one line that says what and what to do, exit code 2, and nothing written."""

import hashlib
import re
import shlex
from pathlib import Path

import pytest

from tests.bad_folder import SPLITS, write_split
from tests.bad_input import CASES, Case
from tests.command import Command

# Codes of numpy's types, and what Python says about values: nothing that a user knows.
CODES = re.compile(r"\b(u?int|float)\d+ values|<U\d|dtype|ndarray|NoneType|Traceback|invalid literal")


def listing(folder: Path) -> dict[str, str]:
    """Every file and folder below ``folder``, with a hash of its content."""
    return {
        str(path.relative_to(folder)): hashlib.md5(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_input_is_one_line_and_leaves_nothing(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    data = tmp_path / "data"
    for split, columns in SPLITS.items():
        write_split(data, split, columns)
    if case.change is not None:
        case.change(data)
    monkeypatch.chdir(tmp_path)
    before = listing(tmp_path)
    line = command(case.command, *shlex.split(case.arguments.format(data=data, tmp=tmp_path))).error
    for words in case.words:
        assert words in line
    assert not CODES.search(line.replace(str(tmp_path), "")), line
    assert listing(tmp_path) == before


def test_there_are_a_hundred_cases() -> None:
    assert len(CASES) > 100
    assert len({(case.arguments, case.command, case.words) for case in CASES}) > 100
