"""Resolves a run once: methods, ground truth, orders, merges, what is left out, and what is wrong with the data."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ray_backfill.compare.evaluation import FEW_ANSWERS, Evaluation, Named
from ray_backfill.compare.fitted import FittedMaps, MergeFits, resolve_merges, why_merge_cannot_be_fitted
from ray_backfill.compare.orders import BackfillOrders, embeddings_of, resolve_orders
from ray_backfill.compare.tables import LeftOut
from ray_backfill.core.errors import InputError, why_not_installed
from ray_backfill.core.outcome import Remark
from ray_backfill.data.doctor import FIT_NOISE, few_items_per_dimension
from ray_backfill.data.folder import EmbeddingFolder
from ray_backfill.data.leakage import leakage_notes
from ray_backfill.data.query_groups import Slice, resolve_slices
from ray_backfill.data.truth import Truth, check_vectors, find_truth, parse_truth, usual_answers
from ray_backfill.data.words import words_of
from ray_backfill.engine.bands import Band, band_of, do_compare
from ray_backfill.engine.merges import BEST, RAW, Merge, MergeKind
from ray_backfill.engine.systems import GroundTruth, IntArray, UpgradePair
from ray_backfill.learn.methods import Embeddings, Method
from ray_backfill.learn.training.fit import train_set
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.pipeline.changes import always_answered
from ray_backfill.pipeline.lists import Stages
from ray_backfill.pipeline.replay import check_metrics
from ray_backfill.pipeline.service import Service, resolve_service

# Split and ids -> the bytes of image files.
Pictures = Callable[[str, NDArray[Any]], list[bytes]]


@dataclass(frozen=True)
class Comparison:
    """Everything that a replay, a drill or a report needs, validated.

    named: the settings, and the methods that take part. notes: sentences for the report about what is wrong with the
    data. slices: groups of queries. truth_facts: what ``--truth`` was and which bands the distances fill, for the
    manifest. maps: fitted maps; empty before the fits. halves: two halves of the classes of the train split, each with
    maps that were fitted on it alone; () where nothing was. pictures: of items that have no column of images. service:
    the stages behind which methods are judged, if there are any.
    """

    folder: EmbeddingFolder
    named: Named
    truth: GroundTruth
    orders: BackfillOrders
    merges: MergeFits
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[Remark, ...] = ()
    slices: tuple[Slice, ...] = ()
    truth_facts: Mapping[str, Any] = field(default_factory=dict)
    maps: FittedMaps = field(default_factory=FittedMaps)
    halves: tuple[tuple[NDArray[Any], FittedMaps], ...] = ()
    pictures: Pictures | None = None
    service: Service | None = None

    @property
    def evaluation(self) -> Evaluation:
        return self.named.evaluation

    @property
    def methods(self) -> tuple[Method, ...]:
        """The methods that take part, old and new first."""
        return self.named.methods

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
        named = replace(self.named, methods=tuple(methods))
        return replace(self, named=named, orders=replace(self.orders, named=named))

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
    named: Named,
    fits: FitSettings,
    from_images: bool = False,
    to_come: Sequence[str] | None = None,
    truth: Truth | None = None,
) -> Comparison:
    """Check that a comparison is possible on a folder of embeddings, and resolve it.

    from_images: the embeddings were made from a recipe's images, which were checked. A query whose class is missing
        because of broken images is skipped, like any query without an answer.
    to_come: for a drill, the models that embed the gallery while it runs. A drill leaves nothing out, and has the
        methods that are asked for.
    truth: the right answers, if ``resolve_truth`` has found them already; then ``named`` is what it returned.

    Raises:
        InputError: Vectors, labels or positives do not fit; an order cannot be made; no merge can be fitted; heads are
            trained for another distance (from_images); or anything is left out (to_come).
    """
    if truth is None:
        truth, named = resolve_truth(folder, named, from_images)
    how, distance, seed = named.evaluation, named.evaluation.distance, named.evaluation.order_seed
    wanted = named.methods if to_come is None else named.asked
    if from_images:
        check_distances_agree(wanted, distance, fits)
    left_out = find_left_out(folder, wanted, named.merges, fits, distance, to_come or ())
    service = None
    if named.service is not None:
        check_metrics(named.service.stages, how.metrics)
        left_out = (*left_out, *_not_behind(named.service.stages, wanted, named.merges))
        service = resolve_service(named.service, folder, truth.ground)
    if left_out and to_come is not None:
        raise InputError(f"{left_out[0].words}: {left_out[0].reason}")
    gone = {(missing.kind, missing.name) for missing in left_out}
    named = replace(named, methods=tuple(method for method in wanted if ("method", method.name) not in gone))
    lacking = why_not_installed("torch")
    if lacking and all(method.is_reference for method in named.methods) and lacking in (of.reason for of in left_out):
        raise InputError(f"no method is left to compare: a method that is trained {lacking}")
    merges = [kind for kind in named.merges if ("merge", kind.name) not in gone]
    if not merges:
        why = "; ".join(f"{missing.name} {missing.reason}" for missing in left_out if missing.kind == "merge")
        raise InputError(f"no merge can be fitted on this folder ({why}); use raw")
    asked = {method.name for method in named.asked}
    # The bands that distances between random items fill, of a split that has both models.
    models = ("old", "new")
    splits = [split for split in (folder.train, folder.gallery) if split is not None and {*models} <= {*split.vectors}]
    bands = {model: band_of(splits[0].vectors[model], distance) for model in models} if splits else {}
    facts: dict[str, Any] = {}
    if bands:
        limits = {model: [band.low, band.high] for model, band in bands.items()}
        facts = {"bands": limits, "distances_compare": do_compare(*bands.values())}
    return Comparison(
        folder,
        named,
        truth.ground,
        resolve_orders(folder, named, fits.transforms.loss),
        resolve_merges(folder, merges, distance, seed),
        tuple(missing for missing in left_out if missing.kind != "method" or missing.name in asked),
        (*truth.notes, *_notes(folder, truth.ground, named.methods, merges, bands, distance)),
        resolve_slices(folder, how.slices, truth.ground),
        {**truth.facts, **facts},
        service=service,
    )


def resolve_truth(folder: EmbeddingFolder, named: Named, from_images: bool = False) -> tuple[Truth, Named]:
    """The right answers of a comparison, and its settings with the metrics that "recommended" stands for.

    Raises:
        InputError: There are zero vectors, or no right answers; or the gallery's changes are impossible.
    """
    how = named.evaluation
    check_vectors(folder, how.distance)
    truth = find_truth(folder, how.truth, how.distance, not from_images, how.filter)
    changes = named.service.changes_of(folder.gallery) if named.service else None
    if changes is not None:
        ground = always_answered(truth.ground, changes, how.moments)
        fewer = len(ground.skipped) - len(truth.ground.skipped)
        text = f"{fewer:,} queries have no right answer in the changing gallery at some moment, and do not count."
        notes = (Remark.about(text, fewer, ground.n_queries),) if fewer else ()
        truth = replace(truth, ground=ground, notes=(*truth.notes, *notes))
    kind, k, _ = parse_truth(how.truth)
    if kind.is_retention:  # the metric by which it is closest to real right answers: docs/results/retention.md
        return truth, named.with_recommended((f"recall@{max(FEW_ANSWERS, k)}",))
    return truth, named.with_metrics(usual_answers(truth.ground))


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


def find_left_out(
    folder: EmbeddingFolder,
    methods: Sequence[Method],
    merges: Sequence[MergeKind],
    fits: FitSettings,
    distance: str,
    to_come: Sequence[str] = (),
) -> tuple[LeftOut, ...]:
    """Methods and merges that cannot take part. to_come: models that will embed the gallery later."""
    reasons = {method.name: _why_not(folder, method, fits, distance, to_come) for method in methods}
    left_out = [LeftOut("method", name, reason) for name, reason in reasons.items() if reason]
    for merge in merges:
        if reason := why_merge_cannot_be_fitted(merge, folder.train, folder.called("train")):
            left_out.append(LeftOut("merge", merge.name, reason))
    if folder.train is not None and any(merge.needs_train for merge in merges):
        for method in methods:
            lacking = [model for model in method.models if model not in folder.train.vectors]
            if lacking and not reasons[method.name] and not method.is_reference:
                reason = f"needs a column {lacking[0]!r} in {folder.called('train')}"
                left_out.append(LeftOut("fitted merges", method.name, reason))
    return tuple(left_out)


def _not_behind(stages: Stages, methods: Sequence[Method], merges: Sequence[MergeKind]) -> Iterator[LeftOut]:
    """Methods and merges that the stages of a service cannot have."""
    for method in methods:
        if method.recalls:
            yield LeftOut("method", method.name, "embeds items for every query, which no partition of a --service does")
    for merge in merges:
        if merge.name == "rrf" and stages.fuses_scores:
            yield LeftOut(
                "merge", merge.name, "has ranks and no scores, which the fusion of the --service needs; use rrf"
            )


def _why_not(folder: EmbeddingFolder, method: Method, fits: FitSettings, distance: str, to_come: Sequence[str]) -> str:
    if method.is_trained and (lacking := why_not_installed("torch")):
        return lacking
    of_gallery = {model for model in method.models if model not in to_come}
    splits = [(folder.gallery, of_gallery)]
    if folder.queries is not None:
        splits.append((folder.queries, set(method.models)))
    if method.fit is not None:
        if folder.train is None:
            return f"needs {folder.called('train')} to be fitted on"
        if method.fit.needs_labels and folder.train.label is None:
            return f"needs a column 'label' in {folder.called('train')} to be fitted on"
        splits.append((folder.train, set(method.models)))
    for model in method.models:
        for table, needed in splits:
            if model in needed and model not in table.vectors:
                return f"needs embeddings of a further model: a column {model!r} in {folder.called(table.path.stem)}"
    if method.fit is not None and folder.train is not None:
        if problem := method.fit.distance_problem(fits, distance):
            return problem
        try:
            method.fit.check(train_set(folder), fits, 1)
        except InputError as error:
            return str(error)
    return ""


def _notes(
    folder: EmbeddingFolder, truth: GroundTruth, methods: Sequence[Method], merges: Sequence[MergeKind],
    bands: Mapping[str, Band], distance: str,
) -> Iterator[Remark]:  # fmt: skip
    """Sentences about what is wrong with the data, besides those about the right answers."""
    if bands and not do_compare(*bands.values()):
        what = {"cosine": "cosines", "l2": "distances"}.get(distance, "inner products")
        said = ", ".join(f"from {band} with {model}" for model, band in bands.items())
        names, has_train = {merge.name for merge in merges}, folder.train is not None
        if BEST in names and has_train:
            so = "therefore each method has the merge that is best on train items"
        elif names - {RAW.name} and has_train:
            so = "raw distances put the items of one model first"
        else:
            mended = "" if has_train else f"with {folder.called('train')}, "
            so = f"raw distances put the items of one model first; {mended}--merges best can mend that"
        text = f"The distances of the two models do not compare: the {what} of random items are {said} (98 %); {so}."
        yield Remark(text, matters=BEST not in names or not has_train)
    is_fitted = any(method.fit for method in methods)
    uses_train = is_fitted or any(merge.uses_train for merge in merges)
    yield from leakage_notes(folder, truth, uses_train)
    if uses_train and folder.sample_path is not None:
        items = sum(len(table) for table in (folder.train, folder.validation) if table is not None)
        share = 100 * items / len(folder.gallery)
        no_train = words_of(folder.path)["no train"]
        text = (
            f"{no_train} Maps and merges were fitted on {items:,} of the {len(folder.gallery):,} "
            f"gallery items ({share:.2g} %), chosen at random and embedded by both models. They stay in the gallery, "
            "which on one of three data sets made gains of maps 2 to 4 points too high (docs/results/sampled_train.md)."
            " Methods that train networks on them take part only if they are named."
        )
        yield Remark(text, matters=False)
    if is_fitted and folder.train is not None:
        dims = max(vectors.shape[1] for vectors in folder.train.vectors.values())
        if few := few_items_per_dimension(len(folder.train), dims):
            yield Remark(
                f"Fitted methods learned from {few}. {FIT_NOISE}. Methods that look bad here may only lack train items."
            )
