"""lambda-Orthogonality: new embeddings are mapped to old ones by a (nearly) orthogonal B, old ones to those by F.

Source: Ricci et al., "lambda-Orthogonality Regularization for Compatible Representation Learning", NeurIPS 2025
(arXiv 2509.16664), sections 3.2 to 3.5. A strictly orthogonal B is the paper's choice where the maps are trained on the
models' own images, the relaxed one where they are trained on others. Losses and deviations: ``papers.orthogonal``.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from ray_backfill.core.plugins import Deferred
from ray_backfill.learn.expressions import Resized, Side, Stored, mapped
from ray_backfill.learn.methods import Method
from ray_backfill.learn.training.fit import Choice, Device, FitByItems, Fitted, OnEpoch, TrainSet, trained_flops
from ray_backfill.learn.training.settings import FitSettings

_TRAIN = Deferred("ray_backfill.learn.papers.orthogonal", "train_joint")


@dataclass(frozen=True)
class JointFit(FitByItems):
    """Trains B (new to old) and F (old to B's space), with or without labels. strict: B is a rotation."""

    strict: bool = False

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

    def step_flops(self, dims: Mapping[str, int], n: int, n_classes: int, settings: FitSettings, distance: str) -> int:
        """Both maps, cosines of n F(old) to n B(new) and to n old embeddings, and products of weights.

        These are W W^T of a penalty, or a rotation by its parameters; torch does not count the matrix exponential.
        """
        old, new = dims["old"], dims["new"]
        contrasts = n * n * (6 * new + 4 * min(old, new))
        return n * trained_flops([], [(old, new), (new, new)]) + contrasts + new**3 * (4 if self.strict else 6)


_B = mapped("B", "new")
_WORDS = {
    "B": "The map of new embeddings into the old space, for queries and gallery; strictly or nearly orthogonal, so "
    "that it keeps the distances of the new model.",
    "F": "The map of old gallery embeddings to where B maps the new ones. It is trained together with B.",
}
_LAMBDA = {
    "lambda-orthogonality": "A penalty on maps that deviate from an orthogonal one by more than lambda; smaller "
    "deviations cost nothing."
}
_joint = partial(Method, forward=Side(_B, _B), family="Maps old to new")
_MAPPED = Side(_B, mapped("F", "old"))

METHODS = (
    _joint(
        "orthogonal", "orthogonal B and F", "lambda-Orthogonality, 2025, eq. 2 and 7 to 10", _MAPPED,
        fit=JointFit(strict=True), glossary=_WORDS,
    ),
    _joint(
        "lambda_orthogonal", "lambda-orthogonal B and F", "lambda-Orthogonality, 2025, eq. 2 and 6 to 10", _MAPPED,
        fit=JointFit(), glossary=_WORDS | _LAMBDA,
    ),
    _joint(
        "lambda_orthogonal_query", "lambda-orthogonal B",
        "lambda-Orthogonality, 2025, appendix H: the old gallery stays as it is",
        Side(Resized(_B, "old"), Stored("old")),  # compared by the dimensions of the loss
        fit=JointFit(), glossary=_WORDS | _LAMBDA,
    ),
)  # fmt: skip
