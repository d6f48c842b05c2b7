"""The file of rates, and the law of builds against scipy, by hand, and by how often its interval is right."""

import json
from dataclasses import replace
from math import exp, log, nan, sqrt
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from scipy import stats

from ray_backfill.core.errors import InputError
from ray_backfill.plan.rates import GRAPH_BYTES, Build, Rate, Rates, Search, build_seconds, read_rates, write_rates
from tests.test_structure import ROOT

RATES = Rates(
    "hf:new", {"name": "hf:new", "weights": "ab"}, "text", 8,
    (Rate("read", 900.0, (890.0, 910.0)), Rate("embed", 30.5, (30.0, 31.0, 30.5)), Rate("write", 400.0, (400.0,))),
    (Build("hnsw", 8, 1_000, 0.5), Build("pgvector-hnsw", 8, 1_000, 0.75, 1e6)),
    (Search("hnsw", 8, 1_000, 5_000.0),), {"cpus": 2}, "2026-11-29T12:00:00+00:00", "ray-backfill measure", 51.5,
)  # fmt: skip


def test_a_file_is_read_as_it_was_written_and_follows_its_schema(tmp_path: Path) -> None:
    file = tmp_path / "rates.json"
    write_rates(file, RATES)
    assert repr(read_rates(file)) == repr(RATES)  # nan differs from nan
    schema = json.loads((ROOT / "docs" / "schema" / "rates.json").read_text())
    document = json.loads(file.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    jsonschema.validate(document, schema)
    document["stages"][0]["items_per_s"] = 0
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema)


def test_the_slowest_stage_and_the_spread_of_its_windows() -> None:
    assert RATES.slowest == RATES.stages[1]
    assert replace(RATES, stages=()).slowest is None
    assert RATES.stages[1].spread == pytest.approx(0.5 / 30.5)
    assert np.isnan(RATES.stages[2].spread)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"schema": 2}, "has the schema 2, not 1"),
    ({"schema": None}, "has the schema None"),
    ({"model": 3}, "model of the file must be a text"),
    ({"identity": []}, "identity of the file must be an object"),
    ({"dimensions": 2.5}, "dimensions of the file must be a finite whole number above 0, not 2.5"),
    ({"dimensions": True}, "dimensions of the file must be a finite whole number"),
    ({"stages": {}}, "stages must be a list"),
    ({"stages": [3]}, r"stages\[0\] must be an object"),
    ({"stages": [{"stage": "red", "items_per_s": 1.0, "windows": []}]}, "unknown stage 'red'; did you mean read"),
    ({"stages": [{"stage": "read", "items_per_s": -1.0, "windows": []}]}, "items_per_s .* above 0, not -1.0"),
    ({"stages": [{"stage": "read", "items_per_s": float("inf"), "windows": []}]}, "must be a finite number"),
    (
        {"stages": [{"stage": "read", "items_per_s": 1.0, "windows": [float("nan")]}]},
        "windows of stages.* not .nan",
    ),
    ({"stages": [{"stage": "read", "items_per_s": 1.0, "windows": "fast"}]}, "must be a list of such numbers"),
    ({"stages": [{"stage": "read", "items_per_s": 1, "windows": []}] * 2}, "a stage is there twice"),
    ({"stages": [{"stage": "read", "windows": []}]}, r"stages\[0\] lacks items_per_s"),
    ({"builds": [{"kind": "hnsw", "dimensions": 8, "items": 0, "seconds": 1.0}]}, "items of .* not 0"),
    ({"builds": [{"kind": "hnsw", "dimensions": 8, "items": 9, "seconds": None}]}, "seconds of .* not None"),
    ({"tokens_per_item": "many"}, "tokens_per_item of the file must be a finite number above 0, not 'many'"),
    ({"token": 3.0}, "unknown name in the file 'token'; did you mean tokens_per_item"),
]


@pytest.mark.parametrize(("change", "words"), BAD, ids=[words for _, words in BAD])
def test_a_bad_file_is_refused_in_one_line(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    file = tmp_path / "rates.json"
    write_rates(file, RATES)
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(InputError, match=words) as refused:
        read_rates(file)
    assert str(file) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", ["", "[]", "{", "null", '{"schema": 1}'])
def test_a_file_that_holds_no_rates_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "rates.json").write_text(content)
    with pytest.raises(InputError, match=r"rates\.json"):
        read_rates(tmp_path / "rates.json")
    with pytest.raises(InputError, match=r"none\.json"):
        read_rates(tmp_path / "none.json")


SIZES, SECONDS = (1_000, 2_000, 4_000, 8_000), (1.1, 2.3, 5.2, 10.1)
BUILDS = [Build("hnsw", 16, items, seconds) for items, seconds in zip(SIZES, SECONDS, strict=True)]


def test_builds_follow_a_power_law_with_the_interval_of_a_regression() -> None:
    line = stats.linregress(np.log(SIZES), np.log(SECONDS))
    at = log(1e6) - np.log(SIZES).mean()
    residuals = np.log(SECONDS) - line.intercept - line.slope * np.log(SIZES)
    spread = sqrt((residuals**2).sum() / 2) * sqrt(1 + 1 / 4 + at**2 / (3 * np.log(SIZES).var(ddof=1)))
    middle = line.intercept + line.slope * log(1e6)
    half = stats.t.ppf(0.975, 2) * spread
    low, of_law, high = build_seconds(BUILDS, "hnsw", 16, 1_000_000)
    np.testing.assert_allclose((low, of_law, high), np.exp([middle - half, middle, middle + half]), rtol=1e-9)


def test_the_interval_holds_the_next_build_as_often_as_it_says() -> None:
    rng, held = np.random.default_rng(0), 0
    for _ in range(2_000):
        noisy = [Build("ivf", 4, items, 1e-3 * items**1.2 * exp(rng.normal(0, 0.2))) for items in SIZES]
        low, _, high = build_seconds(noisy, "ivf", 4, 50_000)
        held += low <= 1e-3 * 50_000**1.2 * exp(rng.normal(0, 0.2)) <= high
    assert held / 2_000 == pytest.approx(0.95, abs=0.02)


def test_a_limit_that_is_far_away_is_still_a_number() -> None:
    wild = [Build("ivf", 4, items, seconds) for items, seconds in ((1_000, 1e-3), (1_010, 1e3), (1_020, 1e-3))]
    low, middle, high = build_seconds(wild, "ivf", 4, 10**9)
    assert low <= middle <= high < float("inf")


def test_what_is_not_known_is_nan() -> None:
    assert np.isnan(build_seconds(BUILDS, "ivf", 16, 1_000)).all()
    assert np.isnan(build_seconds(BUILDS, "hnsw", 32, 1_000)).all()
    assert np.isnan(build_seconds(BUILDS[:1], "hnsw", 16, 1_000)).all()
    assert np.isnan(build_seconds(BUILDS[:1] * 3, "hnsw", 16, 1_000)).all()
    low, middle, high = build_seconds([BUILDS[0], BUILDS[2]], "hnsw", 16, 16_000)
    assert np.isnan([low, high]).all()
    assert middle == pytest.approx(5.2 * (5.2 / 1.1))  # two doublings more, by the law of two points


def test_beyond_the_memory_of_a_build_another_law_holds() -> None:
    room = 4 * 16 + GRAPH_BYTES
    below = [Build("pgvector-hnsw", 16, items, items / 1e3, 5_000 * room) for items in (1_000, 2_000, 4_000)]
    above = [Build("pgvector-hnsw", 16, items, 8 * items / 1e3, 500 * room) for items in (1_000, 2_000, 4_000)]
    assert [build.fits for build in below + above] == [True] * 3 + [False] * 3
    assert build_seconds(below + above, "pgvector-hnsw", 16, 5_000)[1] == pytest.approx(5)
    assert build_seconds(below + above, "pgvector-hnsw", 16, 5_001)[1] == pytest.approx(8 * 5.001)
    assert np.isnan(build_seconds(below, "pgvector-hnsw", 16, 5_001)).all(), "nobody has built beyond the memory"
    unlimited = [replace(build, memory_bytes=nan) for build in below]
    assert build_seconds(unlimited, "pgvector-hnsw", 16, 5_001)[1] == pytest.approx(5.001)
