"""Every number of a plan from its assumptions and curves; what is unknown; which ways are dominated."""

import json
import math
import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ray_backfill as rb
from ray_backfill.core.outcome import Decision
from ray_backfill.plan import run as plan_run
from ray_backfill.plan.capacity import UNKNOWN
from ray_backfill.plan.fleet import FleetSettings, IndexSettings, ProviderSettings, TrafficSettings, WorkersSettings
from ray_backfill.plan.options import COLLECTION, NOTHING, ONLINE, SWITCH, Choice, Options, dominated, find_options
from ray_backfill.plan.report import as_json, read_plan
from ray_backfill.plan.run import plan_upgrade
from ray_backfill.plan.verdict import judge
from tests.compare.folder import labelled
from tests.plan.made import assumed, changed, curve, evidence
from tests.test_structure import ROOT

START = datetime(2026, 12, 1)
FLEET = """
items: 2_000_000
start: 2026-12-01 08:00
setup_dollars: 40
workers: {number: 2, items_per_s: 10, dollars_per_hour: 3.6, uncertainty: UNCERTAIN}
index:
  {build_hours: 36, dollars_per_hour: 2, bytes_per_item: 100, payload_bytes_per_item: 300, dollars_per_gb_month: 50}
traffic: {queries_per_day: 100_000}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of an upgrade that is a clear gain: the new model has less noise."""
    place, rng = tmp_path_factory.mktemp("page"), np.random.default_rng(0)
    splits = []
    for rows in (240, 120, 200):
        split = labelled(rows, 6, rows)
        centres = np.random.default_rng(9).normal(size=(6, 6))[split["label"]]
        splits.append(
            split
            | {"old": (centres + 1.2 * rng.normal(size=(rows, 6)))[:, :5].astype(np.float32)}
            | {"new": (centres + 0.5 * rng.normal(size=(rows, 6))).astype(np.float32)}
        )
    rb.write_folder(place / "data", *splits)
    rb.simulate(
        place / "data", methods=("ridge_gallery", "ridge_query", "cascade@20"), orders=("random",), merges=("raw",),
        points=5, metrics="nDCG@10", out=place / "run",
    )  # fmt: skip
    return place / "run"


@pytest.fixture(scope="module")
def sure(run: Path) -> Path:
    """A plan with rates that are certain."""
    (run.parent / "sure.yaml").write_text(FLEET.replace("UNCERTAIN", "0"))
    return plan_upgrade(run, run.parent / "sure.yaml", run.parent / "sure", ("workers=4",))


def tables(plan: Path) -> dict[str, pd.DataFrame]:
    return {file.stem: pd.read_parquet(file) for file in plan.glob("*.parquet")}


def test_every_way_follows_from_the_assumptions_and_the_curves(sure: Path, run: Path) -> None:
    plan, facts = tables(sure), json.loads((sure / "manifest.json").read_text())
    a = plan["assumptions"].set_index("name")["value"]
    embedding_h = a["items"] / (a["workers.number"] * a["workers.items_per_s"] * a["share"] * 3600)
    # A merge searches its index meanwhile, and is as slow as the slower of the two.
    switched_h, merged_h = embedding_h + a["index.build_hours"], max(embedding_h, a["index.build_hours"])
    assert a["query.dollars_per_million"] == pytest.approx(
        1e6 * a["workers.dollars_per_hour"] / 3600 / a["workers.items_per_s"]
    )
    gb = a["items"] * a["index.bytes_per_item"] / 1e9
    lines = pd.concat([pd.read_parquet(file) for file in run.rglob("curves.parquet")])
    lines = lines[(lines["metric"] == facts["metric"])]
    old = lines[lines["method"] == "old"]["value"].iloc[0]
    assert facts["old"] == pytest.approx(old)
    hours_of = dict(iter(plan["hours"].groupby("name")))
    rows = plan["options"].set_index("name", drop=False)
    assert set(rows["policy"]) == {SWITCH, COLLECTION, ONLINE, NOTHING, "cascade"}
    for name, row in rows.iterrows():
        parts = plan["dollars"][plan["dollars"]["name"] == name].set_index("part")["dollars"]
        assert row["dollars"] == pytest.approx(parts.sum(skipna=False), nan_ok=True)
        if row["policy"] == NOTHING:
            assert (row["hours"], row["dollars"], row["point_days"], row["memory_gb"]) == (0, 0, 0, pytest.approx(gb))
            continue
        is_switch = row["policy"] in (SWITCH, COLLECTION)
        hours, workers_h = (switched_h, embedding_h) if is_switch else (merged_h, merged_h)
        # A second collection copies payloads, too.
        copied = a["index.bytes_per_item"] + (row["policy"] == COLLECTION) * a["index.payload_bytes_per_item"]
        copied_gb = a["items"] * copied / 1e9
        assert row["hours"] == pytest.approx(hours)
        assert parts["embedding"] == pytest.approx(a["workers.number"] * a["workers.dollars_per_hour"] * workers_h)
        assert parts["index"] == pytest.approx(a["index.build_hours"] * a["index.dollars_per_hour"])
        assert parts["second partition"] == pytest.approx(hours * copied_gb * a["index.dollars_per_gb_month"] / 720)
        assert row["memory_gb"] == pytest.approx(gb + copied_gb)
        if row["policy"] == COLLECTION:
            assert row["dominated_by"] == rows.index[rows["policy"] == SWITCH][0]
            continue  # its quality is that of the other switch
        # Hours, dollars and shares are certain; quality varies by its interval, as one number for all moments.
        table = hours_of[row["name"]]
        assert table["hour"].iloc[-1] == pytest.approx(max(switched_h, merged_h))
        summed = 100 * np.trapezoid(table["value"] - old, table["hour"]) / 24
        width = 100 * (table["high"] - table["low"]).max() * switched_h / 24
        assert row["point_days"] == pytest.approx(summed, abs=0.01 * width + 1e-9)
        if row["policy"] == SWITCH:
            continue
        assert parts["setup"] == a["setup_dollars"]
        queries = merged_h / 24 * a["traffic.queries_per_day"]
        assert parts["queries"] == pytest.approx(queries * a["query.dollars_per_million"] / 1e6)
        line = lines[
            (lines["method"] == row["method"]) & (lines["order"] == row["order"]) & (lines["merge"] == row["merge"])
        ]
        line = line.sort_values("t")
        after = (switched_h - merged_h) * (line["value"].iloc[-1] - old)
        by_hand = 100 / 24 * (merged_h * (np.trapezoid(line["value"], line["t"]) - old) + after)
        assert row["point_days"] == pytest.approx(by_hand, abs=0.1 * width)


def test_quantiles_are_in_order(run: Path) -> None:
    (run.parent / "unsure.yaml").write_text(FLEET.replace("UNCERTAIN", "0.3"))
    plan = tables(plan_upgrade(run, run.parent / "unsure.yaml", run.parent / "unsure", ("workers=4,8",), runs=200))
    for table, columns in (
        ("options", ("hours", "dollars", "extra", "point_days")), ("what_if", ("hours",)),
        ("dollars", ("dollars",)), ("hours", ("value",)),
    ):  # fmt: skip
        for column in columns:
            ends = ("low", "high") if table in ("dollars", "hours") else (f"{column}_low", f"{column}_high")
            low, middle, high = (plan[table][name].to_numpy() for name in (ends[0], column, ends[1]))
            is_known = ~np.isnan(middle)
            assert is_known.any(), column
            assert (low[is_known] <= middle[is_known]).all()
            assert (middle[is_known] <= high[is_known]).all()
    switch = plan["options"].set_index("policy").loc[SWITCH]
    assert switch["hours_low"] < switch["hours"] < switch["hours_high"]
    # Twice the workers: half of the time, but for the index.
    few, many = plan["what_if"]["hours"] - 36
    assert many == pytest.approx(few / 2)


def test_the_document_for_programs_has_its_schema(sure: Path) -> None:
    schema = json.loads((ROOT / "docs" / "schema" / "plan.json").read_text(encoding="utf-8"))
    jsonschema.validate(json.loads(json.dumps(as_json(sure), allow_nan=False)), schema)


def test_the_first_items_are_named_where_the_embeddings_are(
    sure: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_run, "find_flips", lambda *plan: [])
    data = run.parent / "data"
    ids = pd.read_parquet(data / "gallery.parquet")["id"].astype(str)
    plan = read_plan(sure)
    order = np.argsort(np.random.default_rng(0).permutation(len(ids)))[:10]  # by a random score each
    assert plan.manifest["first_items"] == as_json(sure)["first_items"] == ids.iloc[order].tolist()
    assert ", ".join(ids.iloc[order]) in (sure / "plan.md").read_text()
    data.rename(run.parent / "moved away")
    try:
        again = read_plan(plan_upgrade(run, run.parent / "sure.yaml", run.parent / "again", runs=2))
        assert again.manifest["first_items"] == []
        assert "In the order random;" in again.manifest["answers"]["Which items first?"]
    finally:
        (run.parent / "moved away").rename(data)


def is_shown(text: str, values: Iterable[float]) -> bool:
    """Whether a number in words is one of these, rounded to its last digit."""
    plain = text.replace(",", "")
    half = 0.5000001 * 10.0 ** -len(plain.partition(".")[2])
    return any(abs(abs(value) - float(plain)) <= half for value in values if math.isfinite(value))


NUMBER = re.compile(r"(?<![\w@.-])\d[\d,]*(?:\.\d+)?(?![\w@]*@)")


def numbers_of(text: str) -> list[str]:
    """Numbers of a sentence but for dates, names and the levels of its intervals."""
    for known in (r"\d{4}-\d\d-\d\d( \d\d:\d\d)?", r"\w+@\d+", r"(95|90|80) %", r"max_wait_hours \d+ h"):
        text = re.sub(known, "", text)
    return [number.rstrip(",") for number in NUMBER.findall(text)]


def test_each_number_of_the_sentences_is_in_the_tables_or_follows_from_them(sure: Path, run: Path) -> None:
    plan, facts = tables(sure), json.loads((sure / "manifest.json").read_text())
    options = plan["options"].set_index("name", drop=False)
    chosen, switch = options.loc[facts["chosen"]], options[options["policy"] == SWITCH].iloc[0]
    summary = pd.concat([pd.read_parquet(file) for file in run.rglob("summary.parquet")])
    row = summary[(summary["method"] == chosen["method"]) & (summary["metric"] == facts["metric"])].iloc[0]
    a, moments = plan["assumptions"].set_index("name")["value"], plan["hours"]
    hours = [*a.filter(like="hours"), *switch[["hours", "hours_low", "hours_high"]], chosen["hours"]]
    hours.append(a["items"] / 20 / 3600)
    shares = [*row.filter(regex="passes|flips").to_numpy(float), *np.linspace(0, 1, 5), *facts["step"], 0.9]
    flips = pd.concat([pd.read_parquet(file) for file in run.rglob("curves.parquet")])
    shares += flips[flips["metric"].str.contains("flips")]["value"].tolist()
    hours += [share * chosen["hours"] for share in np.linspace(0, 1, 5)]
    of_chosen = moments[moments["name"] == chosen["name"]]
    days = of_chosen.groupby((of_chosen["hour"] // 24).astype(int))["value"].mean() - facts["old"]
    shares += [*days, chosen["point_days"]]
    won = chosen["point_days"] - switch["point_days"]
    sums = [*plan["dollars"]["dollars"], switch["dollars"], chosen["extra"], chosen["extra"] / won]
    collection = options[options["policy"] == COLLECTION].iloc[0]
    sums.append(collection["dollars"] - switch["dollars"])
    others = [a["items"], won, *range(10), collection["memory_gb"] - switch["memory_gb"]]  # days, and other ways
    others += [float(item) for item in facts["first_items"]]
    for text in (facts["sentence"], facts["inequality"], *facts["answers"].values()):
        for number in numbers_of(text):
            values = [*hours, *(60 * hour for hour in hours), *(hour / 24 for hour in hours)]
            values += [*(100 * share for share in shares), *sums, *others]
            if "to" in text and "point-days" in text:  # 80 % of the runs
                around = re.findall(r"\(([\d.,]+) to ([\d.,]+)\)", text)
                assert all(float(low.replace(",", "")) <= float(high.replace(",", "")) for low, high in around)
                values += [float(limit.replace(",", "")) for pair in around for limit in pair]
            assert is_shown(number, values), (number, text)


def test_the_page_and_markdown_say_what_the_tables_say(sure: Path) -> None:
    plan, page, text = read_plan(sure), (sure / "report.html").read_text(), (sure / "plan.md").read_text()
    said = [plan.verdict, plan.manifest["inequality"], *plan.manifest["answers"].values()]
    bare = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", page).replace("\xa0", " ").replace("&#39;", "'"))
    for sentence in said:
        assert sentence in text
        assert sentence.replace("<=", "&lt;=").replace(">", "&gt;") in bare or sentence in bare
    for row in plan.shown:
        (line,) = [line for line in text.splitlines() if line.startswith(f"| {row.name} |")]
        took, paid, more, sums, memory, _ = line.split("|")[2:8]
        hours = [row.hours, row.hours_low, row.hours_high]
        for cell, values in (
            (took, [*hours, *(hour / 24 for hour in hours)]),
            (paid, [row.dollars, row.dollars_low, row.dollars_high]),
            (more, [row.extra, row.extra_low, row.extra_high]),
            (sums, [row.point_days, row.point_days_low, row.point_days_high]),
            (memory, [row.memory_gb]),
        ):
            assert all(is_shown(number, values) for number in NUMBER.findall(cell)), (cell, row)
    for assumption in plan.assumptions:
        assert f"| {assumption.name} |" in text
        assert assumption.name in bare


KNOWN = FleetSettings(
    items=2e6, workers=(WorkersSettings(2, items_per_s=10, dollars_per_hour=3.6),), setup_dollars=5,
    index=IndexSettings(
        build_hours=3, dollars_per_hour=2, bytes_per_item=100, payload_bytes_per_item=300, dollars_per_gb_month=50
    ),
    traffic=TrafficSettings(queries_per_day=1e5), value_per_point_day=10.0, tenants=True,
)  # fmt: skip
PROVIDER = replace(
    KNOWN, workers=(),
    provider=ProviderSettings(
        dollars_per_million_tokens=0.1, tokens_per_item=100, tokens_per_query=10, tokens_per_minute=1e6
    ),
)  # fmt: skip
ALL_WAYS = {SWITCH, COLLECTION, ONLINE, "tenant by tenant"}
# Without it -> what of which ways is unknown then.
LACKS: dict[str, tuple[set[str], set[str]]] = {
    "workers.items_per_s": ({"finish", "total", "point_days", "extra_dollars"}, {ONLINE}),
    "workers.dollars_per_hour": ({"total", "embedding"}, ALL_WAYS),
    "index.build_hours": ({"total", "index"}, ALL_WAYS),
    "index.dollars_per_hour": ({"total", "index"}, ALL_WAYS),
    "index.bytes_per_item": ({"total", "second partition", "memory_gb"}, ALL_WAYS),
    "index.payload_bytes_per_item": ({"total", "second partition", "memory_gb"}, {COLLECTION}),
    "index.dollars_per_gb_month": ({"total", "second partition"}, ALL_WAYS),
    "traffic.queries_per_day": ({"total", "extra_dollars", "queries"}, {ONLINE}),
    "provider.dollars_per_million_tokens": ({"total", "embedding"}, ALL_WAYS),
    "provider.tokens_per_item": ({"finish", "total", "point_days", "embedding"}, ALL_WAYS),
    "provider.tokens_per_minute": ({"finish", "total", "point_days"}, ALL_WAYS),
    "provider.tokens_per_query": ({"total", "extra_dollars", "queries"}, {ONLINE}),
}


def value_of(choice: Choice, what: str) -> Any:
    return choice.dollars[what] if what in choice.dollars else getattr(choice, what)


@pytest.mark.parametrize("name", LACKS)
def test_what_rests_on_an_unknown_is_unknown(name: str) -> None:
    group, setting = name.split(".")
    whole = PROVIDER if group == "provider" else KNOWN
    unknown = math.inf if setting == "tokens_per_minute" else math.nan
    of = changed(whole, name, unknown)
    if setting == "dollars_per_million_tokens":  # by the table, which states no discount of this model's batches
        of = changed(changed(of, "provider.model", "embed-v4.0"), "provider.batch", True)
    before = {c.policy: c for c in find_options(evidence(), assumed(whole), whole, START, 5, spans=50).choices}
    known = assumed(of)
    options = find_options(evidence(), known, of, START, 5, spans=50)
    lacking, ways = LACKS[name]
    for choice in options.choices:
        if choice.policy not in ways:
            continue
        for what in lacking:
            assert not np.isnan(value_of(before[choice.policy], what)).any(), what
            assert np.isnan(value_of(choice, what)).all(), (choice.policy, what)
    # No sum of money is printed where a part of it is unknown.
    said = judge(evidence(), known, options)
    if "total" in lacking and SWITCH in ways:
        assert not re.search(r"switch: [\d.]+ \w+ and \$", said.sentence)
    if "extra_dollars" in lacking:
        assert said.verdict.decision is Decision.OPEN
        assert not re.search(r"\$\d", said.sentence)
    assert all(ones not in dominated(options) for ones in [c.name for c in options.choices if np.isnan(c.total).any()])


def test_what_follows_from_a_changed_assumption_follows_it() -> None:
    known = assumed(PROVIDER, changed={"provider.tokens_per_item": 200.0})
    assert known["provider.items_per_s"].value == pytest.approx(1e6 / 60 / 200)
    by_workers = assumed(KNOWN, changed={"workers.dollars_per_hour": 7.2})["query.dollars_per_million"]
    assert by_workers.value == pytest.approx(2 * assumed(KNOWN)["query.dollars_per_million"].value)
    assert assumed(KNOWN, changed={"query.dollars_per_million": 5.0})["query.dollars_per_million"].value == 5


WAYS = st.lists(
    st.tuples(*[st.sampled_from([0.0, 1.0, 2.0, 3.0, math.nan, math.inf])] * 2), min_size=1, max_size=6
)  # fmt: skip


@given(WAYS)
def test_ways_are_dominated_by_what_is_cheaper_and_better(ways: list[tuple[float, float]]) -> None:
    made = curve()
    choices = tuple(
        Choice(
            ONLINE, f"way {place}", made, np.ones(3), {"embedding": np.full(3, cost)}, (), np.zeros(3),
            np.zeros((3, 2)), np.full(3, gives), 1.0, True,
        )
        for place, (cost, gives) in enumerate(ways)
    )  # fmt: skip
    worse = dominated(Options(choices, np.zeros(2), UNKNOWN, UNKNOWN))

    def beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
        return one[0] <= other[0] and one[1] >= other[1] and one != other

    known = {f"way {place}": way for place, way in enumerate(ways) if not any(map(math.isnan, way))}
    assert worse.keys() == {name for name, way in known.items() if any(beats(one, way) for one in known.values())}
    assert all(beats(known[other], known[name]) for name, other in worse.items())
