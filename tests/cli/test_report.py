"""``ray-backfill report``: the table again, and the figure and the page from the tables."""

from pathlib import Path

import pytest

from ray_backfill.cli.main import main
from tests.compare.report.folder import write_results


def test_it_prints_the_table_and_makes_figure_and_page_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_results(tmp_path / "results")
    (tmp_path / "results" / "report.html").write_text("an older page")
    monkeypatch.setattr("sys.argv", ["ray-backfill", "report", str(tmp_path)])
    main()
    printed = capsys.readouterr().out
    assert "full RM" in printed
    assert f"report: {tmp_path / 'results' / 'report.html'}" in printed
    assert "Merge online with full RM: users get 23.0 points" in (tmp_path / "results" / "report.html").read_text(
        encoding="utf-8"
    )
    assert (tmp_path / "results" / "curves.png").read_bytes().startswith(b"\x89PNG")
