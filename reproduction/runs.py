"""Results folders of several seeds, read once and queried by method, order, merge and metric."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_backfill.compare.report import Results, read_results
from ray_backfill.compare.results import Line, Row, Variant
from ray_backfill.core.errors import InputError
from reproduction.names import MERGES, ORDERS, REFERENCES, in_order, listed
from reproduction.queries import PerQuery, read_per_query

Floats = NDArray[np.float64]
# (method, variant, metric) -> curve of each group of queries, and of the gap.
Groups = Mapping[tuple[str, Variant, str], Mapping[str, Line]]


@dataclass(frozen=True)
class SeedRun:
    """One run of the experiment."""

    seed: int
    """Seed of the run."""
    folder: Path
    """Results folder of the run (docs/results-format.md)."""
    more: tuple[Path, ...] = ()
    """Further results folders of the same run, with other orders or merges."""


class Case(NamedTuple):
    """Method, order and merge of one curve."""

    method: str
    order: str
    merge: str = "raw"


@dataclass(frozen=True)
class Runs:
    """Several seeds of one experiment. Arrays over seeds have the suffix _S, and NaN if a seed lacks the number."""

    seeds: tuple[int, ...]
    folders: tuple[Path, ...]
    results: tuple[Results, ...]
    rows: tuple[dict[tuple[str, Variant | None, str], Row], ...]
    """For each seed: (method, variant, metric) -> row; variant is None for methods that do not depend on it."""
    groups: tuple[Groups, ...]
    """For each seed: the curves of groups of queries."""
    per_query: tuple[PerQuery, ...]
    """For each seed: the primary metric of each query, with the raw merge."""

    @property
    def primary(self) -> str:
        """The metric by which methods are judged; the same for all seeds."""
        return self.results[0].primary

    @property
    def margin(self) -> float:
        """The largest loss that counts as none, a share."""
        return max(r.manifest.margin for r in self.results)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Quality metrics of any seed, the primary one first."""
        return tuple(dict.fromkeys(m for r in self.results for m in r.metrics))

    @property
    def methods(self) -> tuple[str, ...]:
        """Methods of any seed, in the order of a page."""
        return listed(m for r in self.results for m in r.methods)

    @property
    def orders(self) -> tuple[str, ...]:
        """Orders of any seed that some method other than old, new and offline was run in."""
        return in_order((v.order for r in self.results for v in r.variants), ORDERS)

    @property
    def oracles(self) -> frozenset[str]:
        """Oracle orders: upper bounds that use knowledge not available in advance."""
        return frozenset(order for r in self.results for order in r.oracles)

    @property
    def label_free_orders(self) -> tuple[str, ...]:
        """Orders that in every seed are no oracle and need no labels of the gallery."""
        barred = {o for r in self.results for o in r.orders if o not in r.label_free_orders}
        return tuple(o for o in self.orders if o not in barred)

    @property
    def merges(self) -> tuple[str, ...]:
        """Merges of any seed, raw first."""
        return in_order((v.merge for r in self.results for v in r.variants), MERGES)

    def title(self, method: str) -> str:
        """The title of a method; its name if no seed has it."""
        return next((r.titles[method] for r in self.results if method in r.titles), method)

    def found(self, case: Case, metric: str | None = None) -> list[Row | None]:
        """The row of each seed, or None; references are found for any order and merge."""
        variant = None if case.method in REFERENCES else Variant(case.order, case.merge)
        return [rows.get((case.method, variant, metric or self.primary)) for rows in self.rows]

    def has(self, case: Case, metric: str | None = None) -> bool:
        """Whether any seed has this case."""
        return any(row is not None for row in self.found(case, metric))

    def values(self, case: Case, field: Callable[[Row], float], metric: str | None = None) -> Floats:
        """(S,) a number of the row of each seed."""
        return np.array([np.nan if row is None else field(row) for row in self.found(case, metric)], dtype=np.float64)

    def areas(self, case: Case, metric: str | None = None) -> Floats:
        """(S,) the AUC of each seed, a share."""
        return self.values(case, lambda row: row.auc, metric)

    def curves(self, case: Case, metric: str | None = None) -> tuple[Floats, Floats] | None:
        """(T,) progress and (S', T) values of the seeds that have the curve; None if none has.

        Raises:
            InputError: The seeds were replayed at different moments.
        """
        rows = zip(self.results, self.found(case, metric), strict=True)
        lines = [line for results, row in rows if row is not None and (line := results.line(row)) is not None]
        if not lines:
            return None
        return same_moments(lines, case.method), np.stack([line.value for line in lines])


def same_moments(lines: Sequence[Line], name: str) -> Floats:
    """(T,) progress, which must be the same in all seeds.

    Raises:
        InputError: The seeds were replayed at different moments.
    """
    t = lines[0].t
    if any(len(line.t) != len(t) or not np.allclose(line.t, t) for line in lines):
        raise InputError(f"{name}: seeds were replayed at different moments: simulate all seeds with one --points")
    return t


def read_runs(runs: Iterable[SeedRun]) -> Runs:
    """Read the results folder of each seed.

    Raises:
        InputError: There is no seed, a seed or folder is given twice, metrics differ, or a folder is unreadable.
    """
    given = tuple(runs)
    if not given:
        raise InputError("no results: give the results folder of at least one seed")
    seeds, folders = tuple(r.seed for r in given), tuple(r.folder for r in given)
    if len(set(seeds)) < len(seeds) or len({f.resolve() for f in folders}) < len(folders):
        raise InputError(
            f"a seed or folder is given twice (seeds {', '.join(map(str, seeds))}): it would count as a repetition; "
            "give each once"
        )
    read = [[read_results(folder) for folder in (r.folder, *r.more)] for r in given]
    results = tuple(map(_joined, read))
    if len({r.primary for r in results}) > 1:
        metrics = ", ".join(f"{r.primary} in {folder}" for r, folder in zip(results, folders, strict=True))
        raise InputError(
            f"seeds differ in their primary metric ({metrics}): simulate all seeds with the same --metrics"
        )
    per_query = tuple(read_per_query(folder) for folder in folders)
    groups = tuple({key: lines for r in reversed(of_run) for key, lines in r.groups.items()} for of_run in read)
    return Runs(seeds, folders, results, tuple(_index(r) for r in results), groups, per_query)


def _joined(results: Sequence[Results]) -> Results:
    """Join the results folders of a run; if two contain the same row, the first one is used."""
    first, *others = results
    for other in others:
        known = {(row.method, row.variant, row.metric) for row in first.rows}
        first = replace(
            first,
            rows=first.rows + tuple(r for r in other.rows if (r.method, r.variant, r.metric) not in known),
            lines={**other.lines, **first.lines},
            differences={**other.differences, **first.differences},
            at_once={**other.at_once, **first.at_once},
            moments={**other.moments, **first.moments},
        )
    return first


def _index(results: Results) -> dict[tuple[str, Variant | None, str], Row]:
    index: dict[tuple[str, Variant | None, str], Row] = {}
    for row in results.rows:
        index.setdefault((row.method, None if row.method in REFERENCES else row.variant, row.metric), row)
    return index
