"""What a tensor is: whether its values may be looked at, whether it can be saved, what its type can express.

The one place that uses private names of torch. Where a release of torch lacks one of them, no tensor counts as
ordinary: everything runs on the reference, and nothing fails.
"""

import logging
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling

try:
    from torch._C import (
        _are_functorch_transforms_active,
        _AutoDispatchBelowAutograd,
        _is_tracing,
        _len_torch_dispatch_stack,
    )
    from torch._C._functorch import is_legacy_batchedtensor

    _complete = hasattr(forward_ad, "_current_level") and hasattr(Tensor, "_is_zerotensor")
except ImportError:
    _complete = False

_is_exporting = getattr(torch.compiler, "is_exporting", is_compiling)  # a release that cannot tell counts as exporting
try:
    from torch._subclasses.fake_tensor import FakeTensorMode
except ImportError:
    FakeTensorMode = None  # type: ignore[assignment, misc]

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_ORDINARY = (Tensor, torch.nn.Parameter)


def ordinary(x: Tensor) -> bool:
    """Whether a tensor, on whatever device, is what it seems: not traced, not transformed, not of another class."""
    return (
        not is_compiling()
        and _complete
        and type(x) in _ORDINARY
        and not _is_tracing()
        and not _are_functorch_transforms_active()
        and not is_legacy_batchedtensor(x)  # what autograd makes of a batch of gradients
        and not in_forward_mode()
    )


def in_graph() -> bool:
    """Whether the code is being compiled into a graph that will run as it is: not exported, not transformed."""
    return is_compiling() and not _is_exporting() and _untransformed()


def _untransformed() -> bool:
    return _complete and not _are_functorch_transforms_active() and not in_forward_mode()


# What torch.compiler.assume_constant_result sets, which would import the whole compiler: torch.compile asks once for
# each graph, and makes a graph anew when transforms begin or end.
_untransformed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def in_forward_mode() -> bool:
    """Whether forward-mode differentiation is under way."""
    return forward_ad._current_level >= 0


def recorded(*tensors: Tensor | None) -> bool:
    """Whether autograd records what is computed from these tensors."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def below_autograd() -> Any:
    """A context in which operators are called without being recorded by autograd."""
    return _AutoDispatchBelowAutograd()


def in_memory(x: Tensor) -> bool:
    """Whether a tensor's memory holds its values and reading them is free: ordinary, on the CPU, not intercepted."""
    return (
        ordinary(x)
        and x.is_cpu
        and not x.is_neg()  # a view that negates, such as the imaginary part of a conjugate
        and not x._is_zerotensor()
        and _len_torch_dispatch_stack() == 0
    )


def everywhere(condition: Tensor) -> bool | None:
    """Whether a condition holds everywhere, if looking is free; otherwise None.

    Reading a value on another device would wait for that device, and a traced or batched tensor has none to read.
    """
    return bool(condition.all()) if in_memory(condition) else None


def savable(tensor: Tensor | None) -> Tensor | None:
    """A tensor made in inference mode, a cached mask perhaps, cannot be saved for backward; its copy can."""
    return tensor.clone() if tensor is not None and tensor.is_inference() else tensor


@contextmanager
def without_values() -> Iterator[None]:
    """Within it, torch computes shapes and dtypes and no values, and does not log what it cannot do without them."""
    if FakeTensorMode is None:
        raise RuntimeError("this release of torch has no FakeTensorMode")
    log = logging.getLogger(FakeTensorMode.__module__)
    before, log.disabled = log.disabled, True
    try:
        with FakeTensorMode(allow_non_fake_inputs=True, allow_fallback_kernels=False):
            yield
    finally:
        log.disabled = before


def without_autocast(like: Tensor) -> AbstractContextManager[None]:
    """Within it, autocast changes no dtype; the meta device has no autocast."""
    device = like.device.type
    is_on = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if is_on else nullcontext()


def exact(like: Tensor) -> torch.dtype:
    """float64, the type in which ranks and running sums are computed; float32 where the device has nothing better."""
    return torch.float32 if like.device.type == "mps" else torch.float64


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """The type to compute in: half precision is computed in float32."""
    return torch.promote_types(dtype, torch.float32)


def smallest(x: Tensor) -> float:
    """The smallest positive number of a tensor's type."""
    return torch.finfo(x.dtype).tiny * torch.finfo(x.dtype).eps


def exp_limit(x: Tensor) -> int:
    """An argument whose exponential is finite with room to spare: 88 in float32, 709 in float64."""
    return math.floor(math.log(torch.finfo(x.dtype).max))


def shape_of(x: Tensor) -> tuple[int, ...]:
    """The shape as an error message shows it."""
    return tuple(x.shape)
