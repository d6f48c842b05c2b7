"""Controls for full RM: does its M_1 above {new, new} come from rho alone, and does rho help other methods?

Full RM trains rho with labels on top of the new model, so it may end above {new, new} without any compatible training.
The controls train rho by supervised contrast alone: the second term of eq. 14, in which the old model does not occur.
Source: rank merge, section 4.3 and eq. 14. They take part only if they are named, or by --methods controls.
"""

from functools import partial
from typing import Any

from ray_backfill.core.plugins import Deferred
from ray_backfill.engine.systems import RetrievalSystem, UpgradePair
from ray_backfill.learn.methods import CONTROLS, Embeddings, Method
from ray_backfill.learn.models.apply import transform
from ray_backfill.learn.training.fits import RHO, HeadFit, TowardsRhoFit, TransformFit

_RHO_ALONE = HeadFit(Deferred("ray_backfill.learn.papers.rank_merge", "within_new"), learn_new=True)


def _forward(e: Embeddings, network: Any) -> RetrievalSystem:
    """{rho(new), rho(new)}."""
    return RetrievalSystem(transform(network.rho, e.query["new"]), transform(network.rho, e.gallery["new"]))


def _rho_alone(e: Embeddings, network: Any) -> UpgradePair:
    """The finished upgrade at all times, like the reference ``new``."""
    system = _forward(e, network)
    return UpgradePair(system, system)


def _towards_rho(e: Embeddings, network: Any) -> UpgradePair:
    """{rho(new), h(old)} and {rho(new), rho(new)}."""
    forward = _forward(e, network)
    return UpgradePair(RetrievalSystem(forward.query, transform(network.h, e.gallery["old"])), forward)


_towards = partial(Method, pair=_towards_rho, family=CONTROLS, aligned=True)
_GLOSSARY = {
    "rho alone": "rho trained with labels on new embeddings only, without the old model: how much of full RM's quality "
    "after the backfill is better training of the new model."
}

METHODS = (
    Method(
        "rho_alone",
        "{rho, rho}, rho alone",
        "second term of rank merge, eq. 14",
        _rho_alone,
        CONTROLS,
        _RHO_ALONE,
        is_reference=True,
        glossary=_GLOSSARY,
    ),
    _towards(
        name="fct_rho",
        title="FCT towards rho alone",
        source="FCT, eq. 3: ||rho(new) - h(old)||^2",
        fit=TowardsRhoFit(_RHO_ALONE, TransformFit(target=RHO)),
        glossary=_GLOSSARY,
    ),
    _towards(
        name="fastfill_rho",
        title="FastFill towards rho alone",
        source="FastFill, eq. 5, with rho(new) in place of new",
        fit=TowardsRhoFit(_RHO_ALONE, TransformFit(target=RHO, disc=True, uncertainty=True)),
        glossary=_GLOSSARY,
    ),
)
