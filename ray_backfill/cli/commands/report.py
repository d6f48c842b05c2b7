"""``ray-backfill report``: print the table of a finished run and rewrite its figure and page."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ray_backfill.cli.parse import read_options
from ray_backfill.cli.shell import shown
from ray_backfill.errors import InputError


@dataclass(frozen=True)
class ReportJob:
    """The report of a finished run."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run, or its results folder."""


def read(arguments: Sequence[str]) -> ReportJob:
    """The folder."""
    return read_options(ReportJob, arguments)


def run(arguments: Sequence[str]) -> None:
    """Print the table, and rewrite curves.png and report.html from the tables."""
    folder = read(arguments).run.absolute()
    found = [path for path in (folder, folder / "results", folder / "live") if (path / "curves.parquet").exists()]
    live = [path for path in (folder, folder / "live") if (path / "checkpoints.parquet").exists()]
    if not found and not live:
        raise InputError(f"{shown(folder)} holds no results: give the folder that simulate or drill wrote with --out")
    from ray_backfill.report import print_table, write_report
    from ray_backfill.report.live import print_live_table, write_live_report

    for path in found:
        write_report(path)
        print_table(path)
        print(f"\nreport: {shown(path / 'report.html')}")
    for path in live:
        write_live_report(path)
        print_live_table(path)
        print(f"\nreport: {shown(path / 'report.html')}")
