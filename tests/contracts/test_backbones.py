"""Every kind of backbone, found by itself: it learns its loss and leaves a backbone like any other."""

from dataclasses import replace

import pytest
import torch

from ray_backfill.images.datasets import landmarks, open_images
from ray_backfill.learn.methods import BackboneKind, all_backbones, all_methods
from ray_backfill.learn.models.backbones import BackboneInfo
from ray_backfill.learn.training.backbone_loop import Epoch, train_backbone, training_rows
from ray_backfill.learn.training.objective import OldModel
from ray_backfill.learn.training.settings import BackboneSettings, BackboneTraining

SOURCE = open_images(landmarks.Settings(image_size=16, landmarks=4, train_images=96, gallery_images=16, queries=4))
INFO = BackboneInfo(BackboneSettings(dim=8, width=4), channels=3, image_size=16, classes=[0, 1, 3])
OLD = replace(INFO, backbone=replace(INFO.backbone, dim=6), classes=[0, 1])


@pytest.mark.parametrize("kind", all_backbones().values(), ids=lambda kind: kind.name)
def test_every_kind_learns_its_loss(kind: BackboneKind) -> None:
    torch.manual_seed(0)
    old = OldModel(OLD.build(), OLD) if kind.needs_old else None
    rows = training_rows(SOURCE.items("train").labels_N, INFO.classes)
    epochs: list[Epoch] = []
    settings = BackboneTraining(epochs=8, batch=24, lr=0.05, warmup_epochs=1)
    done = train_backbone(SOURCE, rows, INFO, settings, on_epoch=epochs.append, make_objective=kind.objective, old=old)
    assert epochs[-1].loss < 0.95 * epochs[0].loss
    assert done.network.state_dict().keys() == INFO.build().state_dict().keys()
    assert all(value.isfinite().all() for value in done.network.state_dict().values())


def test_names_are_unique_and_say_their_source() -> None:
    kinds = all_backbones()
    assert {"bct", "ract", "ract_hard", "side", "advbct", "mixbct"} <= set(kinds)
    assert not {"old", "new"} & set(kinds)
    assert all(kind.source and kind.name == name and kind.like in ("old", "new") for name, kind in kinds.items())
    assert len({kind.title for kind in kinds.values()}) == len(kinds)


def test_methods_need_only_backbones_that_there_are() -> None:
    known = {"old", "new", *all_backbones()}
    assert all(set(method.models) <= known for method in all_methods().values())
