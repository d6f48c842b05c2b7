"""Declares the fit of joint maps between both spaces. The training loop is in ``joint_loop``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ray_backfill.learn.training.fit import Choice, Device, Fit, Fitted, OnEpoch, TrainSet, share_of_batch
from ray_backfill.learn.training.settings import FitSettings

if TYPE_CHECKING:
    from ray_backfill.learn.training.joint_loop import JointLoss


@dataclass(frozen=True)
class JointFit(Fit):
    """Trains B (new to old) and F (old to B's space) with a loss, with or without labels. strict: B is a rotation."""

    loss: JointLoss
    strict: bool = False

    option = "transforms"
    costs_of_weights = True
    models = ("old", "new")

    @property
    def space(self) -> tuple[Choice, ...]:
        both = (
            Choice("transforms.orthogonal.lr_share", (0.5, 1.0, 2.0, 5.0)),
            Choice("transforms.orthogonal.tau", (0.03, 0.1, 0.3, 1.0)),
            Choice("transforms.orthogonal.contrastive", (0.3, 1.0, 3.0)),
        )
        return both if self.strict else (*both, Choice("transforms.orthogonal.threshold", (0.1, 0.375, 1.0)))

    def recorded(self, settings: FitSettings, distance: str) -> dict[str, Any]:
        this = {"kind": "joint", "loss": self.loss.__name__, "strict": self.strict}
        return {"fit": this, "training": asdict(settings.transforms), "unit": distance == "cosine"}

    def share(self, data: TrainSet, settings: FitSettings, workers: int) -> int:
        return share_of_batch(len(data), settings.transforms, workers)

    def fit(
        self, data: TrainSet, settings: FitSettings, distance: str, device: Device = None, on_epoch: OnEpoch = None
    ) -> Fitted:
        from ray_backfill.learn.training.joint_loop import train_joint

        return train_joint(self, data, settings.transforms, distance == "cosine", device, on_epoch)
