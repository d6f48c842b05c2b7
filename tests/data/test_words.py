"""What messages call the data of somebody who has arrays, files of numpy or models, and no folder."""

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
from ray_backfill.data.words import OF_MODELS, called, words_of, write_words

N, Q = 300, 60
GALLERY, QUERY = np.arange(N) % 20, np.arange(Q) % 20


def pair(label: NDArray[np.int64], seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    rng, centre = np.random.default_rng(seed), np.random.default_rng(0).normal(size=(20, 16))[label]
    return centre[:, :8] + rng.normal(size=(len(label), 8)), centre + rng.normal(size=(len(label), 16))


(OLD_G, NEW_G), (OLD_Q, NEW_Q) = pair(GALLERY, 1), pair(QUERY, 2)
MIXED = np.random.default_rng(3).permutation(N)
GIVEN: dict[str, Any] = {"old": (OLD_Q, OLD_G), "new": (NEW_Q, NEW_G), "label": (QUERY, GALLERY)}


def with_row(array: NDArray[Any], row: int, value: float) -> NDArray[Any]:
    changed = array.copy()
    changed[row] = value
    return changed


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"new": (NEW_Q, with_row(NEW_G, 5, np.nan))}, "the new gallery array: NaN or infinite values in row 5; drop"),
        ({"old": (with_row(OLD_Q, 7, np.inf), OLD_G)}, "the old query array: NaN or infinite values in row 7; drop"),
        ({"old": (OLD_Q, with_row(OLD_G, 17, 0))}, "the old gallery array: zero vector in row 17 (1 in all)"),
        ({"new": (NEW_Q, NEW_G[:-3])}, "the new gallery array has 297 rows, the old gallery array has 300"),
        ({"label": (QUERY[1:], GALLERY)}, "the array of query labels has 59 rows, the old query array has 60"),
        ({"old": (OLD_Q[:, :4], OLD_G)}, "old has 4 dimensions in the query data and 8 in the gallery data"),
        ({"old": (OLD_Q[:, 0], OLD_G)}, "the old query array must have two dimensions"),
        ({"old": (OLD_Q[:0], OLD_G), "new": (NEW_Q[:0], NEW_G), "label": (QUERY[:0], GALLERY)}, "has no rows"),
        (
            {"new": (NEW_Q, NEW_G[np.random.default_rng(3).permutation(N)])},
            "the gallery data: old and new agree no better than chance",
        ),
        ({"label": (QUERY + 100, GALLERY)}, "no query of these arrays has a right answer in the gallery"),
        ({"label": (QUERY.astype(str), GALLERY)}, "labels are numbers in the gallery data but text in the query data"),
        (
            {"label": (np.where(QUERY == 3, np.nan, QUERY), GALLERY)},
            "the array of query labels: missing value in row 3",
        ),
        ({"slices": "country"}, "the query data has no column 'country'"),
    ],
)
def test_errors_name_the_arrays(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as error:
        rb.simulate(**(GIVEN | changed), points=2)
    message = str(error.value)
    assert said in message
    assert not any(
        word in message for word in ("parquet", "/tmp", "the folder", "--drop-broken", "ray-backfill import")
    )


def test_reports_name_what_was_passed(tmp_path: Path) -> None:
    results = rb.simulate(**GIVEN, points=2, methods=["rm_naive", "ridge_gallery", "rm"])
    (left_out,) = results.manifest.left_out
    assert left_out.reason == "needs a column 'label' in the argument train to be fitted on"
    page = results.report(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "No train items were given." in page
    assert "The folder" not in page
    assert "flips.parquet of a run with out=" in page


def test_train_items_are_those_of_a_folder(tmp_path: Path) -> None:
    (old, new), methods = pair(np.arange(200) % 20, 3), ["rm_naive", "ridge_gallery"]
    train = {"old": old, "new": new}
    of_arrays = rb.simulate(**GIVEN, train=train, points=2, methods=methods)
    gallery, queries = ({name: both[split] for name, both in GIVEN.items()} for split in (1, 0))
    folder = rb.write_folder(tmp_path / "data", gallery, queries, train)
    of_folder = rb.simulate(folder, points=2, methods=methods)
    pd.testing.assert_frame_equal(of_arrays.summary, of_folder.summary)
    assert not any("train items" in remark for remark in of_arrays.manifest.data["remarks"])


def test_what_is_shown_names_nothing_that_is_gone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    many = [f"mAP@{k}" for k in (10, 20, 50, 100)]
    rb.simulate(**GIVEN, points=2, metrics=many).show()
    printed = " ".join(capsys.readouterr().out.split())
    assert 'results.report("report.html") or results.summary' in printed
    rb.simulate(**GIVEN, points=2, metrics=many, out=tmp_path / "run").show()
    assert "report.html or summary.parquet" in " ".join(capsys.readouterr().out.split())


def test_the_command_names_files_of_numpy(tmp_path: Path) -> None:
    np.save(tmp_path / "og.npy", OLD_G)
    np.save(tmp_path / "ng.npy", with_row(NEW_G, 5, np.nan))
    words = ["simulate", "--old-gallery", "og.npy", "--new-gallery", "ng.npy", "--out", "run"]
    done = subprocess.run(
        [sys.executable, "-m", "ray_backfill", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stderr.strip() == "error: ng.npy: NaN or infinite values in row 5; drop these rows from every array"


def test_a_folder_keeps_its_words(tmp_path: Path) -> None:
    file = tmp_path / "gallery.parquet"
    assert called(file, "old") == f"{file}, column 'old'"
    assert (called(file), called(file, in_short=True)) == (str(file), "gallery.parquet")
    write_words(tmp_path, OF_MODELS)
    assert called(tmp_path / "train.parquet") == "items for maps (--train)"
    assert called(tmp_path / "queries.parquet", "new") == "the new model's vectors of the queries"
    assert words_of(tmp_path / "gallery.parquet" / "part-000000.parquet")["drop"] == "leave these items out"


def test_texts_in_a_list(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="texts must name a file or a folder"):
        rb.embed("hf:a", "hf:b", out=tmp_path, texts=["one", "two"])  # type: ignore[arg-type]
