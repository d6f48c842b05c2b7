"""lambda-Orthogonality: new embeddings are mapped to old ones by a (nearly) orthogonal B, old ones to those by F.

Source: Ricci et al., "lambda-Orthogonality Regularization for Compatible Representation Learning", NeurIPS 2025
(arXiv 2509.16664), sections 3.2 to 3.5. A strictly orthogonal B is the paper's choice where the maps are trained on the
models' own images, the relaxed one where they are trained on others. Losses and deviations: ``papers.orthogonal``.
"""

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from ray_backfill.core.plugins import Deferred
from ray_backfill.engine.systems import RetrievalSystem, UpgradePair
from ray_backfill.learn.methods import Embeddings, Method
from ray_backfill.learn.methods.backbones import fit_width
from ray_backfill.learn.models.apply import transform
from ray_backfill.learn.training.fit import Choice, Device, FitByItems, Fitted, OnEpoch, TrainSet
from ray_backfill.learn.training.settings import FitSettings

_TRAIN = Deferred("ray_backfill.learn.papers.orthogonal", "train_joint")


@dataclass(frozen=True)
class JointFit(FitByItems):
    """Trains B (new to old) and F (old to B's space), with or without labels. strict: B is a rotation."""

    strict: bool = False

    costs_of_weights = True
    models = ("old", "new")

    @property
    def space(self) -> tuple[Choice, ...]:
        both = (
            Choice("transforms.orthogonal.lr_share", (0.5, 1.0, 2.0, 5.0)),
            Choice("transforms.orthogonal.tau", (0.03, 0.1, 0.3, 1.0)),
            Choice("transforms.orthogonal.contrastive", (0.3, 1.0, 3.0)),
        )
        return both if self.strict else (*both, Choice("transforms.orthogonal.threshold", (0.1, 0.375, 1.0)))

    def recorded(self, settings: FitSettings, distance: str) -> dict[str, Any]:
        this = {"kind": "joint", "loss": "joint", "strict": self.strict}
        return {"fit": this, "training": asdict(settings.transforms), "unit": distance == "cosine"}

    def fit(
        self, data: TrainSet, settings: FitSettings, distance: str, device: Device = None, on_epoch: OnEpoch = None
    ) -> Fitted:
        return _TRAIN(data, settings.transforms, self.strict, distance == "cosine", device, on_epoch)


def _pair(e: Embeddings, network: Any) -> UpgradePair:
    """{B(new), F(old)} and {B(new), B(new)}."""
    forward = _forward(e, network)
    return UpgradePair(RetrievalSystem(forward.query, transform(network.to_new, e.gallery["old"])), forward)


def _pair_as_it_is(e: Embeddings, network: Any) -> UpgradePair:
    """{B(new), old} and {B(new), B(new)}: the old gallery is not mapped, and compared by the dimensions of the loss."""
    forward, old = _forward(e, network), e.gallery["old"]
    return UpgradePair(RetrievalSystem(fit_width(forward.query, old.shape[1]), old), forward)


def _forward(e: Embeddings, network: Any) -> RetrievalSystem:
    return RetrievalSystem(transform(network.to_old, e.query["new"]), transform(network.to_old, e.gallery["new"]))


_WORDS = {
    "B": "The map of new embeddings into the old space, for queries and gallery; strictly or nearly orthogonal, so "
    "that it keeps the distances of the new model.",
    "F": "The map of old gallery embeddings to where B maps the new ones. It is trained together with B.",
}
_LAMBDA = {
    "lambda-orthogonality": "A penalty on maps that deviate from an orthogonal one by more than lambda; smaller "
    "deviations cost nothing."
}
_mapped = partial(Method, family="Maps old to new", pair=_pair, aligned=True)

METHODS = (
    _mapped(
        "orthogonal",
        "orthogonal B and F",
        "lambda-Orthogonality, 2025, eq. 2 and 7 to 10",
        fit=JointFit(strict=True),
        glossary=_WORDS,
    ),
    _mapped(
        "lambda_orthogonal",
        "lambda-orthogonal B and F",
        "lambda-Orthogonality, 2025, eq. 2 and 6 to 10",
        fit=JointFit(),
        glossary=_WORDS | _LAMBDA,
    ),
    _mapped(
        "lambda_orthogonal_query",
        "lambda-orthogonal B",
        "lambda-Orthogonality, 2025, appendix H: the old gallery stays as it is",
        fit=JointFit(),
        pair=_pair_as_it_is,
        aligned=False,
        glossary=_WORDS | _LAMBDA,
    ),
)
