"""``python -m reproduction.atlas``: embed, compare, and write the page. Finished parts are not done again."""

import datetime
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from ray_backfill.cli import absolute, command_line, run_job
from ray_backfill.cli.options import Options
from ray_backfill.core.errors import InputError
from ray_backfill.core.run_lock import locked
from ray_backfill.data.write import write_parquet
from ray_backfill.engine.replay import usable_cpus
from ray_backfill.learn.methods import find_methods
from reproduction.atlas.collections import COLLECTIONS, Collection
from reproduction.atlas.comparison import METHODS, PAIRS, Upgrade, compare, forecast
from reproduction.atlas.embeddings import embed_collection, join, map_gallery
from reproduction.atlas.models import check_packages, models_of
from reproduction.atlas.page import PageFacts, write_page
from reproduction.atlas.predictors import similarity


@dataclass(frozen=True, kw_only=True)
class AtlasJob:
    """The atlas of upgrades."""

    data_root: Path | None = None
    """Folder of the collections. None: write the page again, from the table of curves beside it."""
    out: Path = Path("runs/atlas")
    """Folder of the embeddings, maps and results. The same command continues a run that was stopped."""
    page: Path | None = None
    """File of the page; the table of curves is written beside it. None: atlas.md in the folder of the run."""
    findings: Path | None = None
    """Markdown file to include in the page; None: no findings."""
    only: tuple[str, ...] = ()
    """Collections to compare on; by default all. The table of curves keeps its rows of all others."""
    methods: tuple[str, ...] = ()
    """Further methods to rank: names, or MODULE:NAME of a module on PYTHONPATH or in the working folder."""


def run_atlas(job: AtlasJob) -> Path:
    """Make what is missing, and write the page; returns its path."""
    page = (job.page or job.out / "atlas.md").absolute()
    table = page.with_suffix(".parquet")
    if job.data_root is None:
        if not table.exists():
            raise InputError(f"there is no {table} to write the page from; measure it with --data-root")
        return _write(page, pd.read_parquet(table), job)
    data = absolute("--data-root", job.data_root)
    known = [collection.name for collection in COLLECTIONS]
    if unknown := set(job.only) - set(known):
        raise InputError(f"--only: no collection {sorted(unknown)[0]!r}; there are: {', '.join(known)}")
    methods = _with_modules(job.methods)
    find_methods(methods)
    chosen = [collection for collection in COLLECTIONS if collection.name in (job.only or known)]
    for collection in chosen:
        if collection.needs and not (data / collection.needs).exists():
            raise InputError(f"{data} has no {collection.needs}; leave {collection.name} out with --only")
    check_packages(model for collection in chosen for model in models_of(collection.modality).values())
    out = job.out.absolute()
    with locked(out, "out", command_line()):
        for collection in chosen:
            measured = _measure(collection, data, out, methods)
            if table.exists():
                kept = pd.read_parquet(table)
                measured = pd.concat([kept[kept["collection"] != collection.name], measured], ignore_index=True)
            places = measured["collection"].map(known.index).sort_values(kind="stable").index
            write_parquet(table, pa.Table.from_pandas(measured.loc[places], preserve_index=False))
    return _write(page, pd.read_parquet(table), job)


def _measure(collection: Collection, data: Path, out: Path, methods: tuple[str, ...]) -> pd.DataFrame:
    """The curves of all upgrades of a collection. methods: besides those of the atlas."""
    pairs, models, own = PAIRS[collection.modality], models_of(collection.modality), out / collection.name
    folders, tables = embed_collection(collection, models, data, out), []
    for old, new in pairs:
        upgrade = Upgrade(collection.name, old, new)
        first, chained, second = old.partition(">")
        if chained:
            folders[old] = map_gallery(own / "models" / old, folders[first], folders[second])
        joined = join(own / "upgrades" / upgrade.name, folders[old], folders[new])
        found = compare(upgrade, joined, own / "runs" / upgrade.name, (*METHODS, *methods))
        foretold = forecast(upgrade, joined, own / "runs" / upgrade.name)
        tables.append(pd.concat([found, foretold]).assign(**similarity(joined)))
    found = pd.concat(tables, ignore_index=True).assign(cores=usable_cpus(), date=str(datetime.date.today()))
    return found.astype(dict.fromkeys(found.select_dtypes("float64"), np.float32))  # the table is part of the docs


def _write(page: Path, curves: pd.DataFrame, job: AtlasJob) -> Path:
    findings = f"{job.findings.read_text(encoding='utf-8')}\n" if job.findings else ""
    days = " to ".join(sorted({curves["date"].min(), curves["date"].max()}))
    machine = f"{int(curves['cores'].max())} cores"
    write_page(page, curves, PageFacts(_command(set(curves["collection"])), machine, days, findings))
    return page


def _command(collections: set[str]) -> str:
    """The command without the paths of a machine."""
    known = [collection.name for collection in COLLECTIONS]
    if collections == set(known):
        return "make atlas DATA=PATH"
    return f"python -m reproduction.atlas --data-root PATH --only {' '.join(filter(collections.__contains__, known))}"


def _with_modules(methods: tuple[str, ...]) -> tuple[str, ...]:
    """The names, after their modules are registered for this process and those that it starts."""
    modules = [module for module, colon, _ in (name.partition(":") for name in methods) if colon]
    if modules:
        os.environ["RAY_BACKFILL_PLUGINS"] = ",".join([*modules, os.environ.get("RAY_BACKFILL_PLUGINS", "")])
        os.environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    return tuple(name.rpartition(":")[2] for name in methods)


if __name__ == "__main__":
    options = Options(AtlasJob(), sys.argv[1:])
    if {"-h", "--help"} & set(sys.argv):
        print(options.help()["run"])
    else:
        run_job(lambda: print(f"page: {run_atlas(options.read())}"))
