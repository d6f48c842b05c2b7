"""Output that nobody reads or that cannot be written, and files that cannot be written: no traceback."""

import errno
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import ray_backfill as rb
from ray_backfill.core.errors import InputError
from ray_backfill.core.stages import write_whole

COMMAND = [sys.executable, "-m", "ray_backfill"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    columns = {"old": rng.normal(size=(400, 16)), "new": rng.normal(size=(400, 24)), "label": np.arange(400) % 20}
    return rb.write_folder(tmp_path_factory.mktemp("data") / "mine", columns)


@pytest.mark.parametrize("closed", ["stdout", "both"])
@pytest.mark.parametrize(
    "words",
    [
        *("--help", "simulate --help", "--version", "doctor DATA", "doctor DATA --json", "nope"),
        "simulate --data DATA --methods rm_naive --points 2 --out OUT",
    ],
)
def test_it_ends_quietly_where_nobody_reads(words: str, closed: str, data: Path, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)  # as ``| true`` has done by the time of the first line
    given = words.replace("DATA", str(data)).replace("OUT", str(tmp_path / "out")).split()
    error = writing if closed == "both" else subprocess.PIPE
    ended = subprocess.run([*COMMAND, *given], stdout=writing, stderr=error, check=False)
    os.close(writing)
    if closed == "stdout":
        said = ended.stderr.decode()
        assert "Traceback" not in said
        assert "Exception ignored" not in said
        assert "Broken pipe" not in said
    expected = 2 if words == "nope" and closed == "stdout" else 128 + signal.SIGPIPE
    # rich ends by itself, with 1.
    assert ended.returncode in ((expected, 1) if "DATA" in words else (expected,))


def test_what_is_read_to_the_end_is_whole() -> None:
    whole = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, check=True)
    first = subprocess.run(f"{sys.executable} -m ray_backfill --help | head -n 1", shell=True, capture_output=True,
                           text=True, check=True)  # fmt: skip
    assert (first.stdout, first.stderr) == (whole.stdout.splitlines(keepends=True)[0], "")


@pytest.mark.parametrize("words", ["--help", "--version"])  # more than Python keeps before it writes, and less
def test_a_full_disk_under_the_output_is_one_line(words: str) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run([*COMMAND, words], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: ")
    assert "No space left on device; free some space" in line


@pytest.mark.parametrize("kilobytes", [1, 4, 16, 48])
def test_files_that_grow_too_large_are_one_line(kilobytes: int, data: Path, tmp_path: Path) -> None:
    """Maps, tables and pages: whatever meets the limit first."""
    words = ["simulate", "--data", str(data), "--out", str(tmp_path / "out"), "--methods", "rm_naive", "--points", "2"]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (kilobytes << 10, kilobytes << 10))

    ended = subprocess.run([*COMMAND, *words], preexec_fn=limit, capture_output=True, text=True, check=False)
    assert ended.returncode == 2, ended.stderr[-2000:]
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("error: cannot write ")
    assert last.endswith("file too large; raise the limit on the size of files (ulimit -f), or choose another disk")
    assert "Traceback" not in ended.stderr
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize("number", [errno.EFBIG, errno.EIO, errno.EMFILE, errno.ESTALE, errno.ENOSPC, errno.EROFS])
def test_whatever_refuses_a_file_names_it_and_the_remedy(number: int, tmp_path: Path) -> None:
    def write(_: Path) -> None:
        raise OSError(number, os.strerror(number))

    with pytest.raises(InputError, match=r"cannot write .*mine\.json.*; \w+"):
        write_whole(tmp_path / "mine.json", write)
    assert not list(tmp_path.iterdir())


def test_safetensors_that_grow_too_large_are_one_line_too(tmp_path: Path) -> None:
    program = f"""
import resource, numpy as np
from pathlib import Path
from safetensors.numpy import save_file
from ray_backfill.core.stages import write_whole
from ray_backfill.core.errors import InputError
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_whole(Path({str(tmp_path / "map.safetensors")!r}), lambda to: save_file({{"a": np.zeros(9999)}}, to))
except InputError as error:
    print(error)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "cannot write" in ended.stdout
    assert "file too large" in ended.stdout
    write_whole(tmp_path / "fits.safetensors", lambda to: save_file({"a": np.zeros(9)}, to))


def test_mistakes_of_ours_keep_their_type(tmp_path: Path) -> None:
    for error in (ConnectionResetError(errno.ECONNRESET, "reset"), KeyError("os"), OSError("without a number")):

        def write(_: Path, error: Exception = error) -> None:
            raise error

        with pytest.raises(type(error)):
            write_whole(tmp_path / "x", write)
