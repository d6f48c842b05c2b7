"""Rank merge: naive, with a reverse query transform (RQT), and metric-compatible learning (CL-S, CL-M, MCL, full RM).

Source: Seo et al., "Metric Compatible Training for Online Backfilling in Large-Scale Retrieval", 2025.
Deviates: similarities are exp(-d / tau) with tau as a setting; eq. 10 to 13 have no temperature (tau = 1). In the new
system, an item is no positive of itself (k = i in eq. 11 and 14): its distance is always 0.
Without rho the new system is frozen, so the second term of CL-M (eq. 14) has no gradient, and CL-M trains exactly what
CL-S trains. The two differ only with rho.
"""

from typing import Any

from ray_backfill.core.plugins import Deferred
from ray_backfill.engine.systems import RetrievalSystem, UpgradePair
from ray_backfill.learn.methods import Embeddings, Method
from ray_backfill.learn.methods.baselines import new_system, old_system
from ray_backfill.learn.models.apply import transform
from ray_backfill.learn.training.fits import HeadFit


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


_RM = {
    "RM": "Rank merge: both systems are searched, each over its own items, and their result lists are merged by "
    "distance. RM naive trains nothing and embeds each query with both models. Full RM trains psi and rho with MCL."
}
_PSI = {
    "psi": "The reverse query transform: a small network that maps a new query embedding into the space of the old "
    "gallery, so that only the new model embeds the query."
}
_RHO = {
    "rho": "A small network on top of the new model, for queries and gallery, that makes its distances comparable "
    "with those of the old system. It stays in use after the backfill."
}
_RQT = {"RQT": "Reverse query transform: psi is trained to come close to the old embedding of the same item."}
_CL_S = {"CL-S": "psi is trained with a contrastive loss within the old system only."}
_CL_M = {"CL-M": "psi and rho are trained with a contrastive loss within each of the two systems separately."}
_MCL = {
    "MCL": "Metric-compatible contrastive learning: positives of each system are contrasted with negatives of both, so "
    "that the distances of the two systems become comparable."
}


def _trained(
    name: str,
    title: str,
    source: str,
    loss: str,
    words: dict[str, str],
    has_rho: bool = False,
    is_best: bool = False,
) -> Method:
    """psi, and rho if wanted, trained with a loss. words: what this loss is. is_best: the paper's own choice."""
    fit = HeadFit(Deferred("ray_backfill.learn.papers.rank_merge", loss), learn_new=has_rho, needs_labels=loss != "rqt")
    return Method(
        name, title, source, _with_heads, "Rank merge", fit, forward="" if has_rho else "new",
        is_recommended=is_best, glossary=_RM | _PSI | words | (_RHO if has_rho else {}),
    )  # fmt: skip


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
        glossary=_RM,
    ),
    _trained("rqt", "RM RQT", "eq. 9", "rqt", _RQT),
    _trained("cl_s", "RM CL-S", "eq. 10", "cl_s", _CL_S),
    _trained("cl_m", "RM CL-M", "eq. 14", "cl_m", _CL_M),
    _trained("mcl", "RM MCL", "eq. 11", "mcl", _MCL),
    _trained("rqt_rho", "RM RQT + rho", "eq. 9 with rho", "rqt", _RQT, has_rho=True),
    _trained("cl_s_rho", "RM CL-S + rho", "eq. 10 with rho", "cl_s", _CL_S, has_rho=True),
    _trained("cl_m_rho", "RM CL-M + rho", "eq. 14 with rho", "cl_m", _CL_M, has_rho=True),
    _trained("rm", "full RM", "eq. 11-13: MCL with rho", "mcl", _MCL, has_rho=True, is_best=True),
)
