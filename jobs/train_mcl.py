"""Train heads (RQT, CL-S, CL-M, MCL, with and without rho) by Ray Train on stored embeddings.

python jobs/train_mcl.py --recipe omniglot --data-root PATH --out runs/omniglot --methods mcl rm
python jobs/train_mcl.py --data DIR --out runs/mine --methods rm
"""

from ray_backfill.cli import checked_out, given_folder, is_data_job, parse_data_job, parse_recipe_job, run_job, shown
from ray_backfill.errors import InputError
from ray_backfill.pipeline import embed_recipe, train_folder_heads
from ray_backfill.preflight import check_evaluation, untrainable
from ray_backfill.store import read_folder


def main() -> None:
    if is_data_job():
        data = parse_data_job(__doc__ or "")
        out, folder, workers = checked_out(data.out), given_folder(data.data), data.workers
        evaluation, training = data.evaluation, data.heads
    else:
        job = parse_recipe_job(__doc__ or "")
        out, workers = checked_out(job.out), job.workers
        evaluation, training = job.settings.evaluation, job.settings.heads
        check_evaluation(job.settings, workers.number)
        folder = embed_recipe(job.settings, out, workers, job.actors)
    methods = [method for method in evaluation.find_methods() if method.head]
    if not methods:
        raise InputError("none of these methods has heads to train; give e.g. --methods rqt cl_s cl_m mcl rm")
    embeddings = read_folder(folder)
    for name, reason in untrainable(embeddings, methods).items():
        raise InputError(f"{name} {reason}")
    for name, path in train_folder_heads(embeddings, embeddings.fingerprint(), out, methods, training, workers).items():
        print(f"{name}: {shown(path)}")


if __name__ == "__main__":
    run_job(main)
