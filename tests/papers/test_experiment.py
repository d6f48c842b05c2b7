"""A reproduction at the smallest size: every part of it runs, and nothing is run twice."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ray_backfill.cluster.settings import EmbedActors, Workers
from ray_backfill.datasets import landmarks
from ray_backfill.papers.experiment import reproduce
from ray_backfill.papers.settings import Experiment
from ray_backfill.recipes import ModelRecipe, Recipe, load_recipe
from ray_backfill.runs.context import Context

METHODS = ("rm_naive", "least_squares_gallery", "fastfill", "rm")


def tiny(name: str, data_root: Path | None, seed: int = 0) -> Recipe[Any]:
    recipe = load_recipe("landmarks", None, seed)
    images = landmarks.Settings(seed=seed, image_size=16, landmarks=8, train_images=160, gallery_images=60, queries=16)
    heads = replace(recipe.fits.heads, epochs=1, classes=4, items=4)
    transforms = replace(recipe.fits.transforms, epochs=1, batch=32, hidden=8)
    return replace(
        recipe,
        images=images,
        old=_one_epoch(recipe.old, width=4),
        new=_one_epoch(recipe.new, width=6),
        fits=replace(recipe.fits, heads=heads, transforms=transforms),
        evaluation=replace(recipe.evaluation, metrics=("mAP", "CMC@1"), points=3),
    )


def _one_epoch(model: ModelRecipe, width: int) -> ModelRecipe:
    return ModelRecipe(replace(model.backbone, width=width), replace(model.training, epochs=1))


@pytest.mark.usefixtures("ray_session")
def test_a_reproduction_from_images_to_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray_backfill.papers.experiment.load_recipe", tiny)
    monkeypatch.setattr("ray_backfill.papers.experiment._TAUS", (1.0,))
    monkeypatch.setattr("ray_backfill.papers.experiment._LOSSES", ("rqt", "rqt_rho", "mcl", "rm"))
    experiment = Experiment("landmarks", seeds=(0,), methods=METHODS)
    out, page = tmp_path / "runs", tmp_path / "page.md"
    command = "python jobs/reproduce.py --data-root /secret/place"
    context = Context(out, Workers(number=1), EmbedActors(number=1, cpus=0.5), command=command)
    assert reproduce(experiment, context, page, None) == page
    text = page.read_text()
    assert (tmp_path / "page.png").exists()
    for words in (
        "| Full RM is better than RM naive |",
        "## Comparison with the papers' tables",
        "## Merges",
        "## Costs",
        "The random order is the mean over 10 permutations.",
    ):
        assert words in text
    assert "/secret" not in text
    spread = pd.read_parquet(out / "seed-0" / "results" / "permutations.parquet")
    assert set(spread["permutations"]) == {10}
    merged = pd.read_parquet(out / "seed-0" / "results_merges" / "summary.parquet")
    assert set(merged["merge"]) == {"raw", "quantile", "isotonic", "logistic", "csls", "rrf"}
    ablation = pd.read_parquet(out / "ablation" / "ablation.parquet")
    assert len(ablation) == 2 + 2 * 2, "RQT with and without rho; two losses with and without mining"
    files = {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")}
    reproduce(experiment, replace(context, command="again"), page, None)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")} == files
