"""The memory of a comparison is estimated before anything is computed."""

import re
from dataclasses import replace

import numpy as np
import pytest

from ray_backfill.compare import evaluation as size
from ray_backfill.compare.evaluation import Evaluation, check_memory, curve_bytes, memory_bytes
from ray_backfill.compare.replay import judge
from ray_backfill.core.errors import InputError
from ray_backfill.engine.replay import Curve

EVALUATION = Evaluation(methods=("rm_naive",), orders=("random",))


def test_the_estimate_covers_what_is_kept_of_every_curve() -> None:
    points, queries = 101, 500
    values, top1 = np.zeros((queries, points)), np.zeros((queries, points), bool)
    curve = Curve(np.linspace(0, 1, points), {"mAP": values, "CMC@1": values}, top1, np.arange(queries), 0)
    found = judge([curve], 1)
    of_a_curve = 2 * values.nbytes + sum(draws.nbytes for draws in found.draws.values()) + found.top1_correct.nbytes
    evaluation = replace(EVALUATION, points=points, orders=("random", "given"), metrics=("mAP", "CMC@1"))
    kept = 12 * 2 * of_a_curve
    assert kept < curve_bytes(evaluation.named, 12, queries) < 1.5 * kept


def test_all_permutations_of_a_method_are_in_memory_at_once() -> None:
    points, queries, permutations = 101, 500, 10
    one = Curve(np.linspace(0, 1, points), {"mAP": np.zeros((queries, points))}, np.zeros((queries, points), bool),
                np.arange(queries), 0)  # fmt: skip
    together = permutations * (one.per_query["mAP"].nbytes + one.top1_correct.nbytes)
    found = judge([one] * permutations, 1)
    kept = one.per_query["mAP"].nbytes + found.draws["mAP"].nbytes + 2 * found.top1_correct.nbytes
    kept += found.first_top1.nbytes
    evaluation = replace(EVALUATION, points=points, metrics=("mAP",), permutations=permutations)
    estimate = curve_bytes(evaluation.named, 1, queries)
    assert found.top1_correct.nbytes == 8 * one.top1_correct.nbytes
    assert kept - found.top1_correct.nbytes + together < estimate < 1.5 * (kept + together)
    assert estimate - curve_bytes(replace(evaluation, permutations=1).named, 1, queries) > 0.85 * together


def test_what_does_not_fit_is_refused_with_what_would(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 << 28 < memory_bytes() < 1 << 50
    monkeypatch.setattr(size, "memory_bytes", lambda: 16 * 10**9)
    with pytest.raises(InputError) as error:
        check_memory(replace(EVALUATION, points=1 << 16).named, 12, 500)
    said = re.fullmatch(
        r"65,536 --points of 12 methods and 500 queries need about ([\d.]+) GB of memory, more than half of this "
        r"machine's 16.0 GB; give at most --points (\d+), or fewer --methods, --orders, --merges or --metrics",
        str(error.value),
    )
    assert said
    check_memory(replace(EVALUATION, points=int(said[2])).named, 12, 500)
    with pytest.raises(InputError):
        check_memory(replace(EVALUATION, points=int(said[2]) + 100).named, 12, 500)


def test_much_work_is_said_and_little_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    check_memory(EVALUATION.named, 12, 5000)
    assert capsys.readouterr().err == ""
    check_memory(replace(EVALUATION, points=2001).named, 12, 5000)
    assert "2,001 --points of 12 methods and 5,000 queries need about " in capsys.readouterr().err
