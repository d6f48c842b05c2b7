"""Floating-point operations of a network, counted by torch while it computes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import flop_counter

from ray_backfill.learn.models.backbones import Backbone


@contextmanager
def counted_flops(count: bool = True) -> Iterator[Callable[[], int]]:
    """Counts the floating-point operations of matrix products and convolutions in the block, including gradients.

    count: False counts nothing and costs nothing.
    Yields: a function that returns the count so far; a multiply-accumulate counts as two.
    """
    if not count:
        yield lambda: 0
        return
    aten: Any = torch.ops.aten
    # torch's own table lacks attention on CPUs.
    on_cpu = {
        aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_flops,
    }
    with flop_counter.FlopCounterMode(display=False, custom_mapping=on_cpu) as counter:
        yield lambda: int(counter.get_total_flops())


def embed_macs(network: Backbone, channels: int, image_size: int) -> int:
    """Multiply-accumulates of one image's embedding. The network is left in eval mode."""
    image = torch.zeros(1, channels, image_size, image_size, device=network.mean.device)
    with torch.no_grad(), counted_flops() as flops:
        network.eval().embed(image)
    return flops() // 2


def embed_parameters(network: Backbone) -> int:
    """Number of parameters used for embedding: all except the classifier's."""
    return sum(p.numel() for name, p in network.named_parameters() if not name.startswith("classifier."))


def _attention_flops(query: Any, key: Any, value: Any, *rest: Any, out_shape: Any = None, **more: Any) -> int:
    return int(flop_counter.sdpa_flop_count(query, key, value))


def _attention_backward_flops(gradient: Any, query: Any, key: Any, value: Any, *rest: Any, **more: Any) -> int:
    return int(flop_counter.sdpa_backward_flop_count(gradient, query, key, value))
