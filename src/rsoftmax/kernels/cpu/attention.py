"""Attention on the CPU, the whole call in one kernel."""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, get_num_threads

from rsoftmax._tensors import is_eager_cpu
from rsoftmax.kernels import cpu
from rsoftmax.kernels.cpu import DTYPES, OPERATIONS, STATE

if TYPE_CHECKING:
    from rsoftmax.attention.arguments import Call

NUMBERS = max(STATE.values(), default=0)  # how many numbers forward keeps for backward, for each row
NOWHERE = (0, 0, 0, 0, 0)


def has(name: str, dtype: torch.dtype) -> bool:
    """Whether the mapping is implemented for the dtype of queries, keys and values."""
    return name in OPERATIONS and dtype in DTYPES and dtype != torch.float64


def takes(call: "Call") -> bool:
    """Whether the kernel can compute the call: not in float64, not for empty tensors, not on other devices."""
    tensors = call.given
    return has(call.mapping, call.q.dtype) and is_eager_cpu(*tensors) and all(tensor.numel() for tensor in tensors)


def new_state(q: Tensor, keep_state: bool) -> Tensor:
    """Uninitialised memory for the state; of size 0 if it is not wanted."""
    return q.new_empty((q.shape[:-1].numel() if keep_state else 0, NUMBERS), dtype=torch.float64)


def forward(call: "Call", keep_state: bool) -> tuple[Tensor, Tensor | None]:
    """The output, float32, and the state if it is wanted.

    The output lies in memory as [batch, row, heads, entry], like that of torch's own attention: the next layer joins
    the heads.
    """
    batch, heads, groups, rows, _ = call.q.shape
    o = call.q.new_empty((batch, rows, heads, groups, call.v.shape[-1]), dtype=torch.float32).permute(0, 2, 3, 1, 4)
    state = new_state(call.q, True) if keep_state else None
    _run(call, o=o, state=state)
    return o, state


def backward(
    call: "Call", state: Tensor, g: Tensor, needed: tuple[bool, ...]
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """The gradients in queries, keys and values, and in bias and parameter if there are any and they are needed."""
    dq, dk, dv = (torch.empty_like(a, memory_format=torch.contiguous_format) for a in call[:3])
    dbias = dvalues = None
    if call.bias is not None and needed[3]:
        dbias = torch.zeros_like(call.bias, memory_format=torch.contiguous_format)
    if call.parameter is not None:
        dvalues = call.q.new_empty((*call.q.shape[:-1], 1), dtype=torch.float64)
    _run(call, state=state.contiguous(), g=g, d=(dq, dk, dv), dbias=dbias, dvalues=dvalues)
    if dvalues is not None and call.parameter is not None:
        dvalues = dvalues.sum_to_size(call.parameter.shape).to(call.parameter.dtype)
    return dq, dk, dv, dbias, dvalues


def _run(
    call: "Call",
    *,
    o: Tensor | None = None,
    state: Tensor | None = None,
    g: Tensor | None = None,
    d: tuple[Tensor, Tensor, Tensor] | None = None,
    dbias: Tensor | None = None,
    dvalues: Tensor | None = None,
) -> None:
    """Fill ``o`` and ``state``; with ``g``, fill the gradients. The fields are those of csrc/attention/call.h."""
    batch, heads, groups, rows, width = call.q.shape
    length = call.k.shape[-2]
    q, k, v = _rows(call.q), _rows(call.k), _rows(call.v)
    values = None if call.parameter is None else call.parameter.to(torch.float64)
    g = None if g is None else _rows(g)
    full = (batch, heads, groups, rows)
    cpu.library.attend(
        op=OPERATIONS[call.mapping],
        dtype=DTYPES[q.dtype],
        batch=batch,
        heads=heads,
        groups=groups,
        rows=rows,
        length=length,
        width=width,
        value_width=v.shape[-1],
        q=q.data_ptr(),
        q_strides=q.stride(),
        k=k.data_ptr(),
        k_strides=k.stride(),
        v=v.data_ptr(),
        v_strides=v.stride(),
        bias=_address(call.bias),
        bias_strides=_strides(call.bias, *full, length),
        mask=_address(call.mask),
        mask_strides=_strides(call.mask, *full, length),
        number=0.0 if call.number is None else call.number,
        values=_address(values),
        values_strides=_strides(values, *full, 1),
        edge=call.named_options.get("edge", math.inf),
        scale=call.scale,
        causal=call.is_causal,
        dropped=call.dropped,
        seed=call.seed,
        o=_address(o),
        o_strides=NOWHERE if o is None else o.stride(),
        states=_address(state),
        g=_address(g),
        g_strides=NOWHERE if g is None else g.stride(),
        dq=0 if d is None else d[0].data_ptr(),
        dk=0 if d is None else d[1].data_ptr(),
        dv=0 if d is None else d[2].data_ptr(),
        dbias=_address(dbias),
        dbias_strides=_strides(dbias, *full, length),
        dvalues=_address(dvalues),
        threads=get_num_threads(),
    )


def _rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()


def _strides(x: Tensor | None, *shape: int) -> tuple[int, ...]:
    return NOWHERE if x is None else x.expand(shape).stride()
