"""One per cent fewer train items leave the advised curve where it is, on each collection of the atlas.

Its models need no package with weights: word counts and colours before the upgrade; letters and gradients after it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import ray_backfill as rb
from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.run import evaluate_folder
from ray_backfill.data.columns import part_files
from ray_backfill.encode.encoder import TEXT
from ray_backfill.encode.models.python import model_of
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.workers.settings import Context
from reproduction.atlas.collections import COLLECTIONS, Collection
from reproduction.atlas.embeddings import embed_collection, join
from reproduction.atlas.models import MODELS, AtlasModel, Vectors

pytestmark = pytest.mark.heavy
SHARED = Path(__file__).parents[3] / "shared" / "data"
METHODS = ("old", "new", "offline", "rm_naive", "relaxed_gallery", "ridge_gallery", "slerp")
# Train items, and 1 % fewer of them.
SPLITS = ((600, 594), (1995, 1975))


def letters(items: Path) -> Callable[[Sequence[str]], Vectors]:
    """Latent semantic analysis of groups of letters, fitted to the gallery: 384 dimensions."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_pipeline

    texts = [text for part in part_files(items / "gallery.parquet") for text in pq.read_table(part)["text"].to_pylist()]
    counts = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5), sublinear_tf=True, min_df=3)
    fitted = make_pipeline(counts, TruncatedSVD(384, random_state=0)).fit(texts)
    return lambda given: np.asarray(fitted.transform(given), np.float32) + np.float32(1e-6)


def pair_of(modality: str) -> dict[str, AtlasModel]:
    known = {model.name: model for model in MODELS}
    if modality != TEXT:
        return {"colours": known["colours"], "hog": known["hog"]}
    new = replace(known["lsa"], name="letters", load=lambda items: model_of(letters(items), TEXT))
    return {"lsa": known["lsa"], "letters": new}


def advised(folder: Path, out: Path) -> tuple[str, float]:
    """The method that the report advises, with its merge, and the area under its curve."""
    how = Evaluation(METHODS, ("random",), ("best",), metrics=("recommended",))
    results = rb.read_results(evaluate_folder(folder, how, FitSettings(), Context(out)))
    best = results.candidates(results.primary)[0]
    return f"{best.method} + {best.merge}", best.auc


@pytest.mark.parametrize("collection", COLLECTIONS, ids=lambda collection: collection.name)
def test_one_per_cent_of_the_train_items_moves_no_advised_curve(collection: Collection, tmp_path: Path) -> None:
    if collection.needs and not (SHARED / collection.needs).exists():
        pytest.skip(f"needs the collection {collection.name}")
    old, new = embed_collection(collection, pair_of(collection.modality), SHARED, tmp_path).values()
    for sizes in SPLITS:
        folders = [join(tmp_path / f"{size}", old, new, size) for size in sizes]
        (name, more), (other, less) = (advised(folder, folder / "out") for folder in folders)
        assert more == pytest.approx(less, abs=0.003), f"{name} of {sizes[0]} train items, {other} of {sizes[1]}"
