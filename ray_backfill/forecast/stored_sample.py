"""Chooses the gallery items that the new model should embed for a forecast, and lists them in a file."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import step
from ray_backfill.core.runkey import RunKey
from ray_backfill.core.schema import arrow_table, open_checked, read_checked
from ray_backfill.core.secrets import cleaned
from ray_backfill.data.folder import EmbeddingFolder, read_folder
from ray_backfill.data.truth import find_truth
from ray_backfill.data.write import write_parquet
from ray_backfill.engine.distances import ProductForm
from ray_backfill.engine.systems import FloatArray, GroundTruth, IntArray, RetrievalSystem
from ray_backfill.forecast.sample import REASONS, Sample, closest_stand_ins, draw_sample
from ray_backfill.forecast.settings import SampleSettings
from ray_backfill.forecast.tables import SampledItem
from ray_backfill.learn.models.apply import fit_stand_in

# Version of the file; increases when its meaning or that of its key changes.
FORMAT = 2
# Name in the metadata of the file.
_FACTS = b"ray_backfill.sample"


@dataclass(frozen=True, eq=False)
class StoredSample:
    """A sample with the settings of which it was made. round_n: (n,) round of each item, from 1 on."""

    sample: Sample
    settings: SampleSettings
    round_n: IntArray

    @property
    def lists(self) -> int:
        """Number of different lists of right answers of the chosen queries."""
        return len(np.unique(self.sample.group))


def read_before_backfill(data: Path) -> EmbeddingFolder:
    """A folder whose gallery may lack new embeddings. Raises InputError if it has no queries.parquet."""
    folder = read_folder(data, gallery_needs=("old",))
    if folder.queries is None:
        raise InputError(
            f"{data} has no queries.parquet: a forecast needs queries whose embeddings by both models are known; "
            "embed some queries by the new model"
        )
    return folder


def truth_of(folder: EmbeddingFolder, words: Sequence[str], distance: str) -> GroundTruth:
    """The right answers. Raises InputError for weighted queries, and for a truth that needs all new embeddings."""
    if words and words[0].startswith("new-top"):
        raise InputError(
            f"--truth {words[0]} needs the new embedding of every gallery item; a forecast has few of them"
        )
    truth = find_truth(folder, words, distance).ground
    if truth.weights is not None:
        raise InputError("queries with weights cannot be forecast; leave the column weight out of queries.parquet")
    return truth


def free_pairs(folder: EmbeddingFolder) -> tuple[FloatArray, FloatArray]:
    """Old and new embeddings of the same items that need no budget: queries, and the train split."""
    tables = [table for table in (folder.queries, folder.train) if table is not None]
    old, new = (np.concatenate([table.vectors[model] for table in tables]) for model in ("old", "new"))
    return old, new


def take_sample(data: Path, out: Path, budget: int, settings: SampleSettings, add: int = 0) -> StoredSample:
    """Choose the items and write them to ``out``.

    budget: number of items. add: instead, extend the sample in ``out`` by this many; its settings stay.

    Raises:
        InputError: The folder lacks something, the budget does not fit, or ``out`` already holds a sample.
    """
    folder = read_before_backfill(data)
    settings = _checked(settings)
    earlier = read_sample(out, folder) if add else None
    if earlier is not None:
        if settings not in (SampleSettings(), earlier.settings):
            raise InputError(f"{out} was drawn with other settings ({earlier.settings}); leave them out with --add")
        settings, budget = earlier.settings, len(earlier.sample) + add
    elif out.exists():
        raise InputError(f"{out} is there already; extend it with --add, or write elsewhere with --out")
    truth = truth_of(folder, settings.truth, settings.distance)
    assert folder.queries is not None
    with step("find close items"):
        stand_ins = fit_stand_in(*free_pairs(folder), settings.distance)(folder.gallery.old)
        form = ProductForm.of(RetrievalSystem(folder.queries.new, stand_ins), settings.distance)
        kept = None if earlier is None else earlier.sample.position
        sample = draw_sample(truth, budget, closest_stand_ins(form, truth), settings.seed, kept)
    stored = StoredSample(sample, settings, _rounds(sample, earlier))
    _write(out, folder, stored, sample_key(folder, truth, settings))
    return stored


def _checked(settings: SampleSettings) -> SampleSettings:
    """The settings with absolute paths. Raises InputError for those that no forecast has."""
    if settings.distance == "inner_product":
        raise InputError("inner products cannot be forecast; use --distance cosine or l2")
    if settings.seed < 0:
        raise InputError(f"--seed must not be negative, got {settings.seed}")
    kind, *files = settings.truth or ("",)
    absolute = (kind, *(str(Path(file).absolute()) for file in files))
    return replace(settings, truth=absolute) if kind == "qrels" else settings


def sample_key(folder: EmbeddingFolder, truth: GroundTruth, settings: SampleSettings) -> RunKey:
    """What determines a sample besides its size. The gallery's new embeddings do not: they come later."""
    of_split = {split: folder.fingerprint(("old", "new"), (split,)) for split in ("queries", "train")}
    gallery = folder.fingerprint(("old",), ("gallery",))
    made_from = {"gallery": gallery, **of_split, "right_answers": truth.fingerprint}
    return RunKey("sample", asdict(settings), made_from, FORMAT)


def _rounds(sample: Sample, earlier: StoredSample | None) -> IntArray:
    if earlier is None:
        return np.ones(len(sample), np.int64)
    of = np.zeros(int(max(sample.position.max(), earlier.sample.position.max())) + 1, np.int64)
    of[earlier.sample.position] = earlier.round_n
    found = of[sample.position]
    return np.where(found == 0, earlier.round_n.max() + 1, found)


def _write(out: Path, folder: EmbeddingFolder, stored: StoredSample, key: RunKey) -> None:
    sample = stored.sample
    rows = [
        SampledItem(str(item), REASONS[reason], float(chance), int(number))
        for item, reason, chance, number in zip(
            folder.gallery.id[sample.position], sample.reason, sample.probability, stored.round_n, strict=True
        )
    ]
    table = arrow_table(SampledItem, rows).set_column(0, "id", pa.array(folder.gallery.id[sample.position]))
    drawn = {"queries": sample.queries.tolist(), "group": sample.group.tolist(), "groups": sample.n_groups}
    facts = drawn | asdict(stored.settings) | {"key": key.recorded()}
    write_parquet(out, table.replace_schema_metadata({_FACTS: json.dumps(cleaned(facts)).encode()}))


def read_sample(path: Path, folder: EmbeddingFolder) -> StoredSample:
    """Read a sample of this folder.

    Raises:
        InputError: There is none, or it was drawn from other data or other right answers.
    """
    if not path.exists():
        advised = max(100, len(folder.gallery) // 50)
        raise InputError(f"{path} is missing; run: ray-backfill sample {folder.path} --budget {advised}")
    metadata = open_checked(path).schema_arrow.metadata or {}
    if _FACTS not in metadata:
        raise InputError(f"{path} was not written by ray-backfill sample; draw a sample with it")
    facts: dict[str, Any] = json.loads(metadata[_FACTS])
    settings = SampleSettings(facts["seed"], tuple(facts["truth"]), facts["distance"])
    if "key" not in facts:
        raise InputError(f"{path} was drawn by an earlier version of ray-backfill; sample again")
    truth = truth_of(folder, settings.truth, settings.distance)
    if difference := sample_key(folder, truth, settings).difference(facts["key"]):
        raise InputError(f"{path} is no sample of {folder.path} as it is now ({difference}); sample again")
    table = read_checked(path, ["id", "reason", "probability", "round"])
    position = positions_of(folder.gallery.id, np.asarray(table["id"].to_pylist()))
    reason = np.array([REASONS.index(name) for name in table["reason"].to_pylist()], np.int8)
    probability, of_round = (table[name].to_numpy() for name in ("probability", "round"))
    queries, group = (np.array(facts[name], np.int64) for name in ("queries", "group"))
    sample = Sample(position, reason, probability, queries, group, facts["groups"], facts["seed"])
    return StoredSample(sample, settings, of_round)


def positions_of(ids: Any, wanted: Any) -> IntArray:
    """(n,) positions of some ids in (N,) ids, -1 for those that are not there."""
    order = np.argsort(ids, kind="stable")
    place = np.minimum(np.searchsorted(ids, wanted, sorter=order), len(ids) - 1)
    found = order[place]
    return np.where(ids[found] == wanted, found, -1)


def counts_in_words(stored: StoredSample) -> str:
    """How many items of which kind, and for how many queries."""
    sample = stored.sample
    counts = np.bincount(sample.reason, minlength=len(REASONS)).tolist()
    kinds = ", ".join(
        f"{count:,} {name}" for count, name in zip(counts, ("pilot", "right answers", "close"), strict=True)
    )
    lists = f"{stored.lists:,} different lists of right answers" if stored.lists < len(sample.queries) else ""
    return f"{len(sample):,} items ({kinds}) for {len(sample.queries):,} queries" + (f" with {lists}" if lists else "")
