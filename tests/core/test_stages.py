"""The manifest decides whether a stage is continued, reused or refused."""

from pathlib import Path

import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.core.runkey import RunKey
from ray_backfill.core.stages import begin_stage, finish_stage, is_finished, read_json, replaced_whole, settle


def test_a_stage_is_begun_continued_and_then_reused(tmp_path: Path) -> None:
    folder, settings = tmp_path / "old", {"epochs": 3, "sizes": (1, 2)}
    assert not begin_stage(folder, RunKey("backbone", settings))
    assert not is_finished(folder)
    assert not begin_stage(folder, RunKey("backbone", settings))  # was interrupted: continue
    finish_stage(folder, {"images": 7})
    assert is_finished(folder)
    assert begin_stage(folder, RunKey("backbone", settings))
    assert read_json(folder / "manifest.json")["images"] == 7


def test_other_settings_are_refused_and_the_difference_named(tmp_path: Path) -> None:
    begin_stage(tmp_path, RunKey("backbone", {"training": {"epochs": 3, "lr": 0.1}}))
    with pytest.raises(InputError, match=r"other settings \(training.epochs: 3 there, 4 requested\); give --overwrite"):
        begin_stage(tmp_path, RunKey("backbone", {"training": {"epochs": 4, "lr": 0.1}}))
    with pytest.raises(InputError, match="stage: 'backbone' there, 'heads' requested"):
        begin_stage(tmp_path, RunKey("heads", {"training": {"epochs": 3, "lr": 0.1}}))


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="holds other files"):
        begin_stage(tmp_path, RunKey("backbone"))
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"stage": ')
    with pytest.raises(InputError, match=r"manifest\.json cannot be read as JSON"):
        begin_stage(tmp_path, RunKey("backbone"))


def test_a_stage_of_other_settings_is_overwritten_on_request_only(tmp_path: Path) -> None:
    begin_stage(tmp_path, RunKey("map", {"lr": 1}))
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "part-0").write_text("old")
    (tmp_path / "network").write_text("old")
    finish_stage(tmp_path, {"flops": 7})
    assert begin_stage(tmp_path, RunKey("map", {"lr": 1}), overwrite=True), "the same settings are kept"
    assert not begin_stage(tmp_path, RunKey("map", {"lr": 2}), overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".key.json", "manifest.json"]
    assert read_json(tmp_path / "manifest.json") == {"stage": "map", "settings": {"lr": 2}, "finished": False}


def test_a_crash_while_a_stage_is_cleared_leaves_a_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin_stage(tmp_path, RunKey("map", {"lr": 1}))
    (tmp_path / "network").write_text("old")
    finish_stage(tmp_path)

    def die(path: Path, missing_ok: bool = False) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", die)
        with pytest.raises(KeyboardInterrupt):
            begin_stage(tmp_path, RunKey("map", {"lr": 2}), overwrite=True)
    assert not is_finished(tmp_path)
    assert not begin_stage(tmp_path, RunKey("map", {"lr": 2}), overwrite=True)
    assert not (tmp_path / "network").exists()


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "results"

    def replace_it(with_error: bool, text: str) -> None:
        with replaced_whole(folder, ("table",)) as new:
            (new / "table").write_text(text)
            if with_error:
                raise InputError("disk full")

    with pytest.raises(InputError):
        replace_it(True, "never")
    assert list(tmp_path.iterdir()) == []
    replace_it(False, "old")
    (folder / "notes").write_text("mine")
    with pytest.raises(InputError):
        replace_it(True, "never")
    assert (folder / "table").read_text() == "old"
    replace_it(False, "new")
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"table": "new", "notes": "mine"}
    folder.rename(tmp_path / ".results.old")  # killed before the new folder, which is complete, took its place
    (tmp_path / ".results.new").mkdir()
    (tmp_path / ".results.new" / "table").write_text("newer")
    settle(folder, ("table",))
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"table": "newer", "notes": "mine"}
    assert list(tmp_path.iterdir()) == [folder]
