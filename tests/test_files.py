"""The manifest decides whether a stage is continued, reused or refused."""

from pathlib import Path

import pytest

from ray_backfill.errors import InputError
from ray_backfill.files import begin_stage, finish_stage, is_finished, read_json


def test_a_stage_is_begun_continued_and_then_reused(tmp_path: Path) -> None:
    folder, settings = tmp_path / "old", {"epochs": 3, "sizes": (1, 2)}
    assert not begin_stage(folder, "backbone", settings)
    assert not is_finished(folder)
    assert not begin_stage(folder, "backbone", settings)  # was interrupted: continue
    finish_stage(folder, {"images": 7})
    assert is_finished(folder)
    assert begin_stage(folder, "backbone", settings)
    assert read_json(folder / "manifest.json")["images"] == 7


def test_other_settings_are_refused_and_the_difference_named(tmp_path: Path) -> None:
    begin_stage(tmp_path, "backbone", {"training": {"epochs": 3, "lr": 0.1}})
    with pytest.raises(InputError, match=r"other settings \(training.epochs: 3 there, 4 requested\); delete it or"):
        begin_stage(tmp_path, "backbone", {"training": {"epochs": 4, "lr": 0.1}})
    with pytest.raises(InputError, match="stage: 'backbone' there, 'heads' requested"):
        begin_stage(tmp_path, "heads", {"training": {"epochs": 3, "lr": 0.1}})


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="holds other files"):
        begin_stage(tmp_path, "backbone", {})
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"stage": ')
    with pytest.raises(InputError, match=r"manifest\.json cannot be read as JSON"):
        begin_stage(tmp_path, "backbone", {})
