"""Fits variants of methods for ablations."""

from collections.abc import Sequence
from pathlib import Path

from ray_backfill.compare.fits import map_key
from ray_backfill.compare.fitted import MapJob
from ray_backfill.compare.ray.fits import fit_side_by_side
from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import task
from ray_backfill.core.stages import begin_stage, is_finished
from ray_backfill.data.folder import EmbeddingFolder
from ray_backfill.learn.methods import find_methods
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.workers.session import session


def fit_variants(
    folder: EmbeddingFolder, wanted: Sequence[tuple[str, FitSettings]], distance: str, out: Path, max_failures: int
) -> list[Path]:
    """Fit methods by name, each with its own settings, on the train split of ``folder``.

    Returns: the folder of each network, ``out/<number>``; finished ones are kept.

    Raises:
        InputError: A fit failed, or a training diverged.
    """
    jobs = [MapJob(name, settings, distance, folder.path, out / str(i)) for i, (name, settings) in enumerate(wanted)]
    missing = [job for job in jobs if not _begin(job, folder)]
    if missing:
        with session(), task("fit variants", len(missing), "variants") as shown:
            fit_side_by_side(missing, folder.train_bytes, shown, max_failures)
    for job in jobs:
        if not is_finished(job.out):
            raise InputError(f"training {job.method} ({job.out}) diverged: its loss is not finite; lower its lr")
    return [job.out for job in jobs]


def _begin(job: MapJob, folder: EmbeddingFolder) -> bool:
    """Claim the folder of a map; returns whether it is already finished."""
    (method,) = find_methods((job.method,))
    return begin_stage(job.out, map_key(folder, method, job.settings, job.distance))
