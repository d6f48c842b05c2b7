"""Whatever is wrong: one line that says what and what to do, exit code 2, and nothing half-written."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from ray_backfill.cli.main import main
from ray_backfill.methods import all_methods
from ray_backfill.store import vector_column, write_parquet


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
    lines = [line for line in said if not line.startswith("start Ray: done in ")]
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--recipe", "imagenet22k"),
            "unknown recipe 'imagenet22k'; known: ",
        ),
        (("--recipe", "omniglot"), "this recipe needs --data-root: the folder with omniglot_small1.zip"),
        (("--recipe", "omniglot", "--data-root", "/nowhere"), "omniglot_small1.zip"),
        *(
            (("--recipe", name, "--data-root", "/nowhere"), f"{name}: there is no ")
            for name in ("imagenet", "cifar100", "places365", "market1501", "vggface2", "gldv2")
        ),
        (("--methods", "old", "magic"), "unknown method 'magic'; known: old, new"),
        (("--metrics", "accuracy"), "unknown metric 'accuracy'; known: mAP"),
        (("--old.backbone.arch", "vgg"), "unknown architecture 'vgg'; known: convnet"),
        (("--protocol.old-share", "0"), "--protocol.old-share must be greater than 0 and at most 1"),
        (("--protocol.old-share", "0.001"), "leave 0 for the old model"),
        (("--order-seed", "-1"), "must not be negative"),
        (("--distance", "inner_product"), "or only --methods without heads"),
        (("--orders", "alphabetical"), "unknown order 'alphabetical'; known: random"),
        (("--distance", "hamming"), "unknown distance 'hamming'; known: cosine"),
        (("--points", "1"), "--points must be at least 2"),
        (("--seed", "-1"), "--seed must not be negative"),
        pytest.param(
            ("--workers.number", "6"),
            "6 x 1 CPUs (--workers) and 0 for Ray's own tasks were requested, but the Ray",
            marks=pytest.mark.cluster,
        ),
        pytest.param(
            ("--actors.cpus", "2"),
            "2 x 2 CPUs (--actors) and 1 for Ray's own tasks were requested, but the Ray",
            marks=pytest.mark.cluster,
        ),
        (("--distance", "l2"), "for the cosine distance but compared by l2; give both"),
        (("--orders", "given"), "needs a column 'order_score', which images do not have"),
        (
            ("--old.backbone.arch", "vit_b_32", "--images.image-size", "16"),
            "vit_b_32 does not accept images of 16 x 16",
        ),
    ],
)
def test_wrong_names_and_settings_fail_before_anything_is_computed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    arguments: tuple[str, ...], message: str,
) -> None:  # fmt: skip
    assert message in fail(monkeypatch, capsys, "--out", str(tmp_path / "out"), *arguments)
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--workers.number", "0"), "--workers.number must be greater than 0, got 0"),
        (("--heads.loss.tau", "0"), "--heads.loss.tau must be greater than 0, got 0"),
        (("--heads.loss.distance", "hamming"), "--heads.loss.distance must be cosine or l2, got 'hamming'"),
        (("--poinst", "5"), "--points"),
        (("--points", "many"), "many"),
    ],
)
def test_the_command_line_itself_explains_wrong_values(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.setattr("sys.argv", ["jobs/simulate.py", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main("simulate")
    assert stopped.value.code == 2
    shown = capsys.readouterr()
    assert message in " ".join((shown.err + shown.out).replace("│", " ").split())


def test_wrong_folders_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "out"

    def error(data: Path, *arguments: str) -> str:
        line = fail(monkeypatch, capsys, "--data", str(data), "--out", str(out), *arguments)
        assert not out.exists()
        return line

    data = write_folder(tmp_path / "data")
    assert "/nowhere is not a folder" in error(Path("/nowhere"))
    assert "'given' needs the gallery column 'order_score'" in error(data, "--orders", "given")
    assert "unknown distance 'hamming'" in error(data, "--distance", "hamming")
    zero = np.ones((20, 4), np.float32)
    zero[7] = 0
    assert "gallery.parquet, column 'old': zero vector in row 7" in error(
        write_folder(tmp_path / "zero", zero), "--methods", "rm_naive"
    )
    zero[7] = np.nan
    assert "NaN or infinite values in row 7" in error(write_folder(tmp_path / "nan", zero))
    (tmp_path / "file").write_text("not a folder")
    assert "is a file; give a folder" in fail(monkeypatch, capsys, "--data", str(data), "--out", str(tmp_path / "file"))


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


def test_heads_need_a_train_split(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    data = write_folder(tmp_path / "data")
    arguments = ("--data", str(data), "--out", str(tmp_path / "out"), "--methods", "rm")
    line = fail(monkeypatch, capsys, *arguments, command="fit")
    assert line == "error: rm needs train.parquet to be fitted on"


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
