"""What an experiment runs. Imports no torch: the command line is made from it."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Experiment:
    """An experiment: a recipe with several seeds, an ablation and subgroups."""

    recipe: str
    """Recipe to run with each seed."""
    data_root: Path | None = None
    """Folder of the images, for recipes that need files."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Random seeds, one run each: for backbones, batches, heads and everything that is drawn."""
    methods: tuple[str, ...] = ("all",)
    """Upgrade methods to compare, or "all"."""
    ablation: bool = True
    """Train heads with every loss, with and without rho and mining, at several temperatures, on the first seed."""
    subgroups: str = ""
    """Recipe with subgroups to run with the same seeds; empty: none."""
