"""The arguments of attention, checked and brought into one layout, as views; nothing is expanded."""

import math
from numbers import Real
from typing import NamedTuple

import torch
from torch import Tensor

from rsoftmax._rows import broadcast, inside_domain
from rsoftmax._tensors import FLOATS, Value, at_least_float32, shape_of
from rsoftmax.kernels.attention_args import AttentionArgs
from rsoftmax.kernels.key_shadow import shadow_of
from rsoftmax.registry import MAPPINGS

LogNScale = bool | tuple[Value, Value, Value]


class Sizes(NamedTuple):
    """The sizes of a call, except for features."""

    lead: tuple[int, ...]
    heads: int  # of keys and values
    groups: int  # query heads for each of them
    queries: int
    keys: int


def prepare(
    caller: str,
    tensors: tuple[Tensor, Tensor, Tensor],
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | Tensor | None,
    enable_gqa: bool,
    log_n_scale: LogNScale,
    mapping: str,
    parameter: dict[str, Value],
) -> tuple[AttentionArgs, tuple[int, ...]]:
    """The arguments of :func:`rsoftmax.attention.sparse_attention`, and the shape [..., Hq, Q] of its result."""
    setting, options = _check_mapping(caller, mapping, parameter)
    query, key, value = _check_dtypes(caller, *tensors)
    has_heads = max(query.dim(), key.dim(), value.dim()) > 2
    query, key, value = _align(caller, query, key, value, enable_gqa)
    shape = tuple(query.shape[:-1]) if has_heads else (query.shape[-2],)
    groups = query.shape[-3] // max(key.shape[-3], 1)
    sizes = Sizes(tuple(query.shape[:-3]), key.shape[-3], groups, query.shape[-2], key.shape[-2])
    if not isinstance(is_causal, bool):
        raise TypeError(f"{caller}: is_causal must be a bool, got {is_causal!r}")
    if not (isinstance(dropout_p, Real) and 0 <= dropout_p <= 1):
        raise ValueError(f"{caller}: dropout_p must be in [0, 1], got {dropout_p!r}; 0.1 drops a tenth of the weights")
    batch = math.prod(sizes.lead)
    q = query.reshape(batch, sizes.heads, sizes.groups, *query.shape[-2:])
    k, v = (x.reshape(batch, sizes.heads, 1, *x.shape[-2:]) for x in (key, value))
    mask, bias = None, None
    if attn_mask is not None:
        if not isinstance(attn_mask, Tensor) or attn_mask.dtype not in (torch.bool, *FLOATS):
            got = attn_mask.dtype if isinstance(attn_mask, Tensor) else type(attn_mask).__name__
            raise TypeError(f"{caller}: attn_mask must be bool, True = keep, or float, added to the scores, got {got}")
        either = _layout(caller, "attn_mask", attn_mask.to(q.device), sizes, sizes.keys)
        mask, bias = (either, None) if either.dtype == torch.bool else (None, either.to(at_least_float32(q.dtype)))
    number, tensor = setting, None
    if isinstance(setting, Tensor):
        name = MAPPINGS[mapping].parameter.name
        number, tensor = None, _per_head(caller, name, setting, sizes, q.device)
    usual = 1 / math.sqrt(max(q.shape[-1], 1))
    args = AttentionArgs(q, k, v, bias, tensor, mask, mapping, number, usual, is_causal, dropout_p, options)
    args = args._replace(shadow=None if torch.compiler.is_compiling() else shadow_of(key))
    return _apply_scale(caller, args, scale, log_n_scale, sizes), shape


def _apply_scale(
    caller: str, args: AttentionArgs, scale: float | Tensor | None, log_n_scale: LogNScale, sizes: Sizes
) -> AttentionArgs:
    """The arguments with their scale; what differs between queries is multiplied into them."""
    if isinstance(scale, str):
        raise TypeError(f"{caller}: scale must be a number or a tensor, got {scale!r}; for log n use log_n_scale=True")
    factors = [_per_head(caller, "scale", scale, sizes, args.q.device)] if isinstance(scale, Tensor) else []
    if log_n_scale:
        triple = (0.0, 1.0, 1.0) if log_n_scale is True else log_n_scale
        if not isinstance(triple, tuple) or len(triple) != 3:
            raise TypeError(f"{caller}: log_n_scale must be a bool or a triple (delta, beta, gamma), got {triple!r}")
        delta, beta, gamma = (
            _per_head(caller, "log_n_scale", a, sizes, args.q.device) if isinstance(a, Tensor) else a for a in triple
        )
        factors.append(delta + beta * visible_keys(args).clamp(min=2).log() ** gamma)
    if scale is not None:
        args = args._replace(scale=1.0 if isinstance(scale, Tensor) else scale)
    for factor in factors:
        args = args._replace(q=(args.q * factor).to(args.q.dtype))
    return args


def visible_keys(args: AttentionArgs) -> Tensor:
    """How many keys each query may see, as float32 that broadcasts to [B, H, G, Q, 1]."""
    queries, keys, device = args.q.shape[-2], args.k.shape[-2], args.q.device
    keep = args.mask if args.bias is None else args.bias != -math.inf
    if keep is None:
        last = torch.arange(1, queries + 1, device=device).clamp(max=keys)[:, None]
        return (last if args.is_causal else torch.tensor(keys, device=device)).float()
    keep = keep.expand(*keep.shape[:-2], queries if args.is_causal else keep.shape[-2], keys)
    return (keep.tril() if args.is_causal else keep).sum(-1, keepdim=True).float()


def _check_mapping(caller: str, mapping: str, parameter: dict[str, Value]) -> tuple[Value | None, tuple[float, ...]]:
    """The parameter of the mapping, inside its domain, and its options."""
    if mapping not in MAPPINGS:
        raise ValueError(f"{caller}: mapping must be one of {', '.join(MAPPINGS)}, got {mapping!r}")
    spec = MAPPINGS[mapping]
    value, options = spec.bind(caller, parameter), tuple(spec.bind_options(caller, parameter).values())
    if spec.parameter is None:
        return None, options
    if isinstance(value, Tensor) and value.dtype not in FLOATS:
        name = spec.parameter.name
        raise TypeError(f"{caller}: {name} must be floating point, got {value.dtype}; use {name}.float()")
    return inside_domain(caller, spec.parameter, value), options


def _check_dtypes(caller: str, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Queries, keys and values in one floating-point dtype, cast by autocast as those of torch's own attention."""
    for name, tensor in zip(("query", "key", "value"), tensors, strict=True):
        if not isinstance(tensor, Tensor) or tensor.dtype not in FLOATS:
            got = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise TypeError(f"{caller}: {name} must be a floating-point tensor, got {got}")
    device = tensors[0].device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        tensors = tuple(t if t.dtype == torch.float64 else t.to(torch.get_autocast_dtype(device)) for t in tensors)
    if len({t.dtype for t in tensors}) > 1:
        dtypes = ", ".join(str(t.dtype) for t in tensors)
        raise TypeError(f"{caller}: query, key and value must have the same dtype, got {dtypes}")
    return tensors


def _align(caller: str, query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> tuple[Tensor, ...]:
    """The tensors with equal leading dimensions, [..., heads, length, features]; only key heads may be fewer."""

    def misfit(why: str) -> ValueError:
        shapes = f"query {shape_of(query)}, key {shape_of(key)}, value {shape_of(value)}"
        return ValueError(f"{caller}: {shapes} {why}")

    if min(query.dim(), key.dim(), value.dim()) < 2:
        raise misfit("must be [..., length, features]")
    if key.shape[-2] != value.shape[-2] or key.shape[-1] != query.shape[-1]:
        raise misfit("do not fit; use [..., Q, D], [..., L, D] and [..., L, Dv]")
    own = 3 if query.dim() == key.dim() == value.dim() >= 3 and enable_gqa else 2
    if own == 3:
        heads = key.shape[-3]
        if heads == 0 or value.shape[-3] != heads or query.shape[-3] % heads:
            raise misfit("do not fit: the number of query heads must be a multiple of the number of key heads")
    if query.dim() >= 3 and query.shape[:-own] == key.shape[:-own] == value.shape[:-own]:
        return query, key, value
    try:
        lead = torch.broadcast_shapes(*(x.shape[:-own] for x in (query, key, value)))
    except RuntimeError:
        remedy = "" if enable_gqa else ", or pass enable_gqa=True for fewer key heads than query heads"
        raise misfit(f"do not broadcast; use [..., H, Q, D], [..., H, L, D] and [..., H, L, Dv]{remedy}") from None
    lead = lead if own == 3 or lead else torch.Size([1])
    return tuple(x.expand(*lead, *x.shape[-own:]) for x in (query, key, value))


def _per_head(caller: str, name: str, value: Tensor, sizes: Sizes, device: torch.device) -> Tensor:
    """A tensor [heads], or one that broadcasts to [..., Hq, Q, 1], in the layout of :class:`AttentionArgs`."""
    heads = sizes.heads * sizes.groups
    if value.dim() == 1 and value.shape[0] == heads:
        value = value[:, None, None]
    elif value.dim() == 1 and value.shape[0] != 1:
        raise ValueError(
            f"{caller}: {name} of shape {shape_of(value)} is one value for each head, but query has {heads} heads;"
            f" pass {heads} values, or a tensor that broadcasts to {(*sizes.lead, heads, sizes.queries, 1)}"
        )
    return _layout(caller, name, value.to(device), sizes, 1)


def _layout(caller: str, name: str, tensor: Tensor, sizes: Sizes, entries: int) -> Tensor:
    """A tensor that broadcasts to [..., Hq, Q, entries] as [B, H, G, Q, entries], not expanded."""
    full = torch.Size((*sizes.lead, sizes.heads * sizes.groups, sizes.queries, entries))
    broadcast(caller, name, tensor, full)
    tensor = tensor[(None,) * (len(full) - tensor.dim())]
    if len(sizes.lead) > 1 and any(size != 1 for size in tensor.shape[:-3]):
        tensor = tensor.expand(*sizes.lead, *tensor.shape[-3:])
    heads = (1, 1) if tensor.shape[-3] == 1 else (sizes.heads, sizes.groups)
    return tensor.reshape(math.prod(tensor.shape[:-3]), *heads, *tensor.shape[-2:])
