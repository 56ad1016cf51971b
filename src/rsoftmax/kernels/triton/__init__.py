"""Rows on GPUs, forward and backward, in Triton: float32, float16 and bfloat16, computed in float32.

Compiled for sm_80, sm_90, sm_100 and gfx942, run in Triton's interpreter against the reference, not yet run on
hardware: speed, the rounding of a device, and races between threads are unproven.

This file is all that the rest of the package sees, and imports triton only when rows come. It knows no autograd.
"""

from functools import cache
from importlib import import_module

import torch
from torch import Tensor

NAMES = ("softmax", "t_softmax", "r_softmax", "sparsemax", "entmax15")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LONGEST = 2**24  # entries of a row: they are counted in float32
OLDEST = (3, 4)  # triton that compiles these kernels, the one of torch 2.8

Value = float | Tensor


def takes(x: Tensor) -> bool:
    """Whether rows can go to these kernels: on a CUDA or ROCm device, of a type they know, and triton is installed."""
    return x.is_cuda and x.dtype in DTYPES and x.shape[-1] <= LONGEST and _usable()


def forward(
    name: str, x: Tensor, value: Value | None = None, mask: Tensor | None = None, save: bool = True
) -> tuple[Tensor, Tensor]:
    """Map the rows of ``x``.

    Args:
        name: the mapping.
        x: rows [..., n], of any strides.
        value: the parameter: a number, a tensor [..., 1] of any strides, or nothing.
        mask: True = keep, expanded to the shape of ``x``, of any strides, or nothing.
        save: whether backward will follow.

    Returns:
        The probabilities, contiguous, and what backward needs to know of the rows, for nobody else to read.
    """
    from rsoftmax.kernels.triton import launch

    return launch.forward(name, x, value, mask, save)


def backward(
    name: str,
    g: Tensor,
    x: Tensor,
    value: Value | None,
    mask: Tensor | None,
    p: Tensor,
    state: Tensor,
    detach_threshold: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The gradients in ``x``, and in ``value`` if that is a tensor, for the incoming gradient ``g``.

    Args:
        name: the mapping.
        g: the incoming gradient [..., n], of any strides.
        x: the rows that forward took.
        value: the parameter that forward took.
        mask: the mask that forward took.
        p: the probabilities that forward gave.
        state: the state that forward gave.
        detach_threshold: as in :func:`rsoftmax.r_softmax`.

    Returns:
        The gradient in ``x``, contiguous, and the one in ``value`` [..., 1], or nothing.
    """
    from rsoftmax.kernels.triton import launch

    return launch.backward(name, g, x, value, mask, p, state, detach_threshold)


@cache
def _usable() -> bool:
    try:
        version: str = import_module("triton").__version__
    except ImportError:
        return False
    return tuple(map(int, version.split(".")[:2])) >= OLDEST
