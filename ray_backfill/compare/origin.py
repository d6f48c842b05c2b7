"""The origin of a run's data, for manifests: name, recipe, where it lies, and notes on what to keep in mind."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray_backfill.compare.resolve import Comparison
from ray_backfill.core.stages import read_json
from ray_backfill.data.cleaning import copied_from
from ray_backfill.workers.context import Context

# The stage that draws embeddings from a model of distances.
SYNTHETIC = "synthetic embeddings"
_INVENTED = (
    "The embeddings are invented: they were drawn from a model of distances, no real item was seen. The figures show "
    "scale and arithmetic, not which method is better."
)


def origin_of(comparison: Comparison, context: Context, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of ``data`` in a manifest besides sizes. recipe: all its settings; empty for a folder of embeddings.

    - name: of the data set, or of the folder. recipe: its name, "" without one
    - is_synthetic: the embeddings are invented. synthetic: then, the settings that they were drawn with
    - notes: sentences for the reader of a report
    - broken_images, path
    """
    path, left_out = copied_from(comparison.folder.path)
    stage = read_json(path / "manifest.json") if (path / "manifest.json").exists() else {}
    dropped = [
        f"{counts.rows:,} of {counts.of:,} rows of {name} were left out, because of their vectors or ids. "
        "Right answers among them count for no query."
        for name, counts in left_out.items()
    ]
    is_synthetic = stage.get("stage") == SYNTHETIC
    facts = {
        "name": _name(path, stage, recipe),
        "recipe": context.recipe,
        "is_synthetic": is_synthetic,
        "notes": [*((_INVENTED,) if is_synthetic else ()), *dropped, *comparison.notes],
        "broken_images": stage.get("broken_images", 0),
        "path": str(path),
    }
    return facts | ({"synthetic": stage["settings"]} if is_synthetic else {})


def _name(path: Path, stage: Mapping[str, Any], recipe: Mapping[str, Any]) -> str:
    """The name of the data set; the last part of the path for the user's own images and embeddings."""
    if stage.get("stage") == SYNTHETIC:
        return "synthetic gallery"
    data_set = stage.get("settings", {}).get("data", {}).get("dataset", "")
    if data_set in ("image_folder", "manifest") and recipe:
        return Path(recipe["images"]["root"]).name
    return data_set or path.name
