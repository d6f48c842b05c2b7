"""``ray-backfill plan``: hours, dollars and quality over time, from finished results and a fleet."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ray_backfill.cli import absolute, command_line, interruptible, shown
from ray_backfill.cli.options import REQUIRED, Options
from ray_backfill.cli.runs import ForPrograms


@dataclass(frozen=True, kw_only=True)
class PlanJob(ForPrograms):
    """A plan of an upgrade: whether to merge online or to switch, with hours, dollars and quality over time."""

    results: Path
    """Folder that simulate or forecast wrote; or the name of a recipe, whose hours are planned without any quality."""
    fleet: Path | None = None
    """fleet.yaml: machines, prices and the service, see docs/plan.md. Without it hours and dollars are unknown."""
    out: Path | None = None
    """Folder of the plan; by default RUN/plan. An earlier plan in it is replaced."""
    what_if: tuple[str, ...] = ()
    """Other values of an assumption, such as workers=8,16,32; one table."""


def plan_options(arguments: Sequence[str]) -> Options:
    """The results and the fleet."""
    return Options(PlanJob(results=REQUIRED), arguments, positional="results")


def run_plan(job: PlanJob) -> None:
    """Plan, and print the verdict, the answers and the path of the report."""
    from ray_backfill.plan.report import as_json, read_plan
    from ray_backfill.plan.run import plan_upgrade

    out = absolute("--out", job.out) if job.out else None
    with interruptible():
        folder = plan_upgrade(absolute("RESULTS", job.results), job.fleet, out, job.what_if, command_line())

    def table() -> None:
        read_plan(folder).show()
        print(f"\nreport: {shown(folder / 'report.html')}")

    job.tell(lambda: as_json(folder), lambda: read_plan(folder).decision, table)
