"""The made worlds of the stress table: a narrow band is a change of scale, and changes no forecast."""

from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks.forecast_worlds import Trials, World, lines_of, make_world


def test_a_narrow_band_has_the_ranking_of_the_wide_one_and_its_forecast(tmp_path: Path) -> None:
    given, found = Namespace(out=tmp_path, methods=["rm_naive"], merge="raw", filter=""), []
    for band in ("wide", "narrow"):
        world = World(band, "weak", 5)
        trials = Trials(world.name, make_world(world, tmp_path / "worlds" / world.name), 0.1, given)
        trials.run(2)
        trials.run(4)
        found.append(trials.found())
    wide, narrow = ([each["said"]["rm_naive M_1"] for each in of] for of in found)
    assert [each["seed"] for each in found[0]] == [0, 1, 2, 3], "a run that was stopped goes on"
    assert found[0][0]["true"]["rm_naive M_1"] == pytest.approx(found[1][0]["true"]["rm_naive M_1"], abs=1e-3)
    for one, other in zip(wide, narrow, strict=True):
        assert one[0] == pytest.approx(other[0], abs=0.015)
    (line,) = lines_of("narrow", found[1])
    assert line["samples"] == 4
    assert line["end, held %"] == 25 * sum(
        low <= found[1][0]["true"]["rm_naive M_1"] <= high for _, low, high in narrow
    )
