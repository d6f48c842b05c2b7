"""Forward compatible training: a transformation h predicts new embeddings from the stored old ones.

Source: Ramanujan et al., "Forward Compatible Training for Large-Scale Embedding Retrieval Systems", 2022, and the
authors' code. BiCT: Su et al., "Privacy-Preserving Model Upgrades with Bidirectional Compatible Training", 2022.
"""

from collections.abc import Mapping
from typing import Any

from ray_backfill.engine.systems import RetrievalSystem, UpgradePair
from ray_backfill.learn.methods import Embeddings, Method
from ray_backfill.learn.models.apply import transform
from ray_backfill.learn.training.fits import TransformFit

_H = {"h": "The network that maps an old embedding (and what else was stored) into the space of the new model."}
_FCT = {
    "FCT": "Forward-compatible training: h is trained to predict the new embedding of an item from its old one. The "
    "whole old gallery is mapped by h before the switch; queries are embedded by the new model only."
}
_SIDE = {"Side information": "A second embedding that was stored with each item and helps h to predict the new one."}
_BICT = {"BiCT": "Bidirectional compatible training: a backward-compatible new model, and h for the old gallery."}


def transform_method(
    name: str,
    title: str,
    source: str,
    fit: TransformFit,
    family: str = "Maps old to new",
    glossary: Mapping[str, str] | None = None,
    is_recommended: bool = False,
) -> Method:
    """{target, h(inputs)} and {target, target}: the backward gallery is h of stored embeddings."""

    def pair(e: Embeddings, network: Any) -> UpgradePair:
        h_Nd = transform(network, *(e.gallery[name] for name in fit.inputs))
        forward = RetrievalSystem(e.query[fit.target], e.gallery[fit.target])
        return UpgradePair(RetrievalSystem(forward.query, h_Nd), forward)

    models = tuple(dict.fromkeys(("old", "new", *fit.models)))
    words = _H | dict(_FCT if glossary is None else glossary)
    return Method(
        name, title, source, pair, family, fit, models, forward=fit.target, aligned=True,
        is_recommended=is_recommended, glossary=words,
    )  # fmt: skip


METHODS = (
    transform_method("fct", "FCT", "FCT, eq. 3: ||new - h(old)||^2", TransformFit(), is_recommended=True),
    transform_method(
        "fct_side",
        "FCT + side info",
        "FCT, section 4.3: h(old, side)",
        TransformFit(("old", "side")),
        glossary=_FCT | _SIDE,
    ),
    transform_method(
        "bict", "BiCT", "BCT backbone, then h(old) towards it", TransformFit(target="bct"), "A new backbone", _BICT
    ),
)
