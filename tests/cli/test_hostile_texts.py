"""Names that terminals obey and pages cannot hold: a run with them ends, and what it shows is harmless."""

import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

import ray_backfill as rb
from ray_backfill.core.progress import say
from tests.command import Command

CLEAR = "\x1b[2J\x1b]0;owned\x07"  # clears the screen, and renames the window
NAMES = [CLEAR, "a\0b", "c\x85d", "e\u202ef", "g\uffffh", "i\rj"]
HARMFUL = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
FOLDER = "mine\x1b[31m\u202e"
NOT_UTF8 = os.fsdecode(b"caf\xe9")  # Python reads the last byte as a lone surrogate


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    kind = np.arange(120) % len(NAMES)
    names = [NAMES[each] for each in kind]
    columns: dict[str, Any] = {
        "id": [f"{NAMES[each]}{n}" for n, each in enumerate(kind)],
        "old": rng.normal(size=(120, 4)) + kind[:, None],
        "new": rng.normal(size=(120, 6)) + 3 * kind[:, None],
        "label": names,
        "group": names,
        CLEAR: names,
    }
    return rb.write_folder(tmp_path / FOLDER, columns)


class Charts(HTMLParser):
    """The charts of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.found += tag == "svg"


def test_a_run_with_such_names_ends_and_shows_nothing_harmful(data: Path, tmp_path: Path, command: Command) -> None:
    out = tmp_path / f"out-{FOLDER}"
    words = ["--data", data, "--out", out, "--methods", "rm_naive", "--slices", "group", CLEAR]
    said = command("simulate", *words)
    assert said.code == 0
    assert not HARMFUL.search(said.out + said.err), "the terminal"
    page = (out / "results" / "report.html").read_text(encoding="utf-8")
    assert not HARMFUL.search(page), "the page"
    assert r"\x1b[2J" in page
    charts = Charts()
    charts.feed(page)
    assert charts.found > 2
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ElementTree.fromstring(svg)
    # The tables keep the names as they are.
    shown = {row.group for row in rb.read_results(out).slices}
    assert {r"\x1b[2J\x1b]0;owned\x07", r"a\x00b"} <= shown
    assert CLEAR in set(pd.read_parquet(out / "results" / "slices.parquet")["group"])


def test_in_memory_and_in_a_notebook(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = rb.simulate(data, methods="rm_naive")
    results.show()
    assert not HARMFUL.search(capsys.readouterr().out)
    assert not HARMFUL.search(results._repr_html_())
    results.plot()


def test_errors_and_lines_of_progress(data: Path, command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["doctor", str(data / CLEAR)], ["simulate", "--data", str(data), "--out", CLEAR, "--orders", CLEAR],
                  ["simulate", f"--{CLEAR}"], ["simulate", "--data", str(data), "--out", NOT_UTF8],
                  ["simulate", "--data", NOT_UTF8, "--out", "x"], ["doctor", NOT_UTF8], [CLEAR]):  # fmt: skip
        assert not HARMFUL.search(command(*words).error), words
    say(f"{CLEAR} is kept")
    assert capsys.readouterr().err == "\\x1b[2J\\x1b]0;owned\\x07 is kept\n"


def test_the_doctor_shows_them_and_takes_no_name_for_markup(data: Path, tmp_path: Path, command: Command) -> None:
    said = command("doctor", data.rename(tmp_path / f"[red]{FOLDER}"))
    assert not HARMFUL.search(said.out + said.err)
    assert "[red]mine" in said.out.replace("\n", "")
