"""What Ray's servers publish to every driver, in one line of our own or not at all; Ray prints paragraphs on stdout.

No setting of Ray prevents that: ``log_to_driver`` concerns the output of workers only.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray

from ray_backfill.core.progress import say

_DEAD = re.compile(r"node id: (\w+) and address: (\S+) .*has been marked dead", re.DOTALL)
_MEMORY = re.compile(r"memory pressure \(OOM\)|running low on memory")
_PLACE = re.compile(r"\bIP: ([\d.]+)|\baddress: ([\d.]+)")


def in_own_words(message: str) -> str | None:
    """The line for a message, or None if it says nothing that a user needs: the details are in Ray's logs."""
    if dead := _DEAD.search(message):
        return f"node {dead[2]} ({dead[1][:8]}) of the Ray cluster died"
    if _MEMORY.search(message):
        place = _PLACE.search(message)
        where = f"node {place[1] or place[2]}" if place else "a node"
        return f"{where} of the Ray cluster is short of memory: Ray ended processes on it"
    return None


@contextmanager
def rays_notices_as_lines() -> Iterator[None]:
    """Within the block, print each line once on stderr, above the live display if there is one."""
    module: Any = ray._private.worker
    before, told = module.print_to_stdstream, set[str]()

    def tell(data: Mapping[str, Any], ignore_prefix: bool) -> None:
        line = in_own_words("\n".join(data["lines"]))
        if line is not None and line not in told:
            told.add(line)
            say(line)

    module.print_to_stdstream = tell
    try:
        yield
    finally:
        module.print_to_stdstream = before
