"""Stream all images of a recipe through its backbones by Ray Data into Parquet; trains the backbones if need be.

python jobs/embed_gallery.py --recipe omniglot --data-root PATH --out runs/omniglot
python jobs/embed_gallery.py --recipe imagenet --dry-run     (what it would need; needs no data)
"""

from ray_backfill.cli.jobs import context_of
from ray_backfill.cli.parse import recipe_job
from ray_backfill.cli.shell import run_job, shown
from ray_backfill.files import read_json
from ray_backfill.runs.images import embed_recipe


def main() -> None:
    job = recipe_job(__doc__ or "", last_stage="embeddings")
    folder = embed_recipe(job.settings, context_of(job))
    facts = read_json(folder / "manifest.json")
    print(f"embeddings: {shown(folder)}, {facts['images']:,} images")
    if facts["broken_images"]:
        print(f"{facts['broken_images']:,} broken images were left out; see {shown(folder / 'broken.parquet')}")


if __name__ == "__main__":
    run_job(main)
