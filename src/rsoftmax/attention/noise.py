"""Dropout: which weights are dropped follows from a seed, the number of the row and the key, and from nothing else.

The same draws as those of kernels/cpu/noise.h, which says why: forward and backward, blocks of any size and any number
of threads drop the same weights without remembering them.
"""

import math

import torch
from torch import Tensor

STEPS = 1 << 16  # dropout draws 16 bits for each weight: its probability is a multiple of 1 / 65536
WORD = 0xFFFFFFFF  # numbers of 32 bits, held in 64


def noise(seed: int, dropped: int, full: tuple[int, ...], like: Tensor, part: tuple[slice, ...] = ()) -> Tensor:
    """What dropout multiplies the weights with: 0, or the factor that keeps their mean.

    Args:
        seed: where the draws begin, of 63 bits.
        dropped: how many of 65536 weights.
        full: the shape of all weights; the last dimension counts keys, the others rows.
        like: whose dtype and device the result has.
        part: which weights are wanted; all if left out.

    Returns:
        The factors of that part.

    Example:
        >>> noise(1, STEPS // 2, (2, 8), torch.empty(0))
        tensor([[0., 2., 2., 2., 2., 0., 2., 0.],
                [0., 0., 0., 0., 0., 0., 0., 2.]])
    """
    rows = torch.arange(math.prod(full[:-1]), device=like.device).reshape(full[:-1])[part[:-1]]
    keys = torch.arange(full[-1], device=like.device)[part[-1:]]
    row_keys = _mixed((_mixed((rows ^ seed) & WORD) + (seed >> 32)) & WORD)
    draws = _mixed((keys * 0x9E3779B9 + row_keys[..., None]) & WORD) >> 16
    return (draws >= dropped).to(like.dtype).mul_(STEPS / (STEPS - dropped) if dropped < STEPS else 0)


def _mixed(x: Tensor) -> Tensor:
    """A hash of 32 bits, in which every bit changes about half of the others."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & WORD
    x = ((x ^ (x >> 15)) * 0x846CA68B) & WORD
    return x ^ (x >> 16)
