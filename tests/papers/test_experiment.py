"""A reproduction at the smallest size: every part of it runs, and nothing is run twice."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from papers.experiment import Experiment, Place, reproduce
from ray_backfill.cluster.embed import EmbedActors
from ray_backfill.cluster.train import Workers
from ray_backfill.datasets import landmarks
from ray_backfill.recipes import Recipe, load_recipe
from ray_backfill.recipes._small import small_convnet, small_fits

METHODS = ("rm_naive", "least_squares_gallery", "fastfill", "rm")


def tiny(name: str, data_root: Path | None, seed: int = 0) -> Recipe[Any]:
    images = landmarks.Settings(seed=seed, image_size=16, landmarks=8, train_images=160, gallery_images=60, queries=16)
    fits = small_fits(seed, epochs=1, transform_epochs=1)
    heads = replace(fits.heads, classes=4, items=4)
    recipe = load_recipe("landmarks", None, seed)
    return replace(
        recipe,
        images=images,
        old=small_convnet(4, epochs=1, seed=0),
        new=small_convnet(6, epochs=1, seed=1),
        fits=replace(fits, heads=heads, transforms=replace(fits.transforms, batch=32, hidden=8)),
        evaluation=replace(recipe.evaluation, metrics=("mAP", "CMC@1"), points=3),
    )


@pytest.mark.usefixtures("ray_session")
def test_a_reproduction_from_images_to_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("papers.experiment.load_recipe", tiny)
    experiment = Experiment("landmarks", seeds=(0,), methods=METHODS)
    place = Place(Workers(number=1), EmbedActors(number=1, cpus=0.5))
    out, page = tmp_path / "runs", tmp_path / "page.md"
    assert reproduce(experiment, place, out, page, None, "python jobs/reproduce.py --data-root /secret/place") == page
    text = page.read_text()
    assert (tmp_path / "page.png").exists()
    for words in ("| Full RM is better than RM naive |", "## Beside the papers' tables", "## Merges", "## Costs"):
        assert words in text
    assert "/secret" not in text
    merged = pd.read_parquet(out / "seed-0" / "results_merges" / "summary.parquet")
    assert set(merged["merge"]) == {"raw", "quantile", "isotonic", "logistic", "csls", "rrf"}
    ablation = pd.read_parquet(out / "ablation" / "ablation.parquet")
    assert len(ablation) == 2 + 5 * 2 * 3, "RQT with and without rho; five losses by mining and temperature"
    files = {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")}
    reproduce(experiment, place, out, page, None, "again")
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")} == files
