"""FastFill: FCT's transformation with an additional classification loss and an estimate of its uncertainty.

Source: Jaeckle et al., "FastFill: Efficient Compatible Model Update", 2023. The losses are in
``training.transform_loop``, with those of all transformations. The plain l2 loss without uncertainty is FCT's
(table 5), that is the method ``fct``.

Shapes: N items, d dimensions of the new model.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ray_backfill.data.folder import Classifier
from ray_backfill.engine.systems import FloatArray
from ray_backfill.learn.models.apply import transform
from ray_backfill.learn.training.settings import TransformSettings
from ray_backfill.learn.training.stand_in import spread
from ray_backfill.learn.training.transform_loop import disc_losses
from ray_backfill.learn.training.transforms import class_rows


def item_losses(
    network: Any,
    classifier: Classifier,
    old_Nd: FloatArray,
    new_Nd: FloatArray,
    label_N: NDArray[Any],
    settings: TransformSettings,
) -> NDArray[np.float64]:
    """(N,) l2 + disc of each item, which the uncertainty should predict. Source: FastFill, eq. 3 and appendix E.

    NaN for items of classes that the classifier does not know, because their loss is unknown. ``relative`` losses are
    shares of the spread of these items, as they are of that of the train split in training.
    """
    scale = spread(new_Nd) if settings.relative else 1.0
    h_Nd = torch.from_numpy(transform(network, old_Nd))
    weight, bias = (torch.from_numpy(v.copy()) for v in (classifier.weight, classifier.bias))
    with torch.inference_mode():
        l2_N = (h_Nd - torch.from_numpy(np.array(new_Nd, np.float32))).square().mean(1) / scale**2
        rows_N = torch.from_numpy(class_rows(classifier, label_N))
        disc_N = disc_losses(h_Nd, rows_N, weight, bias, settings).masked_fill(rows_N < 0, torch.nan)
        return (l2_N + settings.disc_weight * disc_N).double().numpy()
