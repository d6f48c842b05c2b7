"""Backbones that are trained to be compatible, and what serves during a backfill: {x, old}, then {x, x}.

The papers, their losses and where we deviate are in ``learn.papers``, in the file of each name.
"""

from collections.abc import Mapping
from functools import partial

from ray_backfill.core.plugins import Deferred
from ray_backfill.learn.expressions import Resized, Side, Stored, plain, side
from ray_backfill.learn.methods import BackboneKind, Method


def backbone_method(name: str, title: str, source: str, glossary: Mapping[str, str] | None = None) -> Method:
    """{x, old} and {x, x}, where x is the backbone of this name. glossary: word -> meaning, for reports.

    Where x has other dimensions than old, it is compared as in its training.
    """
    backward = Side(Resized(Stored(name), "old"), Stored("old"))
    return Method(name, title, source, backward, plain(name), "A new backbone", glossary=glossary or {})


def _of(paper: str, objective: str) -> Deferred:
    return Deferred(f"ray_backfill.learn.papers.{paper}", objective)


_compatible = partial(BackboneKind, like="new", needs_old=True)
# A simplex in d dimensions has d + 1 vertices, one for each class.
_simplex = partial(
    BackboneKind, source="CoReS, 2023", objective=_of("dsimplex", "FixedSimplex"), needs_old=False,
    dim_of=lambda classes: classes - 1,
)  # fmt: skip

BACKBONES = (
    _compatible("advbct", "AdvBCT", "Pan et al. 2023, section 3", objective=_of("advbct", "AdversarialCompatible")),
    _compatible("bct", "BCT", "Shen et al. 2020, eq. 5", objective=_of("bct", "BackwardCompatible")),
    _simplex("dsimplex_old", "d-Simplex old", like="old"),
    _simplex("dsimplex", "d-Simplex", like="new"),
    _compatible("mixbct", "MixBCT", "Liang et al. 2023", objective=_of("mixbct", "MixedCompatible")),
    _compatible("ract", "RACT", "Zhang et al. 2022", objective=_of("ract", "RegressionAlleviating")),
    _compatible(
        "ract_hard", "RACT hard", "Zhang et al. 2022: hardest negatives", objective=_of("ract", "HardestNegatives")
    ),
    BackboneKind(
        "side", "side information", "SimCLR (Chen et al. 2020), as in FCT", "old", _of("simclr", "SimClr"), False
    ),
)

_RACT = {
    "RACT": "Regression-alleviating compatible training: a backward-compatible new model, trained with a contrastive "
    "loss against old and new embeddings that reduces negative flips."
}

METHODS = {
    "advbct": (
        backbone_method(
            "advbct", "AdvBCT", "Pan et al. 2023: {advbct, old}, {advbct, advbct}",
            {
                "AdvBCT": "Adversarial backward-compatible training: a new model whose embeddings a discriminator "
                "cannot tell from old ones, and which stay within a learned boundary around the old embeddings of "
                "their class."
            },
        ),
    ),
    "bct": (
        backbone_method(
            "bct", "BCT", "Shen et al. 2020: {bct, old}, {bct, bct}",
            {
                "BCT": "Backward-compatible training: a new model that is trained so that the old model's classifier "
                "also works on its embeddings. Its queries search the old gallery as it is."
            },
        ),
    ),
    "dsimplex": (
        Method(  # the old gallery is that of a model of its own
            "dsimplex", "d-Simplex", "CoReS, 2023: {dsimplex, dsimplex_old}, {dsimplex, dsimplex}",
            side("dsimplex", "dsimplex_old"), plain("dsimplex"), "A new backbone",
            glossary={
                "d-Simplex": "Both models are trained with the same fixed classifier, whose weights are the vertices "
                "of a regular simplex, so that the new model's queries search the old gallery without any loss for "
                "compatibility. The old model must have been trained in this way, too."
            },
        ),
    ),
    "mixbct": (
        backbone_method(
            "mixbct", "MixBCT", "Liang et al. 2023: {mixbct, old}, {mixbct, mixbct}",
            {
                "MixBCT": "Backward-compatible training by one loss: the new model's classifier has to recognise "
                "batches in which old embeddings replace a share of the new ones."
            },
        ),
    ),
    "ract": (
        backbone_method("ract", "RACT", "Zhang et al. 2022: {ract, old}, {ract, ract}", _RACT),
        backbone_method("ract_hard", "RACT hard", "Zhang et al. 2022, hardest negatives", _RACT),
    ),
}  # fmt: skip
