"""Fits the maps of methods on stored embeddings: formulas in this process, networks with Ray Train."""

from collections.abc import Sequence
from pathlib import Path

from ray_backfill.cluster.settings import Workers
from ray_backfill.files import begin_stage, finish_stage, is_finished
from ray_backfill.methods import Method
from ray_backfill.progress import stage
from ray_backfill.store import EmbeddingFolder
from ray_backfill.training.fit import TrainSet
from ray_backfill.training.settings import FitSettings

# The parts of a folder that determine a map.
_FITTED_ON = ("train", "classifier")


def fit_stage(
    out: Path,
    folder: EmbeddingFolder,
    methods: Sequence[Method],
    settings: FitSettings,
    distance: str,
    workers: Workers,
    overwrite: bool = False,
) -> dict[str, Path]:
    """Fit the maps of those methods that have one into ``out/<method>``; finished maps are kept.

    folder: has a train split, which every worker reads again. out: on storage that all nodes share, like the folder.
    overwrite: fit maps again that were fitted with other settings or on other data.
    Returns: method name -> folder, for ``load_network``; a method whose training diverged is missing.

    Raises:
        InputError: A folder belongs to other settings, or the train split cannot be divided among the workers.
    """
    assert folder.train is not None
    data = TrainSet(folder.train.vectors, folder.train.label, folder.classifier)
    fits = {method.name: method.fit for method in methods if method.fit}
    folders = {name: out / name for name in fits}
    of_data = {method.name: folder.fingerprint(method.models, _FITTED_ON) for method in methods if method.fit}
    recorded = {name: {"data": of_data[name]} | fit.recorded(settings, distance) for name, fit in fits.items()}
    missing = [name for name in fits if not begin_stage(folders[name], "map", recorded[name], overwrite)]
    if not missing:
        return folders
    with stage("fit maps", len(missing), "methods") as shown:
        for name in missing:
            if not fits[name].is_trained:
                from ray_backfill.models.checkpoints import save_network

                fitted = fits[name].fit(data, settings, distance)
                save_network(folders[name], fitted.network)
                finish_stage(folders[name], {"training_flops": fitted.flops})
                shown.advance()
        if trained := {name: fits[name] for name in missing if fits[name].is_trained}:
            from ray_backfill.cluster.map_training import train_maps  # imports Ray, which formulas do not need

            shown.expect(len(missing))  # formulas took no time, so they cannot predict the rest
            train_maps(out, folder, trained, settings, distance, workers, shown)
    return {name: path for name, path in folders.items() if is_finished(path)}
