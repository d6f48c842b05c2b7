"""A node dies under the replay over shards: the error names it, and the same command does not wait for it."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from ray_backfill.core.errors import InputError
from ray_backfill.workers.waiting import Deaths, check_room, living_nodes, living_resources
from tests.cluster._nodes import Nodes, started_nodes, wait_until
from tests.cluster.drill._drill import write_folder

# Runs a command; as long as a folder is given, its shards tell there where they are and then compute for ever.
COMMAND = """
import os, sys, time
from pathlib import Path
import ray
import ray_backfill.compare.ray.shards as replay
told = sys.argv.pop(1)
class Slow(replay.ShardActor):
    def make_systems(self, networks):
        (Path(told) / f"shard-{self.first}").write_text(ray.get_runtime_context().get_node_id())
        time.sleep(1000)
if told:
    replay.ShardActor = Slow
from ray_backfill.cli.main import main
main()
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with started_nodes(3, 1) as started:
        yield started


@pytest.mark.cluster
def test_a_node_that_dies_is_named_and_not_waited_for(nodes: Nodes, tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data")
    arguments = ["simulate", "--data", str(data), "--methods", "rm_naive", "--points", "3", "--shards", "3", "--out"]
    (told := tmp_path / "told").mkdir()
    with nodes.start(COMMAND, str(told), *arguments, str(tmp_path / "out")) as driver:
        wait_until(lambda: len([path for path in told.iterdir() if path.read_text()]) == 3, 400, driver)
        places = [(told / f"shard-{first}").read_text() for first in (0, 110, 220)]
        shard, victim = next((i, place) for i, place in enumerate(places) if place != nodes.head)
        nodes.kill(victim)
        _, said = driver.communicate(timeout=60)
    assert driver.returncode == 2
    last = said.splitlines()[-1]
    assert f"({victim[:8]}) died, and with it gallery shard {shard}; run the same command again" in last
    assert "more --shards" not in said
    # At once: Ray itself counts the dead node for ten seconds and more.
    with nodes.start(COMMAND, "", *arguments, str(tmp_path / "out")) as driver:
        _, said = driver.communicate(timeout=60)
    assert driver.returncode == 2
    last = said.splitlines()[-1]
    assert last.startswith("error: 3 gallery shards need 3 CPUs, but the Ray cluster has 2")
    assert last.endswith("; lower --shards")


class Listed:
    """Two nodes, as ``ray.nodes`` lists them; each accepts connections until it is closed."""

    def __init__(self) -> None:
        self.sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        self.nodes = [
            {
                "NodeID": f"{i}abcdefghij", "Alive": True, "NodeManagerAddress": "127.0.0.1",
                "NodeManagerPort": each.getsockname()[1], "Resources": {"CPU": 2.0},
            }
            for i, each in enumerate(self.sockets)
        ]  # fmt: skip


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listed]:
    there = Listed()
    monkeypatch.setattr(ray, "nodes", lambda: there.nodes)
    yield there
    for each in there.sockets:
        each.close()


def test_a_node_that_ray_still_counts_is_dead_if_it_does_not_answer(listed: Listed) -> None:
    deaths = Deaths()
    check_room("4 gallery shards", {"CPU": 4}, "lower --shards", deaths)
    listed.sockets[1].close()
    assert [node.id[0] for node in living_nodes()] == ["0"]
    assert living_resources() == {"CPU": 2.0}
    said = r"^4 gallery shards need 4 CPUs, but the Ray cluster has 2"
    wanted = said + r" \(node 127.0.0.1 \(1abcdefg\) died\); lower --shards$"
    for known in (deaths, None):
        with pytest.raises(InputError, match=wanted):
            check_room("4 gallery shards", {"CPU": 4}, "lower --shards", known)
    listed.nodes[1]["Alive"] = False  # Ray knows it, too
    with pytest.raises(InputError, match=wanted):
        check_room("4 gallery shards", {"CPU": 4}, "lower --shards", deaths)
    with pytest.raises(InputError, match=r"has 2; lower"):  # it died before anyone asked
        check_room("4 gallery shards", {"CPU": 4}, "lower --shards")
