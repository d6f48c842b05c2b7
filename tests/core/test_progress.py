"""What is shown while work runs: lines in a pipe, one live display on a terminal, and what workers send."""

import json
import pickle
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ray_backfill.core import progress
from ray_backfill.core.progress import Mirror, State, detail, relay, say, step, task, track
from tests.terminal import on_terminal, screen

ROOT = Path(__file__).parents[2]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats after 0.2 s of silence, of all that runs."""
    monkeypatch.setattr(progress, "HEARTBEAT_S", 0.2)
    monkeypatch.setattr(progress, "VISIBLE_S", {"task": 0.0, "step": 0.0, "detail": 0.0})
    monkeypatch.setattr(progress.Lines, "pause_s", 0.02)


def lines_of(written: str) -> list[str]:
    """Its lines, with N for all seconds."""
    return re.sub(r"\d+(\.\d)? s\b", "N s", written).splitlines()


def test_each_stage_leaves_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with task("train old backbone", unit="steps") as shown:
        shown.expect(100)
        for epoch in (1, 2):
            list(track(range(50), "decode", "images"))
            shown.advance(50)
            shown.note(f"epoch {epoch} of 2, loss {epoch}.50")
    with task("embed", 12_345_678, "images", done=12_000_000) as shown:
        shown.advance(345_678)
    with task("write report"), step("draw figures"):
        pass
    said = capsys.readouterr()
    assert said.out == ""
    assert lines_of(said.err) == [
        "train old backbone: 100 steps in N s, epoch 2 of 2, loss 2.50",
        "embed: 12 M images in N s",
        "write report: done in N s",
    ]


def test_steps_leave_a_line_if_they_took_long_and_are_no_part_of_a_stage(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LONG_S", 0.1)
    with task("replay", 1, "methods") as shown:
        with step("full RM"), detail("compare", 100, "pairs"):
            time.sleep(0.15)
        shown.advance()
    with step("start Ray"):
        time.sleep(0.15)
    with step("read embeddings"):
        pass
    assert lines_of(capsys.readouterr().err) == ["replay: 1 method in N s", "start Ray: done in N s"]


@pytest.mark.usefixtures("hasty")
def test_a_heartbeat_breaks_the_silence(capsys: pytest.CaptureFixture[str]) -> None:
    with task("train", 3, "epochs") as shown:
        shown.advance()
        shown.note("loss 4.10")
        with detail("epoch 2", 46, "steps") as steps:
            steps.advance(12)
            time.sleep(0.7)
            say("t = 0.50: mAP@100 43.0 %")  # a line like any other: the silence begins anew
            time.sleep(0.1)
    beat, *more = lines_of(capsys.readouterr().err)
    assert beat == "train: 1 of 3 epochs after N s, loss 4.10; epoch 2: 12 of 46 steps after N s"
    assert more.index("t = 0.50: mAP@100 43.0 %") in (1, 2), "two or three heartbeats in 0.7 s"
    assert more[-1] == "train: 3 epochs in N s, loss 4.10"


def test_heartbeats_become_rare(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    lines = progress.Lines()
    began_s, told = now_s, []
    for _ in range(2 * 3600):
        now_s += 0.5
        lines.beat([progress.Task(State("task", "replay"))])
        if said := capsys.readouterr().err:
            told += [now_s - began_s] * said.count("\n")
    assert told[:6] == [10, 30, 70, 150, 310, 630]
    assert told[6:] == [1230, 1830, 2430, 3030], "every ten minutes"


def test_the_time_left_is_estimated_from_the_last_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    shown = progress.Task(State("task", "train"))
    now_s += 30
    assert shown.status() == "running for 30 s"
    shown.expect(1000, done=100)
    now_s += 35  # the first step waits for images, compilers and other workers
    shown.advance()
    assert shown.status() == "101 of 1,000 after 65 s"
    for _ in range(4):
        now_s += 0.5
        shown.advance()
    assert shown.status() == "105 of 1,000 after 67 s", "too few counts"
    now_s += 0.5
    shown.advance()
    assert shown.status() == "106 of 1,000 after 67 s, 7 min 27 s left", "half a second for a step, not five"
    for _ in range(600):
        now_s += 0.1
        shown.advance()
    assert shown.status() == "706 of 1,000 after 2 min 7 s, 29 s left", "it has become faster"
    now_s += 3600
    assert shown.status() == "706 of 1,000 after 62 min 7 s, 50 min 19 s left", "and now it stands still"


def test_counting_anew_starts_the_estimate_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    shown = progress.Task(State("task", "train", 100))
    for done in (10, 20, 30, 40, 50, 60):
        now_s += 1
        shown.take(State("task", "train", 100, "steps", done))
    assert shown.status() == "60 of 100 steps after 6 s, 4 s left"
    shown.take(State("task", "train", 100, "steps", 10))  # a worker died, and its epoch is repeated
    assert shown.status() == "10 of 100 steps after 6 s"


def test_what_fails_leaves_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), task("replay"), step("full RM"):
        raise KeyboardInterrupt
    for _ in track(range(3), "list"):
        break
    assert capsys.readouterr().err == ""
    with task("embed"):
        pass
    assert capsys.readouterr().err.startswith("embed: done in 0.0 s"), "what failed before is not in the way"


def test_threads_report_to_one_stage() -> None:
    with detail("compare", 40_000, "pairs") as shown:

        def compare() -> None:
            for _ in range(10_000):
                shown.advance()

        threads = [threading.Thread(target=compare) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert shown.done == 40_000


def test_a_stage_cannot_be_sent_to_a_worker_by_mistake() -> None:
    with detail("read") as shown, pytest.raises(TypeError, match="cannot be sent to another process"):
        pickle.dumps({"shown": shown})


@pytest.mark.usefixtures("hasty")
def test_what_runs_in_a_worker_is_shown_in_the_driver(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress.Relay, "pause_s", 0.01)
    monkeypatch.setattr(progress, "LONG_S", 0.1)
    sent: list[list[State]] = []
    with relay(sent.append), task("train", 2, "epochs") as there:
        with step("full RM", 60, "epochs") as inside:
            inside.advance(7)
            time.sleep(0.1)
        there.advance(2)
        there.note("loss 1.0")
    assert capsys.readouterr().err == "", "the worker shows nothing itself"
    assert [(s.kind, s.title, s.done) for s in pickle.loads(pickle.dumps(sent[-2]))] == [
        ("task", "train", 0), ("step", "full RM", 7),
    ]  # fmt: skip
    assert [(s.title, s.done, s.text) for s in sent[-1]] == [("train", 2, "loss 1.0")], "its last words"

    with task("fit maps") as own:
        mirror = Mirror(own)
        mirror.show(sent[0])
        time.sleep(0.25)
        mirror.show(sent[-1])
        mirror.close(is_finished=True)
    lines = lines_of(capsys.readouterr().err)
    assert lines[0] == "fit maps: 0 of 2 epochs after N s; full RM: 7 of 60 epochs after N s"
    assert lines[-1] == "fit maps: 2 epochs in N s, loss 1.0"


_PROGRAM = """
import sys, time
from ray_backfill.core.progress import say, task, step, track
with task("replay", 2, "methods") as shown:
    for method in ("old", "full RM"):
        with step(method):
            for _ in track(range(12), "compare", "pairs"):
                time.sleep(0.2)
        shown.advance()
        print("on stdout")
        print("on stderr", file=sys.stderr)
    say("t = 0.50")
with task("write report"):
    pass
"""


@pytest.mark.full
def test_a_pipe_holds_nothing_to_redraw() -> None:
    hasty = "import ray_backfill.core.progress as o; o.HEARTBEAT_S = 1; o.VISIBLE_S['detail'] = 0\n" + _PROGRAM
    done = subprocess.run([sys.executable, "-c", hasty], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not re.search(r"[\r\x1b]", done.stdout + done.stderr)
    assert done.stdout == "on stdout\n" * 2
    lines = lines_of(done.stderr)
    assert any(line.startswith("replay: 0 of 2 methods after N s; old: running for N s; compare: ") for line in lines)
    assert [line for line in lines if " after " not in line] == [
        "on stderr",
        "on stderr",
        "t = 0.50",
        "replay: 2 methods in N s",
        "write report: done in N s",
    ]


@pytest.mark.full
def test_a_terminal_ends_with_whole_lines_only() -> None:
    written = on_terminal(_PROGRAM, ROOT)
    drawn = [screen(part)[-3:] for part in written.split("\x1b[2K")]
    assert any("compare" in line and "━" in line and "of 12 pairs" in line for part in drawn for line in part)
    assert lines_of("\n".join(line for line in screen(written) if line)) == [
        "replay, old: done in N s",
        "on stdout",
        "on stderr",
        "replay, full RM: done in N s",
        "on stdout",
        "on stderr",
        "t = 0.50",
        "replay: 2 methods in N s",
        "write report: done in N s",
    ]
    assert written.rfind("\x1b[?25h") > written.rfind("\x1b[?25l") >= 0, "the cursor is there again"


def test_no_row_is_wider_than_the_terminal() -> None:
    title = "list /a/very/long/path/of/a/folder/with/images/that/are/far/away/from/here"
    program = f"import time\nfrom ray_backfill.core.progress import task\nwith task({title!r}, 3, 'files') as s:\n"
    written = on_terminal(program + "    s.note('x' * 90)\n    time.sleep(0.5)\n", ROOT, columns=60)
    rows = [line for part in written.split("\x1b[2K") for line in screen(part) if "━" in line or "… " in line]
    assert rows
    assert all(len(row) <= 60 for row in rows)


@pytest.mark.usefixtures("hasty")
def test_lines_as_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_BACKFILL_LOG", "json")
    with task("train", 3, "epochs") as shown:
        shown.advance()
        with detail("epoch 2", 46, "steps"):
            time.sleep(0.5)
            say("a node died\nof old age", "warning")
        shown.advance(2)
    beat, *more = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert beat["message"].startswith("train: 1 of 3 epochs after ")
    assert [beat[name] for name in ("level", "done", "total", "unit")] == ["info", 1, 3, "epochs"]
    (warning,) = (line for line in more if line["level"] == "warning")
    assert (warning["message"], "done" in warning) == ("a node died\nof old age", False)
    assert [more[-1][name] for name in ("level", "done", "total")] == ["info", 3, 3]
    assert more[-1]["message"].startswith("train: 3 epochs in ")


@pytest.mark.full
def test_a_terminal_gets_objects_alone_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_BACKFILL_LOG", "json")
    lines = on_terminal("from ray_backfill.core.progress import task\nwith task('embed', 2): pass", ROOT).splitlines()
    assert [json.loads(line)["total"] for line in lines] == [2]


def test_importing_it_costs_nothing() -> None:
    code = """
import sys, types
sys.modules["ray_backfill"] = package = types.ModuleType("ray_backfill")  # the library's own imports do not count
package.__path__ = ["ray_backfill"]
import ray_backfill.core.progress
print({"rich", "numpy", "ray"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "set()"


def test_a_forked_process_starts_anew() -> None:
    code = """
import os
from ray_backfill.core import progress
with progress.task("outer"):
    child = os.fork()
    if not child:
        with progress.task("inner"): pass
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, timeout=60
    )
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["inner", "outer"]
