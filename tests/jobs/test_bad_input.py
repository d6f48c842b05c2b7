"""What the table of ``tests/bad_input.py`` lacks: small clusters, methods without data, folders of other runs."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from ray_backfill.cli.main import main
from ray_backfill.data.write import vector_column, write_parquet
from ray_backfill.learn.methods import all_methods


def write_folder(path: Path, old: np.ndarray | None = None, **more: object) -> Path:
    rng = np.random.default_rng(0)
    columns = {
        "id": np.arange(20),
        "old": vector_column(rng.normal(size=(20, 4)).astype(np.float32) if old is None else old),
        "new": vector_column(rng.normal(size=(20, 6)).astype(np.float32)),
        "label": np.arange(20) % 4,
    } | more
    write_parquet(path / "gallery.parquet", pa.table(columns))
    return path


def fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str,
    command: str = "simulate",
) -> str:  # fmt: skip
    """Run the command with these arguments and return its one line of error."""
    monkeypatch.setattr("sys.argv", ["jobs/simulate.py", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main(command)
    assert stopped.value.code == 2
    # What was needed to find the error out is a stage with its own line.
    said = capsys.readouterr().err.strip().splitlines()
    lines = [line for line in said if not line.startswith("start Ray: ")]
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    return lines[0]


@pytest.mark.cluster
@pytest.mark.parametrize("command", ["simulate", "fit"])
def test_a_cluster_that_is_too_small_is_said_before_anything_is_computed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    arguments = ["--out", str(tmp_path / "out"), "--workers.number", "600", "--actors.cpus", "200"]
    has = r"CPUs, but the Ray cluster has \d+; lower --"
    assert re.fullmatch(
        rf"error: training workers \(600 x 1 CPUs\) need 600 {has}workers.number or --workers.cpus; "
        rf"embedding actors \(1 x 200 CPUs\) need 200 {has}actors.number or --actors.cpus",
        fail(monkeypatch, capsys, *arguments, command=command),
    )
    assert not list(tmp_path.rglob("*.safetensors"))


def test_methods_that_cannot_be_trained_are_left_out_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    data = write_folder(tmp_path / "data")
    monkeypatch.setattr("sys.argv", ["jobs/simulate.py", "--data", str(data), "--out", str(tmp_path / "out")])
    main("simulate")
    printed = capsys.readouterr().out
    assert "RM naive" in printed
    assert "full RM" not in printed
    fitted = [method.name for method in all_methods().values() if method.fit and method.is_recommended]
    words = f"left out: {', '.join(fitted)} (needs train.parquet to be fitted on)"
    assert words in " ".join(printed.split())


def test_another_runs_folder_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    data = write_folder(tmp_path / "data")
    arguments = ["--data", str(data), "--out", str(tmp_path / "out"), "--methods", "rm_naive"]
    monkeypatch.setattr("sys.argv", ["jobs/simulate.py", *arguments])
    main("simulate")
    capsys.readouterr()
    before = (tmp_path / "out" / "results" / "report.html").read_bytes()
    assert "points: 11 there, 5 requested" in fail(monkeypatch, capsys, *arguments, "--points", "5")
    assert (tmp_path / "out" / "results" / "report.html").read_bytes() == before
