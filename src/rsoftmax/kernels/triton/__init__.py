"""Rows on GPUs, forward and backward, in Triton: float32, float16 and bfloat16, computed in float32.

Compiled for sm_80, sm_90, sm_100 and gfx942, run in Triton's interpreter against the reference, not yet run on
hardware: speed, rounding on a device, and races between threads are untested.

This module is the interface of the package; it imports triton only when it is needed, and has no autograd.
"""

import math
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from rsoftmax._tensors import Value, is_plain

NAMES = ("softmax", "t_softmax", "r_softmax", "k_softmax", "sparsemax", "entmax15")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LONGEST = 2**24  # entries of a row: they are counted in float32
OLDEST = (3, 4)  # triton that compiles these kernels, the one of torch 2.8

PARAMETRIC = ("t_softmax", "r_softmax", "k_softmax")
STATE = 10  # numbers that forward leaves for backward, for each row, if the mapping has a parameter
ABSENT = "the Triton kernels need a GPU build of torch with triton 3.4 or newer; run: pip install triton"


def available() -> bool:
    """Whether triton is installed, in a release that compiles these kernels."""
    try:
        version: str = import_module("triton").__version__
    except ImportError:
        return False
    return tuple(map(int, version.split(".")[:2])) >= OLDEST


def supports(name: str, dtype: torch.dtype) -> bool:
    """Whether there is such an operation for the type, and triton is installed."""
    return name in NAMES and dtype in DTYPES and _available()


def supports_call(name: str, x: Tensor, value: Value | None) -> bool:
    """Whether these kernels can map the rows: on a CUDA or ROCm device, and triton is installed."""
    return x.is_cuda and supports(name, x.dtype) and _readable(x, value)


def new_state(name: str, x: Tensor, keep_state: bool) -> Tensor:
    """Room for what forward leaves for backward; of size 0 if nothing is needed."""
    numbers = STATE if keep_state and name in PARAMETRIC else 0
    return x.new_empty((numbers, x.numel() // x.shape[-1]), dtype=torch.float32)


def forward(
    name: str, x: Tensor, value: Value | None, mask: Tensor | None, options: dict[str, Any], keep_state: bool
) -> tuple[Tensor, Tensor | None]:
    """Map the rows of ``x``, of any strides; see :class:`rsoftmax.kernels.Kernel`."""
    from rsoftmax.kernels.triton import launch

    state = new_state(name, x, keep_state)
    edge = options.get("edge", math.inf)
    return launch.forward(name, x, value, mask, state, edge), state


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
    """The gradients in ``x``, and in ``value`` if that is a tensor; see :class:`rsoftmax.kernels.Kernel`."""
    from rsoftmax.kernels.triton import launch

    state = new_state(name, x, False) if state is None else state
    return launch.backward(name, g, x, value, mask, p, state, **options)


def _readable(x: Tensor, value: Value | None) -> bool:
    return x.shape[-1] <= LONGEST and all(is_plain(a) and not a.is_neg() for a in (x, value) if isinstance(a, Tensor))


_available = cache(available)
