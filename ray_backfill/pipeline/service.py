"""What a user says about the stages of a service: ``service.yaml``, read strictly."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any, Self

from ray_backfill.core.errors import InputError, unknown_name
from ray_backfill.core.store_path import path_of
from ray_backfill.core.yamls import read_yaml
from ray_backfill.data.folder import EmbeddingFolder, EmbeddingTable
from ray_backfill.engine.systems import GroundTruth
from ray_backfill.pipeline.changes import Changes, Period, read_changes
from ray_backfill.pipeline.lexical import TextLists, bm25_lists, read_lists
from ray_backfill.pipeline.lists import FUSIONS, RRF, Fusion, Stages
from ray_backfill.pipeline.rerank import PairScores, read_scores

BM25 = "bm25"
_POSITIVE = {"retrieve", "cut", "top", "k"}


@dataclass(frozen=True)
class HybridSettings:
    """A text list beside the vectors, and their fusion."""

    list: str
    """bm25, or a file of lists: a TREC run, or a table (.parquet, .csv) with columns query, item and score."""
    text: str = "text"
    """Column of gallery and queries, for bm25."""
    collections: str = "one"
    """one: a collection holds the texts of all items. two: as the vectors; refused, because BM25's statistics then
    change with every item that moves."""
    retrieve: int = 0
    """Results of the text list; by default as many as of a partition."""
    fusion: str = "rrf"
    """rrf, minmax, relativeScoreFusion, zscore or dbsf; see ``lists.Fusion``."""
    k: float = 60.0
    """Rank constant of rrf."""
    weights: tuple[float, ...] = ()
    """Of the vectors and of the text; by default 1 and 1, of relativeScoreFusion 0.75 and 0.25."""
    lists: str = "merged"
    """merged: the merged list of vectors is fused with the text list. separate: old, new and text list are fused, and
    nothing is merged before."""
    cut: int = 0
    """Results that are kept; by default as many as of the merged list."""


@dataclass(frozen=True)
class RerankSettings:
    """A re-ranker of the first results."""

    top: int
    """Results that it sorts."""
    model: str = ""
    """Such as cross-encoder:NAME_OR_FOLDER."""
    scores: str = ""
    """Instead of a model: a table (.parquet, .csv) with columns query, item and score."""
    text: str = "text"
    """Column of gallery and queries, for a model."""


@dataclass(frozen=True)
class ServiceSettings:
    """A service around the two partitions."""

    retrieve: int = 100
    """Results that each partition returns."""
    cut: int = 0
    """Results that are kept after the merge; by default as many as a partition returns."""
    hybrid: HybridSettings | None = None
    rerank: RerankSettings | None = None
    changes: Period | bool = False
    """Whether gallery columns inserted_at, changed_at and deleted_at change it during the backfill: true if they hold
    progress in [0, 1]; the start and the end of the backfill if they hold dates."""

    @property
    def stages(self) -> Stages:
        """The stages with all defaults filled in."""
        cut, hybrid = self.cut or self.retrieve, self.hybrid
        fusion = None
        if hybrid is not None:
            usual = (0.75, 0.25) if hybrid.fusion == "relativeScoreFusion" else (1.0, 1.0)
            weights = (hybrid.weights[0], hybrid.weights[-1]) if hybrid.weights else usual
            fusion = Fusion(
                hybrid.fusion, hybrid.k, weights, hybrid.lists == "separate", hybrid.retrieve or self.retrieve,
                hybrid.cut or cut,
            )  # fmt: skip
        return Stages(self.retrieve, cut, fusion, self.rerank.top if self.rerank else 0)

    def recorded(self) -> dict[str, Any]:
        """All settings, and a hash of each file that they name."""
        named = [self.hybrid.list if self.hybrid else "", self.rerank.scores if self.rerank else ""]
        files = [path_of(name) for name in named if name not in ("", BM25)]
        marks = [blake2b(file.read_bytes(), digest_size=12).hexdigest() for file in files]
        period = self.changes
        dates = [period.start.isoformat(), period.end.isoformat()] if isinstance(period, Period) else period
        return asdict(self) | {"changes": dates, "files": marks}

    @classmethod
    def of(cls, recorded: Mapping[str, Any]) -> Self:
        """The settings that ``recorded`` returned."""
        hybrid, rerank, changes = recorded["hybrid"], recorded["rerank"], recorded["changes"]
        return cls(
            recorded["retrieve"],
            recorded["cut"],
            HybridSettings(**hybrid | {"weights": tuple(hybrid["weights"])}) if hybrid else None,
            RerankSettings(**rerank) if rerank else None,
            Period(*map(datetime.fromisoformat, changes)) if isinstance(changes, list) else changes,
        )

    def changes_of(self, gallery: EmbeddingTable) -> Changes | None:
        """What changes in the gallery. Raises InputError: see ``read_changes``."""
        if self.changes is False:
            return None
        return read_changes(gallery, self.changes if isinstance(self.changes, Period) else None)


def read_service(file: Path) -> ServiceSettings:
    """Read and check service.yaml. Files in it are relative to its folder.

    Raises:
        InputError: The file cannot be read, has an unknown key, or a value is impossible.
    """
    service = read_yaml(file, ServiceSettings, "--service", _POSITIVE)
    stages, hybrid, rerank = service.stages, service.hybrid, service.rerank
    if stages.cut > 2 * stages.retrieve:
        raise InputError(f"cut {stages.cut:,} is more than two partitions return ({stages.retrieve:,} each)")
    named = service
    if service.changes and hybrid:
        raise InputError(f"{file}: changes also change the text list, which is not modelled; leave one of them out")
    if isinstance(service.changes, Period) and not service.changes.start < service.changes.end:
        raise InputError(f"{file}: changes.end must be after changes.start")
    if hybrid is not None:
        if hybrid.fusion not in FUSIONS:
            raise unknown_name("fusion", hybrid.fusion, FUSIONS)
        for name, value, known in (
            ("lists", hybrid.lists, ("merged", "separate")), ("collections", hybrid.collections, ("one", "two")),
        ):  # fmt: skip
            if value not in known:
                raise unknown_name(f"value of hybrid.{name}", value, known)
        if hybrid.collections == "two":
            raise InputError(
                "hybrid.collections: two is not modelled: BM25's counts of documents and terms would change in both "
                "collections with every item that moves; keep the texts in one collection"
            )
        if hybrid.weights and (len(hybrid.weights) != 2 or not sum(hybrid.weights) > 0):
            raise InputError("hybrid.weights are two numbers, of the vectors and of the text, one of them above 0")
        if stages.fusion and stages.fusion.cut > 2 * stages.retrieve + stages.fusion.retrieve:
            raise InputError(f"hybrid.cut {stages.fusion.cut:,} is more than all lists return")
        if hybrid.list != BM25:
            named = replace(named, hybrid=replace(hybrid, list=_existing(file, "hybrid.list", hybrid.list)))
    if rerank is not None:
        if bool(rerank.model) == bool(rerank.scores):
            raise InputError("rerank: give a model or a file of scores, one of them")
        if rerank.scores:
            named = replace(named, rerank=replace(rerank, scores=_existing(file, "rerank.scores", rerank.scores)))
        if rerank.top > stages.shown:
            raise InputError(
                f"rerank.top {rerank.top:,} is more than the {stages.shown:,} results that are kept before"
            )
    return named


def _existing(file: Path, name: str, value: str) -> str:
    path = (file.parent / value).absolute()
    if not path.is_file():
        raise InputError(f"{file}: {name}: there is no file {path}")
    return str(path)


@dataclass(frozen=True)
class Service:
    """Stages, and what they need beside vectors. text: lists of the queries. relevance: scores of the re-ranker.
    changes: of the gallery during the backfill."""

    stages: Stages
    text: TextLists | None = None
    relevance: PairScores | None = None
    changes: Changes | None = None


def resolve_service(settings: ServiceSettings, folder: EmbeddingFolder, truth: GroundTruth) -> Service:
    """Make or read the text lists, and read scores that are given. A model's scores come once its pairs are known.

    Raises:
        InputError: A file or column of texts does not fit the folder.
    """
    stages, text, hybrid, rerank = settings.stages, None, settings.hybrid, settings.rerank
    if hybrid is not None and stages.fusion is not None:
        if hybrid.list == BM25:
            text = bm25_lists(folder, hybrid.text, stages.fusion.retrieve, truth)
        else:
            by_rank = stages.fusion.kind == RRF
            text = read_lists(path_of(hybrid.list), folder, stages.fusion.retrieve, truth, by_rank=by_rank)
    given = read_scores(path_of(rerank.scores), folder) if rerank and rerank.scores else None
    return Service(stages, text, given, settings.changes_of(folder.gallery))
