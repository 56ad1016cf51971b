"""Attention on the CPU, the whole call in one kernel."""

import math

import torch
from torch import Tensor, get_num_threads

from rsoftmax._tensors import is_eager_cpu
from rsoftmax.kernels import cpu
from rsoftmax.kernels.attention_args import AttentionArgs
from rsoftmax.kernels.cpu import DTYPES, OPERATIONS, STATE
from rsoftmax.kernels.key_shadow import WIDTH

NUMBERS = max(STATE.values(), default=0)  # how many numbers forward keeps for backward, for each query
NO_STRIDES = (0, 0, 0, 0, 0)
FEW_QUERIES = 8  # of a head, which a shadow of the keys serves


def supports(name: str, dtype: torch.dtype) -> bool:
    """Whether the mapping is implemented for the dtype of queries, keys and values."""
    return name in OPERATIONS and dtype in DTYPES and dtype != torch.float64


def supports_call(args: AttentionArgs) -> bool:
    """Whether the kernel can compute the call: not in float64, not for empty tensors, not on other devices."""
    tensors = [tensor for tensor in args.tensors if tensor is not None]
    return supports(args.mapping, args.q.dtype) and is_eager_cpu(*tensors) and all(x.numel() for x in tensors)


def new_state(q: Tensor, keep_state: bool) -> Tensor:
    """Uninitialised memory for the state; of size 0 if nothing is kept for backward."""
    return q.new_empty((q.shape[:-1].numel() if keep_state else 0, NUMBERS), dtype=torch.float64)


def forward(args: AttentionArgs, keep_state: bool) -> tuple[Tensor, Tensor | None]:
    """The output, float32, and the state if it is kept for backward.

    The output lies in memory as [B, Q, heads, Dv], like that of torch's own attention: the next layer joins
    the heads.
    """
    batch, heads, groups, queries, _ = args.q.shape
    o = args.q.new_empty((batch, queries, heads, groups, args.v.shape[-1]), dtype=torch.float32).permute(0, 2, 3, 1, 4)
    state = new_state(args.q, True) if keep_state else None
    if args.shadow is None or keep_state or not _may_skip_keys(args):
        _run(args, o=o, state=state)
        return o, state
    memory, unchanged = args.shadow.use(args.k[:, :, 0])
    _run(args, o=o, shadow=memory[:, :, None, None], unchanged=unchanged)
    args.shadow.unchanged = args.k.shape[-2]  # not before, as an interrupt may come first
    return o, state


def _may_skip_keys(args: AttentionArgs) -> bool:
    """Whether a shadow of the keys is of use. The kernel skips keys that it proves to have no weight."""
    few = args.q.shape[2] * args.q.shape[3] <= FEW_QUERIES and args.q.shape[4] <= WIDTH
    return few and args.bias is None and not args.dropped and args.mapping != "softmax"


def backward(
    args: AttentionArgs, state: Tensor, g: Tensor, needed: tuple[bool, ...]
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """The gradients in queries, keys and values, and in bias and parameter if there are any and they are needed."""
    dq, dk, dv = (torch.empty_like(a, memory_format=torch.contiguous_format) for a in args[:3])
    dbias = dvalues = None
    if args.bias is not None and needed[3]:
        dbias = torch.zeros_like(args.bias, memory_format=torch.contiguous_format)
    if args.parameter is not None:
        dvalues = args.q.new_empty((*args.q.shape[:-1], 1), dtype=torch.float64)
    _run(args, state=state.contiguous(), g=g, d=(dq, dk, dv), dbias=dbias, dvalues=dvalues)
    if dvalues is not None and args.parameter is not None:
        dvalues = dvalues.sum_to_size(args.parameter.shape).to(args.parameter.dtype)
    return dq, dk, dv, dbias, dvalues


def _run(
    args: AttentionArgs,
    *,
    o: Tensor | None = None,
    state: Tensor | None = None,
    g: Tensor | None = None,
    d: tuple[Tensor, Tensor, Tensor] | None = None,
    dbias: Tensor | None = None,
    dvalues: Tensor | None = None,
    shadow: Tensor | None = None,
    unchanged: int = 0,
) -> None:
    """Fill ``o`` and ``state``; with ``g``, fill the gradients. The fields are those of csrc/attention/call.h."""
    batch, heads, groups, queries, width = args.q.shape
    keys = args.k.shape[-2]
    q, k, v = _contiguous_rows(args.q), _contiguous_rows(args.k), _contiguous_rows(args.v)
    values = None if args.parameter is None else args.parameter.to(torch.float64)
    g = None if g is None else _contiguous_rows(g)
    full = (batch, heads, groups, queries)
    cpu.library.attend(
        op=OPERATIONS[args.mapping],
        dtype=DTYPES[q.dtype],
        batch=batch,
        heads=heads,
        groups=groups,
        rows=queries,  # of the matrix of scores
        length=keys,
        width=width,
        value_width=v.shape[-1],
        q=q.data_ptr(),
        q_strides=q.stride(),
        k=k.data_ptr(),
        k_strides=k.stride(),
        v=v.data_ptr(),
        v_strides=v.stride(),
        bias=_address(args.bias),
        bias_strides=_strides(args.bias, *full, keys),
        mask=_address(args.mask),
        mask_strides=_strides(args.mask, *full, keys),
        shadow=_address(shadow),
        shadow_strides=NO_STRIDES if shadow is None else shadow.stride(),
        unchanged=unchanged,
        number=0.0 if args.number is None else args.number,
        values=_address(values),
        values_strides=_strides(values, *full, 1),
        edge=args.options[0] if args.options else math.inf,
        scale=args.scale,
        causal=args.is_causal,
        dropped=args.dropped,
        seed=args.seed or 0,
        o=_address(o),
        o_strides=NO_STRIDES if o is None else o.stride(),
        states=_address(state),
        g=_address(g),
        g_strides=NO_STRIDES if g is None else g.stride(),
        dq=0 if d is None else d[0].data_ptr(),
        dk=0 if d is None else d[1].data_ptr(),
        dv=0 if d is None else d[2].data_ptr(),
        dbias=_address(dbias),
        dbias_strides=_strides(dbias, *full, keys),
        dvalues=_address(dvalues),
        threads=get_num_threads(),
    )


def _contiguous_rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()


def _strides(x: Tensor | None, *shape: int) -> tuple[int, ...]:
    return NO_STRIDES if x is None else x.expand(shape).stride()
