"""Settings of an experiment. Imports no torch, because the command line is made from it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ray_backfill.core.errors import InputError


@dataclass(frozen=True)
class Experiment:
    """An experiment: a recipe with several seeds, an ablation and subgroups."""

    recipe: str
    """Recipe to run with each seed."""
    data_root: Path | None = None
    """Folder of the images, for recipes that need files; None for the others."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Random seeds, one run of the whole recipe for each."""
    methods: tuple[str, ...] = ("all", "controls")
    """Upgrade methods to compare, by name, or "all", "two_models" (those of "all" that train no backbone beside old and
    new) or "controls" (which "all" leaves out)."""
    ablation: bool = True
    """Also train heads with every loss, with and without rho and mining, and at several temperatures (first seed)."""
    permutations: int = 10
    """Number of random permutations: curves of the random order are means over them."""
    tune: int = 0
    """Number of settings to try for each fitted method on the validation split of the first seed; the best are used for
    all seeds and recipes. 0: the recipe's own."""
    published: bool = True
    """Also fit every method with the papers' settings, on the same embeddings and in the main order."""
    long_epochs: int = 0
    """Also compare all methods on a new model that is trained for so many epochs, in the main order; 0: not."""
    long_seeds: Literal["first", "all"] = "first"
    """Seeds of the longer training."""
    subgroups: str = ""
    """Recipe with subgroups to run as well, with the same seeds; empty: none."""

    def __post_init__(self) -> None:
        if not self.seeds or min(self.seeds) < 0 or len(set(self.seeds)) < len(self.seeds):
            raise InputError(f"--seeds must be one or more different numbers from 0 on, got {list(self.seeds)}")
        if self.permutations < 1:
            raise InputError(f"--permutations must be at least 1, got {self.permutations}")
        for name in ("tune", "long_epochs"):
            if getattr(self, name) < 0:
                raise InputError(f"--{name.replace('_', '-')} must not be negative, got {getattr(self, name)}")
