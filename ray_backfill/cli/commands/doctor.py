"""``ray-backfill doctor``: examine a folder of embeddings before a run."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ray_backfill.cli import shown
from ray_backfill.cli.options import REQUIRED, Options


@dataclass(frozen=True)
class DoctorJob:
    """An examination of a folder of embeddings."""

    data: Path
    """Folder with gallery.parquet and, optionally, queries.parquet, train.parquet and validation.parquet."""
    json: bool = False
    """Print JSON instead of tables."""


def options(arguments: Sequence[str]) -> Options:
    """The folder."""
    return Options(DoctorJob(REQUIRED), arguments, positional="data")


def run(job: DoctorJob) -> None:
    """Print what the folder holds and what is wrong. Exit code 1 if something is."""
    from ray_backfill.compare.diagnose import diagnose, print_diagnosis

    diagnosis = diagnose(job.data.absolute())
    if job.json:
        print(json.dumps(diagnosis.as_json(), indent=2))
    else:
        print_diagnosis(diagnosis, str(shown(job.data.absolute())))
    if not diagnosis.is_sound:
        sys.exit(1)
