"""An invented gallery is what its settings say: sizes, labels, distances, classifier; and the same every time."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.data.folder import EmbeddingFolder, read_folder
from ray_backfill.data.write import write_parquet
from ray_backfill.images.draws import class_sizes
from ray_backfill.recipes.run import synthetic
from ray_backfill.recipes.run.synthetic import ModelView, SyntheticGallery, draw_gallery

OLD = ModelView(seen=5, within=0.6, own=0.2, offset=0.3, noise=0.1, fall=0.5)
NEW = ModelView(seen=8, within=0.3, own=0.1, offset=0.1, noise=0.2)
TINY = SyntheticGallery(
    items=600, queries=40, classes=50, known_classes=10, train_items=105, groups=8, dims=16, old=OLD, new=NEW,
    part_rows=128,
)  # fmt: skip


def draw(settings: SyntheticGallery, folder: Path) -> EmbeddingFolder:
    return read_folder(draw_gallery(settings, folder))


def contents(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_stopped_drawing_continues_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = contents(draw_gallery(TINY, tmp_path / "whole"))
    assert len([path for path in whole if path.parts[0] == "gallery.parquet"]) == 5
    written = 0

    def stop_at_the_fourth(path: Path, table: pa.Table) -> None:
        nonlocal written
        written += 1
        if written == 4:
            raise KeyboardInterrupt
        write_parquet(path, table)

    with monkeypatch.context() as patched:
        patched.setattr(synthetic, "write_parquet", stop_at_the_fourth)
        with pytest.raises(KeyboardInterrupt):
            draw_gallery(TINY, tmp_path / "stopped")
    (tmp_path / "stopped" / "gallery.parquet" / ".part-00003.parquet.12.tmp").write_bytes(b"half a part")
    half = contents(tmp_path / "stopped")
    assert 0 < len(half) < len(whole)
    assert contents(draw_gallery(TINY, tmp_path / "stopped")) == whole
    with pytest.raises(InputError, match=r"seed: 0 there, 1 requested"):
        draw_gallery(replace(TINY, seed=1), tmp_path / "stopped")
    other = draw(replace(TINY, seed=1), tmp_path / "other")
    assert not np.array_equal(other.gallery.old, read_folder(tmp_path / "whole").gallery.old)


def test_splits_and_labels(tmp_path: Path) -> None:
    folder = draw(TINY, tmp_path)
    gallery, queries, train = folder.gallery, folder.queries, folder.train
    assert queries is not None
    assert train is not None
    tables = gallery, queries, train
    assert [len(table) for table in tables] == [600, 40, 105]
    assert all(v.dtype == np.float16 and v.shape[1] == 16 for table in tables for v in table.vectors.values())
    assert len(np.unique(np.concatenate([table.id for table in tables]))) == 745
    labels: list[NDArray[Any]] = [np.asarray(table.label) for table in tables]
    assert np.bincount(labels[0]).tolist() == class_sizes(600, 50, 0.6).tolist()
    assert np.isin(labels[1], labels[0]).all(), "every query has a right answer"
    known, sizes = np.unique(labels[2], return_counts=True)
    assert len(known) == 10
    assert set(sizes) == {10, 11}
    assert np.isin(np.asarray(gallery.old_class), known).all()


def close(values_by_group: NDArray[np.float64], expected: float) -> bool:
    """Whether the mean of independent values is where it should be, by their own scatter; which must be small."""
    error = values_by_group.std() / math.sqrt(len(values_by_group))
    assert error < 0.02
    return abs(float(values_by_group.mean()) - expected) < 4 * error


@pytest.mark.parametrize("model", ["old", "new"])
def test_distances_are_those_of_the_model(tmp_path: Path, model: str) -> None:
    """Two items of two classes of each of 2,000 groups: inner products and lengths have their expected means."""
    groups, share = 2000, 0.4
    settings = replace(
        TINY, items=4 * groups, classes=2 * groups, groups=groups, group_share=share, zipf=0.0, part_rows=3000
    )
    view: ModelView = getattr(settings, model)
    gallery = draw(settings, tmp_path).gallery
    by_class = np.argsort(np.asarray(gallery.label), kind="stable")
    x = gallery.vectors[model].astype(np.float64)[by_class].reshape(2, groups, 2, settings.dims)
    a, b = x[:, :, 0], x[:, :, 1]  # (2 classes, groups, d): class c belongs to group c % groups

    def dot(p: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.array([math.fsum(p[g, i] * q[g, i] for i in range(settings.dims)) for g in range(groups)])

    assert close((dot(a[0], b[0]) + dot(a[1], b[1])) / 2, view.offset + 1), "one class"
    assert close(dot(a[0], a[1]), view.offset + share), "one group"
    assert close(dot(a[0], np.roll(b[1], 1, axis=0)), view.offset), "nothing in common"
    assert close((dot(a[0], a[0]) + dot(b[1], b[1])) / 2, view.offset + 1 + view.within + view.noise), "length"


def test_how_much_of_one_model_the_other_foretells(tmp_path: Path) -> None:
    """The R^2 of a linear map from old to new, from variances and covariances of each latent dimension."""
    n = 20_000
    settings = replace(TINY, items=n, classes=n, groups=n, known_classes=1, part_rows=n)
    gallery = draw(settings, tmp_path).gallery
    x, y = (gallery.vectors[model].astype(np.float64) for model in ("old", "new"))
    x, y = x - x.mean(0), y - y.mean(0)
    missed = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
    found = 1 - (missed**2).sum() / (y**2).sum()
    unequal = [rank**-OLD.fall for rank in range(1, OLD.seen + 1)]
    shared = math.sqrt((1 - OLD.own) * (1 - NEW.own)) * (1 + math.sqrt(OLD.within * NEW.within))
    explained = 0.0
    for weight in unequal:
        old_weight, new_weight = weight / sum(unequal), 1 / NEW.seen
        old_variance = old_weight * (1 + OLD.within) + OLD.noise / settings.dims
        explained += old_weight * new_weight * shared**2 / old_variance
    assert found == pytest.approx(explained / (1 + NEW.within + NEW.noise), abs=0.01)


def test_the_old_classifier_is_a_softmax_over_known_classes(tmp_path: Path) -> None:
    """Where items of a class are all the same, the train split shows what the classifier compares with."""
    scale = 4.0
    settings = replace(TINY, old=replace(OLD, within=0.0, noise=0.0), classifier_scale=scale)
    folder = draw(settings, tmp_path)
    gallery, train = folder.gallery, folder.train
    assert train is not None
    assert gallery.old_class is not None
    means = {label: train.old[row].astype(float) for row, label in enumerate(np.asarray(train.label))}
    for row in range(0, 600, 60):
        item = gallery.old[row].astype(float)
        weights = {}
        for label, mean in means.items():
            dot = sum(p * q for p, q in zip(item, mean, strict=True))
            weights[label] = math.exp(scale * dot / math.sqrt(sum(item**2) * sum(mean**2)))
        chances = sorted((w / sum(weights.values()) for w in weights.values()), reverse=True)
        assert gallery.numbers["old_score"][row] == pytest.approx(chances[0], rel=0.01)
        assert gallery.numbers["old_margin"][row] == pytest.approx(chances[0] - chances[1], abs=0.01)
        assert gallery.numbers["old_entropy"][row] == pytest.approx(-sum(p * math.log(p) for p in chances), rel=0.01)
        assert weights[gallery.old_class[row]] == pytest.approx(max(weights.values()), rel=0.01)


def test_impossible_settings() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"items": 49}, "50 classes need as many items"),
        ({"queries": 0}, "--gallery.queries must be at least 1"),
        ({"known_classes": 51}, "cannot know 51 of 50 classes"),
        ({"zipf": -1.0}, "zipf must be in"),
        ({"old": replace(OLD, seen=16)}, "--gallery.old.seen"),
        ({"new": replace(NEW, own=1.5)}, "own must be in"),
    ]
    for change, message in wrong:
        with pytest.raises(InputError, match=message):
            replace(TINY, **change)
