"""An accelerator that is pretended on the CPU: code that mixes devices fails here as it would on a GPU.

Tensors on it hold real data and say that they are on torch's device ``meta``, which needs no build of torch of its own.
They are made by factories and copies with that device. An operation that takes such a tensor and one of the CPU, other
than a number or a copy, raises; so does ``.numpy()``.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

NAME = "meta"
_HERE, _THERE = torch.device("cpu"), torch.device(NAME)
# Copies between devices. Everything else stays on one.
_COPIES = {torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default}


class MixedDevicesError(RuntimeError):
    """An operation took tensors of both devices."""


class OnDevice(Tensor):
    """A tensor of the pretended device. held: its data."""

    held: Tensor

    @staticmethod
    def __new__(cls, real: Tensor) -> "OnDevice":
        made: Any = Tensor._make_wrapper_subclass(
            cls, real.size(), strides=real.stride(), storage_offset=real.storage_offset(), dtype=real.dtype,
            device=_THERE,
        )  # fmt: skip
        made.held = real
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _run(func, args, kwargs or {})

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("a tensor of the pretended device has no numpy(); copy it to the CPU first")


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The operation on real data. Its result is on the device that it names, or else on that of its tensors."""
    tensors = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, Tensor)]
    there = [each for each in tensors if isinstance(each, OnDevice)]
    if func not in _COPIES and there and any(not isinstance(each, OnDevice) and each.dim() for each in tensors):
        raise MixedDevicesError(f"{func} takes tensors of the CPU and of the pretended device")
    wanted = kwargs.get("device")
    if func is torch.ops.aten.copy_.default:  # the result is where it is written
        on_device = isinstance(args[0], OnDevice)
    else:
        on_device = bool(there) if wanted is None else torch.device(wanted) == _THERE
    if wanted is not None:
        kwargs = kwargs | {"device": _HERE}
    found = func(*tree_map(_real, args), **tree_map(_real, kwargs))
    if func is torch.ops.aten.copy_.default:
        return args[0]
    if func is torch.ops.aten._to_copy.default:  # on the CPU nothing is copied to where it is
        found = found.clone()
    return tree_map(lambda each: OnDevice(each) if isinstance(each, Tensor) else each, found) if on_device else found


def _real(value: Any) -> Any:
    return value.held if isinstance(value, OnDevice) else value


class _Factories(TorchDispatchMode):
    """Makes and copies tensors to the pretended device in one thread."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _enter() -> None:
    """In a thread that ends with its pool."""
    _Factories().__enter__()  # type: ignore[no-untyped-call]


@contextmanager
def pretended() -> Iterator[str]:
    """Within it, the device exists, also in the threads of pools that are made within it. Yields: its name."""
    begin = ThreadPoolExecutor.__init__

    def begin_with_device(pool: ThreadPoolExecutor, *args: Any, **kwargs: Any) -> None:
        begin(pool, *args, **{"initializer": _enter} | kwargs)

    with ExitStack() as stack:
        stack.enter_context(patch.object(ThreadPoolExecutor, "__init__", begin_with_device))
        stack.enter_context(patch("ray_backfill.engine.replay.engine.check_device", lambda device: None))
        stack.enter_context(_Factories())  # type: ignore[no-untyped-call]
        yield NAME
