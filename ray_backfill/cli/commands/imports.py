"""``ray-backfill import``: make a folder of embeddings from vectors in other stores."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ray_backfill.cli import absolute, command_line, interruptible, shown
from ray_backfill.cli.options import REQUIRED, Options
from ray_backfill.core.errors import InputError
from ray_backfill.data.importing import ColumnNames

SPLITS = ("gallery", "queries", "train", "validation")


@dataclass(frozen=True, kw_only=True)
class ImportJob:
    """An import of one or more splits, whose sources use the same names of columns."""

    out: Path
    """Folder of embeddings to make, or to add a split to. The same command continues an import that was stopped."""
    gallery: tuple[str, ...] = ()
    """Source of the gallery, or two sources that are joined by id: the old vectors, then the new ones."""
    queries: tuple[str, ...] = ()
    """Source or sources of the queries."""
    train: tuple[str, ...] = ()
    """Source or sources of items to fit maps on."""
    validation: tuple[str, ...] = ()
    """Source or sources of validation items."""
    columns: ColumnNames = field(default_factory=ColumnNames)
    old_model: str = ""
    """Name of the model of the old embeddings, such as openai:text-embedding-3-small. Another model's embeddings are
    then refused in this folder. Default: what the sources state, if they do."""
    new_model: str = ""
    """Name of the model of the new embeddings."""
    drop_broken: bool = False
    """Leave rows out that have no id, a repeated id, or a vector that is missing, zero or not finite, and list them,
    instead of refusing them."""
    overwrite: bool = False
    """Replace splits in --out that were imported from other sources or with other columns."""


def import_options(arguments: Sequence[str]) -> Options:
    """The sources and the names of their columns."""
    return Options(ImportJob(out=REQUIRED), arguments)


def run_import(job: ImportJob) -> None:
    """Import each split that is given, and print a summary."""
    given = {split: getattr(job, split) for split in SPLITS if getattr(job, split)}
    if not given:
        raise InputError("nothing to import: give --gallery, --queries, --train or --validation")
    from ray_backfill.core.run_lock import locked
    from ray_backfill.data.identity import stated
    from ray_backfill.data.importing import import_split, imported

    models = {"old": job.old_model, "new": job.new_model}
    out = absolute("--out", job.out)
    with interruptible(), locked(out, "--out", command_line()):
        for split, texts in given.items():
            path = out / f"{split}.parquet"
            others = stated(out, but=given if job.overwrite else (split,))  # of splits that stay
            import_split(path, texts, job.columns, job.drop_broken, job.overwrite, models, others)
            facts = imported(path)
            left_out = "".join(f"; left out: {count:,} ({why})" for why, count in facts["left_out"].items())
            print(f"{shown(path)}: {facts['rows']:,} rows{left_out}")
            if facts["left_out"]:
                print(f"{shown(path.with_name(f'{split}_left_out.parquet'))} lists them")
