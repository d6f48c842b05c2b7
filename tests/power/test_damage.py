"""Damaged files: the same command names them in one line, makes them again, and keeps all others."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import ray_backfill as rb
from ray_backfill.cli.main import _main
from ray_backfill.core.errors import InputError
from ray_backfill.core.runkey import RunKey
from ray_backfill.core.stages import begin_stage, finish_stage, is_finished, is_whole, read_json, write_json
from ray_backfill.drill.journal import Applied, CheckpointMeasured, Journal, JournalEntry, Started
from ray_backfill.drill.shard import measured_moments
from ray_backfill.drill.traffic import drop_events, read_events
from ray_backfill.encode.items import ItemSettings
from tests.power import _models
from tests.power.disk import Image, read_image, write_image
from tests.power.test_power_cuts import SIMULATE, comparable, prepare


def empty(file: Path) -> None:
    file.write_bytes(b"")


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def zeroed_at_the_end(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))


def gone(file: Path) -> None:
    file.unlink()


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Image]:
    """A folder of inputs and a finished run, and what the run holds."""
    root = tmp_path_factory.mktemp("simulated")
    prepare(root)
    _main(words(root))
    return root, read_image(root / "work")


@pytest.fixture
def root(simulated: tuple[Path, Image]) -> Path:
    """The folder, whose run is as it was."""
    root, image = simulated
    restore(root, image)
    return root


def restore(root: Path, image: Image) -> None:
    shutil.rmtree(root / "work")
    (root / "work").mkdir()
    write_image(root / "work", image)


def words(root: Path, *more: str) -> list[str]:
    return [*SIMULATE.format(root=root, out=root / "work" / "run").split(), *more]


@pytest.mark.parametrize(
    ("more", "damages"),
    [
        ((), [empty, cut_short, zeroed_at_the_end, empty]),
        (("ridge_gallery",), [cut_short, zeroed_at_the_end, empty, cut_short]),
        (("--overwrite",), [zeroed_at_the_end, empty, cut_short, zeroed_at_the_end]),
    ],
    ids=["same command", "one method more", "overwrite"],
)
def test_a_simulation(
    simulated: tuple[Path, Image], more: tuple[str, ...], damages: list[Callable[[Path], None]]
) -> None:
    """As after the power cut of an earlier version, which synced nothing: then every further command ended with 2."""
    root, intact = simulated
    restore(root, intact)
    _main(words(root, *more))
    expected = comparable(read_image(root / "work"))
    patterns = ("results/*.parquet", "results/manifest.json", "maps/*/[!.]*", "results/*.png")
    for pattern, damage in zip(patterns, damages, strict=True):
        restore(root, intact)
        damaged = list((root / "work" / "run").glob(pattern))
        assert damaged
        for file in damaged:
            damage(file)
        _main(words(root, *more))
        assert comparable(read_image(root / "work")) == expected, f"{pattern} {damage.__name__}"
        assert is_whole(root / "work" / "run" / "results" / "curves.png")


def test_methods_stay_in_results_whose_manifest_is_damaged(root: Path) -> None:
    results = root / "work" / "run" / "results"
    empty(results / "manifest.json")
    _main([word for word in words(root) if word != "rm_naive"])
    assert set(read_json(results / "manifest.json")["settings"]["evaluation"]["methods"]) >= {"rm_naive"}


@pytest.mark.parametrize("damage", [empty, cut_short, gone], ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("is_finished_before", [True, False])
@pytest.mark.parametrize("manifest", ["whole", "damaged"])
def test_parts_of_embeddings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None], is_finished_before: bool,
    manifest: str,
) -> None:  # fmt: skip
    """Only the damaged parts are embedded again: the others were paid for."""
    prepare(tmp_path)
    asked: list[str] = []

    def new(texts: list[str]) -> object:
        asked.extend(texts)
        return _models.new(texts)

    def embed() -> None:
        items = ItemSettings(draw_queries=6, draw_train=12, part_rows=8)
        rb.embed(_models.old, new, out=tmp_path / "run", texts=tmp_path / "texts.jsonl", items=items)

    embed()
    folder = tmp_path / "run" / "embeddings"
    before = {part: (part.read_bytes(), part.stat().st_mtime_ns) for part in sorted(folder.glob("*/part-*.parquet"))}
    chosen = sorted(before)[::3]
    for part in chosen:
        damage(part)
    if not is_finished_before:
        write_json(folder / "manifest.json", read_json(folder / "manifest.json") | {"finished": False})
    if manifest == "damaged":
        empty(folder / "manifest.json")
    asked.clear()
    capsys.readouterr()
    embed()
    for part, (data, written) in before.items():
        assert part.read_bytes() == data
        assert (part.stat().st_mtime_ns == written) == (part not in chosen)
    assert is_finished(folder)
    assert len(asked) <= 10 + 8 * len(chosen), "probes, and the items of these parts"
    said = [line for line in capsys.readouterr().err.splitlines() if "made again because damaged or missing" in line]
    assert len(said) == (damage is not gone or (is_finished_before and manifest == "whole")), said


def test_a_stage_is_known_without_its_manifest(tmp_path: Path) -> None:
    key = RunKey("map", {"lr": 1})
    begin_stage(tmp_path, key)
    (tmp_path / "kept").write_text("kept")
    finish_stage(tmp_path)
    empty(tmp_path / "manifest.json")
    assert not is_finished(tmp_path)
    with pytest.raises(InputError, match="other settings"):
        begin_stage(tmp_path, RunKey("map", {"lr": 2}))
    assert not begin_stage(tmp_path, key)
    assert (tmp_path / "kept").exists()
    empty(tmp_path / "manifest.json")
    empty(tmp_path / ".key.json")
    with pytest.raises(InputError, match=r"cannot be read as JSON.*--overwrite") as error:
        begin_stage(tmp_path, key)
    assert "\n" not in str(error.value)
    assert not begin_stage(tmp_path, key, overwrite=True)
    assert not (tmp_path / "kept").exists()


def test_a_whole_file_of_another_size_is_not_the_one_that_was_finished(tmp_path: Path) -> None:
    begin_stage(tmp_path, RunKey("map"))
    (tmp_path / "table").write_text("made")
    finish_stage(tmp_path)
    assert begin_stage(tmp_path, RunKey("map"))
    (tmp_path / "table").write_text("of somebody else")
    assert not is_finished(tmp_path)
    assert not begin_stage(tmp_path, RunKey("map"))
    assert not (tmp_path / "table").exists()


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    begin_stage(tmp_path, RunKey("map"))
    (tmp_path / "table.parquet").write_bytes(b"PAR1 and so on PAR1")
    finish_stage(tmp_path)
    (tmp_path / "notes.json").write_text("")
    assert begin_stage(tmp_path, RunKey("map"))
    assert (tmp_path / "notes.json").exists()


def test_a_journal_is_cut_before_answers_that_are_lost(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    entries: list[JournalEntry] = [Started(0.0, 0, 0.0)]
    for moment in range(3):
        entries.append(Applied(1.0 + moment, moment + 1, "backfill", 5))
        entries.append(CheckpointMeasured(1.5 + moment, moment, 1.2 + moment, {"CMC@1": 0.5}, 5, 5, 10, 10))
    for entry in entries:
        journal.add(entry)
    whole = journal.path.read_bytes()
    assert journal.mend({0, 1, 2}) == float("inf")
    assert journal.path.read_bytes() == whole, "nothing is written where nothing is lost"
    assert journal.mend({0, 2}) == 2.0
    assert journal.entries() == entries[:4]
    journal.path.write_bytes(whole[:-30] + bytes(30))  # the last sector never arrived
    assert journal.entries() == entries[:-1]
    journal.path.write_bytes(b"")
    assert journal.mend(set()) == 0.0


def test_events_after_the_journal_and_damaged_ones_do_not_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from ray_backfill.core.schema import arrow_table
    from ray_backfill.data.write import write_parquet
    from ray_backfill.drill.tables import EventRow
    from ray_backfill.drill.traffic import Sender

    rows = [EventRow(float(second), 1.0, 1, True, False, 0, 0, 0, 0, 5, 5) for second in range(9)]
    for number in range(3):
        write_parquet(Sender(0, 0).file(tmp_path, number), arrow_table(EventRow, rows[3 * number : 3 * number + 3]))
    drop_events(tmp_path, 4.0)
    assert read_events(tmp_path).scheduled_s.tolist() == [0, 1, 2, 3]
    empty(Sender(0, 0).file(tmp_path, 0))
    drop_events(tmp_path, float("inf"))
    assert read_events(tmp_path).scheduled_s.tolist() == [3]
    assert "the requests in them do not count" in capsys.readouterr().err
    assert measured_moments(tmp_path) == set()


def test_the_newest_checkpoint_that_is_whole(tmp_path: Path) -> None:
    from ray_backfill.recipes.run.backbones import whole_checkpoint

    assert whole_checkpoint(tmp_path, None) is None
    for name in ("checkpoint_1", "checkpoint_2", "checkpoint_3"):
        begin_stage(tmp_path / name, RunKey("checkpoint"))
        (tmp_path / name / "objective.pt").write_bytes(b"weights")
        finish_stage(tmp_path / name)
    assert whole_checkpoint(tmp_path, "checkpoint_2") == tmp_path / "checkpoint_2"
    empty(tmp_path / "checkpoint_3" / "objective.pt")
    assert whole_checkpoint(tmp_path, "checkpoint_3") == tmp_path / "checkpoint_2"
    gone(tmp_path / "checkpoint_2" / "objective.pt")
    assert whole_checkpoint(tmp_path, None) == tmp_path / "checkpoint_1"
