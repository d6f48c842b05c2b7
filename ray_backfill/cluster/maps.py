"""Fits the maps of methods on stored embeddings: formulas and a single network in this process, several with Ray."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ray_backfill.cluster.settings import Workers
from ray_backfill.comparison.keys import map_key
from ray_backfill.files import begin_stage, is_finished
from ray_backfill.methods import Method
from ray_backfill.progress import stage
from ray_backfill.store import EmbeddingFolder
from ray_backfill.training.fit import train_set
from ray_backfill.training.settings import FitSettings


def fit_stage(
    out: Path,
    folder: EmbeddingFolder,
    methods: Sequence[Method],
    settings: FitSettings,
    distance: str,
    workers: Workers,
    overwrite: bool = False,
    tuned: Mapping[str, FitSettings] | None = None,
) -> dict[str, Path]:
    """Fit the maps of those methods that have one into ``out/<method>``; finished maps are kept.

    folder: has a train split, which every worker reads again. out: on storage that all nodes share, like the folder.
    overwrite: fit maps again that were fitted with other settings or on other data. tuned: method name -> settings of
    its own.
    Returns: method name -> folder, for ``load_network``; a method whose training diverged is missing.

    Raises:
        InputError: A folder belongs to other settings, a fit failed, or the workers cannot divide the train split.
    """
    folders = {method.name: out / method.name for method in methods if method.fit}
    own = dict.fromkeys(folders, settings) | dict(tuned or {})
    keys = {method.name: map_key(folder, method, own[method.name], distance) for method in methods if method.fit}
    missing = {name for name, key in keys.items() if not begin_stage(folders[name], key, overwrite)}
    if not missing:
        return folders
    of_formulas = [m for m in methods if m.name in missing and not m.is_trained]
    trained = [m for m in methods if m.name in missing and m.is_trained]
    with stage("fit maps", len(missing), "methods") as shown:
        for method in of_formulas:
            _fit_here(out, folder, method, own[method.name], distance)
            shown.advance()
        shown.expect(len(missing))  # formulas took no time, so they cannot predict the rest
        if len(trained) == 1 and not has_more_than_cpus():
            _fit_here(out, folder, trained[0], own[trained[0].name], distance)
            shown.advance()
        elif trained:
            from ray_backfill.cluster.map_training import train_maps  # imports Ray

            train_maps(out, folder, trained, own, distance, workers, shown)
    return {name: path for name, path in folders.items() if is_finished(path)}


def has_more_than_cpus() -> bool:
    """Whether Ray may have a better place for a single map than this process: a cluster, or a GPU."""
    import torch

    return bool(os.environ.get("RAY_ADDRESS")) or torch.cuda.is_available()


def _fit_here(out: Path, folder: EmbeddingFolder, method: Method, settings: FitSettings, distance: str) -> None:
    from ray_backfill.training.fit_into import fit_into, one_thread  # loads torch

    assert method.fit is not None
    data = train_set(folder)
    method.fit.check(data, settings, 1)
    with one_thread():
        fit_into(out / method.name, method.title, method.fit, data, settings, distance)
