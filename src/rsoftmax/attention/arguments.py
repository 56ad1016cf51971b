"""One call of attention: the arguments, checked and brought into one layout, as views; nothing is expanded."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rsoftmax._rows import broadcast, inside_domain
from rsoftmax._tensors import FLOATS, Value, at_least_float32, shape_of
from rsoftmax.registry import MAPPINGS, MappingSpec

Scale = float | Tensor | str
"""A number, a tensor with one value for each head, or "log n"."""

STEPS = 1 << 16  # dropout draws 16 bits for each weight: its probability is a multiple of 1 / 65536
TENSORS = 6


class Call(NamedTuple):
    """Everything that attention depends on: six tensors, then settings.

    The layout of tensors is [batch, key head, query head of that key head, row, entry]; bias, parameter and mask have
    size 1 where they broadcast.
    """

    q: Tensor  # [B, H, G, Q, D]
    k: Tensor  # [B, H, 1, L, D]
    v: Tensor  # [B, H, 1, L, Dv]
    bias: Tensor | None  # [B, H, G, Q, L]
    parameter: Tensor | None  # [B, H, G, Q, 1]
    mask: Tensor | None  # [B, H, G, Q, L]

    mapping: str
    number: float | None  # the parameter, if it is a number
    scale: float
    is_causal: bool
    dropout_p: float
    options: tuple[float, ...]  # of the mapping, in the order of its row in the table
    seed: int = 0  # of dropout

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """The tensors alone."""
        return self.q, self.k, self.v, self.bias, self.parameter, self.mask

    @property
    def given(self) -> list[Tensor]:
        """The tensors that there are."""
        return [tensor for tensor in self.tensors if tensor is not None]

    @property
    def settings(self) -> tuple[Any, ...]:
        """Everything but the tensors."""
        return self[TENSORS:]

    @property
    def value(self) -> Value | None:
        """The parameter of the mapping, a number or a tensor."""
        return self.number if self.parameter is None else self.parameter

    @property
    def named_options(self) -> dict[str, float]:
        """The options of the mapping, by name."""
        row = MAPPINGS[self.mapping]
        return {option.name: value for option, value in zip(row.options, self.options, strict=True)}

    @property
    def dropped(self) -> int:
        """How many of 65536 weights are dropped."""
        return round(self.dropout_p * STEPS)

    @property
    def removes(self) -> bool:
        """Whether the call may remove keys."""
        return self.is_causal or self.mask is not None or self.bias is not None

    def wide(self) -> "Call":
        """The same call with queries, keys and values in the dtype to compute in."""
        q, k, v = (x.to(at_least_float32(x.dtype)) for x in self[:3])
        return self._replace(q=q, k=k, v=v)


class Sizes(NamedTuple):
    """The sizes of a call, except for features."""

    lead: tuple[int, ...]
    heads: int  # of keys and values
    groups: int  # query heads for each of them
    rows: int
    length: int


def prepare(
    name: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: Scale | None,
    enable_gqa: bool,
    mapping: str,
    parameter: dict[str, Value],
) -> tuple[Call, tuple[int, ...]]:
    """Check the arguments of :func:`rsoftmax.attention.sparse_attention`; ``name`` is the prefix of error messages.

    Returns:
        The call, and the shape [..., Hq, Q] of the rows of its result.
    """
    row, given, options = _check_mapping(name, mapping, parameter)
    query, key, value = _apply_autocast(name, query, key, value)
    has_heads = max(query.dim(), key.dim(), value.dim()) > 2
    query, key, value = _align(name, query, key, value, enable_gqa)
    rows = tuple(query.shape[:-1]) if has_heads else (query.shape[-2],)
    sizes = Sizes(
        tuple(query.shape[:-3]), key.shape[-3], query.shape[-3] // max(key.shape[-3], 1), query.shape[-2], key.shape[-2]
    )
    if not 0 <= dropout_p <= 1:
        raise ValueError(f"{name}: dropout_p must be in [0, 1], got {dropout_p!r}; 0.1 drops a tenth of the weights")
    batch = math.prod(sizes.lead)
    q = query.reshape(batch, sizes.heads, sizes.groups, *query.shape[-2:])
    k, v = (t.reshape(batch, sizes.heads, 1, *t.shape[-2:]) for t in (key, value))
    mask, bias = (None, None) if attn_mask is None else _mask_or_bias(name, attn_mask, sizes, q)
    tensor = _parameter_tensor(name, row, given, sizes, q.device) if isinstance(given, Tensor) else None
    number = None if isinstance(given, Tensor) else given
    call = Call(q, k, v, bias, tensor, mask, mapping, number, 1.0, is_causal, dropout_p, options)
    return _scale(name, call, scale, sizes), rows


def _scale(name: str, call: Call, scale: Scale | None, sizes: Sizes) -> Call:
    """The call with its scale. One that differs between rows is multiplied into the queries."""
    usual = 1 / math.sqrt(max(call.q.shape[-1], 1))
    if scale is None or scale == "log n":
        call = call._replace(scale=usual)
        return call if scale is None else _times(call, visible_keys(call).clamp(min=1).log())
    if isinstance(scale, Tensor):
        return _times(call, _per_head(name, "scale", scale, sizes, call.q.device))
    if isinstance(scale, str):
        raise ValueError(f"{name}: scale must be a number, a tensor or 'log n', got {scale!r}")
    return call._replace(scale=scale)


def _times(call: Call, factor: Tensor) -> Call:
    return call._replace(q=(call.q * factor).to(call.q.dtype))


def visible_keys(call: Call) -> Tensor:
    """How many keys each query may see, as float32 that broadcasts to [B, H, G, Q, 1]."""
    rows, length, device = call.q.shape[-2], call.k.shape[-2], call.q.device
    keep = call.mask if call.bias is None else call.bias != -math.inf
    if keep is None:
        last = torch.arange(1, rows + 1, device=device).clamp(max=length)[:, None]
        return (last if call.is_causal else torch.tensor(length, device=device)).float()
    keep = keep.expand(*keep.shape[:-2], rows if call.is_causal else keep.shape[-2], length)
    return (keep.tril() if call.is_causal else keep).sum(-1, keepdim=True).float()


def _check_mapping(
    name: str, mapping: str, parameter: dict[str, Value]
) -> tuple[MappingSpec, Value | None, tuple[float, ...]]:
    """The row of the table, the value of its parameter, inside its domain, and its options."""
    if mapping not in MAPPINGS:
        raise ValueError(f"{name}: mapping must be one of {', '.join(MAPPINGS)}, got {mapping!r}")
    row = MAPPINGS[mapping]
    value, options = row.bind(name, parameter), tuple(row.bind_options(name, parameter).values())
    if row.parameter is None:
        return row, None, options
    letter = row.parameter.name
    if isinstance(value, Tensor) and value.dtype not in FLOATS:
        raise TypeError(f"{name}: {letter} must be floating point, got {value.dtype}; use {letter}.float()")
    return row, inside_domain(name, row.parameter, value), options


def _apply_autocast(name: str, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Cast the arguments as torch casts those of its own attention."""
    for what, tensor in zip(("query", "key", "value"), tensors, strict=True):
        if not isinstance(tensor, Tensor) or tensor.dtype not in FLOATS:
            got = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise TypeError(f"{name}: {what} must be a floating-point tensor, got {got}")
    device = tensors[0].device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        tensors = tuple(t if t.dtype == torch.float64 else t.to(torch.get_autocast_dtype(device)) for t in tensors)
    if len({t.dtype for t in tensors}) > 1:
        found = ", ".join(str(t.dtype) for t in tensors)
        raise TypeError(f"{name}: query, key and value must have the same dtype, got {found}")
    return tensors


def _align(name: str, query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> tuple[Tensor, ...]:
    """The tensors with equal leading dimensions, [..., heads, length, features]; only key heads may be fewer."""

    def misfit(why: str) -> ValueError:
        shapes = f"query {shape_of(query)}, key {shape_of(key)}, value {shape_of(value)}"
        return ValueError(f"{name}: {shapes} {why}")

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
    query, key, value = (x.expand(*lead, *x.shape[-own:]) for x in (query, key, value))
    return query, key, value


def _mask_or_bias(name: str, mask: Tensor, sizes: Sizes, q: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """A mask is one of the two: which scores to keep, or what to add to them."""
    if not isinstance(mask, Tensor) or mask.dtype not in (torch.bool, *FLOATS):
        found = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"{name}: attn_mask must be bool, True = keep, or float, added to the scores, got {found}")
    mask = _layout(name, "attn_mask", mask.to(q.device), sizes, sizes.length)
    return (mask, None) if mask.dtype == torch.bool else (None, mask.to(at_least_float32(q.dtype)))


def _parameter_tensor(name: str, row: MappingSpec, value: Tensor, sizes: Sizes, device: torch.device) -> Tensor:
    """The parameter in the layout of a call."""
    assert row.parameter is not None
    return _per_head(name, row.parameter.name, value, sizes, device)


def _per_head(name: str, letter: str, value: Tensor, sizes: Sizes, device: torch.device) -> Tensor:
    """A tensor that broadcasts to [..., Hq, Q, 1], in the layout of a call; [heads] is one value for each head."""
    heads = sizes.heads * sizes.groups
    if value.dim() == 1 and value.shape[0] == heads:
        value = value[:, None, None]
    elif value.dim() == 1 and value.shape[0] != 1:
        raise ValueError(
            f"{name}: {letter} of shape {shape_of(value)} is one value for each head, but query has {heads} heads;"
            f" pass {heads} values, or a tensor that broadcasts to {(*sizes.lead, heads, sizes.rows, 1)}"
        )
    return _layout(name, letter, value.to(device), sizes, 1)


def _layout(name: str, what: str, tensor: Tensor, sizes: Sizes, entries: int) -> Tensor:
    """A tensor that broadcasts to [..., Hq, Q, entries], in the layout of a call, not expanded."""
    full = torch.Size((*sizes.lead, sizes.heads * sizes.groups, sizes.rows, entries))
    broadcast(name, what, tensor, full)
    tensor = tensor[(None,) * (len(full) - tensor.dim())]
    if len(sizes.lead) > 1 and any(size != 1 for size in tensor.shape[:-3]):
        tensor = tensor.expand(*sizes.lead, *tensor.shape[-3:])
    heads = (1, 1) if tensor.shape[-3] == 1 else (sizes.heads, sizes.groups)
    return tensor.reshape(math.prod(tensor.shape[:-3]), *heads, *tensor.shape[-2:])
