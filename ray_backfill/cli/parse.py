"""Reads command lines over the defaults of a recipe, or of a folder of embeddings."""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import tyro

from ray_backfill.cli.complaints import Parser, in_one_line
from ray_backfill.cli.options import FolderJob, RecipeJob
from ray_backfill.cli.shell import refuse_relative
from ray_backfill.core.errors import InputError, local_path
from ray_backfill.images.datasets import published
from ray_backfill.recipes import NO_ROOT, PlanningSettings, load_recipe
from ray_backfill.workers.settings import EmbedActors, Workers

JobT = TypeVar("JobT")

# The text of an option is the docstring of its field. tyro would also apply a comment to the fields below it.
_CONFIG = (tyro.conf.HelptextFromCommentsOff,)


def names_folder(arguments: Sequence[str]) -> bool:
    """Whether the command line names a folder of embeddings instead of a recipe."""
    return any(argument.split("=")[0] == "--data" for argument in arguments)


def read_options(kind: type[JobT], arguments: Sequence[str], default: JobT | None = None) -> JobT:
    """Read a command line over defaults. Raises InputError for unknown or malformed options."""
    _refuse_empty(arguments)
    over: dict[str, Any] = {} if default is None else {"default": default}
    with in_one_line():
        job: JobT = tyro.cli(kind, prog="ray-backfill", args=list(arguments), config=_CONFIG, **over)
    _refuse_remote(job)
    return job


def _refuse_remote(settings: Any) -> None:
    """Raise InputError for a URI in an option that names a local file or folder: every path, and ``root`` of images."""
    for option in fields(settings):
        value = getattr(settings, option.name)
        if isinstance(value, Path) or option.name == "root":
            local_path(value)
        elif is_dataclass(value):
            _refuse_remote(value)


def _refuse_empty(arguments: Sequence[str]) -> None:
    """Raise InputError for an empty path, which would mean the working directory."""
    given = [*pairwise(arguments), *(argument.split("=", 1) for argument in arguments if "=" in argument)]
    for option, value in given:
        if option in ("--out", "--data", "--data-root") and not value:
            raise InputError(f"{option} is empty; give a folder")


def read_folder_options(kind: type[Any], arguments: Sequence[str]) -> Any:
    """Read the command line of a command on a folder; the default of --out is a folder in ``runs``.

    kind: FolderJob or a subclass.
    """
    parser = Parser()
    parser.add_argument("--data", type=Path, default=Path("DIR"))
    data = parser.parse_known_args(arguments)[0].data
    return read_options(kind, arguments, kind(data=data, out=Path("runs") / (data.absolute().name or "data")))


def read_recipe_options(kind: type[Any], arguments: Sequence[str], **more: Any) -> Any:
    """Read a command line over the defaults of the recipe that it names.

    kind: RecipeJob or a subclass. more: defaults of the subclass's own fields.
    """
    parser = Parser()
    parser.add_argument("--recipe", default="landmarks")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    first, _ = parser.parse_known_args(arguments)
    if first.seed < 0:
        raise InputError(f"--seed must not be negative, got {first.seed}")
    if first.data_root is not None:
        local_path(first.data_root)  # the recipe looks into it
        refuse_relative("--data-root", first.data_root)
    # The help of a recipe does not need its data, nor does the plan of a published data set.
    asked = set(arguments)
    can_do_without = "--help" in asked or ("--dry-run" in asked and "--download" not in asked)
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
    return read_options(kind[type(recipe.images)], arguments, default)


def check_names(job: FolderJob | RecipeJob[Any]) -> None:
    """Raises InputError for unknown methods, orders, merges and metrics, before heavy imports."""
    (job.settings.evaluation if isinstance(job, RecipeJob) else job.evaluation).check()
