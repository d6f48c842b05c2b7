"""The metrics of each epoch, on their way from a training to whoever watches it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Called with the folder of a training, an epoch (from 1) and its metrics.
Sink = Callable[[Path, int, Mapping[str, float]], Any]
_sinks: list[Sink] = []


def report(folder: Path, epoch: int, metrics: Mapping[str, float]) -> None:
    """Say the metrics of an epoch of the training whose result is this folder."""
    for sink in _sinks[-1:]:
        sink(folder, epoch, metrics)


@contextmanager
def reported_to(sink: Sink) -> Iterator[None]:
    """Within the block, this process reports to the sink, and to no other."""
    _sinks.append(sink)
    try:
        yield
    finally:
        _sinks.remove(sink)
