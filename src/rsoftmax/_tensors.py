"""Queries about tensors: whether their values can be read, whether they can be saved, what their dtype can represent;
and rows in which ``-inf`` means "masked".

The only module that uses private names of torch. If a release of torch lacks one of them, no tensor counts as plain:
everything runs on the reference, and nothing fails.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
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

is_exporting = getattr(torch.compiler, "is_exporting", is_compiling)  # without it, compiling counts as exporting

Value = float | Tensor  # of a mapping's parameter

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_PLAIN = (Tensor, torch.nn.Parameter)


def is_plain(*tensors: Tensor) -> bool:
    """Whether these are plain eager tensors, on any device: not traced, not transformed, not of a subclass."""
    if is_compiling() or not _complete or _is_tracing() or _are_functorch_transforms_active() or in_forward_mode():
        return False
    for x in tensors:  # noqa: SIM110 - a generator costs as much as all these questions
        if type(x) not in _PLAIN or is_legacy_batchedtensor(x):  # autograd's batched gradients
            return False
    return True


def in_graph() -> bool:
    """Whether the code is being compiled into a graph that runs unchanged: not exported, not transformed."""
    return is_compiling() and not is_exporting() and _untransformed()


def _untransformed() -> bool:
    return _complete and not _are_functorch_transforms_active() and not in_forward_mode()


# The attribute that torch.compiler.assume_constant_result sets; calling it would import the whole compiler.
# torch.compile evaluates the function once for each graph, and recompiles when transforms begin or end.
_untransformed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def in_forward_mode() -> bool:
    """Whether forward-mode differentiation is active."""
    return forward_ad._current_level >= 0


def is_recorded(*tensors: Tensor | None) -> bool:
    """Whether autograd records operations on these tensors."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def below_autograd() -> Any:
    """A context in which autograd does not record the operators that are called."""
    return _AutoDispatchBelowAutograd()


def is_eager_cpu(*tensors: Tensor) -> bool:
    """Whether tensors' memory holds their values and reading them is free: plain, on the CPU, not intercepted."""
    if not is_plain(*tensors) or _len_torch_dispatch_stack():
        return False
    for x in tensors:  # noqa: SIM110
        if not x.is_cpu or x.is_neg() or x._is_zerotensor():  # negative: such as the imaginary part of a conjugate
            return False
    return True


def all_or_none(condition: Tensor) -> bool | None:
    """Whether a condition holds everywhere; None if its values cannot be read for free.

    Reading a value on another device would synchronise with it, and a traced or batched tensor has no values.
    """
    return bool(condition.all()) if is_eager_cpu(condition) else None


def clone_if_inference(tensor: Tensor | None) -> Tensor | None:
    """The tensor, or its copy if it was created in inference mode: autograd cannot save such tensors for backward."""
    return tensor.clone() if tensor is not None and tensor.is_inference() else tensor


def memory_state(tensor: Tensor) -> tuple[int, int]:
    """Two numbers that change whenever an operation of torch writes to the memory of a tensor or replaces it."""
    return tensor._version, tensor.data_ptr()


def gather(tensor: Tensor) -> Tensor:
    """The whole of a tensor that ``fully_shard`` has divided among processes; all of them must call it."""
    whole: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole


def copy_into(tensor: Tensor, values: Tensor) -> None:
    """Copy values, the same on every process, into a tensor that ``fully_shard`` may have divided among them."""
    if hasattr(tensor, "full_tensor"):
        from torch.distributed.tensor import distribute_tensor

        values = values.expand(tensor.shape)
        values = distribute_tensor(values, tensor.device_mesh, tensor.placements, src_data_rank=None)  # type: ignore[attr-defined]
    tensor.copy_(values)


def without_autocast(like: Tensor) -> AbstractContextManager[None]:
    """A context without autocast on the device of a tensor; the meta device has no autocast."""
    device = like.device.type
    is_on = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if is_on else nullcontext()


def exact(like: Tensor) -> torch.dtype:
    """float64, the dtype for ranks and running sums; float32 on devices without it."""
    return torch.float32 if like.device.type == "mps" else torch.float64


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in: float32 for half precision."""
    return torch.promote_types(dtype, torch.float32)


def smallest(x: Tensor) -> float:
    """The smallest positive number of a tensor's dtype."""
    return torch.finfo(x.dtype).tiny * torch.finfo(x.dtype).eps


def exp_limit(x: Tensor) -> int:
    """The largest integer whose exponential is finite: 88 in float32, 709 in float64."""
    return math.floor(math.log(torch.finfo(x.dtype).max))


def shape_of(x: Tensor) -> tuple[int, ...]:
    """The shape as shown in error messages."""
    return tuple(x.shape)


def mask_to_neg_inf(x: Tensor, mask: Tensor | None) -> Tensor:
    """Rows as the reference expects them: at least float32, with ``-inf`` in place of masked entries."""
    x = x if mask is None else x.masked_fill(~mask, -math.inf)
    return x.to(at_least_float32(x.dtype))


def apply_unmasked(x: Tensor, g: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply ``g`` to the unmasked entries: masked ones are 0 while ``g`` runs, and ``-inf`` again in the result."""
    unmasked = x != -math.inf
    return torch.where(unmasked, g(torch.where(unmasked, x, 0)), -math.inf)


def row_max(x: Tensor) -> Tensor:
    """The maximum, such that ``x - max`` is ``-inf`` in a fully masked row, and NaN in a row with +inf."""
    m = x.amax(-1, keepdim=True)
    return m.masked_fill(m == -math.inf, 0).masked_fill(m == math.inf, math.nan)
