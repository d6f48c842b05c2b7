"""Rank merge: naive, with a reverse query transform (RQT), and metric-compatible learning (CL-S, CL-M, MCL, full RM).

Source: Seo et al., "Metric Compatible Training for Online Backfilling in Large-Scale Retrieval", 2025.
Deviates: similarities are exp(-d / tau) with tau as a setting; the paper has tau = 1.
Without rho the new system is frozen, so the second term of CL-M (eq. 14) has no gradient, and CL-M trains exactly what
CL-S trains. The two differ only with rho.
"""

from functools import partial
from typing import Any

from ray_backfill.methods import Embeddings, Method
from ray_backfill.methods.baselines import new_system, old_system
from ray_backfill.models.apply import transform
from ray_backfill.plugins import Deferred
from ray_backfill.systems import RetrievalSystem, UpgradePair
from ray_backfill.training.heads import HeadFit


def _naive(e: Embeddings, heads: Any) -> UpgradePair:
    """{old, old} and {new, new}: a query is embedded by both models. Source: section 3.2."""
    return UpgradePair(old_system(e), new_system(e))


def _with_heads(e: Embeddings, heads: Any) -> UpgradePair:
    """{psi(rho(new)), old} and {rho(new), rho(new)}; without rho, rho(new) is new. Source: section 4."""
    forward_query = transform(heads.rho, e.query["new"])
    return UpgradePair(
        backward=RetrievalSystem(transform(heads.psi, forward_query), e.gallery["old"]),
        forward=RetrievalSystem(forward_query, transform(heads.rho, e.gallery["new"])),
    )


_loss = partial(Deferred, "ray_backfill.losses.rank_merge")
_method = partial(Method, family="Rank merge", pair=_with_heads)

METHODS = (
    Method(
        "rm_naive",
        "RM naive",
        "rank merge, section 3.2",
        _naive,
        "Rank merge",
        backward="old",
        forward="new",
        is_recommended=True,
    ),
    _method("rqt", "RM RQT", "eq. 9", fit=HeadFit(_loss("rqt"), needs_labels=False), forward="new"),
    _method("cl_s", "RM CL-S", "eq. 10", fit=HeadFit(_loss("cl_s")), forward="new"),
    _method("cl_m", "RM CL-M", "eq. 14", fit=HeadFit(_loss("cl_m")), forward="new"),
    _method("mcl", "RM MCL", "eq. 11", fit=HeadFit(_loss("mcl")), forward="new"),
    _method("rqt_rho", "RM RQT + rho", "eq. 9 with rho", fit=HeadFit(_loss("rqt"), learn_new=True, needs_labels=False)),
    _method("cl_s_rho", "RM CL-S + rho", "eq. 10 with rho", fit=HeadFit(_loss("cl_s"), learn_new=True)),
    _method("cl_m_rho", "RM CL-M + rho", "eq. 14 with rho", fit=HeadFit(_loss("cl_m"), learn_new=True)),
    _method("rm", "full RM", "eq. 11-13: MCL with rho", fit=HeadFit(_loss("mcl"), learn_new=True), is_recommended=True),
)
