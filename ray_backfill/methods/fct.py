"""Forward compatible training: a transformation h makes stand-ins of new embeddings from the stored old ones.

Source: Ramanujan et al., "Forward Compatible Training for Large-Scale Embedding Retrieval Systems", 2022, and the
authors' code. BiCT: Su et al., "Privacy-Preserving Model Upgrades with Bidirectional Compatible Training", 2022.
"""

from typing import Any

from ray_backfill.methods import Embeddings, Method, TransformLoss
from ray_backfill.models.maps import transform
from ray_backfill.systems import RetrievalSystem, UpgradePair


def transformed_gallery(fit: TransformLoss, e: Embeddings, network: Any) -> UpgradePair:
    """{target, h(inputs)} and {target, target}."""
    h_Nd = transform(network, *(e.gallery[name] for name in fit.inputs))
    forward = RetrievalSystem(e.query[fit.target], e.gallery[fit.target])
    return UpgradePair(RetrievalSystem(forward.query, h_Nd), forward)


def transform_method(name: str, title: str, source: str, fit: TransformLoss) -> Method:
    """A method whose backward gallery is h of stored embeddings."""

    def pair(e: Embeddings, network: Any) -> UpgradePair:
        return transformed_gallery(fit, e, network)

    models = tuple(dict.fromkeys(("old", "new", *fit.inputs, fit.target)))
    return Method(name, title, source, pair, fit, models, aligned=True)


METHODS = (
    transform_method("fct", "FCT", "FCT, eq. 3: ||new - h(old)||^2", TransformLoss()),
    transform_method("fct_side", "FCT + side info", "FCT, section 4.3: h(old, side)", TransformLoss(("old", "side"))),
    transform_method("bict", "BiCT", "BCT backbone, then h(old) towards it", TransformLoss(target="bct")),
)
