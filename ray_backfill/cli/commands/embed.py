"""``ray-backfill embed``: embed all images of a recipe with its backbones."""

from collections.abc import Sequence
from typing import Any

from ray_backfill.cli.options import RecipeJob
from ray_backfill.cli.parse import check_names, read_recipe_options
from ray_backfill.cli.shell import shown


def read(arguments: Sequence[str]) -> Any:
    """The options of a recipe."""
    return read_recipe_options(RecipeJob, arguments)


def run(arguments: Sequence[str]) -> None:
    """Train the backbones if they are missing, embed, and print the path of the embeddings."""
    job = read(arguments)
    check_names(job)
    from ray_backfill.cli.context import prepared, running
    from ray_backfill.files import read_json
    from ray_backfill.runs.images import embed_recipe

    settings = prepared(job, last_stage="embeddings").settings
    with running(job) as context:
        folder = embed_recipe(settings, context)
    facts = read_json(folder / "manifest.json")
    print(f"embeddings: {shown(folder)}, {facts['images']:,} images")
    if facts["broken_images"]:
        print(f"{facts['broken_images']:,} broken images were left out; see {shown(folder / 'broken.parquet')}")
