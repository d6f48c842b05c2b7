"""FCT: the transformation h, which maps stored embeddings to another model's space.

Source: Ramanujan et al., "Forward Compatible Training", 2022. Its loss and training are those of FastFill without a
classifier and an uncertainty (``fastfill``).

Shapes: B items, d dimensions of an input, d_out of the target model.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ray_backfill.learn.models.gather import GlobalBatchNorm
from ray_backfill.learn.models.operators import Op, apply_map


class Transform(nn.Module):
    """FCT's h: a branch for each of two inputs, and a mixer; optionally with FastFill's uncertainty on top.

    Source: forward compatible training, the authors' code: branches in -> 2 in -> 2 out, mixer 4 out -> hidden ->
    hidden -> out; Linear-BatchNorm-ReLU except for the last layer. Without side information both branches get the old
    embedding. FastFill, appendix A.2: one Linear layer on h gives log sigma^2.

    input_dims: embedding size of each input model. uncertainty: also estimate a log variance.
    """

    kind = "transform"

    def __init__(
        self, input_dims: Sequence[int], output_dim: int, hidden: int = 2048, uncertainty: bool = False
    ) -> None:
        super().__init__()
        self.shape: dict[str, Any] = {
            "input_dims": list(input_dims), "output_dim": output_dim, "hidden": hidden, "uncertainty": uncertainty
        }  # fmt: skip
        self.hidden, out = hidden, output_dim
        self.branches = nn.ModuleList(
            [nn.Sequential(*_block(d, 2 * d), *_block(2 * d, 2 * out)) for d in (*input_dims, *input_dims)[:2]]
        )
        self.mixer = nn.Sequential(*_block(4 * out, hidden), *_block(hidden, hidden), nn.Linear(hidden, out))
        self.uncertainty = nn.Linear(out, 1) if uncertainty else None

    def forward(self, *inputs_Bd: Tensor) -> Tensor:
        """One (B, d) tensor for each input -> (B, d_out)."""
        two = (inputs_Bd * 2)[:2]
        return self.mixer(torch.cat([branch(x_Bd) for branch, x_Bd in zip(self.branches, two, strict=True)], dim=1))

    def onnx(self, op: Op, *inputs: str) -> str:
        two = (inputs * 2)[:2]
        of_branches = (apply_map(op, branch, x) for branch, x in zip(self.branches, two, strict=True))
        return apply_map(op, self.mixer, op("Concat", *of_branches, axis=1))

    @property
    def macs(self) -> int:
        """Multiply-accumulates of ``forward`` for an item; the log variance is no part of it."""
        layers = (layer for part in (self.branches, self.mixer) for layer in part.modules())
        return sum(layer.weight.numel() for layer in layers if isinstance(layer, nn.Linear))

    def log_variance(self, h_Bd: Tensor) -> Tensor:
        """(B, d_out) results of ``forward`` -> (B,) log sigma^2."""
        assert self.uncertainty is not None
        return self.uncertainty(h_Bd).squeeze(1)

    def rescale(self, inputs: Sequence[float], output: float) -> None:
        """Turn the map of x / s, for each input with its s, to y / ``output`` into that of x to y."""
        with torch.no_grad():
            for branch, scale in zip(self.branches, (tuple(inputs) * 2)[:2], strict=True):
                next(branch.parameters()).div_(scale)  # the weight of its first layer
            for weight_or_bias in self.mixer[-1].parameters():
                weight_or_bias.mul_(output)
            if self.uncertainty is not None:
                self.uncertainty.weight.div_(output)


def _block(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Linear(inputs, outputs), GlobalBatchNorm(outputs), nn.ReLU()]
