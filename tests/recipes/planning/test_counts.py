"""Counts from data, from published sizes, and of neither."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.images.class_split import Protocol
from ray_backfill.images.datasets import landmarks, open_images
from ray_backfill.recipes import NO_ROOT, Recipe, load_recipe
from ray_backfill.recipes.run.plan import ModelCounts, count_images
from tests.images.datasets._published_more import small_market
from tests.recipes.planning.test_plan import small_recipe


def test_data_that_are_there_are_counted() -> None:
    recipe = small_recipe(kind="open")
    counts = count_images(recipe)
    source = open_images(recipe.images)
    labels = source.items("train").labels_N
    assert counts.is_exact
    assert (counts.train, counts.gallery, counts.queries) == (70, 20, 8)
    # 40 % of the classes are the old model's, the others the new one's.
    assert (counts.old.classes, counts.new.classes) == (4, 6)
    assert counts.old.images + counts.new.images == len(labels)
    sizes = np.bincount(labels)
    assert counts.old.images in {sum(sizes[list(some)]) for some in _fours(len(sizes))}
    assert counts.embedded == {"train": counts.new.images, "gallery": 20, "queries": 8}
    assert (counts.image_size, counts.channels) == (16, 3)


@pytest.mark.parametrize(("kind", "classes"), [("open", (4, 6)), ("extended", (4, 10))])
def test_what_is_held_out_for_validation_is_embedded_and_trains_nothing(kind: Any, classes: tuple[int, int]) -> None:
    recipe = small_recipe(kind=kind)
    held = replace(recipe, protocol=replace(recipe.protocol, validation=0.1))
    counts = count_images(held)
    assert (counts.old.classes, counts.new.classes) == classes
    validation = len(open_images(held.source).items("validation"))
    assert counts.validation == counts.embedded["validation"] == validation
    learned = counts.new.images + (counts.old.images if kind == "open" else 0)
    assert learned == 70 - validation


def test_a_published_set_that_is_there_is_counted(tmp_path: Path) -> None:
    small_market(tmp_path)
    recipe = replace(load_recipe("market1501", tmp_path), protocol=Protocol("same"))
    counts = count_images(recipe)
    assert counts.is_exact
    assert (counts.train, counts.gallery, counts.queries) == (6, 5, 4), "junk is no part of the gallery"
    assert counts.old == counts.new == ModelCounts(6, 2)
    # Three int64 and three float32 columns, the camera, and "bounding_box_test/0001_c1s1_000001_01.jpg" (41), its size.
    assert counts.column_bytes == 3 * 8 + 3 * 4 + 8 + 41 + 4


def _fours(n: int) -> list[tuple[int, ...]]:
    return list(combinations(range(n), 4))


@pytest.mark.parametrize(
    ("name", "old", "new", "gallery", "queries"),
    [
        # By hand, with classes of equal size: 1,580,470 images of 81,313 landmarks, of which 30 % are 24,394.
        ("gldv2", ModelCounts(474_143, 24_394), ModelCounts(1_106_327, 56_919), 761_757, 750),
        ("market1501", ModelCounts(6_459, 375), ModelCounts(12_936, 751), 15_913, 3_368),
        # Half of 1,281,167 is 640,583.5; Python rounds halves to the even one. 182 of 365 categories.
        ("imagenet", ModelCounts(640_584, 500), ModelCounts(1_281_167, 1000), 50_000, 0),
        ("places365", ModelCounts(899_260, 182), ModelCounts(1_803_460, 365), 36_500, 0),
        ("cifar100", ModelCounts(25_000, 50), ModelCounts(50_000, 100), 10_000, 0),
        ("vggface2", ModelCounts(314_153, 863), ModelCounts(3_141_890, 8_631), 25_000, 0),
        # 550 and 4,366 of 8,631 people.
        ("vggface2_biased", ModelCounts(200_213, 550), ModelCounts(1_589_328, 4_366), 25_000, 0),
    ],
)
def test_without_data_the_published_sizes_are_taken(
    name: str, old: ModelCounts, new: ModelCounts, gallery: int, queries: int
) -> None:
    counts = count_images(load_recipe(name, Path("/nowhere")))
    assert not counts.is_exact
    assert "because the data are missing" in counts.origin
    assert "/nowhere" in counts.origin
    assert (counts.old, counts.new) == (old, new)
    assert (counts.gallery, counts.queries, counts.image_size) == (gallery, queries, 224)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        # A tenth of 30,000 images is held out for validation.
        ("tiny_imagenet", ModelCounts(13_500, 100), ModelCounts(27_000, 200)),
        ("tiny_imagenet_open", ModelCounts(8_100, 60), ModelCounts(18_900, 140)),
    ],
)
def test_published_sizes_without_what_is_held_out(name: str, old: ModelCounts, new: ModelCounts) -> None:
    counts = count_images(load_recipe(name, Path("/nowhere")))
    assert (counts.old, counts.new, counts.train) == (old, new, 30_000)
    assert counts.embedded == {"train": new.images, "gallery": 10_000, "validation": 3_000}


@pytest.mark.parametrize(("asked", "queries"), [("all", 1_129), ("private", 750), ("public", 379)])
def test_the_queries_of_landmarks_are_those_that_are_asked(asked: str, queries: int) -> None:
    assert count_images(_with(load_recipe("gldv2", NO_ROOT), queries=asked)).queries == queries


def test_data_that_are_wrong_are_not_taken_for_missing_ones(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="image_size must be at least 1"):
        count_images(_with(load_recipe("cifar100", tmp_path), image_size=0))
    small_market(tmp_path)
    (tmp_path / "query" / "0000_c1s1_000001_00.jpg").write_bytes(b"a distractor asks nothing")
    with pytest.raises(InputError, match="is junk or a distractor"):
        count_images(load_recipe("market1501", tmp_path))


def test_who_gives_no_root_is_told_of_none() -> None:
    assert "(no --data-root is given)" in count_images(load_recipe("cifar100", NO_ROOT)).origin


def _with(recipe: Recipe[Any], **images: object) -> Recipe[Any]:
    return replace(recipe, images=replace(recipe.images, **images))


def test_nobody_published_the_size_of_these() -> None:
    with pytest.raises(InputError, match="omniglot_small1"):
        count_images(load_recipe("omniglot", Path("/nowhere")))


def test_what_is_wrong_with_the_protocol_is_not_taken_for_missing_data() -> None:
    recipe = small_recipe()
    assert isinstance(recipe.images, landmarks.Settings)
    with pytest.raises(InputError, match=r"--protocol\.old-share must be greater than 0"):
        count_images(type(recipe)(recipe.images, Protocol(old_share=0.0), recipe.old, recipe.new))
