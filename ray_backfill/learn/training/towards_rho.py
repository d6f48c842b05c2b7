"""Declares the fit of transformations towards rho(new): first rho, then h from old embeddings to rho's results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.engine.systems import FloatArray
from ray_backfill.learn.training.fit import Choice, Device, Fit, FitCost, Fitted, OnEpoch, TrainSet
from ray_backfill.learn.training.heads import HeadFit
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.learn.training.transforms import TransformFit

# The name of rho(new) among the vectors that h is trained on. It is not "new", whose classifier does not fit it.
RHO = "rho"


@dataclass(frozen=True)
class TowardsRhoFit(Fit):
    """Trains rho with the heads' settings, then h, whose target is ``RHO``. Epochs and batches are those of h."""

    rho: HeadFit
    h: TransformFit

    option = "transforms"
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

    def share(self, data: TrainSet, settings: FitSettings, workers: int) -> int:
        return self.h.share(data, settings, workers)

    def check(self, data: TrainSet, settings: FitSettings, workers: int) -> None:
        self.rho.check(data, settings, workers)
        self.h.check(data, settings, workers)

    def distance_problem(self, settings: FitSettings, distance: str) -> str:
        return self.rho.distance_problem(settings, distance)

    def fit(
        self, data: TrainSet, settings: FitSettings, distance: str, device: Device = None, on_epoch: OnEpoch = None
    ) -> Fitted:
        from ray_backfill.learn.models.apply import transform
        from ray_backfill.learn.models.heads import Heads
        from ray_backfill.learn.models.towards_rho import RhoAndH

        first = self.rho.fit(data, settings, distance, device)
        heads = first.network.cpu()
        assert isinstance(heads, Heads)
        vectors = {"old": data.vectors["old"], RHO: transform(heads.rho, data.vectors["new"])}
        views: dict[str, NDArray[np.floating]] = {}
        if data.views:
            of_views = [transform(heads.rho, view_Nd) for view_Nd in data.views["new"]]
            views = {"old": data.views["old"], RHO: np.stack(of_views)}
        second = self.h.fit(replace(data, vectors=vectors, views=views), settings, distance, device, on_epoch)
        return Fitted(RhoAndH.of(heads, second.network.cpu()).eval(), first.flops + second.flops)

    def cost(
        self, dims: Mapping[str, int], n_items: int, n_classes: int, settings: FitSettings, distance: str, workers: int
    ) -> FitCost:
        rho, h = (
            fit.cost({**dims, RHO: dims["new"]}, n_items, n_classes, settings, distance, workers)
            for fit in (self.rho, self.h)
        )
        return FitCost(h.epochs, rho.steps + h.steps, rho.items + h.items, rho.flops + h.flops)

    def log_variances(self, gallery: Mapping[str, FloatArray], network: Any) -> NDArray[np.float64]:
        return self.h.log_variances(gallery, network.h)
