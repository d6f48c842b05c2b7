"""Metrics of drills and runs arrive in a real Prometheus with the documented configuration; every panel shows them."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ray_backfill.drill.ray.watch import METRICS
from ray_backfill.workers.watch import LATENCY_BUCKETS_S, RUN_METRICS
from tests.head import answers, free_port, running_head
from tests.test_structure import ROOT

BOARD = json.loads((ROOT / "dashboards" / "backfill.json").read_text())
PAGE = (ROOT / "docs" / "watching.md").read_text()
TARGETS = [(panel["title"], target) for panel in BOARD["panels"] for target in panel["targets"]]

Query = Callable[[str], Any]


def test_the_board_and_the_page_show_every_metric_and_no_other() -> None:
    exported = {metric.exported for metric in (*METRICS, *RUN_METRICS)}
    for text in (" ".join(target["expr"] for _, target in TARGETS), with_prefixes(PAGE)):
        shown = {re.sub("_bucket$", "", name) for name in re.findall(r"ray_backfill_\w+", text)}
        assert shown == exported


def with_prefixes(page: str) -> str:
    """The Prometheus names of the metrics in the page's table."""
    rows = [line.split("|")[3] for line in page.splitlines() if line.startswith("| ") and line.count("|") == 4]
    return " ".join(f"ray_backfill_{name}" for row in rows[1:] for name in re.findall(r"`(\w+)`", row))


def test_the_page_explains_every_panel() -> None:
    assert {panel["title"] for panel in BOARD["panels"]} == set(re.findall(r"^\| ([A-Z][^|]*) \|", PAGE, re.MULTILINE))


def test_the_board_hangs_together() -> None:
    """Checks without Grafana: no panel overlaps another, and all read the chosen source and drill."""
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids)
    covered: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert place["x"] + place["w"] <= 24
        assert not cells & covered, panel["title"]
        covered |= cells
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    for _, target in TARGETS:
        assert target["datasource"]["uid"] == "${datasource}"
        is_of_run = any(metric.exported in target["expr"] for metric in RUN_METRICS)
        chosen = '{run="$run"}' if is_of_run else '{drill="$drill"}'
        assert target["expr"].count(chosen) == target["expr"].count("ray_backfill_")
    assert [variable["name"] for variable in BOARD["templating"]["list"]] == ["datasource", "drill", "run"]


def test_latency_buckets_rise_from_a_millisecond_to_ten_seconds() -> None:
    assert list(LATENCY_BUCKETS_S) == sorted(set(LATENCY_BUCKETS_S))
    assert (LATENCY_BUCKETS_S[0], LATENCY_BUCKETS_S[-1]) == (0.001, 10.0)


@contextmanager
def prometheus(folder: Path, targets: Path) -> Iterator[Query]:
    """Starts Prometheus as in docs/watching.md, but scraping every second; yields a client."""
    (config,) = re.findall(r"```yaml\n(global:.*?)```", PAGE, re.DOTALL)
    assert config.count("/tmp/ray/prom_metrics_service_discovery.json") == 1
    config = config.replace("/tmp/ray/prom_metrics_service_discovery.json", str(targets))
    assert config.count("scrape_interval: 5s") == 1
    (folder / "prometheus.yml").write_text(config.replace("scrape_interval: 5s", "scrape_interval: 1s"))
    port = free_port()
    command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}"]

    def query(path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=10) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        return found["data"]

    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        assert answers(port), (folder / "prometheus.log").read_text()
        yield query
    finally:
        process.terminate()
        process.wait(20)


def values(query: Query, expression: str, label: str = "") -> dict[str, float]:
    """The current values of an expression, by one of its labels."""
    expression = re.sub(r"\$(drill|run)", "scraped", expression).replace("$__rate_interval", "60s")
    data = query(f"query?{urllib.parse.urlencode({'query': expression})}")
    return {series["metric"].get(label, ""): float(series["value"][1]) for series in data["result"]}


def evaluated(query: Query) -> dict[str, dict[str, float]]:
    """The values in each panel, by legend."""
    shown: dict[str, dict[str, float]] = {}
    for title, target in TARGETS:
        legend = target["legendFormat"]
        label = (re.findall(r"{{(\w+)}}", legend) or [""])[0]
        found = values(query, target["expr"], label)
        shown.setdefault(title, {}).update(
            {legend.replace("{{" + label + "}}", key): value for key, value in found.items()}
        )
    return shown


def wait_for(condition: Callable[[], bool], what: str, drill: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 400  # a few seconds on an idle machine
    while not condition():
        assert drill.poll() is None, f"the drill ended before {what} arrived"
        assert time.monotonic() < deadline, f"{what} did not arrive"
        time.sleep(0.3)


@pytest.mark.heavy
@pytest.mark.cluster
def test_every_panel_shows_what_was_written(tmp_path: Path) -> None:
    if shutil.which("prometheus") is None:
        assert "CI" not in os.environ, "install the Debian package prometheus"
        pytest.skip("needs the program prometheus")
    with running_head(tmp_path, RAY_metrics_report_interval_ms="1000") as head:
        rays_targets = head.temp_dir / "prom_metrics_service_discovery.json"
        with prometheus(tmp_path, rays_targets) as query:
            drill = subprocess.Popen(
                [sys.executable, "-m", "tests.cluster.drill._watched", str(tmp_path)],
                env=head.environment | {"RAY_ADDRESS": head.address},
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=(tmp_path / "drill.log").open("wb"),
                text=True,
            )
            try:
                # Three seconds of data, and a rate, which needs activity between two scrapes.
                wait_for(lambda: evaluated(query)["Retries"].get("retries", 0) > 60, "the first retries", drill)
                wait_for(lambda: evaluated(query)["Query latency"].get("p99", 0) > 0, "a rate", drill)
                # 150 requests between two scrapes: of a few, the share of those that were waited for is anything.
                wait_for(lambda: evaluated(query)["Queries per second"].get("answered", 0) > 5, "many requests", drill)
                (tmp_path / "stop").touch()
                assert drill.stdout is not None
                line = drill.stdout.readline()
                assert line, (tmp_path / "drill.log").read_text()
                counted = json.loads(line)
                wait_for(
                    lambda: evaluated(query)["Retries"] == {"retries": counted["retries"]}, "the last retry", drill
                )
                wait_for(
                    lambda: evaluated(query)["Items written"] == {"items": counted["items"]}, "the last item", drill
                )
                wait_for(lambda: evaluated(query)["Items embedded"]["embedded"] == counted["embedded"], "it all", drill)
                check(evaluated(query))
                of_board = BOARD["templating"]["list"][2]["query"]["query"]
                (series,) = re.findall(r"label_values\((.+), run\)", of_board)
                match = urllib.parse.urlencode({"match[]": series})
                assert query(f"label/run/values?{match}") == ["scraped"]
                assert query("label/drill/values?match[]=ray_backfill_progress") == ["other", "scraped"]
                throttled = values(query, "ray_backfill_throttle_items_per_s", "drill")
                assert throttled == {"scraped": 700}, "the other drill's limit was lifted"
            except AssertionError as error:
                error.add_note((tmp_path / "drill.log").read_text())
                raise
            finally:
                (tmp_path / "stop").touch()
                drill.communicate(timeout=60)
        ours, rays = (
            {target for group in json.loads(path.read_text()) for target in group["targets"]}
            for path in (tmp_path / "targets.json", rays_targets)
        )
        assert len(ours) == 1
        assert ours < rays, "Ray lists its dashboard, too"


def check(shown: dict[str, dict[str, float]]) -> None:
    """Gauges and totals are exact, although gauges were set once and longer ago than Ray keeps them."""
    assert shown["Progress"] == {"backfilled": 0.25}
    assert shown["Items by partition"] == {"old": 750, "new": 250}
    assert shown["Bytes by partition"] == {"old": 750 * 128, "new": 250 * 256}
    assert shown["Quality"] == {"mAP": 0.41, "CMC@1": 0.5}
    assert shown["Incidents"] == {"actor died": 2, "write failed": 1}
    assert shown["Epoch"] == {"old": 3, "new": 7}
    assert shown["Training loss"] == {"old": -0.75, "new": -1.75}
    assert shown["Training rate"] == {"old": 300, "new": 700}
    assert shown["Items embedded"]["broken"] == 2
    assert shown["Embedding rate"]["embedded"] > 0
    rate = shown["Backfill rate"]
    assert (rate["measured"], rate["allowed"]) == (120.5, 700)
    assert rate["written"] > 0
    queries = shown["Queries per second"]
    assert queries["answered"] == pytest.approx(20 * queries["unanswered"], rel=0.3)
    latency = shown["Query latency"]
    assert 0.3 < latency["p50"] <= 0.5, "0.42 s"
    assert 1.5 < latency["p95"] <= latency["p99"] <= 2.0, "one request in eleven was waited for, for 2 s"
    below = shown["Query latency, all requests"]
    assert len(below) == len(LATENCY_BUCKETS_S) + 1
    assert below["0.3"] == 0 < below["0.5"] == below["1.5"] < below["2.0"] == below["+Inf"]
