"""Regression-alleviating compatible training: new embeddings are contrasted with old and with new ones.

Source: Zhang et al., "Hot-Refresh Model Upgrades with Regression-Alleviating Compatible Training", 2022, section 3.3;
tau 0.5 and weight 1 as in FastFill's re-run; the authors' code has tau 0.01 and the 10 hardest negatives of each kind.
"""

from functools import partial

from ray_backfill.core.plugins import Deferred
from ray_backfill.learn.methods import BackboneKind
from ray_backfill.learn.methods.bct import backbone_method

_objective = partial(Deferred, "ray_backfill.learn.papers.ract")

BACKBONES = (
    BackboneKind("ract", "RACT", "Zhang et al. 2022", "new", _objective("RegressionAlleviating"), needs_old=True),
    BackboneKind(
        "ract_hard",
        "RACT hard",
        "Zhang et al. 2022: hardest negatives",
        "new",
        _objective("HardestNegatives"),
        needs_old=True,
    ),
)

_GLOSSARY = {
    "RACT": "Regression-alleviating compatible training: a backward-compatible new model, trained with a contrastive "
    "loss against old and new embeddings that reduces negative flips."
}

METHODS = (
    backbone_method("ract", "RACT", "Zhang et al. 2022: {ract, old}, {ract, ract}", _GLOSSARY),
    backbone_method("ract_hard", "RACT hard", "Zhang et al. 2022, hardest negatives", _GLOSSARY),
)
