"""FastFill: FCT's transformation with an additional classification loss and an estimate of its uncertainty.

Source: Jaeckle et al., "FastFill: Efficient Compatible Model Update", 2023, section 4.2, and the authors' public code
(weights 1 of disc and 0.5 of log sigma^2). The losses are in ``training.transform_loop``, with those of all
transformations. The plain l2 loss without uncertainty is FCT's
(table 5), that is the method ``fct``.
"""

from functools import partial

from ray_backfill.engine.orders import ORDERS
from ray_backfill.learn.methods.fct import transform_method
from ray_backfill.learn.training.fits import TransformFit

# The order of the same name explains it.
_SIGMA = next(order.glossary for order in ORDERS if order.name == "sigma")


_FASTFILL = {
    "FastFill": "FCT with a loss that also keeps the items of a class together, and with an estimate of how uncertain "
    "h is about an item (sigma), by which items can be ordered."
}
_uncertain = partial(transform_method, glossary={**_FASTFILL, **_SIGMA})
_certain = partial(transform_method, glossary=_FASTFILL)

METHODS = (
    _uncertain(
        "fastfill", "FastFill", "FastFill, eq. 5: l2 + disc, uncertain", TransformFit(disc=True, uncertainty=True)
    ),
    _certain("fastfill_l2_disc", "FastFill l2+disc", "FastFill, eq. 3", TransformFit(disc=True)),
    _certain("fastfill_disc", "FastFill disc", "FastFill, eq. 3 without l2", TransformFit(l2=False, disc=True)),
    _uncertain("fastfill_l2_u", "FastFill l2, uncertain", "FastFill, eq. 4", TransformFit(uncertainty=True)),
    _uncertain(
        "fastfill_disc_u",
        "FastFill disc, uncertain",
        "FastFill, eq. 5 without l2",
        TransformFit(l2=False, disc=True, uncertainty=True),
    ),
)
