"""Which nodes of the connected cluster are alive, and waits for answers from Ray.

Ray counts a node that died until it has missed its heartbeats, for ten seconds and more. So each node is asked for a
connection as well.

Ray alone waits forever, without a word, for an actor that no living node has room for. So every wait here looks around
every few seconds, or has a deadline, and all code waits for Ray by these functions. A long computation is watched,
never cut off.
"""

import math
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.actor import ActorHandle

from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import say

# Seconds that a node may take to accept a connection, and how often it is tried: its kernel does that, however busy its
# processes are.
_CONNECT_S, _TRIES = 1.5, 2
# Seconds between two looks; after which a wait for actors is reported; and after which it ends.
_LOOK_S, _TELL_S, _START_S = 2.0, 20.0, 600.0

# Free space below which a disk is full.
_DISK_BYTES = 1 << 20

Look = Callable[[float], None]


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
        self.reported: set[str] = set()
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
        dead = [node for node in self.now() if node.id not in self.reported]
        self.looked = time.monotonic()
        self.reported |= {node.id for node in dead}
        return dead


def check_room(what: str, needs: Mapping[str, float], remedy: str, deaths: Deaths | None = None) -> None:
    """Raise InputError if the living nodes are too small, because Ray would wait forever.

    what, needs: "3 gallery shards" and {"CPU": 3}. deaths: names the nodes that died since it was made.
    """
    there = living_resources()
    for kind, needed in needs.items():
        if needed > (has := there.get(kind, 0)):
            because = but_died(deaths or Deaths())
            raise InputError(f"{what} need {needed:g} {kind}s, but the Ray cluster has {has:g}{because}; {remedy}")


def check_disk() -> None:
    """Raise InputError if the disk with Ray's files here is full: then Ray starts no process, without a word."""
    node = ray._private.worker._global_node
    folder = Path(node.get_temp_dir_path() if node else ray._common.utils.get_default_ray_temp_dir())
    if folder.exists() and shutil.disk_usage(folder).free < _DISK_BYTES:
        raise InputError(
            f"the disk of {folder} is full, so Ray starts no processes: make room there, or set RAY_TMPDIR to a folder "
            "on another disk, and run the same command again"
        )


def but_died(deaths: Deaths) -> str:
    """The nodes that died, as an addition in brackets to what a cluster has; empty if none did."""
    dead = deaths.now()
    return f" ({died(dead)})" if dead else ""


def died(nodes: Iterable[Node]) -> str:
    """That these nodes died, as part of a sentence."""
    names = [str(node) for node in nodes]
    return f"node{'s' * (len(names) > 1)} {', '.join(names)} died"


def answers_at(address: str) -> bool:
    """Whether a server at host:port accepts a connection; True for an address in another form, such as auto."""
    host, _, port = address.rpartition(":")
    return not port.isdigit() or "/" in host or _answers(Node("", host, int(port), {}))


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


def answers_of(calls: Sequence[Any], look: Look | None = None) -> list[Any]:
    """What the calls return, or raises the error of one of them.

    look: called every few seconds with the seconds waited so far; raises an error if there is no point in waiting.
    """
    began = time.monotonic()
    while True:
        try:
            return ray.get(list(calls), timeout=_LOOK_S)
        except ray.exceptions.GetTimeoutError as error:
            if isinstance(error, ray.exceptions.RayTaskError):  # the call itself raised it
                raise
            if look is not None:
                look(time.monotonic() - began)


def answer_of(call: Any, look: Look | None = None) -> Any:
    """See ``answers_of``."""
    return answers_of([call], look)[0]


def answer_within(call: Any, seconds: float) -> Any:
    """What the call returns. Raises GetTimeoutError, an error of Ray, if it takes longer."""
    return ray.get(call, timeout=seconds)


def ended(calls: Sequence[Any]) -> list[Any]:
    """Those of the calls that have ended by now."""
    return ray.wait(list(calls), num_returns=len(calls), timeout=0)[0] if calls else []


def wait_for_one(calls: Sequence[Any], look: Look | None = None) -> tuple[list[Any], list[Any]]:
    """Returns when one of the calls has ended: those that have, and the others. look: see ``answers_of``."""
    began = time.monotonic()
    while True:
        done, running = ray.wait(list(calls), timeout=_LOOK_S)
        if done:
            return done, running
        if look is not None:
            look(time.monotonic() - began)


class Room:
    """A ``Look`` for what Ray starts again elsewhere if its node dies: whether the living nodes have room for it.

    While they have none, it waits for nodes to come back: tells it once, and gives up after ten minutes. what, needs,
    remedy: see ``check_room``.
    """

    def __init__(self, what: str, needs: Mapping[str, float], remedy: str) -> None:
        self.wanted, self.deaths = (what, needs, remedy), Deaths()
        self.looked, self.lacks_since = -math.inf, math.inf

    def __call__(self, waited_s: float = 0) -> None:
        """May be called as often as one likes. Raises InputError after ten minutes without room, or if a disk is full.

        waited_s: for Ray to start something, if for that.
        """
        now = time.monotonic()
        if now - self.looked < _LOOK_S:
            return
        self.looked = now
        if waited_s > _TELL_S:
            check_disk()
        try:
            check_room(*self.wanted, self.deaths)
        except InputError as error:
            if math.isinf(self.lacks_since):
                self.lacks_since = now
                say(f"waiting for nodes: {error}")
            if now - self.lacks_since > _START_S:
                raise
        else:
            self.lacks_since = math.inf


class Actors:
    """Actors that work together and are not restarted. title: of one of them. needs: resources of each.

    option: sets their number.
    """

    def __init__(self, actors: Sequence[ActorHandle], title: str, needs: Mapping[str, float], option: str) -> None:
        self.handles, self.title, self.needs, self.option = list(actors), title, needs, option
        self.deaths, self.nodes = Deaths(), list[str]()

    def wait_until_started(self) -> None:
        """Returns when all actors run.

        Raises:
            InputError: The living nodes are too small for them, or other work leaves them no room in time.
        """
        # Each says on which node it runs.
        calls = [actor.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id()) for actor in self.handles]
        self.nodes = self._whole(lambda: answers_of(calls, self._look_for_room), "run the same command again")

    def answers(self, calls: Sequence[Any], remedy: str, look: Look | None = None) -> list[Any]:
        """What a call of each actor returns. remedy: where an actor died, but not its node. look: see ``answers_of``.

        Raises:
            InputError: An actor died.
        """
        return self._whole(lambda: answers_of(calls, look), remedy)

    def _whole(self, ask: Callable[[], list[Any]], remedy: str) -> list[Any]:
        try:
            return ask()
        except ray.exceptions.RayActorError as error:
            dead = {node.id: node for node in self.deaths.now()}
            lost = [i for i, node in enumerate(self.nodes) if node in dead]
            if not dead or (self.nodes and not lost):
                raise InputError(f"a {self.title} died, {remedy}") from error
            which = ", ".join(map(str, lost)) or "that was to run there"
            raise InputError(
                f"{died(dead.values())}, and with it {self.title} {which}; run the same command again, "
                f"with fewer {self.option} if the node does not come back"
            ) from error

    def _look_for_room(self, waited_s: float) -> None:
        number = len(self.handles)
        what, needs = f"{number} {self.title}s", {kind: number * amount for kind, amount in self.needs.items()}
        check_room(what, needs, f"lower {self.option}", self.deaths)
        there, free = living_resources(), ray.available_resources()
        room = ", ".join(f"{free.get(kind, 0):g} of {there.get(kind, 0):g} {kind}s are free" for kind in needs)
        if waited_s > _START_S:
            raise InputError(
                f"{what} could not be started in {_START_S:g} s ({room}); try later, or lower {self.option}"
            )
        if waited_s > _TELL_S >= waited_s - _LOOK_S:
            say(f"waiting for {what} to start: {room}")
