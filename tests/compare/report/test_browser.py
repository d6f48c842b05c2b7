"""The pages in a real browser: nothing scrolls sideways, the script works under the page's policy, print is short.

Skipped where there is no Chromium. CI does not fetch one: with its libraries it is larger than everything else.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ray_backfill.compare.report import write_report
from ray_backfill.drill.report import write_live_report
from tests.compare.report.folder import many_methods, write_costs, write_results
from tests.drill.report.folder import write_drill

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page
api = pytest.importorskip("playwright.sync_api")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.drawn,
    pytest.mark.full,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH"),
]

DESKTOP, PHONE = 1280, 390


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    with api.sync_playwright() as playwright:
        # Containers have no user namespaces for Chromium's sandbox; the pages are our own.
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with 15 methods, of which 8 are shown at first, two orders and two metrics."""
    folder = write_costs(write_results(tmp_path_factory.mktemp("run"), many_methods(12), orders=("score", "random")))
    write_report(folder)
    return folder / "report.html"


@pytest.fixture(scope="module")
def drill(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_drill(tmp_path_factory.mktemp("drill"), incidents=[(42.0, "shard restarted", "")], rollback_at=7)
    write_live_report(folder)
    return folder / "report.html"


def opened(browser: "Browser", path: Path, width: int = DESKTOP, script: bool = True, dark: bool = False) -> "Page":
    """The page in a window; complaints of the browser, such as those about the policy, fail the test."""
    scheme = "dark" if dark else "light"
    context = browser.new_context(
        viewport={"width": width, "height": 900}, java_script_enabled=script, color_scheme=scheme
    )
    page = context.new_page()
    page.on("console", lambda message: pytest.fail(message.text))
    page.on("pageerror", lambda error: pytest.fail(str(error)))
    page.goto(path.as_uri())
    return page


def drawn(lines: "Locator") -> int:
    """How many of them are drawn. A level line has no height, which Playwright takes for invisible."""
    return int(lines.evaluate_all("(all) => all.filter((line) => getComputedStyle(line).display !== 'none').length"))


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
@pytest.mark.parametrize("what", ["run", "drill"])
def test_no_page_scrolls_sideways(browser: "Browser", what: str, width: int, request: pytest.FixtureRequest) -> None:
    page = opened(browser, request.getfixturevalue(what), width)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_lines_and_intervals_are_switched_on_and_off(browser: "Browser", run: Path) -> None:
    page = opened(browser, run)
    chart = page.locator(".chart").first
    line = chart.locator(".plot .line[data-key='rm']")
    assert line.is_visible()
    lines = chart.locator(".plot .line")
    assert lines.count() == 17
    assert drawn(lines) == 2 + 8
    box = chart.get_by_role("checkbox", name="full RM", exact=True)
    box.focus()
    page.keyboard.press("Space")
    assert not line.is_visible()
    assert not chart.locator(".plot .band[data-key='rm']").is_visible()
    box.check()
    assert line.is_visible()
    page.get_by_label("intervals").first.uncheck()
    assert drawn(chart.locator(".plot .band")) == 0
    page.get_by_role("button", name="all lines").first.click()
    assert drawn(lines) == 17


def test_metric_and_order_are_chosen(browser: "Browser", run: Path) -> None:
    page = opened(browser, run)
    group = page.locator(".charts").first
    assert group.locator(".chart:visible h3").all_inner_texts() == ["mAP during the backfill, score order"]
    metric, order = group.locator("select").all()
    metric.select_option("CMC@1")
    order.select_option("random order")
    assert group.locator(".chart:visible h3").all_inner_texts() == ["CMC@1 during the backfill, random order"]
    group.locator(".chart:visible").get_by_role("checkbox", name="BCT", exact=True).uncheck()
    metric.select_option("mAP")
    assert not group.locator(".chart:visible .line[data-key='bct']").is_visible(), "the same method in all charts"


def test_the_legend_tells_the_values_at_a_moment(browser: "Browser", run: Path) -> None:
    page = opened(browser, run)
    chart = page.locator(".chart").first
    value, header = chart.locator("li[data-key='rm'] output"), chart.locator(".what")
    assert (value.inner_text(), header.inner_text()) == ("53.0", "average")
    plot = chart.locator("svg[role=img]")
    width = plot.evaluate("(e) => e.clientWidth")
    plot.hover(position={"x": width * 336 / 640, "y": 100})  # the middle of the panel
    assert (value.inner_text(), header.inner_text()) == ("55.0", "at 50 %")
    assert chart.locator(".cursor").evaluate("(e) => getComputedStyle(e).visibility") == "visible"
    page.mouse.move(0, 0)
    assert (value.inner_text(), header.inner_text()) == ("53.0", "average")
    slider = chart.get_by_label("moment")
    slider.focus()
    page.keyboard.press("End")
    assert (value.inner_text(), header.inner_text()) == ("62.0", "at 100 %")
    told = slider.get_attribute("aria-valuetext")
    assert told is not None
    assert told.startswith("at 100 %: ")
    assert "full RM 62.0" in told
    assert "method 11" not in told, "what is switched off is not told"


def test_tables_are_sorted_by_their_heads(browser: "Browser", run: Path) -> None:
    page = opened(browser, run)
    table = page.locator("table.sortable").first
    head = table.get_by_role("columnheader", name=re.compile("^lost.?.?$"))

    def column() -> list[str]:
        names = table.locator("tbody th").all_inner_texts()
        return [name for name in names if name in ("old", "full RM", "RM naive", "BCT")]

    head.get_by_role("button").click()
    assert column() == ["RM naive", "full RM", "old", "BCT"], "a missing number comes last"
    assert head.get_attribute("aria-sort") == "descending"
    head.get_by_role("button").click()
    assert column() == ["old", "full RM", "RM naive", "BCT"]
    assert head.get_attribute("aria-sort") == "ascending"
    table.get_by_role("columnheader", name=re.compile("^method")).get_by_role("button").click()
    assert column() == ["BCT", "full RM", "old", "RM naive"]


def test_a_phone_shows_a_card_for_each_method_the_best_one_first(browser: "Browser", run: Path) -> None:
    page = opened(browser, run, PHONE)
    table = page.locator("table.cards").first
    cards = {row.locator("th").inner_text(): row.bounding_box() for row in table.locator("tbody tr").all()}
    best, other = cards["full RM"], cards["BCT"]
    assert best is not None
    assert other is not None
    assert min(cards, key=lambda name: cards[name]["y"] if cards[name] else 0) == "full RM"
    assert best["width"] == other["width"] > 300
    assert page.locator("details[open]:not(.topic)").count() == 0
    size = "(e) => parseFloat(getComputedStyle(e).fontSize) * e.ownerSVGElement.clientWidth / 640"
    assert page.locator(".plot text").first.evaluate(size) >= 12


@pytest.mark.parametrize("dark", [False, True])
def test_colours_follow_the_reader(browser: "Browser", run: Path, dark: bool) -> None:
    page = opened(browser, run, dark=dark)
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(20, 23, 29)" if dark else "rgb(255, 255, 255)")
    path = page.locator(".plot .line[data-key='rm'] path").first
    assert path.evaluate("(e) => getComputedStyle(e).stroke") == ("rgb(75, 163, 227)" if dark else "rgb(0, 114, 178)")
    text = page.locator(".plot text").first
    assert text.evaluate("(e) => getComputedStyle(e).fill") == ("rgb(160, 167, 182)" if dark else "rgb(93, 100, 115)")


def test_without_the_script_everything_is_there(browser: "Browser", run: Path) -> None:
    page = opened(browser, run, script=False)
    assert page.locator(".charts").first.locator(".chart:visible").count() == 4
    assert drawn(page.locator(".chart").first.locator(".line")) == 17
    assert page.locator("input:visible").count() == 0


@pytest.mark.parametrize("what", ["run", "drill"])
def test_at_most_four_pages_are_printed(browser: "Browser", what: str, request: pytest.FixtureRequest) -> None:
    page = opened(browser, request.getfixturevalue(what))
    printed = page.pdf(prefer_css_page_size=True)
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b(?!s)", printed)) <= 4
    page.emulate_media(media="print")
    assert page.locator(".charts").first.locator(".chart:visible").count() > 1, "all charts, not only the chosen one"
    assert page.locator(".controls:visible").count() == 0
