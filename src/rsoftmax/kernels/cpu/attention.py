"""Attention on the CPU: the Python face of attention.cpp. Tensors in, addresses out; no autograd, no checks."""

import torch
from torch import Tensor, get_num_threads

from rsoftmax.kernels.cpu import ATTENDS, DTYPES, OPERATIONS, STATE, _library
from rsoftmax.kernels.operands import Operands, Options
from rsoftmax.tensors import in_memory

NUMBERS = max(STATE.values(), default=0)  # that forward leaves for backward, for each row
NOWHERE = (0, 0, 0, 0, 0)


def has(name: str, dtype: torch.dtype) -> bool:
    """Whether there is such a mapping for the type of queries, keys and values."""
    return bool(ATTENDS.get(name)) and dtype in DTYPES and dtype != torch.float64


def takes(name: str, x: Operands) -> bool:
    """Whether the kernel can compute this: everything but float64, nothing at all, and other devices."""
    tensors = [tensor for tensor in x if isinstance(tensor, Tensor)]
    return has(name, x.q.dtype) and all(tensor.numel() and in_memory(tensor) for tensor in tensors)


def new_state(q: Tensor, keep_state: bool) -> Tensor:
    """Room for what forward leaves for backward; of size 0 if that is not wanted."""
    return q.new_empty((q.shape[:-1].numel() if keep_state else 0, NUMBERS), dtype=torch.float64)


def forward(name: str, x: Operands, options: Options, keep_state: bool) -> tuple[Tensor, Tensor]:
    """The output, float32, and the state.

    The output lies in memory as [batch, row, heads, entry], like that of torch's own attention: what follows joins the
    heads.
    """
    batch, heads, groups, rows, _ = x.q.shape
    o = x.q.new_empty((batch, rows, heads, groups, x.v.shape[-1]), dtype=torch.float32).permute(0, 2, 3, 1, 4)
    state = new_state(x.q, keep_state)
    _run(name, x, options, o=o, state=state if keep_state else None)
    return o, state


def backward(
    name: str, x: Operands, options: Options, state: Tensor, g: Tensor, bias_too: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """The gradients in queries, keys, values, the bias if that is wanted, and a tensor parameter."""
    dq, dk, dv = (torch.empty_like(a, memory_format=torch.contiguous_format) for a in (x.q, x.k, x.v))
    dbias = torch.zeros_like(x.bias, memory_format=torch.contiguous_format) if bias_too and x.bias is not None else None
    dvalues = None
    if isinstance(x.value, Tensor):
        dvalues = x.q.new_empty((*x.q.shape[:-1], 1), dtype=torch.float64)
    _run(name, x, options, state=state.contiguous(), g=g, d=(dq, dk, dv), dbias=dbias, dvalues=dvalues)
    if dvalues is not None and isinstance(x.value, Tensor):
        dvalues = dvalues.sum_to_size(x.value.shape).to(x.value.dtype)
    return dq, dk, dv, dbias, dvalues


def _run(
    name: str,
    x: Operands,
    options: Options,
    *,
    o: Tensor | None = None,
    state: Tensor | None = None,
    g: Tensor | None = None,
    d: tuple[Tensor, Tensor, Tensor] | None = None,
    dbias: Tensor | None = None,
    dvalues: Tensor | None = None,
) -> None:
    """Fill ``o`` and ``state``; with ``g``, fill the gradients instead. The fields are those of attention_call.h."""
    batch, heads, groups, rows, width = x.q.shape
    length = x.k.shape[-2]
    q, k, v = _rows(x.q), _rows(x.k), _rows(x.v)
    values = x.value.to(torch.float64) if isinstance(x.value, Tensor) else None
    g = None if g is None else _rows(g)
    full = (batch, heads, groups, rows)
    _library.attend(
        op=OPERATIONS[name],
        dtype=DTYPES[q.dtype],
        batch=batch,
        heads=heads,
        groups=groups,
        rows=rows,
        length=length,
        width=width,
        value_width=v.shape[-1],
        q=q.data_ptr(),
        q_at=q.stride(),
        k=k.data_ptr(),
        k_at=k.stride(),
        v=v.data_ptr(),
        v_at=v.stride(),
        bias=_address(x.bias),
        bias_at=_strides(x.bias, *full, length),
        mask=_address(x.mask),
        mask_at=_strides(x.mask, *full, length),
        number=x.value if isinstance(x.value, float) else 0.0,
        values=_address(values),
        values_at=_strides(values, *full, 1),
        scale=options.scale,
        causal=options.causal,
        dropped=options.dropped,
        seed=options.seed,
        o=_address(o),
        o_at=NOWHERE if o is None else o.stride(),
        states=_address(state),
        g=_address(g),
        g_at=NOWHERE if g is None else g.stride(),
        dq=0 if d is None else d[0].data_ptr(),
        dk=0 if d is None else d[1].data_ptr(),
        dv=0 if d is None else d[2].data_ptr(),
        dbias=_address(dbias),
        dbias_at=_strides(dbias, *full, length),
        dvalues=_address(dvalues),
        threads=get_num_threads(),
    )


def _rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()


def _strides(x: Tensor | None, *shape: int) -> tuple[int, ...]:
    return NOWHERE if x is None else x.expand(shape).stride()
