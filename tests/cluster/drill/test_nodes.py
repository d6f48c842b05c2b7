"""The node of the traffic dies under a drill, while what it started goes on for a while."""

import shlex
from pathlib import Path

import pandas as pd
import pytest

from ray_backfill.drill.journal import Incident, Journal, TrafficRestarted, of_type
from tests.cluster._nodes import started_nodes, wait_until
from tests.cluster.drill._drill import ITEMS, write_folder

# A drill whose traffic starts on the node that is given.
PROGRAM = """
import sys
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from ray_backfill.drill.ray.traffic import Traffic
there, made = sys.argv.pop(1), Traffic._made
def made_there(traffic, sender, make):
    return made(traffic, sender, make.options(scheduling_strategy=NodeAffinitySchedulingStrategy(there, soft=False)))
Traffic._made = lambda self, sender, make: (made if sender.incarnation else made_there)(self, sender, make)
from ray_backfill.cli.main import main
main()
"""


@pytest.mark.heavy
@pytest.mark.cluster
def test_the_node_of_the_traffic_dies(tmp_path: Path) -> None:
    data, out = write_folder(tmp_path / "data"), tmp_path / "out"
    arguments = shlex.split(f"""drill
        --data {data} --out {out} --metrics mAP@10 CMC@1 --orders random --points 8
        --actors.number 1 --actors.cpus 0.5 --live.method rm_naive --live.part-items 30 --live.quiet-s 3
        --live.shards.number 2 --live.shards.cpus 0.5 --live.throttle.items-per-s 20
        --live.traffic.rate-per-s 50 --live.traffic.warm-up-s 0 --live.traffic.deadline-s 120
    """)
    with started_nodes(2, 3) as nodes:
        (there,) = (node.node_id for node in nodes.cluster.list_all_nodes() if node.node_id != nodes.head)
        journal = Journal(out / "live")
        with nodes.start(PROGRAM, there, *arguments) as driver:
            wait_until(lambda: journal.applied() >= 2, 400, driver)
            wait_until(lambda: list((out / "live" / "events").glob("*.parquet")), 60, driver)
            nodes.kill(there, leaves_orphans=True)
            killed_s = max(entry.elapsed_s for entry in journal.entries())
            out_said, said = driver.communicate(timeout=600)
    assert driver.returncode == 0, said
    assert "raylet" not in out_said + said
    assert f"({there[:8]}) of the Ray cluster died" in said
    entries = journal.entries()
    told = [(entry.what, entry.detail) for entry in of_type(entries, Incident)]
    assert [detail for what, detail in told if what == "node died" and there[:8] in detail], told
    restarts = of_type(entries, TrafficRestarted)
    # On a busy machine Ray may lose the connection to the second one, too.
    assert [each.incarnation for each in restarts] == list(range(1, len(restarts) + 1))
    assert told.count(("traffic actor restarted", "actor 0")) == len(restarts) >= 1, told
    assert restarts[0].elapsed_s > killed_s
    sent = 0
    for restart in restarts:
        files = sorted((out / "live" / "events").glob(f"leg-000-000.{restart.incarnation}-*.parquet"))
        assert all(pd.read_parquet(file).scheduled_s.min() > restart.elapsed_s for file in files)
        sent += len(files)
    assert sent, "who starts again sends"
    assert not list((out / "live" / "events").glob("*.sending")), "nobody may write any more"
    checkpoints = pd.read_parquet(out / "live" / "checkpoints.parquet")
    assert checkpoints.unanswered.sum() == 0, "queries that nobody asked"
    assert (checkpoints.old_items + checkpoints.new_items == ITEMS).all()
    assert checkpoints.new_items.tolist()[-1] == ITEMS
