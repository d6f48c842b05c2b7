"""``ray-backfill sample``: choose the gallery items to embed for a forecast."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ray_backfill.cli import absolute, interruptible, shown
from ray_backfill.cli.options import REQUIRED, Options
from ray_backfill.core.errors import InputError
from ray_backfill.forecast.settings import SAMPLE_FILE, SampleSettings


@dataclass(frozen=True)
class SampleJob:
    """A choice of gallery items that the new model should embed."""

    data: Path
    """Folder with gallery.parquet (old embeddings) and queries.parquet (embeddings by both models)."""
    budget: int = 0
    """Number of items to choose. 1 to 2 % of a large gallery are a good start."""
    add: int = 0
    """Extend the sample by this many items; what it has stays in it."""
    out: Path | None = None
    """File to write (default: sample.parquet in the folder of embeddings)."""
    settings: SampleSettings = field(default_factory=SampleSettings)


def options(arguments: Sequence[str]) -> Options:
    """The folder and the budget."""
    return Options(SampleJob(REQUIRED), arguments, positional="data")


def run(job: SampleJob) -> None:
    """Write the list of items, and print what to do with it."""
    if (job.budget > 0) == (job.add > 0) or min(job.budget, job.add) < 0:
        raise InputError("give --budget N for a first sample, or --add N to extend one")
    from ray_backfill.forecast.report import FEW_LISTS
    from ray_backfill.forecast.sample import counts_in_words, take_sample

    data = job.data.absolute()
    out = absolute("--out", job.out or data / SAMPLE_FILE)
    with interruptible():
        stored = take_sample(data, out, job.budget, job.settings, job.add)
    print(f"{shown(out)}: {counts_in_words(stored)}")
    rounds = f" of round {stored.round_n.max()}" if job.add else ""
    earlier = "FILES_OF_EARLIER_ROUNDS " if job.add else ""
    elsewhere = f" --sample {shown(out)}" if job.out else ""
    print(f"Embed these items{rounds} by the new model, write id and new to a Parquet file, then run:")
    print(f"  ray-backfill forecast {shown(data)} --new {earlier}FILE{elsewhere}")
    if (data / "manifest.json").exists():  # what embed wrote
        print(f"or embed the images of the recipe by ray-backfill embed, its options, and --only {shown(out)}")
    if stored.lists <= FEW_LISTS:
        print(f"note: {FEW_LISTS} lists of right answers or fewer make wide intervals; extend the sample by --add N")
