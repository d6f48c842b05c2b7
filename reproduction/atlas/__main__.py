"""``python -m reproduction.atlas``: embed, compare, and write the page. Finished parts are not done again."""

import datetime
import os
import shlex
import sys
from collections.abc import Iterator
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
from ray_backfill.encode.encoder import TEXT
from ray_backfill.engine.replay import usable_cpus
from ray_backfill.learn.methods import find_methods
from reproduction.atlas.collections import COLLECTIONS, Collection
from reproduction.atlas.comparison import (
    METHODS,
    METHODS_BY_TRAIN,
    PAIRS,
    TRAIN,
    TRAIN_TEXTS,
    Upgrade,
    compare,
    forecast,
)
from reproduction.atlas.embeddings import embed_collection, join, map_gallery
from reproduction.atlas.models import check_packages, models_of
from reproduction.atlas.page import PageFacts, write_page
from reproduction.atlas.predictors import similarity
from reproduction.atlas.rules import UPGRADE

_UPGRADES = [
    Upgrade(each.name, *pair, train)
    for each in COLLECTIONS
    for train in (TRAIN, *(TRAIN_TEXTS if each.modality == TEXT else ()))
    for pair in PAIRS[each.modality]
]
# Columns that name them.
_NAMES = [*UPGRADE, "train"]


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
    """Collections to compare on, or single upgrades as COLLECTION/OLD_NEW; by default all. The table of curves keeps
    its rows of all others."""
    methods: tuple[str, ...] = ()
    """Further methods to rank: names, or MODULE:NAME of a module on PYTHONPATH or in the working folder."""


def run_atlas(job: AtlasJob) -> Path:
    """Make what is missing, and write the page; returns its path."""
    page = (job.page or job.out / "atlas.md").absolute()
    table = page.with_suffix(".parquet")
    if job.data_root is None:
        if not table.exists():
            raise InputError(f"there is no {table} to write the page from; measure it with --data-root")
        if "train" not in (curves := pd.read_parquet(table)):
            raise InputError(f"{table} is of an earlier version; measure it again with --data-root")
        return _write(page, curves, job)
    data = absolute("--data-root", job.data_root)
    chosen = _chosen(job.only)
    methods = _with_modules(job.methods)
    find_methods(methods)
    for collection in chosen:
        if collection.needs and not (data / collection.needs).exists():
            raise InputError(f"{data} has no {collection.needs}; leave {collection.name} out with --only")
    check_packages(model for collection in chosen for model in models_of(collection.modality).values())
    out = job.out.absolute()
    with locked(out, "out", command_line()):
        for collection, upgrades in chosen.items():
            for measured in _measure(collection, upgrades, data, out, methods):
                _keep(table, measured)
    return _write(page, pd.read_parquet(table), job)


def _chosen(only: tuple[str, ...]) -> dict[Collection, list[Upgrade]]:
    """The upgrades of each collection that --only names; all of them if it is empty."""
    names = {each: {each.collection, f"{each.collection}/{each.name}"} for each in _UPGRADES}
    known = set().union(*names.values())
    if unknown := set(only) - known:
        raise InputError(
            f"--only: no collection or upgrade {min(unknown)!r}; there are: "
            f"{', '.join(each.name for each in COLLECTIONS)}, and upgrades such as {max(known)}"
        )
    own = [each for each in _UPGRADES if not only or names[each] & set(only)]
    found = {each: [upgrade for upgrade in own if upgrade.collection == each.name] for each in COLLECTIONS}
    return {collection: upgrades for collection, upgrades in found.items() if upgrades}


def _keep(table: Path, measured: pd.DataFrame) -> None:
    """Put the curves of upgrades into the table, in the place of earlier ones."""

    def names(rows: pd.DataFrame) -> pd.MultiIndex:
        return pd.MultiIndex.from_frame(rows[_NAMES])

    if table.exists() and "train" in (kept := pd.read_parquet(table)):  # otherwise it is of an earlier version
        measured = pd.concat([kept[~names(kept).isin(names(measured))], measured], ignore_index=True)
    known = pd.MultiIndex.from_tuples([tuple(vars(each).values()) for each in _UPGRADES])
    rows = measured.iloc[np.argsort(known.get_indexer(names(measured)), kind="stable")]
    write_parquet(table, pa.Table.from_pandas(rows, preserve_index=False))


def _measure(
    collection: Collection, upgrades: list[Upgrade], data: Path, out: Path, methods: tuple[str, ...]
) -> Iterator[pd.DataFrame]:
    """The curves of each upgrade. methods: besides those of the atlas."""
    models, own = models_of(collection.modality), out / collection.name
    folders = embed_collection(collection, models, data, out)
    for upgrade in upgrades:
        old, new = upgrade.old, upgrade.new
        first, chained, second = old.partition(">")
        if chained:
            folders[old] = map_gallery(own / "models" / old, folders[first], folders[second])
        joined = join(own / "upgrades" / upgrade.name, folders[old], folders[new], upgrade.train)
        compared = (*(METHODS if upgrade.train == TRAIN else METHODS_BY_TRAIN), *methods)
        found = compare(upgrade, joined, own / "runs" / upgrade.name, compared)
        if upgrade.train == TRAIN:
            foretold = forecast(upgrade, joined, own / "runs" / upgrade.name)
            found = pd.concat([found, foretold], ignore_index=True)
        found = found.assign(**similarity(joined))
        found = found.assign(cores=usable_cpus(), date=str(datetime.date.today()))
        # The table is part of the docs.
        yield found.astype(dict.fromkeys(found.select_dtypes("float64"), np.float32))


def _write(page: Path, curves: pd.DataFrame, job: AtlasJob) -> Path:
    findings = f"{job.findings.read_text(encoding='utf-8')}\n" if job.findings else ""
    days = " to ".join(sorted({curves["date"].min(), curves["date"].max()}))
    cores = sorted({int(number) for number in curves["cores"]})
    machine = f"{' or '.join(map(str, cores))} core{'s' * (cores[-1] > 1)}"
    write_page(page, curves, PageFacts(_command(curves), machine, days, findings))
    return page


def _command(curves: pd.DataFrame) -> str:
    """The command that measures the upgrades of the table, without the paths of a machine."""
    names = {tuple(names) for names in curves[_NAMES].drop_duplicates().itertuples(index=False)}
    measured = [each for each in _UPGRADES if tuple(vars(each).values()) in names]
    if len(measured) == len(_UPGRADES):
        return "make atlas DATA=PATH"
    only: list[str] = []
    for collection, upgrades in _chosen(()).items():
        own = [f"{collection.name}/{each.name}" for each in upgrades if each in measured]
        only += [collection.name] if len(own) == len(upgrades) else own
    return f"python -m reproduction.atlas --data-root PATH --only {shlex.join(only)}"  # some names have a ">"


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
