"""Whatever is wrong with object storage: one line that says what and what to do, exit code 2, and nothing written."""

import shlex
import time
from pathlib import Path

import pytest

from ray_backfill.core.store_path import path_of
from ray_backfill.core.stores import open_bucket
from tests.bad_folder import SPLITS, write_split
from tests.bad_store import CASES, Case, Place
from tests.command import Command
from tests.faulty_store import Faults
from tests.test_bad_input import listing

# With requests that may take a second, and their retries 1.5, in place of 30 and 60.
LONGEST_S = 10


@pytest.mark.parametrize("s3_server", ["moto"], indirect=True)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_bad_store_is_one_line_and_leaves_nothing(
    case: Case, store: str, faults: Faults, tmp_path: Path, command: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    data = tmp_path / "data"
    data.mkdir()
    for split, columns in SPLITS.items():
        write_split(data, split, columns)
        (path_of(store) / "data" / f"{split}.parquet").write_bytes((data / f"{split}.parquet").read_bytes())
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden-word")
    monkeypatch.chdir(tmp_path)
    case.change(Place(faults, monkeypatch, tmp_path, store))
    open_bucket.cache_clear()
    before, started = listing(tmp_path), time.monotonic()
    fill = {"data": data, "tmp": tmp_path, "store": store}
    line = command(case.command, *shlex.split(case.arguments.format(**fill))).error
    assert time.monotonic() - started < LONGEST_S
    for word in case.words:
        assert word.format(**fill) in line
    assert len(line) < 400
    assert "hidden-word" not in line
    after = {name: of for name, of in listing(tmp_path).items() if not name.startswith("copies")}
    assert after == {name: of for name, of in before.items() if not name.startswith("copies")}


def test_there_are_fifty_cases() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 50
