"""Waits for answers from Ray. Nothing else in ``cluster`` does (tests/test_structure.py).

Ray alone waits forever, without a word, for an actor that no living node has room for. So every wait here looks around
every few seconds, or has a deadline. A long computation is watched, never cut off.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray.actor import ActorHandle

from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import say
from ray_backfill.workers.nodes import Deaths, check_room, died, living_resources

# Seconds between two looks; after which a wait for actors is told; and after which it ends.
_LOOK_S, _TELL_S, _START_S = 2.0, 20.0, 600.0

Look = Callable[[float], None]


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
        """May be called as often as one likes. Raises InputError after ten minutes without room."""
        now = time.monotonic()
        if now - self.looked < _LOOK_S:
            return
        self.looked = now
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
        calls = [actor.__ray_call__.remote(_node) for actor in self.handles]
        self.nodes = self._whole(lambda: answers_of(calls, self._look_for_room), "run the same command again")

    def answers(self, calls: Sequence[Any], remedy: str) -> list[Any]:
        """What a call of each actor returns. remedy: where an actor died, but not its node.

        Raises:
            InputError: An actor died.
        """
        return self._whole(lambda: answers_of(calls), remedy)

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
        what, needs = f"{number} {self.title}s", {kind: number * each for kind, each in self.needs.items()}
        check_room(what, needs, f"lower {self.option}", self.deaths)
        there, free = living_resources(), ray.available_resources()
        room = ", ".join(f"{free.get(kind, 0):g} of {there.get(kind, 0):g} {kind}s are free" for kind in needs)
        if waited_s > _START_S:
            raise InputError(
                f"{what} could not be started in {_START_S:g} s ({room}); try later, or lower {self.option}"
            )
        if waited_s > _TELL_S >= waited_s - _LOOK_S:
            say(f"waiting for {what} to start: {room}")


def _node(actor: Any) -> str:
    """Runs in an actor: the id of its node."""
    node: str = ray.get_runtime_context().get_node_id()
    return node
