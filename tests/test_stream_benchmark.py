"""The benchmarks of the stream and of the stages still run, and count what they say."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import decoding, stages, stream, stream_rates, timing
from benchmarks.processes import Family, Sample, watch
from benchmarks.stream_report import _rates, _tenths, draw

pytestmark = pytest.mark.full

# A process that starts another one in a session of its own, and both wait.
_TWO = (
    "import subprocess, sys, time; held = bytearray(30_000_000);"
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True); time.sleep(60)"
)


def samples(done: list[int], memory: list[float]) -> list[Sample]:
    """One a second."""
    return [Sample(float(i), {"actors": m}, {}, n) for i, (n, m) in enumerate(zip(done, memory, strict=True))]


def test_a_family_is_found_measured_and_killed_as_a_whole(tmp_path: Path) -> None:
    family = Family([sys.executable, "-c", _TWO], tmp_path / "log")
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        until = time.perf_counter() + 20
        while len(family.members()) < 2 and time.perf_counter() < until:
            time.sleep(0.05)
        while family.sample(0).pss_mb.get("driver", 0.0) < 30 and time.perf_counter() < until:
            time.sleep(0.05)
        sample = family.sample(7)
        assert sample.done == 7
        assert sample.pss_mb["driver"] > 30
        assert 0 < sample.pss_mb["Ray"] < 30
        assert watch(family, 0.05, lambda: 5, lambda done: done >= 5) == []
        assert family.kill() == 2
        assert family.members() == []
        assert stranger.poll() is None, "who bears no mark is left alone"
    finally:
        family.kill()
        stranger.kill()
        stranger.wait()


def test_the_steady_rate_and_memory_leave_out_start_and_end() -> None:
    parts = [(10.0, 100), (11.0, 100), (12.0, 100), (14.0, 100), (15.0, 40)]
    assert stream_rates.steady(parts, actors=2) == pytest.approx(240 / 4), "from 11 s on"
    assert stream_rates.steady(parts, actors=1) == pytest.approx(340 / 5)
    done = [0, 0, 0, 100, 200, 200, 400, 400, 400]
    found = samples(done, [1.0, 500.0, 90.0, 50.0, 51.0, 52.0, 60.0, 9.0, 1.0])
    assert _tenths(found) == (50.0, 52.0)


def test_stores_are_compared_byte_for_byte(tmp_path: Path) -> None:
    for store in ("one", "other"):
        for name, text in (("gallery.parquet/part-0.parquet", "abc"), ("gallery.parquet/part-1.parquet", "de")):
            (tmp_path / store / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / store / name).write_text(text)
    one, other = tmp_path / "one", tmp_path / "other"
    assert stream.differences(one, other) == (2, 5, [])
    (other / "gallery.parquet/part-1.parquet").write_text("dE")
    (other / "gallery.parquet/part-2.parquet").write_text("f")
    names = ["gallery.parquet/part-1.parquet", "gallery.parquet/part-2.parquet"]
    assert stream.differences(one, other) == (2, 5, names)


def test_the_figure_of_the_stream(tmp_path: Path) -> None:
    found = samples([100 * i for i in range(30)], [float(i) for i in range(30)])
    parts = [(0.5 * i, 50) for i in range(4, 60)]
    middle, rate = _rates(parts)
    assert rate == pytest.approx([100.0] * len(rate))
    assert middle == sorted(middle)
    draw(
        stream.parse([]),
        stream_rates.Streamed(found, parts),
        stream_rates.Bare("2 x 1", 120.0, 1.0, 110.0, 1.0),
        tmp_path / "stream.png",
    )
    assert (tmp_path / "stream.png").stat().st_size > 10_000


def test_the_table_of_stages(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(timing, "AT_LEAST_S", 0.0)
    monkeypatch.setattr(decoding, "SIZES", ((500, 375),))
    monkeypatch.setattr(stages, "large_stages", list)
    found = stages.run(stages.parse(["--scale", "0.005", "--images", "2"]))
    assert [stage.name for stage in found] == ["decode"] * 2 + ["embed"] * 2 + ["write"] * 2 + ["index"] * 2 + [
        "replay"
    ]
    assert all(stage.seconds > 0 for stage in found)
    printed = capsys.readouterr().out
    assert "| 500 x 375 |" in printed
    assert printed.count(" | inf |") == len(decoding.WAYS), "no draft is at least 1.5 times 224, none is used"
    stages.print_table([stages.Stage("decode", "a picture", "nothing", 0.0036)], price=0.5)
    # 3,600 s a million are an hour.
    row = "| decode | a picture | 278 | nothing | 3,600.0 | 1.000 | 0.5000 |"
    assert row in capsys.readouterr().out
