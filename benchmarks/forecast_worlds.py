"""Where the intervals of forecasts hold: eight made worlds, or folders, many independent samples of each.

    python -m benchmarks.forecast_worlds [FOLDER[:SHARE] ...] [--trials 200] [--out runs/forecast-worlds]
        [--merge best] [--methods rm_naive] [--filter tenant] [--show]

A world is a gallery of two made models. *Band*: random pairs of the new model have cosines about 0 (wide), or 0.7 and
more (narrow). *Old*: it sees most of what the new model sees (strong), or little of it under noise (weak). *Lists*: 5
right answers of each query, or 40. Topics have intents, and intents differ in how far their items are apart. Each
intent is of one of five tenants, which have from 1/15 to 5/15 of the intents; --filter tenant searches in them alone.

Each trial draws a sample and forecasts, as the commands do. The trials of a world are appended to OUT/WORLD.jsonl: a
run that was stopped goes on where it stood. Prints, for each world and method, how often the 95 % intervals of
mAP@100's area, end and gain held the exact value, and biases in points, and sums of all. --show: prints what there is.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import ray_backfill as rb
from benchmarks.forecast import POINTS, exact_figures, figures_of, forecast_all, starts_of
from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.fits import fit_maps
from ray_backfill.compare.replay import replay_here
from ray_backfill.compare.resolve import resolve
from ray_backfill.compare.tables import HEAD_ALONE
from ray_backfill.data.folder import read_folder
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.workers.settings import Context
from reproduction.markdown import PageTable, table_lines

METRIC, FIGURES = "mAP@100", {"AUC": "area", "M_1": "end", "gain": "gain"}
_ITEMS, _QUERIES, _TRAIN, _TOPICS, _DIMS, _SHARE = 1500, 80, 1000, 15, 48, 0.1
# Length of the constant vector of narrow models, as in the atlas: random pairs have cosines of 0.7 and more.
_CONSTANT = 1.5
# Trials of a world before the next one has its turn.
_ROUND = 20
Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class World:
    """What is made. items_per_list: right answers of a query."""

    band: str
    old: str
    items_per_list: int

    @property
    def name(self) -> str:
        """As files and rows of the table have it."""
        return f"{self.band}-{self.old}-{self.items_per_list}"


WORLDS = tuple(World(*each) for each in product(("wide", "narrow"), ("strong", "weak"), (5, 40)))


def make_world(world: World, path: Path, seed: int = 0) -> Path:
    """Write a world as a folder of embeddings."""
    if (path / "gallery.parquet").exists():
        return path
    rng = np.random.default_rng(seed)
    lists = _ITEMS // world.items_per_list
    scale = np.arange(1, _DIMS + 1) ** -0.4  # directions have decreasing weight
    topics = rng.standard_normal((_TOPICS, _DIMS))
    intents = topics[rng.integers(0, _TOPICS, 2 * lists)] + 0.8 * rng.standard_normal((2 * lists, _DIMS))
    apart = rng.lognormal(np.log(0.9), 0.3, 2 * lists)
    tenants = np.random.default_rng([seed, 1]).choice(5, 2 * lists, p=np.arange(1, 6) / 15)
    of = {
        "gallery": rng.permutation(np.arange(_ITEMS) % lists),
        "queries": rng.integers(0, lists, _QUERIES),
        "train": rng.integers(0, 2 * lists, _TRAIN),
    }
    mixed = rng.standard_normal((_DIMS, _DIMS)) / np.sqrt(_DIMS)
    splits: dict[str, dict[str, Any]] = {}
    for split, intent in of.items():
        latent = intents[intent] + apart[intent][:, None] * rng.standard_normal((len(intent), _DIMS))
        seen = latent * scale @ mixed
        size = float(np.sqrt((seen**2).mean()))
        dims, noise = (32, 0.3) if world.old == "strong" else (10, 0.9)
        old = seen[:, :dims] + noise * size * rng.standard_normal((len(seen), dims))
        new = seen + 0.1 * size * rng.standard_normal(seen.shape)
        new /= np.linalg.norm(new, axis=1, keepdims=True)
        if world.band == "narrow":
            new = np.hstack([new, np.full((len(new), 1), _CONSTANT)])
        splits[split] = {"old": old.astype(np.float32), "new": new.astype(np.float32)}
        if split != "train":
            splits[split]["label"], splits[split]["tenant"] = intent, tenants[intent]
    return rb.write_folder(path, splits["gallery"], splits["queries"], splits["train"])


class Trials:
    """The trials of a folder: its exact figures, and a file of what each forecast said."""

    def __init__(self, name: str, folder: Path, share: float, given: argparse.Namespace) -> None:
        self.name, self.share, self.kept = name, share, given.out / f"{name}.jsonl"
        self.whole = read_folder(folder)
        how = Evaluation(
            methods=tuple(given.methods),
            orders=("random",),
            merges=(given.merge,),
            metrics=(METRIC,),
            points=POINTS,
            filter=given.filter,
        )
        comparison = resolve(self.whole, how.named, FitSettings())
        comparison = comparison.only([m for m in comparison.methods if m.name != HEAD_ALONE])
        self.comparison, _ = fit_maps(comparison, FitSettings(), Context(given.out / "maps" / name))
        self.true = {
            f"{method} {figure}": value
            for (method, _, _, figure), value in exact_figures(replay_here(self.comparison), [METRIC]).items()
        }
        self.starts = starts_of(self.comparison)

    def run(self, trials: int) -> None:
        """Append trials until there are this many."""
        done = len(self.found())
        for seed in range(done, trials):
            budget = round(self.share * len(self.whole.gallery))
            units = forecast_all(self.comparison, self.whole, self.starts, budget, seed)
            said, _ = figures_of(units, METRIC)
            line = {f"{method} {figure}": tuple(limits) for (method, _, _, figure), limits in said.items()}
            with self.kept.open("a") as file:
                file.write(json.dumps({"seed": seed, "said": line, "true": self.true}) + "\n")

    def found(self) -> list[dict[str, Any]]:
        """The trials so far."""
        return list(map(json.loads, self.kept.read_text().splitlines())) if self.kept.exists() else []


def lines_of(name: str, found: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """One line of the table for each method of a folder."""
    true = found[0]["true"]
    for method in dict.fromkeys(key.partition(" ")[0] for key in found[0]["said"]):
        line: dict[str, Any] = {"world": name, "method": method, "samples": len(found)}
        for figure, title in FIGURES.items():
            key = f"{method} {figure}"
            said = np.array([each["said"][key] for each in found], float)
            shown = np.isfinite(said).all(axis=1)
            value, low, high = said[shown].T
            held = (low <= true[key]) & (true[key] <= high)
            if figure == "AUC":
                line["withheld %"] = 100 * (1 - shown.mean())
            line[f"{title}, held %"] = 100 * held.mean() if shown.any() else np.nan
            if figure == "gain":
                line["gains shown"] = shown.sum()
            elif shown.any():
                line[f"{title}, exact"] = 100 * true[key]
                line[f"{title}, bias"] = 100 * (value - true[key]).mean()
                line[f"{title}, half-width"] = 50 * (high - low).mean()
        yield line


def sums_of(table: pd.DataFrame) -> Iterator[str]:
    """How often the intervals of all worlds held, and how often in the worst world of those with ten trials or more."""
    shown = (table["samples"] * (1 - table["withheld %"] / 100)).to_numpy(float)
    for title in FIGURES.values():
        number = table["gains shown"].to_numpy(float) if title == "gain" else shown
        share = table[f"{title}, held %"].to_numpy(float)
        often = share[number >= 10]
        lowest = f", lowest {often.min():.0f} %" if len(often) else ""
        yield f"{title}: {np.nansum(share * number) / number.sum():.1f} % of {number.sum():.0f} held{lowest}"


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="*", help="embeddings by both models; default: the eight made worlds")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--merge", default="best")
    parser.add_argument("--methods", nargs="+", default=["rm_naive"])
    parser.add_argument("--filter", default="")
    parser.add_argument("--out", type=Path, default=Path("runs/forecast-worlds"))
    parser.add_argument("--show", action="store_true")
    return parser.parse_args()


def main() -> None:
    given = read_arguments()
    given.out.mkdir(parents=True, exist_ok=True)
    named = [each.partition(":") for each in given.folders]
    places = {Path(folder).name: (Path(folder), float(share or _SHARE)) for folder, _, share in named}
    if not places:
        places = {each.name: (make_world(each, given.out / "worlds" / each.name), _SHARE) for each in WORLDS}
    of = {} if given.show else {name: Trials(name, folder, share, given) for name, (folder, share) in places.items()}
    for number in range(_ROUND, given.trials + _ROUND, _ROUND):  # in rounds, so that a stopped run has some of each
        for trials in of.values():
            trials.run(min(number, given.trials))
    lines: list[dict[str, Any]] = []
    for name in places:
        if (kept := given.out / f"{name}.jsonl").exists():
            lines += lines_of(name, list(map(json.loads, kept.read_text().splitlines())))
    if not lines:
        sys.exit(f"error: there are no trials in {given.out}; run it without --show")
    table = pd.DataFrame(lines)
    shown = table.round(1).astype(str)
    print(table_lines(PageTable(tuple(shown.columns), tuple(map(tuple, shown.to_numpy())))))
    print("\n".join(sums_of(table)))


if __name__ == "__main__":
    main()
