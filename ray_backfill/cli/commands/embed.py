"""``ray-backfill embed``: embed the images of a recipe with its backbones."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ray_backfill.cli import shown
from ray_backfill.cli.options import Options
from ray_backfill.cli.runs import RecipeJob, check_names, prepared, recipe_options, running
from ray_backfill.core.errors import InputError


@dataclass(frozen=True, kw_only=True)
class EmbedJob(RecipeJob):
    """An embedding of the images of a recipe."""

    gallery: Literal["both", "old"] = "both"
    """Models that embed the gallery: both, or old alone, for a forecast; the latter goes to OUT/before."""
    only: Path | None = None
    """File that ray-backfill sample wrote: embed only its gallery items, into OUT/sampled."""


def options(arguments: Sequence[str]) -> Options:
    """The options of a recipe."""
    return recipe_options(EmbedJob, arguments)


def run(job: EmbedJob) -> None:
    """Train the backbones if they are missing, embed, and print the path of the embeddings."""
    check_names(job)
    if job.only and job.gallery == "old":
        raise InputError("--only embeds gallery items by the new model; leave --gallery out")
    if job.only and not job.only.exists():
        raise InputError(f"{job.only} is missing; run: ray-backfill sample DIR --budget N")
    from ray_backfill.core.stages import read_json
    from ray_backfill.forecast.settings import SAMPLE_FILE
    from ray_backfill.recipes.run.pipeline import embed_before_backfill, embed_recipe, embed_sample

    settings = prepared(job, last_stage="embeddings").settings
    with running(job) as context:
        if job.only:
            folders = embed_sample(settings, context, job.only)
        else:
            folders = [(embed_recipe if job.gallery == "both" else embed_before_backfill)(settings, context)]
    for folder in folders:
        facts = read_json(folder / "manifest.json")
        print(f"embeddings: {shown(folder)}, {facts['images']:,} images")
        if facts["broken_images"]:
            print(f"{facts['broken_images']:,} broken images were left out; see {shown(folder / 'broken.parquet')}")
    if job.only:
        files = " ".join(str(shown(folder / "gallery.parquet")) for folder in folders)
        data, out = shown(job.only.absolute().parent), shown(job.out.absolute() / "forecast")
        elsewhere = "" if job.only.name == SAMPLE_FILE else f" --sample {shown(job.only)}"
        print(f"Then run:\n  ray-backfill forecast {data} --new {files}{elsewhere} --out {out}")
    elif job.gallery == "old":
        print(f"Then run:\n  ray-backfill sample {shown(folders[0])} --budget N")
