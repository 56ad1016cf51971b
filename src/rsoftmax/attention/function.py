"""What people call: the arguments are checked, and an error says what would do."""

import math
from dataclasses import replace
from typing import Literal, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from rsoftmax.attention import operator, passes
from rsoftmax.attention.equations import Call, output_of, weights_of
from rsoftmax.attention.inputs import NAME, Value, checked_sizes, inputs
from rsoftmax.mappings import Mapping  # which fills the table, too
from rsoftmax.rows import inside_domain
from rsoftmax.table import ROW_MAPPINGS
from rsoftmax.tensors import FLOATS, in_graph, ordinary, without_autocast


@overload
def sparse_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mapping: str = ...,
    r: Value | None = ...,
    mask: Tensor | None = ...,
    is_causal: bool = ...,
    dropout_p: float = ...,
    scale: float | None = ...,
    return_weights: Literal[False] = ...,
    **parameter: Value,
) -> Tensor: ...


@overload
def sparse_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mapping: str = ...,
    r: Value | None = ...,
    mask: Tensor | None = ...,
    is_causal: bool = ...,
    dropout_p: float = ...,
    scale: float | None = ...,
    *,
    return_weights: Literal[True],
    **parameter: Value,
) -> tuple[Tensor, Tensor]: ...


def sparse_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mapping: str = "r_softmax",
    r: Value | None = None,
    mask: Tensor | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    scale: float | None = None,
    return_weights: bool = False,
    **parameter: Value,
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Attention in which a mapping of the table takes the place of softmax.

    .. math:: o = \mathrm{dropout}(p)\, v, \qquad p = \mathrm{mapping}(\mathrm{scale} \cdot q k^T + \mathrm{mask})

    with the conventions of :func:`torch.nn.functional.scaled_dot_product_attention`.

    Args:
        query: [..., Hq, Q, D].
        key: [..., Hkv, L, D], where Hq is a multiple of Hkv: neighbouring heads of queries share keys and values.
        value: [..., Hkv, L, Dv].
        mapping: a name in ``MAPPINGS``, except ``weighted_softmax``, which wants a weight for each entry.
        r: the rate of ``r_softmax``. The parameter of another mapping comes under its own letter: ``t=2.0``. Each may
            be a number, a tensor [Hq] with one value for each head, or a tensor that broadcasts to [..., Hq, Q, 1],
            and is differentiable.
        mask: broadcasts to [..., Hq, Q, L]; bool, True = keep, or float, added to the scores, with ``-inf`` = removed.
            A float mask gets its gradient. Finite numbers remove nothing, however low: they count as scores.
        is_causal: query i sees the keys 0 to i only; together with ``mask``, those that both keep.
        dropout_p: the share of weights to drop, to a 65536th, at every call: there is no training mode here.
        scale: 1 / sqrt(D) if None.
        return_weights: return the weights too, before dropout, and hold the whole matrix for it.

    Returns:
        [..., Hq, Q, Dv] in the dtype of ``query``; with ``return_weights`` that and the weights [..., Hq, Q, L].

    Example:
        >>> q, k, v = (torch.randn(2, 4, 5, 8) for _ in range(3))
        >>> output, weights = sparse_attention(q, k, v, r=0.4, return_weights=True)
        >>> output.shape, (weights == 0).sum(-1).unique()
        (torch.Size([2, 4, 5, 8]), tensor([2]))
        >>> sparse_attention(q, k, v, "t_softmax", t=torch.tensor([0.5, 1.0, 2.0, 4.0])).shape
        torch.Size([2, 4, 5, 8])

    A query with nothing kept gets zeros, with zero gradient. Padding, as masked keys, never changes a result. Half
    precision is computed in float32. In code that is exported or transformed, and for second derivatives, the whole
    matrix is held; compiled code calls the operator ``rsoftmax::attention``, which does not hold it. Backward uses the
    blocks, the kernels and the dropped weights of forward, whatever number of threads, :func:`rsoftmax.use_kernels` or
    autocast is in force by then; a tensor that was changed in place since is torch's usual error. On the meta device
    only shapes and dtypes are computed.

    Reference: Bałazy et al., r-softmax (2023), section 4.3.
    """
    chosen, given = _mapping_and_parameter(mapping, {"r": r, **parameter})
    query, key, value = _as_autocast_asks(query, key, value)
    sizes = checked_sizes(query, key, value)
    if not 0 <= dropout_p <= 1:
        raise ValueError(f"{NAME}: dropout_p must be in [0, 1], got {dropout_p!r}; 0.1 drops a tenth of the weights")
    if scale is None:
        scale = 1 / math.sqrt(max(query.shape[-1], 1))
    call = Call(chosen, None if isinstance(given, Tensor) else given, scale, is_causal, dropout_p)
    x = inputs(sizes, query, key, value, mask, chosen, given)
    weights = None
    with without_autocast(query):
        if not return_weights and in_graph() and operator.takes(x):
            o = operator.output(call, x)
        elif not return_weights and not query.is_meta and all(ordinary(tensor) for tensor in x if tensor is not None):
            o = passes.output(_seeded(call), x)
        else:
            p = weights_of(call, x.wide())
            weights = p.to(query.dtype).reshape(*query.shape[:-1], key.shape[-2])
            o = output_of(F.dropout(p, dropout_p) if dropout_p else p, x.wide().v)
    o = o.to(query.dtype).reshape(*query.shape[:-1], value.shape[-1])
    return o if weights is None or not return_weights else (o, weights)


def _seeded(call: Call) -> Call:
    """With a number from torch's generator: from it backward draws the same weights to drop as forward."""
    return replace(call, seed=int(torch.randint(1 << 62, (), device="cpu"))) if call.dropped else call


def _mapping_and_parameter(name: str, given: dict[str, Value | None]) -> tuple[Mapping, Value | None]:
    """The row of the table, and the value of its parameter, inside its domain."""
    if name not in ROW_MAPPINGS:
        raise ValueError(f"{NAME}: mapping must be one of {', '.join(ROW_MAPPINGS)}, got {name!r}")
    mapping = ROW_MAPPINGS[name]
    value = mapping.bind(NAME, given)
    if mapping.parameter is None:
        return mapping, None
    letter = mapping.parameter.name
    if isinstance(value, Tensor) and value.dtype not in FLOATS:
        raise TypeError(f"{NAME}: {letter} must be floating point, got {value.dtype}; use {letter}.float()")
    return mapping, inside_domain(NAME, mapping.parameter, value)


def _as_autocast_asks(*tensors: Tensor) -> tuple[Tensor, ...]:
    """What torch does to the arguments of its own attention under autocast."""
    for what, tensor in zip(("query", "key", "value"), tensors, strict=True):
        if not isinstance(tensor, Tensor) or tensor.dtype not in FLOATS:
            got = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise TypeError(f"{NAME}: {what} must be a tensor of floats, got {got}")
    device = tensors[0].device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        tensors = tuple(t if t.dtype == torch.float64 else t.to(torch.get_autocast_dtype(device)) for t in tensors)
    if len({t.dtype for t in tensors}) > 1:
        found = ", ".join(str(t.dtype) for t in tensors)
        raise TypeError(f"{NAME}: query, key and value must have one dtype, got {found}; cast them to the same")
    return tensors
