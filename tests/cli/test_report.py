"""``ray-backfill report``: the table again, and the figure and the page from the tables."""

from pathlib import Path

from tests.command import Command
from tests.compare.report.folder import write_results


def test_it_prints_the_table_and_makes_figure_and_page_anew(tmp_path: Path, command: Command) -> None:
    write_results(tmp_path / "results")
    (tmp_path / "results" / "report.html").write_text("an older page")
    printed, page = command("report", tmp_path).out, tmp_path / "results" / "report.html"
    assert "full RM" in printed
    assert f"report: {page}" in printed
    assert "Merge online with full RM: users get 23.0 points" in page.read_text(encoding="utf-8")
    assert (tmp_path / "results" / "curves.png").read_bytes().startswith(b"\x89PNG")
