"""Names of stages, and lines as JSON."""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ray_backfill.core import job
from ray_backfill.core.job import Job, TrainedEpoch, as_line, job_name, report, reported_to
from ray_backfill.core.streams import said_if_it_dies


def test_a_stage_is_named_after_the_recipe_or_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "_job", Job(data="/data/my shop: 2024/"))
    assert job_name("fit", "rm") == "my-shop-2024-fit-rm"
    monkeypatch.setattr(job, "_job", Job(data="/data/my shop: 2024/", recipe="landmarks"))
    assert job_name("train", "old") == "landmarks-train-old"
    monkeypatch.setattr(job, "_job", Job())
    assert job_name("embed") == "embed"


def test_a_line_is_an_object_if_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_BACKFILL_LOG", raising=False)
    assert as_line("error: no Ray", "warning", done=1) == "error: no Ray"
    monkeypatch.setenv("RAY_BACKFILL_LOG", "json")
    monkeypatch.setattr(job, "_job", Job(command="fit"))
    said = json.loads(as_line("error: no \x1b[1m\nRay – 3 %"))
    assert timedelta(0) <= datetime.now(UTC) - datetime.fromisoformat(said.pop("time")) < timedelta(seconds=10)
    assert said == {"level": "error", "command": "fit", "message": "no \x1b[1m\nRay – 3 %"}
    assert "\n" not in as_line("a\nb")
    assert json.loads(as_line("a", "warning", done=1, total=None)).items() > {"level": "warning", "total": None}.items()


def test_the_last_line_of_a_process_that_dies_has_the_time_of_its_death() -> None:
    code = f"""
import os, time
from {said_if_it_dies.__module__} import said_if_it_dies
with said_if_it_dies("error: it died"):
    time.sleep(1)
    print(time.time(), flush=True)
    os._exit(1)"""
    environment = {"RAY_BACKFILL_LOG": "json", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    said = json.loads(done.stderr)
    assert said["level"] == "error"
    assert said["message"] == "it died"
    assert datetime.fromisoformat(said["time"]).timestamp() > float(done.stdout) - 0.1


def test_epochs_go_to_the_innermost_listener() -> None:
    heard: list[int] = []

    def say(number: int) -> None:
        report(TrainedEpoch(Path("maps/rm"), number, {"loss": 1 / number}))

    say(1)
    with reported_to(lambda epoch: heard.append(epoch.number)):
        say(2)
        with reported_to(lambda epoch: None):
            say(3)
        say(4)
    say(5)
    assert heard == [2, 4]
