"""What the table of ``tests/bad_input.py`` lacks: small clusters, methods without data, folders of other runs."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from ray_backfill.data.write import vector_column, write_parquet
from ray_backfill.learn.methods import all_methods
from tests.command import Command


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


@pytest.mark.cluster
@pytest.mark.parametrize("name", ["simulate", "fit"])
def test_a_cluster_that_is_too_small_is_said_before_anything_is_computed(
    tmp_path: Path, command: Command, name: str
) -> None:
    ended = command(name, "--out", tmp_path / "out", "--workers.number", 600, "--actors.cpus", 200)
    # What was needed to find the error out is a stage with its own line.
    (line,) = [line for line in ended.err.strip().splitlines() if not line.startswith("start Ray: ")]
    assert ended.code == 2
    has = r"CPUs, but the Ray cluster has \d+; lower --"
    assert re.fullmatch(
        rf"error: training workers \(600 x 1 CPUs\) need 600 {has}workers.number or --workers.cpus; "
        rf"embedding actors \(1 x 200 CPUs\) need 200 {has}actors.number or --actors.cpus",
        line,
    )
    assert not list(tmp_path.rglob("*.safetensors"))


def test_methods_that_cannot_be_trained_are_left_out_with_the_reason(tmp_path: Path, command: Command) -> None:
    printed = command("simulate", "--data", write_folder(tmp_path / "data"), "--out", tmp_path / "out").out
    assert "RM naive" in printed
    assert "full RM" not in printed
    fitted = [method.name for method in all_methods().values() if method.fit and method.is_recommended]
    words = f"left out: {', '.join(fitted)} (needs train.parquet to be fitted on)"
    assert words in " ".join(printed.split())


def test_another_runs_folder_is_refused(tmp_path: Path, command: Command) -> None:
    data, page = write_folder(tmp_path / "data"), tmp_path / "out" / "results" / "report.html"
    words = ["simulate", "--data", data, "--out", tmp_path / "out", "--methods", "rm_naive"]
    assert command(*words).code == 0
    before = page.read_bytes()
    assert "points: 11 there, 5 requested" in command(*words, "--points", 5).error
    assert page.read_bytes() == before
