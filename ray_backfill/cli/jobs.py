"""The bodies of the jobs: read the command line, run, say what came out."""

import argparse
from pathlib import Path
from typing import Any

import tyro

from ray_backfill.cli.options import LandmarkJob, ScaleJob, SimulateJob
from ray_backfill.cli.parse import is_data_job, names_of_plugins, parse_data_job, recipe_job
from ray_backfill.cli.shell import checked_out, command_line, given_folder, shown
from ray_backfill.cluster.settings import ReplayPlace
from ray_backfill.report import print_table
from ray_backfill.report.live import print_live_table
from ray_backfill.runs.checks import check_evaluation
from ray_backfill.runs.context import Context
from ray_backfill.runs.drill import drill_folder, drill_recipe
from ray_backfill.runs.images import embed_recipe
from ray_backfill.runs.pipeline import evaluate_folder, evaluate_synthetic, fit_folder, run_recipe


def simulate_job(description: str, default_recipe: str = "landmarks") -> None:
    """The body of jobs/simulate*.py: run, print the table, say where the report is."""
    _say(*(_run_data(description) if is_data_job() else _run_recipe(description, default_recipe, SimulateJob)))


def simulate_landmarks_job(description: str) -> None:
    """The body of jobs/simulate_gldv2.py: as ``simulate_job``, or with ``--scale full`` on an invented gallery."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--scale", default="demo")
    if parser.parse_known_args()[0].scale == "full":
        _say(_run_full_scale(description))
    else:
        _say(*(_run_data(description) if is_data_job() else _run_recipe(description, "landmarks", LandmarkJob)))


def _say(results: Path, is_live: bool = False) -> None:
    (print_live_table if is_live else print_table)(results)
    print(f"\nreport: {shown(results / 'report.html')}")


def _run_full_scale(description: str) -> Path:
    job = tyro.cli(ScaleJob, description=f"{description}\n\n{names_of_plugins()}")
    print("These embeddings are invented: they prove scale and arithmetic, not which method is better on landmarks.")
    return evaluate_synthetic(job.gallery, job.evaluation, job.fits, context_of(job))


def _run_data(description: str) -> tuple[Path, bool]:
    job = parse_data_job(description)
    data, context = given_folder(job.data), context_of(job)
    if job.mode == "live":
        return drill_folder(data, job.evaluation, job.fits, job.live, context), True
    return evaluate_folder(data, job.evaluation, job.fits, context), False


def _run_recipe(description: str, default_recipe: str, kind: type) -> tuple[Path, bool]:
    job = recipe_job(description, default_recipe, kind=kind, place=ReplayPlace())
    context = context_of(job)
    if job.mode == "live":
        return drill_recipe(job.settings, job.live, context), True
    return run_recipe(job.settings, context), False


def fit_job(description: str) -> None:
    """The body of jobs/train_mcl.py: fit, say where the networks are and what was left out."""
    if is_data_job():
        of_data = parse_data_job(description)
        folder, context = given_folder(of_data.data), context_of(of_data)
        evaluation, fits = of_data.evaluation, of_data.fits
    else:
        job = recipe_job(description)
        context, evaluation, fits = context_of(job), job.settings.evaluation, job.settings.fits
        check_evaluation(job.settings, 1)
        folder = embed_recipe(job.settings, context)
    networks, left_out = fit_folder(folder, evaluation, fits, context)
    for each in left_out:
        print(f"left out: {each.words} ({each.reason})")
    for name, path in networks.items():
        print(f"{name}: {shown(path)}")


def context_of(job: Any) -> Context:
    """The context of a run, from the options that the job has. Raises InputError for an ``out`` that cannot be made."""
    given = {name: getattr(job, name) for name in ("workers", "actors", "place") if hasattr(job, name)}
    return Context(checked_out(job.out), command=command_line(), **given)
