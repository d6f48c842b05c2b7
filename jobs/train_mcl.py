"""Fit what methods need on stored embeddings: heads and transformations by Ray Train, adapters by their formulas.

python jobs/train_mcl.py --recipe omniglot --data-root PATH --out runs/omniglot --methods mcl rm
python jobs/train_mcl.py --data DIR --out runs/mine --methods rm
"""

from ray_backfill.cli import checked_out, given_folder, is_data_job, parse_data_job, recipe_job, run_job, shown
from ray_backfill.errors import InputError
from ray_backfill.runs.checks import check_evaluation, unfittable
from ray_backfill.runs.pipeline import embed_recipe, fit_folder, models_of
from ray_backfill.store import read_folder


def main() -> None:
    if is_data_job():
        data = parse_data_job(__doc__ or "")
        out, folder, workers = checked_out(data.out), given_folder(data.data), data.workers
        evaluation, fits = data.evaluation, data.fits
    else:
        job = recipe_job(__doc__ or "")
        out, workers = checked_out(job.out), job.workers
        evaluation, fits = job.settings.evaluation, job.settings.fits
        check_evaluation(job.settings, 1)
        folder = embed_recipe(job.settings, out, workers, job.actors)
    methods = [method for method in evaluation.find_methods() if method.fit]
    if not methods:
        raise InputError("none of these methods has anything to fit; give e.g. --methods rqt cl_s cl_m mcl rm")
    embeddings = read_folder(folder, models_of(methods))
    left_out = unfittable(embeddings, methods, fits, evaluation.distance)
    for name, reason in left_out.items():
        if name in evaluation.methods:  # asked for by name
            raise InputError(f"{name} {reason}")
        print(f"left out: {name} ({reason})")
    methods = [method for method in methods if method.name not in left_out]
    folders = fit_folder(embeddings, out, methods, evaluation, fits, workers)
    for name, path in folders.items():
        print(f"{name}: {shown(path)}")
    for method in methods:
        if method.name not in folders:
            raise InputError(f"training {method.name} diverged (its loss is not finite); lower --{method.kind}.lr")


if __name__ == "__main__":
    run_job(main)
