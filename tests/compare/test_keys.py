"""The key of a run follows every setting, input and version by itself."""

from collections.abc import Callable
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import ray_backfill as rb
from ray_backfill.compare.evaluation import Evaluation, Named
from ray_backfill.compare.fits import map_key
from ray_backfill.compare.manifest import comparison_key
from ray_backfill.core.runkey import RunKey, fingerprint
from ray_backfill.data.folder import EmbeddingFolder, EmbeddingTable
from ray_backfill.engine.merges import all_merges
from ray_backfill.engine.orders import Order, find_order
from ray_backfill.engine.systems import Filter, GroundTruth
from ray_backfill.forecast.sample import sample_key
from ray_backfill.forecast.settings import SampleSettings
from ray_backfill.learn.methods import Method
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.pipeline.service import ServiceSettings

EVALUATION = Evaluation(methods=("procrustes_gallery",), orders=("random",), merges=("raw", "csls"))
NAMED = EVALUATION.named
TRUTH = GroundTruth.from_positives([[0, 1], [2]], n_gallery=20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> EmbeddingFolder:
    rng = np.random.default_rng(0)
    splits = ({"old": rng.normal(size=(n, 4)), "new": rng.normal(size=(n, 4))} for n in (20, 2, 40))
    return rb.read_folder(rb.write_folder(tmp_path_factory.mktemp("data"), *splits))


def key(folder: EmbeddingFolder, named: Named = NAMED, truth: GroundTruth = TRUTH) -> RunKey:
    return comparison_key("simulation", 1, folder, truth, named, {"fits": asdict(FitSettings())})


def other(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return f"{value}x" if isinstance(value, str) else (*value, *(value or ("x",)))


@pytest.mark.parametrize("name", [each.name for each in fields(Evaluation)])
def test_every_setting_of_an_evaluation_is_part_of_it(
    folder: EmbeddingFolder, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Settings that nobody has thought of yet, too. What they name need not exist."""
    monkeypatch.setattr(EmbeddingTable, "column", lambda *_: pa.array([]))
    if name == "methods":  # recorded by name
        few = key(folder, replace(NAMED, methods=NAMED.methods[:2]))
        assert few.difference(key(folder).recorded()).startswith("evaluation.methods: ")
        return
    if name == "service":  # what is in the file counts
        two, one = (key(folder, replace(NAMED, service=ServiceSettings(retrieve=k))).recorded() for k in (100, 50))
        wanted = key(folder, replace(NAMED, service=ServiceSettings(retrieve=50)))
        assert not wanted.difference(one)
        assert wanted.difference(two).startswith("evaluation.service.retrieve: ")
        assert wanted.difference(key(folder).recorded()).startswith("evaluation.service")
        return
    changed = replace(EVALUATION, **{name: other(getattr(EVALUATION, name))})
    difference = key(folder, replace(NAMED, evaluation=changed)).difference(key(folder).recorded())
    assert difference.startswith(f"evaluation.{name}: ")


def test_a_sample_follows_every_setting(folder: EmbeddingFolder) -> None:
    wanted = sample_key(folder, TRUTH, SampleSettings())
    in_parts = TRUTH.with_filter(Filter(np.zeros(2, np.int64), np.zeros(20, np.int64)))
    for each in fields(SampleSettings):
        changed = replace(SampleSettings(), **{each.name: other(getattr(SampleSettings(), each.name))})
        # A filter is what it makes of the right answers.
        asked = sample_key(folder, in_parts if each.name == "filter" else TRUTH, changed)
        assert each.name in wanted.difference(asked.recorded())


def test_versions_are_part_of_it(folder: EmbeddingFolder) -> None:
    before = key(folder).recorded()
    newer = replace(NAMED.methods[-1], version=2)
    found = key(folder, replace(NAMED, methods=(*NAMED.methods[:2], newer)))
    assert found.settings["versions"] == before["settings"]["versions"] | {"method procrustes_gallery": 2}
    of_map = map_key(folder, newer, FitSettings(), "cosine")
    assert of_map.difference(map_key(folder, NAMED.methods[-1], FitSettings(), "cosine").recorded())
    best = key(folder, replace(EVALUATION, merges=("best",)).named).settings["versions"]
    assert {f"merge {name}" for name in all_merges()} < best.keys(), "any of them may be chosen"
    newer_order = replace(NAMED, orders=(replace(find_order("random"), version=3),))
    assert key(folder, newer_order).difference(before) == "versions.order random: 1 there, 3 requested"


@pytest.mark.parametrize(
    "change",
    [
        lambda truth: GroundTruth.from_positives([[0, 3], [2]], n_gallery=20),
        lambda truth: GroundTruth.from_positives([[0], [1, 2]], n_gallery=20),
        lambda truth: GroundTruth.from_positives([[0, 1], [2]], n_gallery=20, grades=[[1.0, 2.0], [1.0]]),
        lambda truth: GroundTruth.from_positives([[0, 1], [2]], [[], [5]], n_gallery=20),
        lambda truth: truth.with_weights([1.0, 2.0]),
    ],
)
def test_right_answers_are_what_counts_and_not_where_they_are_from(
    folder: EmbeddingFolder, change: Callable[[GroundTruth], GroundTruth]
) -> None:
    same = GroundTruth.from_positives([[1, 0], [2]], n_gallery=20)
    assert key(folder, truth=same) == key(folder)
    difference = key(folder, truth=change(same)).difference(key(folder).recorded())
    assert difference == "different from the earlier run: right answers"


def test_who_can_find_what_counts_beside_the_right_answers(folder: EmbeddingFolder) -> None:
    parts = [Filter(np.array([0, 0]), np.where(np.arange(20) < limit, 0, 1)) for limit in (9, 10)]
    before, after = (key(folder, truth=TRUTH.with_filter(each)) for each in parts)
    assert after.difference(before.recorded()) == "different from the earlier run: filter"
    assert key(folder).difference(before.recorded()) == "different from the earlier run: filter"


def test_a_fingerprint_follows_values_types_and_shapes() -> None:
    parts: list[tuple[Any, ...]] = [
        (np.zeros(4),), (np.zeros((2, 2)),), (np.zeros(4, np.float32),), (np.zeros(4), None), (None, np.zeros(4)),
        (np.ones(4),), (np.array(["a", "b"], object),), (np.array(["a", "c"], object),), ("a",), (["a"],), (1,), ("1",),
    ]  # fmt: skip
    assert len({fingerprint(*each) for each in parts}) == len(parts)
    assert fingerprint(np.arange(6).reshape(2, 3).T) == fingerprint(np.arange(6).reshape(2, 3).T.copy())


def test_kinds_have_versions() -> None:
    """What a plugin registers has one, too."""
    for kind in (Method, Order):
        (version,) = (each for each in fields(kind) if each.name == "version")
        assert version.default == 1
