"""lambda-Orthogonality: new embeddings are mapped to old ones by a (nearly) orthogonal B, old ones to those by F.

Source: Ricci et al., "lambda-Orthogonality Regularization for Compatible Representation Learning", NeurIPS 2025
(arXiv 2509.16664), sections 3.2 to 3.5. A strictly orthogonal B is the paper's choice where the maps are trained on the
models' own images, the relaxed one where they are trained on others. The loss is in ``losses.orthogonal``.
Deviates: lambda is in units of sqrt(n), because the norm of eq. 6 grows with the dimension; the paper's 12 for a new
model of 1,024 dimensions is 0.375. Under cosine the maps are trained on embeddings of length 1, as adapters are. Not in
the text that we have: the weights of eq. 10, alpha, the temperature, batches, epochs and initial weights.
"""

from typing import Any

from ray_backfill.core.plugins import Deferred
from ray_backfill.engine.systems import RetrievalSystem, UpgradePair
from ray_backfill.learn.methods import Embeddings, Method
from ray_backfill.learn.methods.bct import fit_width
from ray_backfill.learn.models.apply import transform
from ray_backfill.learn.training.fits import JointFit

_LOSS = Deferred("ray_backfill.learn.papers.orthogonal", "joint")


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

METHODS = (
    Method(
        "orthogonal",
        "orthogonal B and F",
        "lambda-Orthogonality, 2025, eq. 2 and 7 to 10",
        _pair,
        "Maps old to new",
        JointFit(_LOSS, strict=True),
        aligned=True,
        glossary=_WORDS,
    ),
    Method(
        "lambda_orthogonal",
        "lambda-orthogonal B and F",
        "lambda-Orthogonality, 2025, eq. 2 and 6 to 10",
        _pair,
        "Maps old to new",
        JointFit(_LOSS),
        aligned=True,
        glossary=_WORDS | _LAMBDA,
    ),
    Method(
        "lambda_orthogonal_query",
        "lambda-orthogonal B",
        "lambda-Orthogonality, 2025, appendix H: the old gallery stays as it is",
        _pair_as_it_is,
        "Maps old to new",
        JointFit(_LOSS),
        glossary=_WORDS | _LAMBDA,
    ),
)
