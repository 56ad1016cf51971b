"""Rows on the CPU; implements :class:`rsoftmax.kernels.Kernel`."""

import math
import warnings
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, get_num_threads

from rsoftmax._tensors import Value, is_eager_cpu
from rsoftmax.kernels import cpu
from rsoftmax.kernels.cpu import ABSENT, DTYPES, LEVEL, OPERATIONS, STATE

__all__ = ["ABSENT", "available", "backward", "extremes", "forward", "new_state", "supports", "supports_call"]


def available() -> bool:
    """Whether the kernels were compiled."""
    return bool(LEVEL)


def supports(name: str, dtype: torch.dtype) -> bool:
    """Whether the operation is implemented for the dtype."""
    return name in OPERATIONS and dtype in DTYPES


_warn_once = cache(partial(warnings.warn, ABSENT, stacklevel=6))  # shows the line that called the mapping


def supports_call(name: str, x: Tensor, value: Value | None) -> bool:
    """Whether the kernels can map these rows; warns once if there are none."""
    if not (is_eager_cpu(x, value) if isinstance(value, Tensor) else is_eager_cpu(x)):
        return False
    if not LEVEL:
        _warn_once()
    return supports(name, x.dtype)


def extremes(values: Tensor) -> tuple[float, float]:
    """The least and the greatest value of a tensor in memory that is not empty; both NaN if one is."""
    if not LEVEL:
        low, high = values.detach().aminmax()
        return low.item(), high.item()
    values = _as_floats(values)
    bounds: tuple[float, float] = cpu.library.extremes(values.data_ptr(), DTYPES[values.dtype], values.numel())
    return bounds


def new_state(name: str, x: Tensor, keep_state: bool) -> Tensor:
    """Uninitialised memory for the state; of size 0 if there is none."""
    rows = x.numel() // x.shape[-1] if keep_state and STATE[name] else 0
    return x.new_empty((rows, STATE[name]), dtype=torch.float64)


def forward(
    name: str, x: Tensor, value: Value | None, mask: Tensor | None, options: dict[str, Any], keep_state: bool
) -> tuple[Tensor, Tensor | None]:
    """The probabilities, contiguous, and the state, float64 [rows, numbers], if it is requested."""
    p = torch.empty_like(x) if x.is_contiguous() else torch.empty_like(x, memory_format=torch.contiguous_format)
    state = None
    if keep_state and STATE[name]:
        state = torch.empty(x.numel() // x.size(-1), STATE[name], dtype=torch.float64, device=x.device)
    _run(name, x, value, mask, p, state, **options)
    return p, state


def backward(
    name: str,
    x: Tensor,
    value: Value | None,
    mask: Tensor | None,
    p: Tensor,
    state: Tensor | None,
    g: Tensor,
    options: dict[str, Any],
) -> tuple[Tensor, Tensor | None]:
    """The gradient in ``x``, contiguous, and in a tensor parameter, float64 [..., 1]."""
    p, g = p.contiguous(), g.contiguous()  # hooks may have stored them in another layout
    state = None if state is None else state.contiguous()
    dx, dvalues = torch.empty_like(p), None
    if isinstance(value, Tensor):
        dvalues = torch.empty(*x.shape[:-1], 1, dtype=torch.float64, device=x.device)
    _run(name, x, value, mask, p, state, g, dx, dvalues, **options)
    return dx, dvalues


def _run(
    name: str,
    x: Tensor,
    value: Value | None,
    mask: Tensor | None,
    p: Tensor,
    state: Tensor | None = None,
    g: Tensor | None = None,
    dx: Tensor | None = None,
    dvalues: Tensor | None = None,
    edge: float = math.inf,
    detach_threshold: bool = False,
) -> None:
    """Map the rows of ``x`` into ``p``, which may be ``x`` itself; with ``g``, fill ``dx`` and ``dvalues`` instead.

    Rows are copied only if the entries of a row are not adjacent in memory. The fields are those of csrc/rows/call.h.
    """
    n = x.size(-1)
    rows, stride = x, n
    if not x.is_contiguous():
        rows = x.reshape(-1, n)
        rows = rows if rows.stride(1) == 1 else rows.contiguous()
        stride = rows.stride(0)
    values = _as_floats(value) if isinstance(value, Tensor) else None
    offsets = None if mask is None or mask.is_contiguous() else _offsets(mask)
    cpu.library.run(
        op=OPERATIONS[name],
        dtype=DTYPES[x.dtype],
        rows=x.numel() // n,
        n=n,
        x=rows.data_ptr(),
        x_stride=stride,
        mask=0 if mask is None else mask.data_ptr(),
        mask_step=0 if mask is None else mask.stride(-1),
        mask_stride=n,
        mask_rows=0 if offsets is None else offsets.data_ptr(),
        number=value if isinstance(value, float) else 0.0,
        values=0 if values is None else values.data_ptr(),
        values_dtype=0 if values is None else DTYPES[values.dtype],
        p=p.data_ptr(),
        states=0 if state is None else state.data_ptr(),
        g=0 if g is None else g.data_ptr(),
        dx=0 if dx is None else dx.data_ptr(),
        dvalues=0 if dvalues is None else dvalues.data_ptr(),
        edge=edge,
        detach=detach_threshold,
        threads=get_num_threads(),
    )


def _as_floats(values: Tensor) -> Tensor:
    """Values as the library reads them: float32 or float64, contiguous."""
    return (values.float() if values.dtype.itemsize < 4 else values).contiguous()


def _offsets(mask: Tensor) -> Tensor:
    """Where each row of an expanded mask begins: eight bytes a row instead of a copy of the mask."""
    offset = torch.zeros((), dtype=torch.int64, device=mask.device)
    for size, stride in zip(mask.shape[:-1], mask.stride()[:-1], strict=True):
        offset = offset.unsqueeze(-1) + torch.arange(size, device=mask.device) * stride
    return offset.reshape(-1)
