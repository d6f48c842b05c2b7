"""Fits the maps of methods on stored embeddings: formulas and a single network in this process, several with Ray."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ray_backfill.compare.keys import map_key
from ray_backfill.core.progress import task
from ray_backfill.core.stages import begin_stage, is_finished
from ray_backfill.data.folder import EmbeddingFolder
from ray_backfill.learn.methods import Method
from ray_backfill.learn.training.fit import train_set
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.workers.settings import Workers, has_more_than_cpus


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
    with task("fit maps", len(missing), "methods") as shown:
        for method in of_formulas:
            _fit_here(out, folder, method, own[method.name], distance)
            shown.advance()
        shown.expect(len(missing))  # formulas took no time, so they cannot predict the rest
        if len(trained) == 1 and not has_more_than_cpus():
            _fit_here(out, folder, trained[0], own[trained[0].name], distance)
            shown.advance()
        elif trained:
            from ray_backfill.compare.ray import train_maps

            train_maps(out, folder, trained, own, distance, workers, shown)
    return {name: path for name, path in folders.items() if is_finished(path)}


def _fit_here(out: Path, folder: EmbeddingFolder, method: Method, settings: FitSettings, distance: str) -> None:
    from ray_backfill.learn.training.fit_into import fit_into, one_thread

    assert method.fit is not None
    data = train_set(folder)
    method.fit.check(data, settings, 1)
    with one_thread(method.is_trained):
        fit_into(out / method.name, method.title, method.fit, data, settings, distance)
