"""FastFill: FCT's transformation trained to be classified right, too, and to know how uncertain it is.

Source: Jaeckle et al., "FastFill: Efficient Compatible Model Update", 2023. Its losses stand with the training of all
transformations (``training.transforms``). The plain l2 loss without uncertainty is FCT's (table 5), so the method
``fct`` stands for it.

Shapes: N items, d dimensions of the new model.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ray_backfill.models.apply import transform
from ray_backfill.store import Classifier
from ray_backfill.systems import FloatArray
from ray_backfill.training.settings import TransformSettings
from ray_backfill.training.transform_loop import disc_losses
from ray_backfill.training.transforms import class_rows


def item_losses(
    network: Any,
    classifier: Classifier,
    old_Nd: FloatArray,
    new_Nd: FloatArray,
    label_N: NDArray[Any],
    settings: TransformSettings,
) -> NDArray[np.float64]:
    """(N,) l2 + lambda disc of each item: what the uncertainty should foretell. Source: FastFill, appendix E.

    NaN for items of classes that the classifier does not know: their loss is not known either.
    """
    h_Nd = torch.from_numpy(transform(network, old_Nd))
    weight, bias = (torch.from_numpy(v.copy()) for v in (classifier.weight, classifier.bias))
    with torch.inference_mode():
        l2_N = (h_Nd - torch.from_numpy(np.array(new_Nd, np.float32))).square().mean(1)
        rows_N = torch.from_numpy(class_rows(classifier, label_N))
        disc_N = disc_losses(h_Nd, rows_N, weight, bias, settings).masked_fill(rows_N < 0, torch.nan)
        return (l2_N + settings.disc_weight * disc_N).double().numpy()
