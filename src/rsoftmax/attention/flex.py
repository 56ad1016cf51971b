"""t-softmax attention by FlexAttention, torch's own fused kernel for scores that are modified: two passes, no matrix.

FlexAttention computes softmax(f(s)) v for any function f of a score. With m the maximum of the row, t-softmax is

    [s - m + t]+ e^s / sum = softmax(s + log [1 + (s - m) / t]+)

so the first pass finds m and the second the output. FlexAttention gives the maximum of a row on GPUs only, but the
logarithm of a row's sum everywhere, and log sum exp(b s) / b is the maximum for a large b.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from rsoftmax.attention.equations import Call
from rsoftmax.attention.inputs import Inputs

SHARPNESS = 2.0**30  # b: log(keys) / b is below what float32 can tell from the maximum
NARROWEST = 16  # features of a head that FlexAttention's kernel for GPUs wants

Indices = tuple[Tensor, Tensor, Tensor, Tensor]  # of batch, head, query and key


def takes(call: Call, x: Inputs) -> bool:
    """Whether FlexAttention is the way for such a call: on GPUs only, and without dropout."""
    wide_enough = min(x.q.shape[-1], x.v.shape[-1]) >= NARROWEST
    suits = call.mapping.name == "t_softmax" and not call.dropped and x.q.dtype != torch.float64 and wide_enough
    return x.q.is_cuda and suits and x.k.shape[-2] > 0 and _torch_has_it()


def forward(call: Call, x: Inputs) -> Tensor:
    """The output, at least float32."""
    x = x.wide()
    q, k, v = (tensor.flatten(1, 2) for tensor in x[:3])
    score = _score(call, x)
    attend, logarithm_too = _attention(q.device.type)
    options = {"scale": call.scale, "enable_gqa": x.q.shape[2] > 1}
    _, sums = attend(q, k, v, lambda s, *at: SHARPNESS * score(s, at), return_aux=logarithm_too, **options)
    m = (sums.lse / SHARPNESS).masked_fill(sums.lse == -math.inf, 0)  # -inf: nothing is kept, every score is -inf
    t = _t(call, x, m)

    def weighted(s: Tensor, *at: Tensor) -> Tensor:
        s, here = score(s, at), at[:3]
        d = (s - m[here]).clamp(max=0)
        return torch.where(d <= -t[here], -math.inf, s + torch.log1p(d / t[here]))

    o: Tensor = attend(q, k, v, weighted, **options)
    return o.reshape(*x.q.shape[:-1], v.shape[-1])


@cache
def _torch_has_it() -> bool:
    try:
        from torch.nn.attention.flex_attention import AuxRequest  # noqa: F401
    except ImportError:
        return False
    return True


@cache
def _attention(device: str) -> tuple[Any, Any]:
    """FlexAttention, and how to ask it for the logarithm; not compiled on the CPU, where it would not give that."""
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    attend = flex_attention if device == "cpu" else torch.compile(flex_attention)
    return attend, AuxRequest(lse=True)


def _score(call: Call, x: Inputs) -> Callable[[Tensor, Any], Tensor]:
    """From scale q k^T to the score: the bias is added, what is masked is -inf."""
    full = (*x.q.shape[:-1], x.k.shape[-2])
    bias, mask = (None if part is None else part.expand(full).flatten(1, 2) for part in (x.bias, x.mask))

    def score(s: Tensor, at: Indices) -> Tensor:
        s = s if bias is None else s + bias[at]
        s = s if mask is None else torch.where(mask[at], s, -math.inf)
        return torch.where(at[2] >= at[3], s, -math.inf) if call.is_causal else s

    return score


def _t(call: Call, x: Inputs, m: Tensor) -> Tensor:
    """t of each row, but no less than what the first pass may add to the maximum: the largest score is always kept."""
    t = m.new_tensor(call.number) if x.parameter is None else x.parameter.to(m.dtype).squeeze(-1)
    error = (1 + math.log(x.k.shape[-2])) / SHARPNESS + 8 * torch.finfo(m.dtype).eps * m.abs()
    return torch.maximum(t.expand(x.q.shape[:-1]).flatten(1, 2), error)
