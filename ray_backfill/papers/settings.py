"""Settings of an experiment. Imports no torch, because the command line is made from it."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Experiment:
    """An experiment: a recipe with several seeds, an ablation and subgroups."""

    recipe: str
    """Recipe to run with each seed."""
    data_root: Path | None = None
    """Folder of the images, for recipes that need files; None for the others."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Random seeds, one run of the whole recipe for each."""
    methods: tuple[str, ...] = ("all",)
    """Upgrade methods to compare, or "all"."""
    ablation: bool = True
    """Also train heads with every loss, with and without rho and mining, and at several temperatures (first seed)."""
    permutations: int = 10
    """Number of random permutations: curves of the random order are means over them."""
    tune: int = 0
    """Number of settings to try for each fitted method on the validation split of every run; 0: the recipe's own."""
    subgroups: str = ""
    """Recipe with subgroups to run as well, with the same seeds; empty: none."""
