"""The bands of two models' similarities, against all pairs."""

from pathlib import Path

import numpy as np
import pytest

import ray_backfill as rb
from ray_backfill.compare.diagnose import diagnose
from ray_backfill.compare.report.answers import answer
from ray_backfill.engine.bands import Band, band_of, do_compare


def vectors(n: int, seed: int, offset: float = 0.0) -> np.ndarray:
    found = np.random.default_rng(seed).normal(size=(n, 16))
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    found[:, 0] += offset
    return found.astype(np.float32)


@pytest.mark.parametrize("distance", ["cosine", "l2", "inner_product"])
def test_a_band_is_the_middle_of_all_pairs(distance: str) -> None:
    of = vectors(120, 0, 1.0).astype(np.float64)
    i, j = np.nonzero(~np.eye(120, dtype=bool))
    products = of @ of.T
    lengths = np.linalg.norm(of, axis=1)
    every = {
        "cosine": products / np.outer(lengths, lengths),
        "l2": np.linalg.norm(of[:, None] - of, axis=2),
        "inner_product": products,
    }[distance]
    np.testing.assert_allclose(band_of(of, distance), np.quantile(every[i, j], [0.01, 0.99]), atol=0.03)


def test_zero_vectors_and_single_ones_have_no_cosine() -> None:
    some = vectors(50, 0)
    some[:40] = 0
    assert np.isfinite(band_of(some)).all()
    assert band_of(some[:40]) == band_of(some[-1:]) == Band(0.0, 0.0)


def test_bands_compare_if_half_of_the_shorter_one_is_shared() -> None:
    assert do_compare(Band(0, 1), Band(0.2, 0.3))
    assert do_compare(Band(0, 1), Band(0.5, 1.5))
    assert not do_compare(Band(0, 1), Band(0.51, 1.51))
    assert not do_compare(Band(-0.1, 0.4), Band(0.7, 0.9))


def folder(path: Path, offset: float, train: int = 800, gallery: int = 400) -> Path:
    """An old model with an offset, whose cosines fill a narrow band, and a new one without, of 20 classes."""
    made: list[dict[str, np.ndarray]] = []
    for n, seed in ((gallery, 1), (60, 2), (train, 3)):
        rng, label = np.random.default_rng(seed), np.arange(n) % 20
        new = vectors(20, 9)[label] + 0.12 * rng.normal(size=(n, 16))
        old = vectors(20, 9)[label] + 0.20 * rng.normal(size=(n, 16))
        old[:, 0] += offset
        made.append({"old": old.astype(np.float32), "new": new.astype(np.float32), "label": label})
    return rb.write_folder(path, *(made if train else made[:2]))


def test_doctor_tells_models_whose_distances_do_not_compare(tmp_path: Path) -> None:
    found = diagnose(folder(tmp_path / "narrow", 4.0))
    (told,) = [each.what for each in found.findings if "do not compare" in each.what]
    old, new = (found.facts["gallery"][model]["cosines"] for model in ("old", "new"))
    assert old[0] > 0.8
    assert new[1] < 0.8 or new[0] < 0
    assert f"{Band(*old)} with old" in told
    assert not [e for e in diagnose(folder(tmp_path / "plain", 0.0)).findings if "compare" in e.what]


def test_a_simulation_of_such_models_calibrates_by_default(tmp_path: Path) -> None:
    """It recommended no method, because it merged raw distances."""
    data = folder(tmp_path / "data", 4.0)
    methods = ("rm_naive", "ridge_gallery")
    found = rb.simulate(data, out=tmp_path / "best", methods=methods)
    raw = rb.simulate(data, out=tmp_path / "raw", methods=methods, merges="raw")
    areas, of_raw = (each.summary.query("metric == @each.primary").set_index("method").auc for each in (found, raw))
    assert areas["rm_naive"] > of_raw["rm_naive"] + 0.05
    assert areas["rm_naive"] > areas["old"] > of_raw["rm_naive"]
    (row,) = [row for row in found.rows if row.method == "rm_naive" and row.metric == found.primary]
    assert row.merge == "best"
    assert row.title in {f"RM naive + {name}" for name in ("quantile", "zscore", "isotonic", "csls")}
    page = (tmp_path / "best" / "results" / "report.html").read_text()
    assert "The distances of the two models do not compare: the cosines of random items are from" in page
    assert "therefore each method has the merge that is best on train items" in page
    assert not raw.manifest.data["distances_compare"]
    assert "rm_naive" not in {row.method for row in raw.candidates(raw.primary)}
    assert "rm_naive" in {row.method for row in found.candidates(found.primary)}
    assert "model first; --merges best can mend that" in (tmp_path / "raw" / "results" / "report.html").read_text()


def test_without_items_to_fit_on_raw_distances_are_merged_and_this_is_told(tmp_path: Path) -> None:
    found = rb.simulate(
        folder(tmp_path / "data", 4.0, train=0, gallery=200), out=tmp_path / "out", methods=("rm_naive",)
    )
    assert {row.title for row in found.rows} >= {"RM naive"}
    assert "with train.parquet, --merges best can mend that" in (tmp_path / "out/results/report.html").read_text()


def test_a_merge_that_stays_in_use_is_not_said_to_end(tmp_path: Path) -> None:
    """csls changes the ranking of the new model, too: without it, the service ends elsewhere."""
    data, name = folder(tmp_path / "data", 0.0), "ridge_gallery"
    said = {}
    for merge in ("raw", "csls"):
        found = rb.simulate(data, methods=("rm_naive", name), merges=merge, metrics="mAP")
        ends = {row.method: row.end for row in found.rows if row.metric == found.primary}
        assert (ends[name] == ends["new"]) == (merge == "raw")
        said[merge] = " ".join(answer(found).cost)
    assert "nothing of the method remains" in said["raw"]
    assert "Its merge changes what the finished upgrade finds" in said["csls"]
