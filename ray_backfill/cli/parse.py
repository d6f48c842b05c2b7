"""Reads command lines over the defaults of a recipe, or of a folder of embeddings."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tyro

from ray_backfill.cli.options import BackboneJob, DataJob, RecipeJob
from ray_backfill.cli.shell import refuse_relative
from ray_backfill.cluster.settings import EmbedActors, Workers
from ray_backfill.datasets import download, published
from ray_backfill.errors import InputError
from ray_backfill.merges import all_merges
from ray_backfill.methods import all_methods
from ray_backfill.orders import all_orders
from ray_backfill.recipes import NO_ROOT, describe_recipe, load_recipe, recipe_names
from ray_backfill.runs.planning.dry_run import dry_run
from ray_backfill.runs.planning.plan import STAGES
from ray_backfill.runs.planning.settings import PlanningSettings


def recipe_job(
    description: str,
    default_recipe: str = "landmarks",
    kind: type = RecipeJob,
    last_stage: str = STAGES[-1],
    **more: Any,
) -> Any:
    """Read the command line (see ``parse_recipe_job``) and do what it asks for before the work.

    --download fetches the images; --dry-run prints the plan up to ``last_stage`` (of ``planning.STAGES``).

    Raises:
        SystemExit: after a dry run, with code 0.
        InputError: the plan cannot be made, or the images cannot be fetched.
    """
    job = parse_recipe_job(description, default_recipe, kind=kind, **more)
    if job.download:
        download(job.settings.images)
    if job.dry_run:
        model = job.model if isinstance(job, BackboneJob) else None
        print(dry_run(job.settings, job.workers, job.actors, job.planning, last_stage, model))
        sys.exit(0)
    return job


def parse_recipe_job(
    description: str,
    default_recipe: str = "landmarks",
    arguments: Sequence[str] | None = None,
    kind: type = RecipeJob,
    **more: Any,
) -> Any:
    """Read the command line over the defaults of the recipe that it names.

    kind: RecipeJob or a subclass; more: defaults of the subclass's own fields.
    Returns: an instance of ``kind``.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--recipe", default=default_recipe)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    first, _ = parser.parse_known_args(arguments)
    if first.seed < 0:
        raise InputError(f"--seed must not be negative, got {first.seed}")
    if first.data_root is not None:
        refuse_relative("--data-root", first.data_root)
    # --help of a recipe should not ask for its data first, nor should a plan that can do without.
    asked = set(arguments)
    can_do_without = {"-h", "--help"} & asked or ("--dry-run" in asked and "--download" not in asked)
    recipe = load_recipe(first.recipe, first.data_root or (NO_ROOT if can_do_without else None), first.seed)
    size = published(recipe.images)
    if "--dry-run" in arguments and size is None:
        recipe = load_recipe(first.recipe, first.data_root, first.seed)
    decoded_per_s = size.decoded_per_s if size else PlanningSettings().decode_images_per_s_per_cpu
    default = kind(
        recipe=first.recipe,
        data_root=first.data_root,
        seed=first.seed,
        out=Path("runs") / first.recipe,
        settings=recipe,
        workers=Workers(),
        actors=EmbedActors(),
        planning=PlanningSettings(decode_images_per_s_per_cpu=decoded_per_s),
        **more,
    )
    recipes = f"{first.recipe}: {describe_recipe(first.recipe)}\n\nRecipes: {', '.join(recipe_names())}."
    return tyro.cli(
        kind[type(recipe.images)],  # type: ignore[index]
        default=default,
        description=f"{description}\n\n{recipes}\n\n{names_of_plugins()}",
        args=list(arguments),
    )


def parse_data_job(description: str, arguments: Sequence[str] | None = None) -> DataJob:
    """Read the command line of a run on a folder of embeddings."""
    return tyro.cli(DataJob, description=f"{description}\n\n{names_of_plugins()}", args=arguments)


def names_of_plugins() -> str:
    """What --methods, --orders and --merges take, for --help."""
    orders = [
        order.name + (" (an upper bound: it peeks)" if order.is_oracle else "") for order in all_orders().values()
    ]
    names = {"Methods": all_methods(), "Orders": orders, "Merges": all_merges()}
    return "\n\n".join(f"{kind}: {', '.join(known)}." for kind, known in names.items())


def is_data_job() -> bool:
    """Whether the command line names a folder of embeddings instead of a recipe."""
    return any(argument.split("=")[0] == "--data" for argument in sys.argv)
