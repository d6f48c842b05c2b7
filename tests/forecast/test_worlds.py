"""The made worlds of the stress table: a narrow band is a change of scale, and changes no forecast."""

from argparse import Namespace
from pathlib import Path

import pandas as pd
import pytest

from benchmarks.forecast_worlds import Trials, World, lines_of, make_world, sums_of


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


def test_sums_weigh_each_world_by_the_intervals_that_it_shows() -> None:
    none = float("nan")
    rows = [  # samples, withheld %, area, end, gain held, gains shown
        (20, 0.0, 90.0, 100.0, 80.0, 10),
        (40, 50.0, 100.0, 85.0, none, 0),
        (4, 0.0, 50.0, 50.0, 0.0, 1),
    ]
    columns = ["samples", "withheld %", "area, held %", "end, held %", "gain, held %", "gains shown"]
    area, end, gain = sums_of(pd.DataFrame(rows, columns=columns))
    assert area == "area: 90.9 % of 44 held, lowest 90 %"  # (18 + 20 + 2) / 44; four are too few to be the lowest
    assert end == "end: 88.6 % of 44 held, lowest 85 %"
    assert gain == "gain: 72.7 % of 11 held, lowest 80 %"
