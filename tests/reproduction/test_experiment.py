"""A reproduction at the smallest size: every part of it runs, and nothing is run twice."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from ray_backfill.core.stages import read_json
from ray_backfill.data.folder import Classifier
from ray_backfill.engine.merges import all_merges
from ray_backfill.images.datasets import landmarks
from ray_backfill.learn.methods.fct import TransformFit
from ray_backfill.learn.papers.fastfill import disc_losses, transform_loss
from ray_backfill.learn.papers.fct import Transform
from ray_backfill.learn.training.fit import Tuned, class_rows
from ray_backfill.learn.training.settings import FitSettings, TransformSettings
from ray_backfill.recipes import ModelRecipe, Recipe, load_recipe
from ray_backfill.workers.settings import Context, EmbedActors, Workers
from reproduction.experiment import item_losses, reproduce
from reproduction.further_runs import published_fits
from reproduction.runs import SeedRun
from reproduction.settings import Experiment

METHODS = ("rm_naive", "least_squares_gallery", "fastfill", "rm", "rho_alone")


def tiny(name: str, data_root: Path | None, seed: int = 0) -> Recipe[Any]:
    recipe = load_recipe("landmarks", None, seed)
    images = landmarks.Settings(seed=seed, image_size=16, landmarks=8, train_images=280, gallery_images=60, queries=16)
    heads = replace(recipe.fits.heads, epochs=1, classes=4, items=4)
    transforms = replace(recipe.fits.transforms, epochs=1, batch=32, hidden=8)
    return replace(
        recipe,
        images=images,
        protocol=replace(recipe.protocol, validation=0.2),
        old=_one_epoch(recipe.old, width=4),
        new=_one_epoch(recipe.new, width=6),
        fits=replace(recipe.fits, heads=heads, transforms=transforms),
        evaluation=replace(recipe.evaluation, metrics=("mAP", "CMC@1"), points=3),
    )


def _one_epoch(model: ModelRecipe, width: int) -> ModelRecipe:
    return ModelRecipe(replace(model.backbone, width=width), replace(model.training, epochs=1))


def cheap_published_fits(recipe: Recipe[Any]) -> FitSettings:
    """The papers' settings, apart from the number of epochs."""
    fits = published_fits(recipe)
    heads, transforms = replace(fits.heads, epochs=1), replace(fits.transforms, epochs=1, hidden=8)
    return replace(fits, heads=heads, transforms=transforms)


def value_in(found: dict[str, Any], name: str) -> Any:
    """The value of a dotted name; its first part is the group of settings that was recorded."""
    for part in name.split(".")[1:]:
        found = found[part]
    return found


@pytest.mark.heavy
@pytest.mark.usefixtures("ray_session")
def test_a_reproduction_from_images_to_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reproduction.experiment.load_recipe", tiny)
    monkeypatch.setattr("reproduction.experiment._TAUS", (1.0,))
    monkeypatch.setattr("reproduction.experiment._LOSSES", ("rqt", "rqt_rho", "mcl", "rm"))
    monkeypatch.setattr("reproduction.further_runs.load_recipe", tiny)
    monkeypatch.setattr("reproduction.further_runs.published_fits", cheap_published_fits)
    experiment = Experiment("landmarks", seeds=(0,), methods=METHODS, tune=2, long_epochs=2)
    out, page = tmp_path / "runs", tmp_path / "page.md"
    command = "python jobs/reproduce.py --data-root /secret/place"
    context = Context(out, Workers(number=1), EmbedActors(number=1, cpus=0.5), command=command)
    with monkeypatch.context() as broken:
        broken.setattr("reproduction.page.render", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            reproduce(experiment, context, page, None)
    check_runs(out)  # a page that cannot be made takes no results with it
    assert not page.exists()
    files = {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")}
    assert reproduce(experiment, context, page, None) == page
    assert (tmp_path / "page.png").exists()
    check_page(page.read_text())
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")} == files


def check_page(text: str) -> None:
    for words in (
        "| Full RM is better than RM naive |",
        "## Comparison with the papers' tables",
        "## Merges",
        "## As published and tuned",
        "for 2 epochs. In per cent",
        "## Costs",
        "The random order is the mean over 10 permutations.",
    ):
        assert words in text
    assert "/secret" not in text


def check_runs(out: Path) -> None:
    spread = pd.read_parquet(out / "seed-0" / "results" / "permutations.parquet")
    assert set(spread["permutations"]) == {10}
    merged = pd.read_parquet(out / "seed-0" / "results_merges" / "summary.parquet")
    assert set(merged["merge"]) == {merge.name for merge in all_merges().values() if not merge.is_choice}
    ablation = pd.read_parquet(out / "ablation" / "ablation.parquet")
    assert len(ablation) == 2 + 2 * 2, "RQT with and without rho; two losses with and without mining"
    # Tuned once, and used in the longer training.
    assert [path.parent.name for path in out.glob("*/tuning")] == ["seed-0"]
    tuned = read_json(out / "seed-0" / "results" / "manifest.json")["tuned"]
    assert {each["method"] for each in tuned} == {"fastfill", "rm", "rho_alone"}
    for each in tuned:
        for seed in ("seed-0", "seed-0-long"):
            found = read_json(out / seed / "maps" / each["method"] / "manifest.json")["settings"]["training"]
            for name, value in each["values"].items():
                assert value_in(found, name) == value
    # As published: the papers' settings of what is trained; a formula has none, and the control stands beside full RM.
    published = pd.read_parquet(out / "seed-0" / "published" / "results" / "summary.parquet")
    assert set(published.method) == {"old", "new", "rho_alone", "fastfill", "rm"}
    assert set(published.order) == {"classifier_score"}
    training = read_json(out / "seed-0" / "published" / "maps" / "rm" / "manifest.json")["settings"]["training"]
    assert (training["lr"], training["loss"]["tau"]) == (1e-4, 1.0)
    # The longer training has the old model of its seed.
    models = [out / seed / "backbones" / "old" / "model.safetensors" for seed in ("seed-0", "seed-0-long")]
    assert models[0].read_bytes() == models[1].read_bytes()
    new = read_json(out / "seed-0-long" / "backbones" / "new" / "manifest.json")
    assert new["settings"]["training"]["epochs"] == 2


def test_the_first_seed_alone_is_tuned_for_all_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run gets what the first one chose: its number of trials, then the choices, by folder."""
    tuned = (Tuned("rm", "mAP", 8, {"heads.lr": 0.003}, 0.5, 0.4),)
    found: dict[str, tuple[int, tuple[Tuned, ...]]] = {}

    def run(recipe: Recipe[Any], context: Context) -> Path:
        found[context.out.name] = recipe.fits.tune, context.chosen
        return context.out / "results"

    def merges(data: Path, how: Any, fits: FitSettings, context: Context, *_: Any, **__: Any) -> Path:
        assert (fits.tune, context.chosen) == found[context.out.name]
        return context.out / "results_merges"

    def further(experiment: Experiment, run: SeedRun, context: Context, order: str) -> SeedRun:
        found[f"{run.folder.parent.name} {len(found)}"] = 0, context.chosen
        return run

    def read(folder: Path) -> Any:
        assert folder == tmp_path / "seed-3" / "results"
        return SimpleNamespace(manifest=SimpleNamespace(tuned=tuned))

    fakes: dict[str, Any] = {
        "run_recipe": run,
        "evaluate_folder": merges,
        "run_published": further,
        "run_long": further,
    }
    fakes |= {"read_results": read, "session": nullcontext, "write_page": lambda *_: None}
    fakes |= {"_minutes": lambda _: 0.0, "_sigma_against_loss": lambda *_: ()}
    for name, fake in fakes.items():
        monkeypatch.setattr(f"reproduction.experiment.{name}", fake)
    experiment = Experiment(
        "landmarks", seeds=(3, 4), tune=8, ablation=False, subgroups="landmarks", long_epochs=9, long_seeds="first"
    )
    reproduce(experiment, Context(tmp_path), tmp_path / "page.md", None)
    first = found.pop("seed-3")
    assert first == (8, ())
    assert list(found) == ["seed-4", "seed-3 2", "seed-4 3", "seed-3 4", "biased-3", "biased-4"]
    assert all(each == (0, tuned) for each in found.values())


@pytest.mark.parametrize("relative", [True, False])
def test_what_sigma_should_foretell_is_the_loss_of_each_item(relative: bool) -> None:
    torch.manual_seed(0)
    network = Transform((4,), 5, hidden=8, uncertainty=True).eval()
    old, new = torch.randn(7, 4), torch.randn(7, 5)
    classifier = Classifier(np.array([3, 1]), np.full((2, 5), 2, np.float32), np.ones(2, np.float32))
    label, settings = np.array([1, 3, 1, 9, 3, 3, 1]), TransformSettings(disc_weight=0.5, relative=relative)
    found = item_losses(network, classifier, old.numpy(), new.numpy(), label, settings)
    weight, bias = torch.from_numpy(classifier.weight), torch.from_numpy(classifier.bias)
    scale = float(new.double().var(0, unbiased=False).mean().sqrt()) if relative else 1.0
    with torch.no_grad():
        for i in range(7):
            h = network(old[i : i + 1])
            disc = disc_losses(h, torch.from_numpy(class_rows(classifier, label[i : i + 1])), weight, bias, settings)
            one = transform_loss(TransformFit(disc=True), settings, h / scale, None, new[i : i + 1] / scale, disc)
            assert found[i] == pytest.approx(float(one) if label[i] != 9 else float("nan"), rel=1e-5, nan_ok=True)
