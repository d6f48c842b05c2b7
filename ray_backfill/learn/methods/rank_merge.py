"""Rank merge: naive, with a reverse query transform (RQT), and metric-compatible learning (CL-S, CL-M, MCL, full RM).

Source: Seo et al., "Metric Compatible Training for Online Backfilling in Large-Scale Retrieval", 2025. The losses and
where they deviate are in ``papers.rank_merge``.

Controls: does the M_1 of full RM above {new, new} come from rho alone, and does rho help other methods? Full RM trains
rho with labels on top of the new model, so it may end above {new, new} without any compatible training. The controls
train rho by supervised contrast alone: the second term of eq. 14 (section 4.3), in which the old model does not occur.
They take part only if they are named, or by --methods controls.

Shapes: N training items.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.core.plugins import Deferred
from ray_backfill.learn.expressions import Side, mapped, plain, side
from ray_backfill.learn.methods import CONTROLS, Method, Reference
from ray_backfill.learn.methods.fct import TransformFit
from ray_backfill.learn.models.apply import transform
from ray_backfill.learn.training.fit import (
    Choice,
    Device,
    Fit,
    FitByItems,
    FitCost,
    Fitted,
    OnEpoch,
    TrainSet,
    anchors_per_worker,
    trained_flops,
)  # fmt: skip
from ray_backfill.learn.training.settings import HEAD_DISTANCES, FitSettings, HeadTraining

_of_paper = partial(Deferred, "ray_backfill.learn.papers.rank_merge")
_TRAIN, _PUT_TOGETHER = _of_paper("train_heads"), _of_paper("rho_and_h")


@dataclass(frozen=True)
class HeadFit(Fit):
    """Trains psi, and rho if learn_new is set. The loss is recorded by the name of its function."""

    loss: Callable[..., Any]
    learn_new: bool = False
    needs_labels: bool = True

    option = "heads"
    models = ("old", "new")

    @property
    def space(self) -> tuple[Choice, ...]:
        rate = Choice("heads.lr", (1e-4, 3e-4, 1e-3, 3e-3))
        if not self.needs_labels:  # RQT has neither a temperature nor mining
            return rate, Choice("heads.blocks", (1, 2, 3))
        return rate, Choice("heads.loss.tau", (0.03, 0.1, 0.3, 1.0)), Choice("heads.loss.hard_mining", (True, False))

    def recorded(self, settings: FitSettings, distance: str) -> dict[str, Any]:
        this = {"kind": "heads", **asdict(self), "loss": self.loss.__name__}
        return {"fit": this, "training": asdict(settings.heads)}

    def share(self, data: TrainSet, settings: FitSettings, workers: int) -> int:
        return anchors_per_worker(*classes_of(data, settings.heads, self.needs_labels), workers)

    def check(self, data: TrainSet, settings: FitSettings, workers: int) -> None:
        super().check(data, settings, workers)
        if self.needs_labels and data.label is not None and len(np.unique(data.label)) == len(data):
            raise InputError(
                f"needs classes of two or more items in the train split; each of its {len(data):,} items is alone in "
                "its class"
            )

    def distance_problem(self, settings: FitSettings, distance: str) -> str:
        trained = settings.heads.loss.distance
        if distance == trained:
            return ""
        if distance not in HEAD_DISTANCES:
            return f"heads can only be trained for the cosine or the l2 distance, not for {distance}"
        return f"heads would be trained for the {trained} distance; give --heads.loss.distance {distance}"

    def fit(
        self, data: TrainSet, settings: FitSettings, distance: str, device: Device = None, on_epoch: OnEpoch = None
    ) -> Fitted:
        label_N, training = classes_of(data, settings.heads, self.needs_labels)
        return _TRAIN(self.loss, data, label_N, training, self.learn_new, device, on_epoch)

    def step_flops(self, dims: Mapping[str, int], n: int, n_classes: int, settings: FitSettings, distance: str) -> int:
        """psi, rho, and the distances of n anchors in the systems that the loss contrasts (``papers.rank_merge``).

        As torch counts them: of l2 distances (``cdist``) only the gradients, towards both sides.
        """
        old, new, blocks, name = dims["old"], dims["new"], settings.heads.blocks, self.loss.__name__
        psi, rho = ([2 * new] * (blocks - 1) + [size] for size in (old, new))
        of_psi, of_rho = (list(pairwise([new, *sizes])) for sizes in (psi, rho))
        layers, first = ([*of_psi, *of_rho[1:]], of_rho[:1]) if self.learn_new else (of_psi[1:], of_psi[:1])
        is_l2 = settings.heads.loss.distance == "l2"
        in_old = name in ("cl_s", "cl_m", "mcl")  # old embeddings get no gradient, nor do new ones without rho
        in_new = name in ("cl_m", "mcl", "within_new")
        pairs = 4 * old * in_old + ((6 if self.learn_new else 2) - 2 * is_l2) * new * in_new
        return n * trained_flops(layers, first) + n * n * pairs


def classes_of(
    data: TrainSet, settings: HeadTraining, needs_labels: bool = True
) -> tuple[NDArray[np.int64], HeadTraining]:
    """The class of each item as a number. Without labels each item is its own class, in batches of the same size.

    The same holds if all labels are equal and the loss does not need them.
    """
    if data.label is None or (not needs_labels and len(np.unique(data.label)) < 2):
        whole = replace(settings, classes=settings.classes * settings.items, items=1)
        return np.arange(len(data)), whole
    return np.unique(data.label, return_inverse=True)[1], settings


# The name of rho(new) among the vectors that h is trained on. It is not "new", whose classifier does not fit it.
RHO = "rho"


@dataclass(frozen=True)
class TowardsRhoFit(FitByItems):
    """Trains rho with the heads' settings, then h, whose target is ``RHO``. Epochs and batches are those of h."""

    rho: HeadFit
    h: TransformFit

    needs_labels = True
    learn_new = True
    models = ("old", "new")

    @property
    def has_sigma(self) -> bool:
        return self.h.has_sigma

    @property
    def space(self) -> tuple[Choice, ...]:
        return (*self.rho.space, *self.h.space)

    def recorded(self, settings: FitSettings, distance: str) -> dict[str, Any]:
        rho, h = self.rho.recorded(settings, distance), self.h.recorded(settings, distance)
        return {"fit": {"kind": "towards_rho", "rho": rho["fit"], "h": h["fit"]}} | {
            "training": {"rho": rho["training"], "h": h["training"]}
        }

    def check(self, data: TrainSet, settings: FitSettings, workers: int) -> None:
        self.rho.check(data, settings, workers)
        self.h.check(data, settings, workers)

    def distance_problem(self, settings: FitSettings, distance: str) -> str:
        return self.rho.distance_problem(settings, distance)

    def fit(
        self, data: TrainSet, settings: FitSettings, distance: str, device: Device = None, on_epoch: OnEpoch = None
    ) -> Fitted:
        first = self.rho.fit(data, settings, distance, device)
        rho = first.network.cpu().rho
        vectors = {"old": data.vectors["old"], RHO: transform(rho, data.vectors["new"])}
        views: dict[str, NDArray[np.floating]] = {}
        if data.views:
            of_views = [transform(rho, view_Nd) for view_Nd in data.views["new"]]
            views = {"old": data.views["old"], RHO: np.stack(of_views)}
        second = self.h.fit(replace(data, vectors=vectors, views=views), settings, distance, device, on_epoch)
        return Fitted(_PUT_TOGETHER(first.network, second.network.cpu()), first.flops + second.flops)

    def cost(
        self, dims: Mapping[str, int], n_items: int, n_classes: int, settings: FitSettings, distance: str, workers: int
    ) -> FitCost:
        rho, h = (
            fit.cost({**dims, RHO: dims["new"]}, n_items, n_classes, settings, distance, workers)
            for fit in (self.rho, self.h)
        )
        return FitCost(h.epochs, rho.steps + h.steps, rho.items + h.items, rho.flops + h.flops)


_RHO_NEW = mapped("rho", "new")
_BOTH_RHO = Side(_RHO_NEW, _RHO_NEW)

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
# Function of the loss -> what it is.
_LOSSES = {
    "rqt": {"RQT": "Reverse query transform: psi is trained to come close to the old embedding of the same item."},
    "cl_s": {"CL-S": "psi is trained with a contrastive loss within the old system only."},
    "cl_m": {"CL-M": "psi and rho are trained with a contrastive loss within each of the two systems separately."},
    "mcl": {
        "MCL": "Metric-compatible contrastive learning: positives of each system are contrasted with negatives of "
        "both, so that the distances of the two systems become comparable."
    },
}
_ALONE = {
    "rho alone": "rho trained with labels on new embeddings only, without the old model: how much of full RM's quality "
    "after the backfill is better training of the new model."
}
_RHO_ALONE = HeadFit(_of_paper("within_new"), learn_new=True)


def _trained(name: str, title: str, source: str, loss: str, has_rho: bool = False, is_best: bool = False) -> Method:
    """{psi(rho(new)), old} and {rho(new), rho(new)}; without rho, rho(new) is new. Source: section 4.

    is_best: the paper's own choice.
    """
    forward = _BOTH_RHO if has_rho else plain("new")
    return Method(
        name, title, source, side(mapped("psi", forward.query), "old"), forward, "Rank merge",
        HeadFit(_of_paper(loss), learn_new=has_rho, needs_labels=loss != "rqt"),
        is_recommended=is_best, glossary=_RM | _PSI | _LOSSES[loss] | (_RHO if has_rho else {}),
    )  # fmt: skip


_towards = partial(
    Method, backward=side(_RHO_NEW, mapped("h", "old")), forward=_BOTH_RHO, family=CONTROLS, glossary=_ALONE
)

METHODS = {
    "rank_merge": (
        Method(  # a query is embedded by both models
            "rm_naive", "RM naive", "rank merge, section 3.2", plain("old"), plain("new"), "Rank merge",
            is_recommended=True, glossary=_RM,
        ),
        _trained("rqt", "RM RQT", "eq. 9", "rqt"),
        _trained("cl_s", "RM CL-S", "eq. 10", "cl_s"),
        _trained("cl_m", "RM CL-M", "eq. 14", "cl_m"),
        _trained("mcl", "RM MCL", "eq. 11", "mcl"),
        _trained("rqt_rho", "RM RQT + rho", "eq. 9 with rho", "rqt", has_rho=True),
        _trained("cl_s_rho", "RM CL-S + rho", "eq. 10 with rho", "cl_s", has_rho=True),
        _trained("cl_m_rho", "RM CL-M + rho", "eq. 14 with rho", "cl_m", has_rho=True),
        _trained("rm", "full RM", "eq. 11-13: MCL with rho", "mcl", has_rho=True, is_best=True),
    ),
    "controls": (
        Method(  # the finished upgrade at all times, like the reference ``new``
            "rho_alone", "{rho, rho}, rho alone", "second term of rank merge, eq. 14", _BOTH_RHO, _BOTH_RHO, CONTROLS,
            _RHO_ALONE, Reference(), glossary=_ALONE,
        ),
        _towards(
            "fct_rho", "FCT towards rho alone", "FCT, eq. 3: ||rho(new) - h(old)||^2",
            fit=TowardsRhoFit(_RHO_ALONE, TransformFit(target=RHO)),
        ),
        _towards(
            "fastfill_rho", "FastFill towards rho alone", "FastFill, eq. 5, with rho(new) in place of new",
            fit=TowardsRhoFit(_RHO_ALONE, TransformFit(target=RHO, disc=True, uncertainty=True)),
        ),
    ),
}  # fmt: skip
