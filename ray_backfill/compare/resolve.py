"""Resolves a comparison once: methods, ground truth, orders, merges, and what is left out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ray_backfill.compare.bands import bands_facts, bands_note, bands_of
from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.left_out import few_items_note, find_left_out
from ray_backfill.compare.maps import FittedMaps
from ray_backfill.compare.merges import MergeFits, fitted_on_train_note, resolve_merges
from ray_backfill.compare.orders import BackfillOrders, embeddings_of, resolve_orders
from ray_backfill.compare.tables.results import LeftOut
from ray_backfill.core.errors import InputError
from ray_backfill.data.folder import EmbeddingFolder
from ray_backfill.data.leakage import leakage_notes
from ray_backfill.data.query_groups import Slice, resolve_slices
from ray_backfill.data.truth import Truth, check_vectors, find_truth, usual_answers
from ray_backfill.engine.distances import Band
from ray_backfill.engine.merges import Merge, all_merges
from ray_backfill.engine.systems import GroundTruth, IntArray, UpgradePair
from ray_backfill.learn.methods import Embeddings, Method
from ray_backfill.learn.training.settings import FitSettings


class System(NamedTuple):
    """Name of a retrieval system: the plain {model, model}, or one side of a method that has its own system."""

    model: str = ""
    method: str = ""
    side: str = ""


@dataclass(frozen=True)
class Comparison:
    """Everything that a replay, a drill or a report needs, validated.

    methods: methods that take part, old and new first. notes: sentences for the report about what is wrong with the
    data. slices: groups of queries. truth_facts: what ``--truth`` was and which bands the distances fill, for the
    manifest. maps: fitted maps; empty
    before the fits.
    """

    folder: EmbeddingFolder
    evaluation: Evaluation
    methods: tuple[Method, ...]
    truth: GroundTruth
    orders: BackfillOrders
    merges: MergeFits
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[str, ...] = ()
    slices: tuple[Slice, ...] = ()
    truth_facts: Mapping[str, Any] = field(default_factory=dict)
    maps: FittedMaps = field(default_factory=FittedMaps)

    def fitted(self, folders: Mapping[str, Path]) -> "Comparison":
        """The comparison with the maps in these folders, without methods whose training diverged.

        folders: method -> folder of its fitted network.
        """
        left_out = [
            LeftOut("method", method.name, f"its training diverged; lower --{method.fit.option}.lr to try again")
            for method in self.methods
            if method.fit and method.name not in folders
        ]
        methods = tuple(method for method in self.methods if not method.fit or method.name in folders)
        return replace(self.only(methods), left_out=(*self.left_out, *left_out), maps=FittedMaps(folders))

    def only(self, methods: Sequence[Method]) -> "Comparison":
        """The comparison restricted to these methods."""
        return replace(self, methods=tuple(methods), orders=replace(self.orders, methods=tuple(methods)))

    @property
    def systems(self) -> dict[System, list[str]]:
        """The distinct systems that take part, with the methods that use each: many share {new, new}."""
        found: dict[System, list[str]] = {}
        for method in self.methods:
            for side, model in (("backward", method.backward), ("forward", method.forward)):
                system = System(model) if model else System(method=method.name, side=side)
                users = found.setdefault(system, [])
                if method.name not in users:
                    users.append(method.name)
        return found

    @cached_property
    def embeddings(self) -> Embeddings:
        """The embeddings from which methods make their pairs of systems."""
        return embeddings_of(self.folder)

    def pair(self, method: Method) -> UpgradePair:
        """The two systems of this method. Cost: its map applied to queries and gallery."""
        return method.pair(self.embeddings, self.maps.of(method))

    def orders_of(self, method: Method, pair: UpgradePair | None = None) -> dict[str, IntArray]:
        """Order name -> (N,) order. pair: the method's systems, if they are already made."""
        return self.orders.of(method, self.maps, pair)

    def merges_of(self, method: Method) -> dict[str, Merge]:
        """Merge name -> the merge, fitted for this method."""
        return self.merges.of(method, self.maps)


def resolve(
    folder: EmbeddingFolder,
    evaluation: Evaluation,
    fits: FitSettings,
    from_images: bool = False,
    to_come: Sequence[str] | None = None,
    right_answers: Truth | None = None,
) -> Comparison:
    """Check that a comparison is possible on a folder of embeddings, and resolve it.

    from_images: the embeddings were made from a recipe's images, which were checked. A query whose class is missing
        because of broken images is skipped, like any query without an answer.
    to_come: for a drill, the models that embed the gallery while it runs. A drill leaves nothing out.
    right_answers: as ``resolve_truth`` found them, if it was asked before.

    Raises:
        InputError: Names are unknown; vectors, labels or positives do not fit; an order cannot be made; no merge can be
            fitted; heads are trained for another distance (from_images); or anything is left out (to_come).
    """
    evaluation.check()
    wanted = evaluation.find_methods() if to_come is None else evaluation.named_methods()
    found = right_answers or resolve_truth(folder, evaluation, from_images)
    truth = found.ground
    evaluation = evaluation.with_metrics(usual_answers(truth))
    if from_images:
        check_distances_agree(wanted, evaluation.distance, fits)
    left_out = find_left_out(folder, wanted, evaluation.merges, fits, evaluation.distance, to_come or ())
    if left_out and to_come is not None:
        raise InputError(f"{left_out[0].words}: {left_out[0].reason}")
    asked = {method.name for method in evaluation.named_methods()}
    gone = {(each.kind, each.name) for each in left_out}
    methods = tuple(method for method in wanted if ("method", method.name) not in gone)
    merges = [merge for merge in evaluation.merges if ("merge", merge) not in gone]
    if not merges:
        raise InputError("none of the --merges can be fitted on this folder; add raw, or give it a train.parquet")
    distance, seed = evaluation.distance, evaluation.order_seed
    bands = bands_of(folder, distance)
    return Comparison(
        folder,
        evaluation,
        methods,
        truth,
        resolve_orders(folder, evaluation.orders, seed, distance, methods, fits.transforms.loss, evaluation.filter),
        resolve_merges(folder, merges, distance, seed),
        tuple(each for each in left_out if each.kind != "method" or each.name in asked),
        (*found.notes, *_notes(folder, truth, methods, merges, bands, distance)),
        resolve_slices(folder, evaluation.slices, truth),
        {**found.facts, **bands_facts(bands)},
    )


def resolve_truth(folder: EmbeddingFolder, evaluation: Evaluation, from_images: bool = False) -> Truth:
    """The right answers of a comparison. Raises InputError for zero vectors, or if there are no right answers."""
    check_vectors(folder, evaluation.distance)
    return find_truth(folder, evaluation.truth, evaluation.distance, not from_images, evaluation.filter)


def _notes(
    folder: EmbeddingFolder, truth: GroundTruth, methods: Sequence[Method], merges: Sequence[str],
    bands: Mapping[str, Band], distance: str,
) -> tuple[str, ...]:  # fmt: skip
    """Sentences about what is wrong with the data, besides those about the right answers."""
    is_fitted = any(method.fit for method in methods) or any(all_merges()[merge].uses_train for merge in merges)
    return (
        *bands_note(bands, merges, distance, has_train=folder.train is not None),
        *leakage_notes(folder, truth, is_fitted),
        *few_items_note(folder, methods),
        *fitted_on_train_note(folder, methods, merges),
    )


def check_distances_agree(methods: Sequence[Method], distance: str, fits: FitSettings) -> None:
    """Raises InputError if a method's map would be fitted for another distance than that of the comparison."""
    problems = {m: m.fit.distance_problem(fits, distance) for m in methods if m.fit}
    for method, problem in problems.items():
        if problem and method.fit and method.fit.option != "heads":
            raise InputError(f"method {method.name!r}: {problem}; leave it out of --methods, or change --distance")
    if any(problems.values()):
        raise InputError(
            f"heads would be trained for the {fits.heads.loss.distance} distance but compared by {distance}; "
            "give both --distance and --heads.loss.distance (cosine or l2), or only --methods without heads"
        )
