"""The queries that lose and gain most, in the terminal and on the page: made from tables alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from ray_backfill.compare.analyses.shown import ShownQuery, told
from ray_backfill.compare.report import html, read_results
from ray_backfill.compare.report.terminal import draw_table
from ray_backfill.core.schema import frame, write_table
from tests.compare.report.folder import printed, write_results
from tests.compare.report.page import Page

IMAGE = "data:image/jpeg;base64,/9j/4AAQ"
WORST = ShownQuery(
    "worst", "rm", "score", "raw", "mAP", "q<b>1", "red \u201cshoes\u201d", IMAGE, 1.0, 0.9, 0.1, 0.3, "", 3, "lost",
    0.35, "i7", "the right one", "", "backward", "i9", "<script>x</script>", "javascript:alert(1)", "forward",
)  # fmt: skip
BEST = replace(
    WORST, kind="best", query="q\x1b[2J2", old=0.0, auc=0.8, at_start="won", change="", t=float("nan"), changes=0,
    before="", before_text="", before_system="", first="", first_text="", first_image="", first_system="",
)  # fmt: skip


def folder_of(tmp_path: Path, *shown: ShownQuery) -> Path:
    folder = write_results(tmp_path, first_results={"lost": 12, "won": 31})
    write_table(folder / "shown.parquet", frame(ShownQuery, shown))
    return folder


def test_the_page_tells_what_was_first_before_and_after(tmp_path: Path) -> None:
    results = read_results(folder_of(tmp_path, WORST, BEST))
    page = html.render(results)
    rows = {row[1]: row[2:] for row in Page(page).rows if row[-1:] and row[0].startswith("q") and len(row) == 8}
    assert rows["100.0"] == [
        "90.0", "10.0", "30.0", "lost at 35 % of the backfill, of 3 changes in all",
        "i7the right onenot backfilled yet", "i9<script>x</script>backfilled",
    ]  # fmt: skip
    assert rows["0.0"][3:] == ["won on the day of the switch", "–", "–"]
    assert page.index("Queries that lose most") < page.index("Queries that gain most")
    example, section = page.split("<nav")
    assert "A query that loses a right first result, at 35\u00a0% of the backfill: mAP 100.0 in the old" in example
    assert "i9" not in example, "texts and images in place of ids"
    assert [part.count('<img class="thumb"') for part in (example, section)] == [1, 2], (
        "only images that a run wrote are shown"
    )
    assert f'src="{IMAGE}"' in page
    assert "javascript:alert" not in page
    assert "<script>x" not in page
    assert "q<b>1" not in page
    assert "q&lt;b&gt;1" in page
    assert "img-src data:;" in page
    assert (
        "Full RM, score order: between the day of the switch and the end, 12 queries lose a right first result, "
        "31 win one." in page
    )


def test_the_terminal_names_the_worst_queries(tmp_path: Path) -> None:
    other = replace(WORST, query="q\x1b[2J" + "x" * 60, old=0.5)
    results = read_results(folder_of(tmp_path, WORST, other, BEST))
    text = printed(lambda console: draw_table(results, console))
    said = " ".join(text.split())
    assert "12 queries lose a right first result, 31 win one." in said
    assert "Queries that lose most: q<b>1 (100.0 \u2192 30.0 on average), q\\x1b[2Jxxx" in said
    assert "\x1b[2J" not in text


@pytest.mark.parametrize("other", [{"method": "rm_naive"}, {"order": "random"}, {"merge": "csls"}])
def test_the_terminal_is_silent_about_another_row_than_the_headline(tmp_path: Path, other: dict[str, str]) -> None:
    assert told(read_results(folder_of(tmp_path / "same", WORST)))
    assert told(read_results(folder_of(tmp_path / "other", replace(WORST, **other)))) == ()  # type: ignore[arg-type]


def test_results_without_them_say_nothing(tmp_path: Path) -> None:
    results = read_results(write_results(tmp_path))
    assert told(results) == ()
    assert "What happened to whom?" not in html.render(results)
    one = read_results(folder_of(tmp_path / "one", WORST))
    one = replace(one, manifest=replace(one.manifest, first_results={"lost": 1, "won": 0}))
    assert "1 query loses a right first result" in told(one)[0]
