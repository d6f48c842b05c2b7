"""Maps of the old gallery into the new space: FCT, BiCT and FastFill train h, which predicts new embeddings from old.

{a, b}: a query is represented by its embedding under a, a gallery item by its embedding under b. ``fct`` is {new,
h(old)} for items that are not backfilled and {new, new} for those that are; both answers are merged by distance. The
new model alone embeds queries, also before the first item is backfilled, and a query costs no more than after the
backfill; h is applied once to each old vector, and no longer needed once all items are backfilled.

h: two branches d -> 2d -> 2q, whose outputs are concatenated for a mixer 4q -> hidden -> hidden -> q. Without side
information both branches take the old embedding; with it, the second one takes the side embedding. Every layer but the
mixer's last one is followed by batch normalisation and ReLU (``papers.fct``). An item costs
4d^2 + 8dq + 4q hidden + hidden^2 + hidden q multiply-accumulates, d and q the dimensions of old and new, hidden:
--transforms.hidden. Both models are fixed; Adam minimises the mean of ||new - h(old)||^2 over the train items
(``papers.fastfill``).

Source: Ramanujan et al., "Forward Compatible Training for Large-Scale Embedding Retrieval Systems", 2022, and the
authors' code. BiCT: Su et al., "Privacy-Preserving Model Upgrades with Bidirectional Compatible Training", 2022; we
know it from the other papers' descriptions: h is trained as FCT's, on embeddings of a BCT backbone.
FastFill: Jaeckle et al., "FastFill: Efficient Compatible Model Update", 2023, section 4.2, and the authors' public code
(loss weights: 1 for the classification term, disc, and 0.5 for log sigma^2). Its l2 loss without uncertainty is FCT's
(table 5), so ``fct`` is trained by that code.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from ray_backfill.core.plugins import Deferred
from ray_backfill.engine.orders import ORDERS
from ray_backfill.learn.expressions import mapped, plain, side
from ray_backfill.learn.methods import Method
from ray_backfill.learn.training.fit import (
    Choice,
    Device,
    FitByItems,
    Fitted,
    OnEpoch,
    TrainSet,
    known_classifier,
    trained_flops,
)  # fmt: skip
from ray_backfill.learn.training.settings import FitSettings

_TRAIN = Deferred("ray_backfill.learn.papers.fastfill", "train_transform")


@dataclass(frozen=True)
class TransformFit(FitByItems):
    """Trains h from the embeddings of ``inputs`` to those of ``target`` with the loss ``transform_loss``."""

    inputs: tuple[str, ...] = ("old",)
    target: str = "new"
    l2: bool = True
    disc: bool = False
    uncertainty: bool = False

    @property
    def models(self) -> tuple[str, ...]:
        return (*self.inputs, self.target)

    @property
    def needs_labels(self) -> bool:
        return self.disc

    @property
    def has_sigma(self) -> bool:
        return self.uncertainty

    @property
    def space(self) -> tuple[Choice, ...]:
        weights = Choice("transforms.loss.disc_weight", (0.1, 0.3, 0.5, 1.0, 3.0))
        return (*super().space, weights) if self.l2 and self.disc else super().space

    def recorded(self, settings: FitSettings, distance: str) -> dict[str, Any]:
        return {"fit": {"kind": "transforms", **asdict(self)}, "training": asdict(settings.transforms)}

    def check(self, data: TrainSet, settings: FitSettings, workers: int) -> None:
        super().check(data, settings, workers)
        if self.disc and self.target in data.vectors:
            known_classifier(data, self.target)

    def classifier_problem(self, settings: FitSettings, classification: str) -> str:
        assumed = settings.transforms.loss.classification
        if not self.disc or assumed == classification:
            return ""
        return (
            f"FastFill assumes that the new model's classifier was trained by {assumed}, but it is trained by "
            f"{classification}; give --transforms.loss.classification {classification}"
        )

    def fit(
        self, data: TrainSet, settings: FitSettings, distance: str, device: Device = None, on_epoch: OnEpoch = None
    ) -> Fitted:
        return _TRAIN(self, data, settings.transforms, device, on_epoch)

    def step_flops(self, dims: Mapping[str, int], n: int, n_classes: int, settings: FitSettings, distance: str) -> int:
        """Layers: see ``papers.fct.Transform``."""
        hidden, out = settings.transforms.hidden, dims[self.target]
        inputs = [dims[name] for name in (self.inputs * 2)[:2]]
        layers = [*((2 * d, 2 * out) for d in inputs), (4 * out, hidden), (hidden, hidden), (hidden, out)]
        flops = trained_flops([*layers, *[(out, 1)] * self.uncertainty], [(d, 2 * d) for d in inputs])
        return n * (flops + 4 * out * n_classes * self.disc)  # the classifier is frozen


def _method(
    name: str, title: str, source: str, fit: TransformFit, family: str = "Maps old to new",
    glossary: Mapping[str, str] | None = None, is_recommended: bool = False,
) -> Method:  # fmt: skip
    """{target, h(inputs)} and {target, target}: the backward gallery is h of stored embeddings."""
    backward, forward = side(fit.target, mapped("h", *fit.inputs)), plain(fit.target)
    return Method(
        name, title, source, backward, forward, family, fit, is_recommended=is_recommended,
        glossary=_H | dict(glossary or {}),
    )  # fmt: skip


_H = {"h": "The network that maps an old embedding (and what else was stored) into the space of the new model."}
_FCT = {
    "FCT": "Forward-compatible training: h is trained to predict the new embedding of an item from its old one. The "
    "whole old gallery is mapped by h before the switch; queries are embedded by the new model only."
}
_SIDE = {"Side information": "A second embedding that was stored with each item and helps h to predict the new one."}
_BICT = {"BiCT": "Bidirectional compatible training: a backward-compatible new model, and h for the old gallery."}
_FASTFILL = {
    "FastFill": "FCT with a loss that also keeps the items of a class together, and with an estimate of how uncertain "
    "h is about an item (sigma), by which items can be ordered."
}
# The order of the same name explains it.
_SIGMA = next(order.glossary for order in ORDERS if order.name == "sigma")
_uncertain = partial(_method, glossary={**_FASTFILL, **_SIGMA})
_certain = partial(_method, glossary=_FASTFILL)

METHODS = {
    "fastfill": (
        _uncertain(
            "fastfill", "FastFill", "FastFill, eq. 5: l2 + disc, uncertain", TransformFit(disc=True, uncertainty=True),
        ),
        _certain("fastfill_l2_disc", "FastFill l2+disc", "FastFill, eq. 3", TransformFit(disc=True)),
        _certain("fastfill_disc", "FastFill disc", "FastFill, eq. 3 without l2", TransformFit(l2=False, disc=True)),
        _uncertain("fastfill_l2_u", "FastFill l2, uncertain", "FastFill, eq. 4", TransformFit(uncertainty=True)),
        _uncertain(
            "fastfill_disc_u", "FastFill disc, uncertain", "FastFill, eq. 5 without l2",
            TransformFit(l2=False, disc=True, uncertainty=True),
        ),
    ),
    "fct": (
        _method("fct", "FCT", "FCT, eq. 3: ||new - h(old)||^2", TransformFit(), glossary=_FCT, is_recommended=True),
        _method(
            "fct_side", "FCT + side info", "FCT, section 4.3: h(old, side)", TransformFit(("old", "side")),
            glossary=_FCT | _SIDE,
        ),
        _method(
            "bict", "BiCT", "BCT backbone, then FCT's loss for h(old) towards it", TransformFit(target="bct"),
            "A new backbone", _BICT,
        ),
    ),
}  # fmt: skip
