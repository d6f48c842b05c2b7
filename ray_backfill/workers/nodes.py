"""The nodes of the connected cluster that are alive.

Ray counts a node that died until it has missed its heartbeats, for ten seconds and more. So each node is asked for a
connection as well.
"""

import math
import socket
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import ray

from ray_backfill.core.errors import InputError

# Seconds that a node may take to accept a connection, and how often it is tried: its kernel does that, however busy its
# processes are.
_CONNECT_S, _TRIES = 1.5, 2
# Seconds between two looks of one that looks often.
_LOOK_S = 2.0


@dataclass(frozen=True)
class Node:
    """A node. resources: how many of each kind it has, for example of CPU."""

    id: str
    address: str
    port: int
    resources: Mapping[str, float]

    def __str__(self) -> str:
        return f"{self.address} ({self.id[:8]})"


def counted_nodes() -> list[Node]:
    """The nodes that Ray counts as alive."""
    return [
        Node(node["NodeID"], node["NodeManagerAddress"], node["NodeManagerPort"], node["Resources"])
        for node in ray.nodes()
        if node["Alive"]
    ]


def living_nodes() -> list[Node]:
    """The nodes that are alive, without those that died so recently that Ray still counts them."""
    counted = counted_nodes()
    with ThreadPoolExecutor(max(1, min(32, len(counted)))) as several:
        return [node for node, answers in zip(counted, several.map(_answers, counted), strict=True) if answers]


def living_resources() -> dict[str, float]:
    """What the living nodes have, by kind, for example of CPU."""
    nodes = living_nodes()
    return {kind: sum(n.resources.get(kind, 0) for n in nodes) for kind in {k for n in nodes for k in n.resources}}


class Deaths:
    """Which nodes have died since this was made, or so shortly before that Ray does not know it yet."""

    def __init__(self) -> None:
        self.seen = {node.id: node for node in counted_nodes()}
        self.told: set[str] = set()
        self.looked = -math.inf

    def now(self) -> list[Node]:
        """The nodes that have died."""
        alive = {node.id: node for node in living_nodes()}
        self.seen |= alive
        return [node for name, node in self.seen.items() if name not in alive]

    def new(self) -> list[Node]:
        """The nodes that have died since the last call. May be called as often as one likes."""
        if time.monotonic() - self.looked < _LOOK_S:
            return []
        found = [node for node in self.now() if node.id not in self.told]
        self.looked = time.monotonic()
        self.told |= {node.id for node in found}
        return found


def check_room(what: str, needs: Mapping[str, float], remedy: str, deaths: Deaths | None = None) -> None:
    """Raise InputError if the living nodes are too small, because Ray would wait forever.

    what, needs: "3 gallery shards" and {"CPU": 3}. deaths: names the nodes that died since it was made.
    """
    there = living_resources()
    for kind, needed in needs.items():
        if needed > (has := there.get(kind, 0)):
            because = but_died(deaths or Deaths())
            raise InputError(f"{what} need {needed:g} {kind}s, but the Ray cluster has {has:g}{because}; {remedy}")


def but_died(deaths: Deaths) -> str:
    """The nodes that died, as an addition in brackets to what a cluster has; empty if none did."""
    dead = deaths.now()
    return f" ({died(dead)})" if dead else ""


def died(nodes: Iterable[Node]) -> str:
    """That these nodes died, as part of a sentence."""
    names = [str(node) for node in nodes]
    return f"node{'s' * (len(names) > 1)} {', '.join(names)} died"


def _answers(node: Node) -> bool:
    for last in range(_TRIES):
        try:
            socket.create_connection((node.address, node.port), _CONNECT_S).close()
        except ConnectionRefusedError:
            return False
        except OSError:
            time.sleep(0.2 * (last < _TRIES - 1))
        else:
            return True
    return False
