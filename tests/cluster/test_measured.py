"""Rates that one Ray task measures."""

import json
from pathlib import Path

import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.encode.items import ItemSettings, ItemSources
from ray_backfill.encode.kinds import parse_spec
from ray_backfill.plan.measure import MeasureSettings, measure
from ray_backfill.plan.rates import STAGES, TOGETHER, Rates
from ray_backfill.workers.settings import EmbedActors


@pytest.mark.usefixtures("ray_session")
def test_a_task_measures_and_its_errors_are_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "that of the session, which is used")
    source = tmp_path / "texts.jsonl"
    source.write_text("".join(json.dumps({"id": row, "text": f"cat {row}"}) + "\n" for row in range(60)))

    def measured(model: str) -> Rates:
        spec = parse_spec(f"python:tests.encode._models:{model}")
        sources, settings = ItemSources("text", str(source)), MeasureSettings(0.2)
        return measure(spec, sources, settings, ItemSettings(), EmbedActors(), tmp_path / "scratch")

    rates = measured("slow_old")
    assert [rate.stage for rate in rates.stages] == [*STAGES, TOGETHER]
    assert rates.slowest is not None
    assert rates.slowest.stage == "embed"
    with pytest.raises(InputError, match="out of order"):
        measured("fails")
    assert list((tmp_path / "scratch").iterdir()) == []
