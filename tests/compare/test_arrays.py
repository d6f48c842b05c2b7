"""Arrays in place of a folder: the same comparison, fitted on a sample of the gallery."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

import ray_backfill as rb
from ray_backfill.core.errors import InputError
from ray_backfill.data.division import fit_rows

N, Q, CLASSES = 900, 60, 30
GALLERY, QUERY = np.arange(N) % CLASSES, np.arange(Q) % CLASSES


def pair(label: NDArray[np.int64], seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Old and new embeddings of items of these classes."""
    rng, centre = np.random.default_rng(seed), np.random.default_rng(0).normal(size=(CLASSES, 24))[label]
    return centre[:, :12] + rng.normal(size=(len(label), 12)), centre + rng.normal(size=(len(label), 24))


(OLD_G, NEW_G), (OLD_Q, NEW_Q) = pair(GALLERY, 1), pair(QUERY, 2)


def rows_of(results: Any) -> pd.DataFrame:
    return pd.DataFrame(results.rows).set_index(["method", "metric"])[["auc", "auc_low", "gain", "start", "end"]]


def test_arrays_are_the_folder_that_holds_them(tmp_path: Path) -> None:
    folder = rb.write_folder(
        tmp_path / "data",
        {"old": OLD_G, "new": NEW_G, "label": GALLERY},
        {"old": OLD_Q, "new": NEW_Q, "label": QUERY},
    )
    of_arrays = rb.simulate(old=(OLD_Q, OLD_G), new=(NEW_Q, NEW_G), label=(QUERY, GALLERY))
    pd.testing.assert_frame_equal(rows_of(of_arrays), rows_of(rb.simulate(folder)))


def test_maps_are_those_of_the_sample_as_train_split(tmp_path: Path) -> None:
    rows = fit_rows(N, 24)
    columns = {"old": OLD_G, "new": NEW_G, "label": GALLERY}, {"old": OLD_Q, "new": NEW_Q, "label": QUERY}
    train = {"id": rows, "old": OLD_G[rows], "new": NEW_G[rows]}
    by_hand = rb.simulate(rb.write_folder(tmp_path / "data", *columns, train), methods="ridge_gallery")
    sampled = rb.simulate(old=(OLD_Q, OLD_G), new=(NEW_Q, NEW_G), label=(QUERY, GALLERY), methods="ridge_gallery")
    pd.testing.assert_frame_equal(rows_of(sampled), rows_of(by_hand))


def test_the_report_says_what_was_fitted_on() -> None:
    results = rb.simulate(old=(OLD_Q, OLD_G), new=(NEW_Q, NEW_G))
    (note,) = results.manifest.data["remarks"]
    assert note.startswith("No train items were given. ")
    assert f"{len(fit_rows(N, 24)):,} of the {N:,} gallery items (20 %)" in note
    assert "new model" in results.verdict
    assert "ridge_gallery" in results.methods
    assert not {"fct", "rm"} & set(results.methods), "no network is trained unless it is named"


def test_a_gallery_alone_queries_itself() -> None:
    results = rb.simulate(old=OLD_G, new=NEW_G, label=GALLERY, points=2)
    assert results.manifest.data["queries"] == N


@pytest.mark.parametrize("n", [0, 249, 250, 10_000, 1_000_000])
def test_a_sample_is_a_fifth_at_most_and_enough_for_linear_maps(n: int) -> None:
    rows = fit_rows(n, 384)
    assert len(rows) == (0 if n < 250 else min(n // 5, 8 * 384))
    assert len(np.unique(rows)) == len(rows)
    assert not len(rows) or (rows[0] >= 0 and rows[-1] < n)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"old": OLD_G}, "give a folder of embeddings, or old="),
        ({}, "give a folder of embeddings, or old="),
        ({"data": "somewhere", "old": OLD_G, "new": NEW_G}, "give a folder of embeddings, or old="),
        ({"old": (OLD_Q, OLD_G), "new": NEW_G}, "new has no array for the queries"),
        ({"old": (OLD_Q, OLD_G), "new": (NEW_Q, NEW_G), "label": (QUERY, None)}, "label has no array for the gallery"),
        ({"old": (1, 2, 3), "new": NEW_G}, "two: (queries, gallery)"),
        ({"old": OLD_G[1:], "new": NEW_G}, "rows"),
    ],
)
def test_what_does_not_fit_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        rb.simulate(**given)
    assert message in str(error.value)


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "ray_backfill", "simulate", *words]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)


def test_files_of_numpy_on_the_command_line(tmp_path: Path) -> None:
    for name, array in {"og": OLD_G, "ng": NEW_G, "oq": OLD_Q, "nq": NEW_Q, "gl": GALLERY, "ql": QUERY}.items():
        np.save(tmp_path / f"{name}.npy", array)
    words = ["--old-gallery", "og.npy", "--new-gallery", "ng.npy", "--old-queries", "oq.npy", "--new-queries", "nq.npy"]
    done = command(tmp_path, *words, "--gallery-labels", "gl.npy", "--query-labels", "ql.npy", "--out", "run")
    assert done.returncode == 0, done.stderr
    of_arrays = rb.simulate(old=(OLD_Q, OLD_G), new=(NEW_Q, NEW_G), label=(QUERY, GALLERY))
    pd.testing.assert_frame_equal(rows_of(rb.read_results(tmp_path / "run")), rows_of(of_arrays))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--old-gallery og.npy", "--new-gallery"),
        ("--old-gallery og.npy --new-gallery none.npy", "none.npy does not exist"),
        ("--old-gallery og.npy --new-gallery text.npy", "text.npy holds no array"),
        ("--old-gallery og.npy --new-gallery object.npy", "object.npy holds no array"),
        ("--old-gallery og.npy --new-gallery several.npz", "several.npz holds several arrays"),
        ("--old-gallery og.npy --data og.npy", "give --data or --old-gallery, not both"),
    ],
)
def test_files_that_hold_no_array(tmp_path: Path, words: str, message: str) -> None:
    np.save(tmp_path / "og.npy", OLD_G)
    np.save(tmp_path / "object.npy", np.array([{}], object), allow_pickle=True)
    np.savez(tmp_path / "several.npz", OLD_G, NEW_G)
    (tmp_path / "text.npy").write_text("no array")
    done = command(tmp_path, *words.split())
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert message in done.stderr
    assert not (tmp_path / "runs").exists()
