"""What is wrong with a fleet, with a log of queries or with results: one line, exit code 2, and nothing written."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

import ray_backfill as rb
from ray_backfill.plan.fleet import read_fleet
from tests.command import Command
from tests.compare.folder import labelled
from tests.test_bad_input import CODES, listing
from tests.test_structure import ROOT

RATES = {
    "schema": 1,
    "model": "hf:other",
    "identity": {"name": "other"},
    "modality": "texts",
    "dimensions": 6,
    "stages": [{"stage": "embed", "items_per_s": 10.0, "windows": [9.0, 11.0]}],
    "builds": [],
    "searches": [],
    "machine": {},
    "created": "2026-11-29T00:00:00",
    "command": "ray-backfill measure",
}
WORKERS = "workers: [{number: 2, items_per_s: 10}]\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of two models that have names, and of the same without an interval or right answers of its own."""
    place = tmp_path_factory.mktemp("bad")
    gallery, queries = labelled(60, 3, 1), labelled(40, 3, 2)
    rb.write_folder(place / "data", gallery, queries, models={"old": "elder", "new": "younger"})
    how = {"methods": ("rm_naive",), "orders": ("random",), "merges": ("raw",), "points": 3, "metrics": "nDCG@10"}
    rb.simulate(place / "data", out=place / "run", **how)  # type: ignore[arg-type]
    rb.write_folder(place / "few", gallery, {name: rows[:1] for name, rows in queries.items()})
    rb.simulate(place / "few", out=place / "few_run", **how)  # type: ignore[arg-type]
    bare = [{name: rows for name, rows in split.items() if name != "label"} for split in (gallery, queries)]
    rb.write_folder(place / "bare", *bare)
    rb.simulate(place / "bare", out=place / "bare_run", truth="new-top5", **how)  # type: ignore[arg-type]
    return place / "run"


class Bad(NamedTuple):
    """A fleet.yaml, further options, what the line says, and files beside the fleet."""

    fleet: str
    says: str
    options: tuple[str, ...] = ()
    files: Callable[[Path], object] = lambda folder: None


def trace(content: object) -> Callable[[Path], object]:
    return lambda folder: (folder / "spot.json").write_text(json.dumps(content))


def log(**columns: object) -> Callable[[Path], object]:
    return lambda folder: pd.DataFrame(columns).to_parquet(folder / "log.parquet")


SPOT, LOG = "workers: {number: 2, items_per_s: 10, spot: spot.json}", "traffic: {log: log.parquet}"
CASES = {
    "negative price": Bad("workers: {number: 2, dollars_per_hour: -1}", "dollars_per_hour must be a number 0 or more"),
    "negative price of a provider": Bad("provider: {dollars_per_million_tokens: -0.1}", "must be a number 0 or more"),
    "no number": Bad("workers: [{items_per_s: 10}]", "workers[0] lacks number"),
    "no workers at all": Bad("workers: {number: 0}", "workers[0].number must be a number greater than 0"),
    "deadline in the past": Bad("old_model_ends: 2020-01-01", "is in the past"),
    "deadline before the start": Bad("start: 2031-01-02\nold_model_ends: 2031-01-01", "is not after the start"),
    "unknown key": Bad("worker: {number: 2}", "did you mean workers?"),
    "unknown inner key": Bad("workers: {number: 2, item_per_s: 3}", "did you mean items_per_s"),
    "hours beyond a day": Bad('hours: "25:00-26:00"', "write them as 22:00-06:00"),
    "minutes beyond an hour": Bad('hours: "22:75-06:00"', "22:00-06:00"),
    "no hours": Bad('hours: "at night"', "written as 22:00-06:00"),
    "share above one": Bad("share: 1.5", "share is a share above 0 and up to 1, not 1.5"),
    "budget above all": Bad("budget: {items: 30}", "budget.items is a share"),
    "two groups of a name": Bad("workers: [{number: 1, name: a}, {number: 2, name: a}]", "are called a; give each"),
    "workers and provider": Bad(f"{WORKERS}provider: {{model: embed-v4.0}}", "workers or a provider, not both"),
    "NaN": Bad("items: .nan", "items must be a number greater than 0"),
    "infinite": Bad("items: .inf", "items must be a number greater than 0"),
    "text for a number": Bad("workers: {number: several}", "not 'several'"),
    "truth for a number": Bad("workers: {number: yes}", "not True"),
    "number for a text": Bad("workers: {number: 2, name: 5}", "must be a text, not 5"),
    "no mapping": Bad("- 5", "must hold keys and values"),
    "no YAML": Bad("items: [1,\nstart: 2", "is not YAML"),
    "a character that YAML forbids": Bad("items: \x01", "is not YAML"),
    "no date": Bad("start: tomorrow", "is a date such as"),
    "an impossible date": Bad("start: 2027-02-30", "day is out of range for month"),
    "a zone": Bad("start: 2027-02-03T10:00:00Z", "local time without a zone"),
    "an unknown day": Bad("days: [mon, tues]", "did you mean tue"),
    "a pause that is none": Bad("pauses: [Christmas]", "a pause is written as"),
    "a pause backwards": Bad("pauses: [2026-12-27 00:00 to 2026-12-24 00:00]", "ends before it begins"),
    "a pause with a zone": Bad("pauses: [2026-12-24 00:00+01:00 to 2026-12-27 00:00+01:00]", "a pause is written as"),
    "half a zone": Bad("pauses: [2026-12-24 00:00 to 2026-12-27 00:00Z]", "a pause is written as"),
    "no provider": Bad("provider: {batch: true}", "give its model"),
    "an unknown model": Bad("provider: {model: text-embedding-4-large}", "unknown model of a provider"),
    "a model of several prices": Bad("provider: {model: gemini-embedding-001}", "name one: gemini/"),
    "no rates": Bad("rates: rates.json", "there is no"),
    "broken rates": Bad("rates: rates.json", "again", files=lambda at: (at / "rates.json").write_text("{}")),
    "rates of another model": Bad(
        "rates: rates.json", "was measured with other, and the new model of",
        files=lambda at: (at / "rates.json").write_text(json.dumps(RATES)),
    ),
    "rates of other dimensions": Bad(
        "rates: rates.json", "a model of 7 dimensions",
        files=lambda at: (at / "rates.json").write_text(
            json.dumps(RATES | {"identity": {"name": "younger"}, "dimensions": 7})
        ),
    ),
    "a trace without instances": Bad(
        SPOT, "no instance is ever available", files=trace({"metadata": {"gap_seconds": 60}, "data": [0, 0]})
    ),
    "a trace without steps": Bad(SPOT, "is no spot trace", files=trace({"data": [1, 2]})),
    "a trace of less than none": Bad(
        SPOT, "not negative", files=trace({"metadata": {"gap_seconds": 60}, "data": [-1, 2]})
    ),
    "a trace of one endless step": Bad(
        SPOT, "is no spot trace", files=trace({"metadata": {"gap_seconds": float("inf")}, "data": [1, 2]})
    ),
    "a log without times": Bad(LOG, "no log of queries with a column time", files=log(when=["2026-01-01"])),
    "a log that is no table": Bad(
        LOG, "no log of queries", files=lambda folder: (folder / "log.parquet").write_text("time\n")
    ),
    "a log of no times": Bad(LOG, "no log of queries", files=log(time=["early", "late"])),
    "a log of an hour": Bad(LOG, "covers less than a day", files=log(time=["2026-01-01 10:00", "2026-01-01 11:00"])),
    "an unknown what-if": Bad(WORKERS, "did you mean workers.number", ("--what-if", "workers.numbers=3")),
    "a what-if without values": Bad(WORKERS, "unknown assumption", ("--what-if", "workers.numbers")),
    "a what-if that is no number": Bad(WORKERS, "'many'", ("--what-if", "workers.number=2,many")),
    "a what-if below 0": Bad(WORKERS, "'-2'", ("--what-if", "workers.number=-2")),
    "a what-if of no workers": Bad(WORKERS, "'0'", ("--what-if", "workers.number=0")),
    "a what-if of no items": Bad(WORKERS, "'0'", ("--what-if", "items=0")),
    "a what-if without end": Bad(WORKERS, "'inf'", ("--what-if", "items=inf")),
    "a what-if of more than all": Bad(WORKERS, "'1.5'", ("--what-if", "share=1.5")),
}  # fmt: skip


@pytest.mark.filterwarnings("error::UserWarning")  # they are lines, too
@pytest.mark.parametrize("name", CASES)
def test_a_bad_fleet_is_one_line_and_leaves_nothing(name: str, run: Path, tmp_path: Path, command: Command) -> None:
    case = CASES[name]
    (tmp_path / "fleet.yaml").write_text(case.fleet)
    case.files(tmp_path)
    before = listing(tmp_path), listing(run)
    line = command("plan", run, "--fleet", tmp_path / "fleet.yaml", "--out", tmp_path / "out", *case.options).error
    assert case.says in line
    assert not CODES.search(line.replace(str(tmp_path), "")), line
    assert (listing(tmp_path), listing(run)) == before


@pytest.mark.parametrize(
    ("results", "says"),
    [
        ("few_run", "more queries"),
        ("bare_run", "judged by the new model"),
        ("data", "holds no results"),
        ("nowhere", "holds no results"),
    ],
)
def test_results_that_no_plan_can_rest_on(results: str, says: str, run: Path, command: Command) -> None:
    place = run.parent
    before = listing(place)
    assert says in command("plan", place / results).error
    assert listing(place) == before


def test_a_fleet_that_is_not_there(run: Path, tmp_path: Path, command: Command) -> None:
    for file in (tmp_path, tmp_path / "fleet.yaml"):
        line = command("plan", run, "--fleet", file, "--out", tmp_path / "out").error
        assert re.search(r"--fleet .* cannot be read", line)
    assert not [*tmp_path.iterdir()]


def test_an_earlier_plan_stays_if_the_next_one_is_bad(run: Path, tmp_path: Path, command: Command) -> None:
    fleet, out = tmp_path / "fleet.yaml", tmp_path / "out"
    fleet.write_text(WORKERS)
    assert command("plan", run, "--fleet", fleet, "--out", out).code == 0
    before = listing(tmp_path)
    command("plan", run, "--fleet", fleet, "--out", out, "--what-if", "nothing=5").error  # noqa: B018
    assert listing(tmp_path) == before


def test_dates_numbers_and_lists_as_yaml_has_them(tmp_path: Path) -> None:
    from ray_backfill.plan.fleet import open_minutes, read_fleet

    file = tmp_path / "fleet.yaml"
    file.write_text(
        "items: 1e8\nstart: 2026-12-01\nold_model_ends: 2026-12-03 04:05\ndays: mon\nworkers: {number: 2_000}\n"
        'hours: "22:30-06:00"\n'
    )
    fleet = read_fleet(file)
    assert (fleet.items, fleet.workers[0].number, fleet.days) == (1e8, 2000, ("mon",))
    assert str(fleet.start) == "2026-12-01 00:00:00"
    assert str(fleet.old_model_ends) == "2026-12-03 04:05:00"
    # Monday's night ends on Tuesday.
    opened = np.flatnonzero(open_minutes(fleet))
    assert (opened[0], opened[-1], len(opened)) == (22 * 60 + 30, 30 * 60 - 1, 450)
    file.write_text("")
    assert not read_fleet(file).workers


def test_the_files_of_the_docs_and_the_examples_are_read(tmp_path: Path) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "plan.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    (tmp_path / "rates.json").write_text("{}")
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "one.json").write_text('{"metadata": {"gap_seconds": 300}, "data": [1, 0, 1]}')
    for text in (
        *blocks,
        *(file.read_text(encoding="utf-8") for file in (ROOT / "examples" / "fleets").glob("*.yaml")),
    ):
        (tmp_path / "fleet.yaml").write_text(text, encoding="utf-8")
        fleet = read_fleet(tmp_path / "fleet.yaml")
        assert fleet.workers or fleet.provider
