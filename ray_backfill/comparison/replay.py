"""Replays every method of a comparison, in this process or in shards."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ray_backfill.comparison.replayed import Replayed, judge
from ray_backfill.comparison.resolve import Comparison
from ray_backfill.merges import Merge
from ray_backfill.methods import Method
from ray_backfill.progress import stage, step
from ray_backfill.replay import Curve, replay
from ray_backfill.systems import IntArray, UpgradePair

# Key of a curve: (method, order, merge).
Key = tuple[str, str, str]
Curves = Mapping[Key, Replayed]


class Served(Protocol):
    """The systems of one method, ready for the replay."""

    @property
    def pair(self) -> UpgradePair | None:
        """The systems; None if they are not in this process."""

    def curves(self, orders: Mapping[str, IntArray], merge: Merge) -> Mapping[str, Curve]:
        """Order name -> curve at all moments."""
        ...


def replay_methods(comparison: Comparison, serve: Callable[[Method], Served]) -> Curves:
    """The curve of each method, order and merge. serve: makes a method's systems."""
    curves: dict[Key, Replayed] = {}
    with stage("replay", len(comparison.methods), "methods") as bar:
        for method in comparison.methods:
            with step(method.title):
                served = serve(method)
                orders = comparison.orders_of(method, served.pair)
                for name, merge in comparison.merges_of(method).items():
                    for order, curve in served.curves(orders, merge).items():
                        curves[method.name, order, name] = judge(curve, comparison.evaluation.step)
            bar.advance()
    return curves


def replay_here(comparison: Comparison, device: str = "cpu") -> Curves:
    """``replay_methods`` in this process. device: see ``replay``."""
    return replay_methods(comparison, lambda method: _Here(comparison, comparison.pair(method), device))


@dataclass
class _Here:
    comparison: Comparison
    pair: UpgradePair | None
    device: str

    def curves(self, orders: Mapping[str, IntArray], merge: Merge) -> Mapping[str, Curve]:
        assert self.pair is not None
        how = self.comparison.evaluation
        return replay(
            self.pair, self.comparison.truth, orders, how.moments, how.metrics, how.distance, progress=True,
            device=self.device, merge=merge,
        )  # fmt: skip
