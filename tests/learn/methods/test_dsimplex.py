"""The simplex against its definition, its loss against a plain loop, what is fixed, and models trained apart."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ray_backfill.core import stages
from ray_backfill.core.errors import InputError
from ray_backfill.images.datasets import landmarks, open_images
from ray_backfill.learn.methods import Embeddings, all_backbones, all_methods
from ray_backfill.learn.models.backbones import BackboneInfo, pixels_to_float
from ray_backfill.learn.papers.dsimplex import FixedSimplex, simplex
from ray_backfill.learn.training.backbone_loop import train_backbone, training_rows
from ray_backfill.learn.training.settings import BackboneSettings, BackboneTraining, ObjectiveSettings
from ray_backfill.recipes import load_recipe
from ray_backfill.recipes.run import pipeline
from ray_backfill.workers.settings import Context

INFO = BackboneInfo(BackboneSettings(dim=7, width=2), 1, 8, classes=[1, 3, 4, 7])
TARGET = torch.tensor([0, 1, 2, 3, 3, -1, 1])


@pytest.mark.parametrize("dim", [1, 2, 3, 7, 99])
def test_vertices_are_as_far_apart_as_they_can_be(dim: int) -> None:
    """Length 1, sum 0, and the same angle between each two."""
    vertices = simplex(dim).double()
    assert vertices.shape == (dim + 1, dim)
    cosine = vertices @ vertices.T
    expected = torch.full_like(cosine, -1 / dim).fill_diagonal_(1.0)
    torch.testing.assert_close(cosine, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(vertices.sum(0), torch.zeros(dim).double(), atol=1e-5, rtol=0)


def test_the_loss_is_smoothed_cross_entropy_over_all_vertices() -> None:
    """Also over those of labels that this model has no images of."""
    torch.manual_seed(0)
    made, pixels = FixedSimplex(INFO.build().eval(), INFO, ObjectiveSettings(), None), torch.rand(7, 1, 8, 8)
    losses, right = made([pixels], TARGET)
    embedded, vertices = made.backbone.embed(pixels).tolist(), simplex(7).tolist()
    for i, answer in enumerate([1, 3, 4, 7, 7, -1, 3]):
        logits = [sum(a * b for a, b in zip(embedded[i], vertex, strict=True)) for vertex in vertices]
        log_p = [z - math.log(sum(math.exp(x) for x in logits)) for z in logits]
        expected = -0.9 * log_p[answer] - 0.1 * sum(log_p) / 8 if answer >= 0 else 0.0
        assert losses[i].item() == pytest.approx(expected, abs=1e-5)
        assert bool(right[i]) == (logits.index(max(logits)) == answer)


@pytest.mark.parametrize("scale", [None, 64.0])
def test_the_classifier_stands_still_and_is_kept(scale: float | None) -> None:
    info = replace(INFO, cosine_scale=scale)
    settings = ObjectiveSettings("softmax" if scale is None else "arcface")
    made = FixedSimplex(info.build(), info, settings, None)
    losses, _ = made([torch.rand(7, 1, 8, 8)], TARGET)
    losses.sum().backward()
    for name, parameter in made.named_parameters():
        assert parameter.requires_grad == (parameter.grad is not None), name
        assert parameter.requires_grad != name.startswith("backbone.classifier."), name
    torch.testing.assert_close(made.backbone.classifier.weight, simplex(7)[[1, 3, 4, 7]])
    assert made.backbone.classifier.bias is None or not made.backbone.classifier.bias.any()
    assert set(made.state_dict()) == {f"backbone.{name}" for name in made.backbone.state_dict()}


def test_too_few_dimensions_are_refused() -> None:
    small = replace(INFO, backbone=replace(INFO.backbone, dim=6))
    with pytest.raises(InputError, match=r"6 dimensions has 7 vertices.* label 7; give the backbone 7 dimensions"):
        FixedSimplex(small.build(), small, ObjectiveSettings(), None)


def test_the_pair_is_of_both_models_as_they_are() -> None:
    rng = np.random.default_rng(0)
    query, gallery = (
        {model: rng.normal(size=(n, 7)).astype(np.float32) for model in ("dsimplex", "dsimplex_old")} for n in (3, 5)
    )
    pair = all_methods()["dsimplex"].pair(Embeddings(query, gallery), None)
    assert pair.backward.query is pair.forward.query is query["dsimplex"]
    assert pair.backward.gallery is gallery["dsimplex_old"]
    assert pair.forward.gallery is gallery["dsimplex"]


def test_two_models_that_never_met_agree_about_classes() -> None:
    """Old knows labels 0 and 1, new knows 0, 1 and 2: new embeddings find old ones of their class."""
    source = open_images(landmarks.Settings(image_size=16, landmarks=3, train_images=192, gallery_images=16, queries=4))
    labels = source.items("train").labels_N
    training = BackboneTraining(epochs=25, batch=24, lr=0.1, warmup_epochs=1)
    embedded: dict[str, torch.Tensor] = {}
    rows = training_rows(labels, [0, 1])
    pixels = pixels_to_float(torch.from_numpy(source.read("train", rows).pixels_BSSC))
    for name, classes, width in (("dsimplex_old", [0, 1], 4), ("dsimplex", [0, 1, 2], 6)):
        info = BackboneInfo(BackboneSettings(dim=2, width=width), 3, 16, classes)
        kind = all_backbones()[name]
        done = train_backbone(source, training_rows(labels, classes), info, training, make_objective=kind.objective)
        with torch.no_grad():
            embedded[name] = torch.nn.functional.normalize(done.network.embed(pixels), dim=1)
    cosine = embedded["dsimplex"] @ embedded["dsimplex_old"].T
    same = torch.from_numpy(labels[rows][:, None] == labels[rows][None, :])
    assert cosine[same].mean() > 0.6
    assert cosine[~same].mean() < 0.0


def test_its_backbones_have_one_dimension_less_than_there_are_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load_recipe("landmarks")
    recipe = replace(recipe, images=replace(recipe.images, landmarks=9, train_images=90))
    jobs: list[Any] = []

    def record(folder: Path, job: Any, *_: Any) -> Path:
        jobs.append(job)
        return folder

    monkeypatch.setattr(pipeline, "train_backbone_stage", record)
    monkeypatch.setattr(stages, "note_facts", lambda *_: None)
    for role, like in (("dsimplex", recipe.new), ("dsimplex_old", recipe.old)):
        pipeline.train_recipe_backbone(recipe, role, Context(tmp_path))
        assert jobs[-1].backbone == replace(like.backbone, dim=8)
    assert len(jobs) == 2, "no other model is needed"


def test_a_vertex_may_have_negative_values_whatever_the_other_models_have() -> None:
    like = BackboneSettings(last_layer="relu")
    assert all_backbones()["dsimplex"].backbone(like, classes=9) == BackboneSettings(dim=8, last_layer="linear")
    assert all_backbones()["bct"].backbone(like, classes=9) == like
