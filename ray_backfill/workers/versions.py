"""Whether the nodes of a cluster have the versions of ray_backfill, Ray and Python of this process.

Ray compares itself and Python with the head, and says a difference in eight lines. It knows nothing of ray_backfill.
"""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import detail, say
from ray_backfill.workers.waiting import answer_of, living_nodes

_REMEDY = "give all of them one image, or install the same versions in each, and run the same command again"
# A process of Ray starts in a second or two; on two cores with twelve programs, in forty.
_PATIENCE_S = 60.0


@contextmanager
def rays_mismatch_as_line() -> Iterator[None]:
    """Within the block, Ray connects. Raises InputError if it refuses the versions of this process."""
    try:
        yield
    except RuntimeError as error:
        pairs = re.findall(r"Ray: (\S+)\s+Python: (\S+)", str(error))
        if len(pairs) != 2:
            raise
        ray.shutdown()  # it is half connected
        cluster, command = (f"Ray {of_ray} and Python {of_python}" for of_ray, of_python in pairs)
        raise InputError(f"the cluster has {cluster}, but this command has {command}; {_REMEDY}") from error


def check_versions() -> None:
    """Ask each living node that has CPUs. Of Python, 3.11 is compared, not 3.11.7, on which Ray has its own setting.

    A node that does not answer, because it has just died or is very busy, is a line and no error. Cost: 0.2 s, and the
    start of one process of Ray on each node, which later tasks use.

    Raises:
        InputError: A node has other versions.
    """

    # Inside of another function, so that Ray sends its code: the nodes may lack this module.
    def versions() -> dict[str, str]:
        import platform

        import ray

        try:
            from ray_backfill.core import __version__
        except ImportError:
            __version__ = "(not installed)"
        python = ".".join(platform.python_version_tuple()[:2])
        return {"ray_backfill": __version__, "Ray": ray.__version__, "Python": python}

    def look(_: float) -> None:
        if time.monotonic() > ends:
            raise TimeoutError

    nodes = [node for node in living_nodes() if node.resources.get("CPU", 0) > 0]
    ours, differ, ends = versions(), list[str](), time.monotonic() + _PATIENCE_S
    ask = ray.remote(num_cpus=0)(versions)
    with detail("compare versions"):
        there = [NodeAffinitySchedulingStrategy(node.id, soft=False) for node in nodes]
        calls = [ask.options(scheduling_strategy=strategy).remote() for strategy in there]
        for node, call in zip(nodes, calls, strict=True):
            try:
                theirs = answer_of(call, look)
            except (ray.exceptions.RayError, TimeoutError) as error:
                say(f"node {node} did not say which versions it has ({type(error).__name__})")
                continue
            if others := [f"{name} {version}" for name, version in theirs.items() if version != ours[name]]:
                differ.append(f"node {node} has {', '.join(others)}")
    if differ:
        shown = "; ".join(differ[:3]) + f"; {len(differ) - 3} more differ" * (len(differ) > 3)
        command = ", ".join(f"{name} {version}" for name, version in ours.items())
        raise InputError(f"{shown}; but this command has {command}; {_REMEDY}")
