"""Whether the distances of the two models compare, for notes and manifests."""

from collections.abc import Mapping, Sequence
from typing import Any

from ray_backfill.data.folder import EmbeddingFolder
from ray_backfill.engine.distances import Band, band_of, do_compare
from ray_backfill.engine.merges import BEST

_MODELS = ("old", "new")


def bands_of(folder: EmbeddingFolder, distance: str) -> dict[str, Band]:
    """Model -> the band of its distances between random items; {} where no split has both models."""
    for split in (folder.train, folder.gallery):
        if split is not None and all(model in split.vectors for model in _MODELS):
            return {model: band_of(split.vectors[model], distance) for model in _MODELS}
    return {}


def bands_note(bands: Mapping[str, Band], merges: Sequence[str], distance: str, has_train: bool) -> tuple[str, ...]:
    """A sentence for the report if the distances of the two models do not compare."""
    if not bands or do_compare(*bands.values()):
        return ()
    what = {"cosine": "cosines", "l2": "distances"}.get(distance, "inner products")
    said = ", ".join(f"from {band} with {model}" for model, band in bands.items())
    if BEST in merges and has_train:
        so = "therefore each method has the merge that is best on train items"
    elif any(merge != "raw" for merge in merges) and has_train:
        so = "raw distances put the items of one model first"
    else:
        so = "raw distances put the items of one model first; " + (
            "simulate with --merges best" if has_train else "with a train.parquet, --merges best can mend that"
        )
    return (f"The distances of the two models do not compare: the {what} of random items are {said} (98 %); {so}.",)


def bands_facts(bands: Mapping[str, Band]) -> dict[str, Any]:
    """For manifests."""
    if not bands:
        return {}
    found = {model: [band.low, band.high] for model, band in bands.items()}
    return {"bands": found, "distances_compare": do_compare(*bands.values())}
