"""``ray-backfill measure``: the rates of a model on a user's own items."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ray_backfill.cli import absolute, command_line, interruptible, shown
from ray_backfill.cli.options import REQUIRED, Options
from ray_backfill.core.errors import InputError
from ray_backfill.encode.encoder import IMAGE, TEXT
from ray_backfill.encode.items import ItemSettings, ItemSources
from ray_backfill.encode.kinds import parse_spec
from ray_backfill.plan.measure import MeasureSettings, measure
from ray_backfill.plan.rates import Rates, write_rates
from ray_backfill.workers.settings import EmbedActors

# Settings that one worker, which draws no queries, does not have.
HIDDEN = (
    *("--items.draw-queries", "--items.draw-train", "--items.label-column", "--items.draw-seed"),
    *("--actors.number", "--actors.decode-cpus"),
)


@dataclass(frozen=True, kw_only=True)
class MeasureJob:
    """A measurement of one worker."""

    new: str
    """The model, such as hf:FOLDER, sentence-transformers:NAME or python:mymodels:new; docs/models.md lists the kinds
    and their options."""
    texts: str = ""
    """Texts to embed: a table (a file, a database), a folder as BEIR or MTEB has it, or ir_datasets:NAME."""
    images: str = ""
    """Images to embed: a folder, a table of their paths, or tar shards."""
    out: Path = Path("rates.json")
    """File to write, on the disk that a run would write to. An earlier one is replaced."""
    settings: MeasureSettings = field(default_factory=MeasureSettings)
    items: ItemSettings = field(default_factory=ItemSettings)
    actors: EmbedActors = field(default_factory=EmbedActors)


def measure_options(arguments: Sequence[str]) -> Options:
    """The model, the items, and what to measure."""
    return Options(MeasureJob(new=REQUIRED), arguments, hidden=HIDDEN)


def run_measure(job: MeasureJob) -> None:
    """Measure, write the file, and print its rates."""
    if bool(job.texts) == bool(job.images):
        raise InputError("give --texts or --images: what the model embeds")
    out = absolute("--out", job.out)
    if out.is_dir():
        raise InputError(f"--out {job.out} is a folder; name a file, such as {job.out / 'rates.json'}")
    sources = ItemSources(TEXT if job.texts else IMAGE, job.texts or job.images)
    spec = parse_spec(job.new, "--new")
    with interruptible():
        rates = measure(spec, sources, job.settings, job.items, job.actors, out.parent, command_line())
        write_rates(out, rates)
    print("\n".join(_lines(rates)))
    print(f"rates: {shown(out)}")


def _lines(rates: Rates) -> list[str]:
    """A table of the stages, of indexes, and what is unknown."""
    lines = [f"{'stage of one worker':<22}{f'{rates.modality}s/s':>14}{'spread':>10}"]
    for rate in rates.stages:
        spread = f"{100 * rate.spread:.0f} %" if len(rate.windows) > 1 else "unknown"
        is_slowest = "  slowest" if rate is rates.slowest else ""
        lines.append(f"{rate.stage:<22}{rate.items_per_s:>14,.1f}{spread:>10}{is_slowest}")
    if rates.builds:
        lines.append(f"{'index':<22}{'items':>14}{'build':>10}")
    for build in rates.builds:
        note = "" if build.fits else "  beyond the memory of the build"
        lines.append(f"{build.kind:<22}{build.items:>14,}{f'{build.seconds:,.1f} s':>10}{note}")
    for search in rates.searches:
        lines.append(f"{search.kind}: {search.queries_per_s:,.0f} queries/s among {search.items:,} items")
    known = {"tokens per item": rates.tokens_per_item, "characters per item": rates.characters_per_item}
    lines += [f"{name}: {value:,.1f}" for name, value in known.items() if value == value]
    unknown = [name for name, value in known.items() if value != value and rates.modality == TEXT]
    kinds = {build.kind for build in rates.builds}
    unknown += ["builds of FAISS"] * ("hnsw" not in kinds) + ["builds of pgvector"] * ("pgvector-hnsw" not in kinds)
    return lines + ([f"unknown: {', '.join(unknown)}"] if unknown else [])
