"""Output that nobody reads or that cannot be written, and files that cannot be written: no traceback."""

import errno
import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
from itertools import product
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
    new = rng.normal(size=(400, 24))
    columns = {"old": new[:, :16], "new": new, "label": np.arange(400) % 20}
    return rb.write_folder(tmp_path_factory.mktemp("data") / "mine", columns)


@pytest.mark.parametrize(
    ("words", "closed"),
    [
        *product(
            ("--help", "simulate --help", "--version", "doctor DATA", "doctor DATA --json", "nope"), ("stdout", "both")
        ),
        ("simulate --data DATA --methods rm_naive --points 2 --out OUT", "both"),
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
    assert ended.returncode == (2 if words == "nope" and closed == "stdout" else 128 + signal.SIGPIPE)
    if "OUT" in words:
        assert (tmp_path / "out" / "results" / "report.html").exists(), "only printing failed"


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


SHELLS = {  # what is done to the command -> (its exit code, lines of errors or None if they cannot be written)
    ">&-": (2, 1),
    ">/dev/full": (2, 1),
    "2>&-": (0, None),
    "2>/dev/full": (0, None),
    ">/dev/full 2>/dev/full": (2, None),
    ">&- 2>&- <&-": (2, None),
}


@pytest.mark.parametrize(
    ("words", "how"),
    [
        *(("doctor DATA --json", how) for how in (">/dev/full", "2>&-", ">&- 2>&- <&-")),
        *(
            pytest.param("doctor DATA --json", how, marks=pytest.mark.heavy)
            for how in (">&-", "2>/dev/full", ">/dev/full 2>/dev/full")
        ),
        *(("simulate --data DATA --methods rm_naive --points 2 --out OUT", how) for how in (">&-", "2>/dev/full")),
    ],
)
def test_streams_that_are_closed_or_full_stop_no_work(how: str, words: str, data: Path, tmp_path: Path) -> None:
    command = f"{shlex.join(COMMAND)} {words.replace('DATA', str(data)).replace('OUT', str(tmp_path / 'out'))} {how}"
    ended = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    code, lines = SHELLS[how]
    assert ended.returncode == code
    if lines is not None:
        assert sum("error: the output cannot be written: " in line for line in ended.stderr.splitlines()) == lines
        assert "Traceback" not in ended.stderr
    elif code == 0:
        assert ended.stdout, "the table, or the document"
    if "OUT" in words:
        assert (tmp_path / "out" / "results" / "report.html").exists()
        assert rb.read_results(tmp_path / "out").rows


@pytest.mark.full
def test_every_line_on_stderr_is_an_object_if_that_is_asked_for(data: Path, tmp_path: Path) -> None:
    asked = os.environ | {"RAY_BACKFILL_LOG": "json"}
    bug = "import sys, ray_backfill.cli as c; c.run_job(lambda: c.hide_in_logs() or 1 / 0)"
    for command, code, level in (
        (["-m", "ray_backfill", "simulate", "--data", data, "--out", tmp_path / "out", "--points", "3"], 0, "info"),
        (["-m", "ray_backfill", "simulate", "--data", tmp_path / "none", "--out", tmp_path / "out"], 2, "error"),
        (["-m", "ray_backfill", "simulte"], 2, "error"),
        (["-c", bug], 1, "error"),
    ):
        words = [sys.executable, *map(str, command)]
        done = subprocess.run(words, env=asked, capture_output=True, text=True, check=False)
        lines = [json.loads(line) for line in done.stderr.splitlines()]
        assert done.returncode == code
        assert lines[-1]["level"] == level
        assert all(line.keys() >= {"time", "level", "command", "message"} for line in lines)
    assert "ZeroDivisionError" in lines[-1]["message"]
    wrong = os.environ | {"RAY_BACKFILL_LOG": "xml"}
    done = subprocess.run([*COMMAND, "fit"], env=wrong, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "RAY_BACKFILL_LOG" in done.stderr


def test_an_unknown_command_ends_with_2_if_nothing_can_be_said() -> None:
    for how in ("2>/dev/full", "2>&-", ">&- 2>&-"):
        assert subprocess.run(f"{shlex.join(COMMAND)} nope {how}", shell=True, check=False).returncode == 2


@pytest.mark.parametrize("encoding", ["ascii", pytest.param("latin1", marks=pytest.mark.heavy)])
def test_an_encoding_of_few_characters_loses_no_sign(encoding: str, data: Path, tmp_path: Path) -> None:
    rb.simulate(data, out=tmp_path / "run", methods="rm_naive", points=2)
    said = {}
    for each in (encoding, "utf-8"):
        ended = subprocess.run(
            [*COMMAND, "report", tmp_path / "run"], capture_output=True, check=False,
            env=os.environ | {"PYTHONIOENCODING": each},
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr.decode(each)
        said[each] = ended.stdout.decode(each)
    numbers = [re.findall(r"-?\d+\.\d+", said[each].replace("\u2212", "-")) for each in (encoding, "utf-8")]
    assert numbers[0] == numbers[1]
    assert "\\u" not in said[encoding]


def test_a_deleted_working_directory_is_one_line(data: Path, tmp_path: Path) -> None:
    for words in (f"doctor {data}", f"simulate --data {data} --out {tmp_path}/out", "report run"):
        (tmp_path / "gone").mkdir()
        command = f"cd {tmp_path}/gone && rmdir ../gone && {shlex.join(COMMAND)} {words}"
        ended = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
        assert ended.returncode == 2
        assert ended.stderr == "error: the working directory was deleted; change to another one (cd)\n"
    assert not (tmp_path / "out").exists()


def test_little_address_space_is_one_line(data: Path) -> None:
    command = f"ulimit -v 1000000; {shlex.join(COMMAND)} doctor {data}"
    ended = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: this process may use 1.0 GB of address space")
    assert line.endswith("raise the limit (ulimit -v)")


def test_a_client_that_logs_a_traceback_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("milvus_lite")
    (tmp_path / "m.db").write_text("noise")
    words = ["import", "--gallery", f"milvus:{tmp_path}/m.db#x", "--out", str(tmp_path / "out")]
    ended = subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"error: milvus:{tmp_path}/m.db#x cannot be opened")


@pytest.mark.parametrize("kilobytes", [1, 16])
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
