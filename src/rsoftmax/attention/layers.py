"""Attention modules with the signatures and state dicts of :mod:`torch.nn`, and a mapping in place of softmax.

torch's fast path for inference calls its own kernel instead of the attention module's ``forward``, and would silently
skip a mapping. It requires ``_qkv_same_embed_dim``, which :class:`MultiheadAttention` here sets to False.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rsoftmax._tensors import Value
from rsoftmax.attention.functional import attention_weights, sparse_attention
from rsoftmax.nn import module_of
from rsoftmax.registry import MAPPINGS

__all__ = [
    "MultiheadAttention",
    "TransformerDecoderLayer",
    "TransformerEncoderLayer",
    "replace_attention",
    "sparse_sdpa",
]


LogNFactors = bool | Literal["adaptive"]
LOG_N_KEYS = 64  # for this many keys, the factors of log_n_scale start with the usual scale


class MultiheadAttention(nn.MultiheadAttention):
    r""":class:`torch.nn.MultiheadAttention` with a mapping in place of softmax.

    Args:
        embed_dim, ..., dtype: as in :class:`torch.nn.MultiheadAttention`.
        mapping: a name in ``MAPPINGS``.
        learnable: train the parameter of the mapping.
        log_n_scale: multiply the scores of a query that may see n keys by s log(n), with a learned s for each head
            (SSMax), which starts at 1 / log(64); "adaptive": by delta + beta log(n)^gamma, all three learned for each
            head from 1, 0 and 1 (ASEntmax). It adds the entry ``log_scale`` to the state dict, [heads] or [3, heads].
        parameter: the parameter of the mapping and its options, such as ``t=6.0, edge=1.0``; a number, or a tensor with
            one value for each head.

    Example:
        >>> attention = MultiheadAttention(16, 4, batch_first=True, mapping="t_softmax", t=6.0, edge=0.0)
        >>> x = torch.randn(2, 5, 16)
        >>> output, weights = attention(x, x, x)
        >>> output.shape, weights.shape
        (torch.Size([2, 5, 16]), torch.Size([2, 5, 5]))

    State dicts of torch's module can be loaded, and if the parameter is a number, the state dicts are the same. A
    tensor or a learnable parameter adds one entry, ``mapping.value`` or ``mapping.raw_value``. Weights are returned
    before dropout. A query whose keys are all masked gets zeros before the output projection, where torch gives NaN.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        mapping: str = "r_softmax",
        learnable: bool = False,
        log_n_scale: LogNFactors = False,
        **parameter: Value,
    ) -> None:
        module = _mapping_module("MultiheadAttention", mapping, learnable, parameter)
        super().__init__(
            embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype
        )
        self._qkv_same_embed_dim = False
        self.mapping = module.to(device)
        self.log_scale = log_n_factors(num_heads, device, log_n_scale) if log_n_scale else None

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend, with the arguments and results of :meth:`torch.nn.MultiheadAttention.forward`.

        Args:
            query: [length, batch, width], [batch, length, width] with ``batch_first``, or [length, width]; nested
                tensors for self-attention in inference.
            key: like ``query``.
            value: like ``query``.
            key_padding_mask: [batch, keys]; bool, True = ignore (as in torch's module), or float, added to the scores.
            need_weights: return the weights too.
            attn_mask: [queries, keys] or [batch * heads, queries, keys]; bool, True = ignore, or float.
            average_attn_weights: return the mean of the weights over heads.
            is_causal: a hint that ``attn_mask`` is the causal mask. Queries attend to the keys of ``add_bias_kv`` and
                ``add_zero_attn`` with and without it; torch's module drops them with ``need_weights=False``.

        Returns:
            The output, and the weights [batch, queries, keys] ([batch, heads, queries, keys] if not averaged) or None.
        """
        if is_causal and attn_mask is None:
            raise RuntimeError("MultiheadAttention: is_causal=True needs attn_mask, as in torch")
        if query.is_nested:
            if attn_mask is not None or key_padding_mask is not None:
                raise ValueError("MultiheadAttention: nested tensors take no masks; pass padded tensors instead")
            return self._nested(query, key, value), None
        batched, first = query.dim() == 3, self.batch_first
        if not batched:
            query, key, value = (x.unsqueeze(0) for x in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not first:  # one tensor stays one tensor
            same = query is key is value
            query, key, value = (
                [query.transpose(0, 1)] * 3 if same else [x.transpose(0, 1) for x in (query, key, value)]
            )
        q, k, v = self._project(query, key, value)
        is_causal = is_causal and not self._appended  # the flag would remove appended keys
        mask = self._mask(None if is_causal else attn_mask, key_padding_mask, q.dtype)
        spec, module = self.mapping.mapping, self.mapping
        options: dict[str, Any] = {"is_causal": is_causal, "mapping": spec.name}
        if self.log_scale is not None:
            s = self.log_scale
            options["log_n_scale"] = (0.0, s, 1.0) if s.dim() == 1 else tuple(s)
        if spec.parameter is not None:
            options |= {spec.parameter.name: module.current_value, **spec.bind_options(spec.name, module.options)}
        o = sparse_attention(q, k, v, mask, self.dropout if self.training else 0.0, **options)
        o = self.out_proj(o.transpose(1, 2).flatten(-2))
        weights = attention_weights(q, k, mask, **options) if need_weights else None
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if not batched:
            return o.squeeze(0), None if weights is None else weights.squeeze(0)
        return o if first else o.transpose(0, 1), weights

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Queries, keys and values [batch, heads, length, width of a head], with the appended ones."""
        biases = [None] * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        if self.in_proj_weight is not None and query is key is value:
            projected = [*F.linear(query, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)]
        else:
            separate = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
            weights = separate if self.in_proj_weight is None else self.in_proj_weight.chunk(3)
            projected = [F.linear(*inputs) for inputs in zip((query, key, value), weights, biases, strict=True)]
        if self.bias_k is not None and self.bias_v is not None:
            for i, appended in ((1, self.bias_k), (2, self.bias_v)):
                projected[i] = torch.cat([projected[i], appended.expand(len(query), 1, -1)], 1)
        if self.add_zero_attn:
            projected[1:] = [F.pad(x, (0, 0, 0, 1)) for x in projected[1:]]
        return [x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in projected]

    @property
    def _appended(self) -> int:
        """How many keys are appended."""
        return int(self.bias_k is not None) + int(self.add_zero_attn)

    def _mask(self, mask: Tensor | None, padding: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        """Both masks as one for :func:`sparse_attention`: True = keep, or added; appended keys are never masked."""
        masks = []
        if mask is not None:
            masks.append(mask.unflatten(0, (-1, self.num_heads)) if mask.dim() == 3 else mask)
        if padding is not None:
            masks.append(padding[:, None, None, :])
        if not masks:
            return None
        for m in masks:
            if m.dtype != torch.bool and not m.is_floating_point():
                raise TypeError(f"MultiheadAttention: masks must be bool or float, got {m.dtype}; use mask.bool()")
        masks = [F.pad(m, (0, self._appended)) for m in masks] if self._appended else masks  # with False, or 0
        if all(m.dtype == torch.bool for m in masks):
            return ~(masks[0] | masks[-1])
        zero = masks[0].new_zeros((), dtype=dtype)
        biases = [torch.where(m, -math.inf, zero) if m.dtype == torch.bool else m for m in masks]
        return biases[0] if len(biases) == 1 else biases[0] + biases[1]

    def _nested(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Self-attention over nested tensors: padded, with the padding removed."""
        if torch.is_grad_enabled() and any(x.requires_grad for x in (query, *self.parameters())):
            raise ValueError("MultiheadAttention: nested tensors are for inference; call it under torch.no_grad()")
        if not (query is key is value and self.batch_first):
            raise ValueError("MultiheadAttention: nested tensors need batch_first=True and query = key = value")
        lengths = [len(x) for x in query.unbind()]
        padded = query.to_padded_tensor(0.0)
        ends = torch.tensor(lengths, device=padded.device)[:, None]
        padding = torch.arange(padded.shape[1], device=padded.device) >= ends
        o, _ = self(padded, padded, padded, key_padding_mask=padding, need_weights=False)
        return torch.nested.nested_tensor([x[:n] for x, n in zip(o, lengths, strict=True)])

    def _reset_parameters(self) -> None:
        before, self._qkv_same_embed_dim = self._qkv_same_embed_dim, self.in_proj_weight is not None
        super()._reset_parameters()
        self._qkv_same_embed_dim = before

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        for name, tensor in self.mapping.state_dict(prefix="mapping.").items():  # torch's state dicts lack it
            state_dict.setdefault(prefix + name, tensor)
        if self.log_scale is not None:
            state_dict.setdefault(f"{prefix}log_scale", self.log_scale.detach())
        super()._load_from_state_dict(state_dict, prefix, *others)


def log_n_factors(heads: int, device: Any = None, kind: LogNFactors = True) -> nn.Parameter:
    """The learned factors of ``log_n_scale``: [heads], or delta, beta and gamma, [3, heads]."""
    if kind not in (True, "adaptive"):
        raise ValueError(f"log_n_scale must be True, False or 'adaptive', got {kind!r}")
    start = torch.tensor(1 / math.log(LOG_N_KEYS) if kind is True else [[1.0], [0.0], [1.0]], device=device)
    return nn.Parameter(start.expand(*start.shape[:1], heads).clone())


def _mapping_module(caller: str, mapping: str, learnable: bool, parameter: dict[str, Value]) -> Any:
    """The module of a mapping, with its parameter and options."""
    if mapping not in MAPPINGS:
        raise ValueError(f"{caller}: mapping must be one of {', '.join(MAPPINGS)}, got {mapping!r}")
    spec = MAPPINGS[mapping]
    kind: Any = module_of(spec)
    value = spec.bind(caller, parameter)
    options = {option.name: parameter[option.name] for option in spec.options if option.name in parameter}
    if spec.parameter is not None:
        return kind(value, learnable=learnable, **options)
    if learnable:
        raise ValueError(f"{caller}: {mapping} has no parameter to learn")
    if options:
        raise ValueError(f"{caller}: options of {mapping}, which has no parameter, are not supported: {options}")
    return kind()


class _TransformerLayer(nn.Module):
    """What both layers add to those of torch, whose arguments are the same."""

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = F.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        mapping: str = "r_softmax",
        learnable: bool = False,
        log_n_scale: LogNFactors = False,
        **parameter: Value,
    ) -> None:
        sizes = (dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias, device, dtype)
        super().__init__(d_model, nhead, *sizes)
        replace_attention(self, mapping, learnable=learnable, log_n_scale=log_n_scale, **parameter)


class TransformerEncoderLayer(_TransformerLayer, nn.TransformerEncoderLayer):
    """:class:`torch.nn.TransformerEncoderLayer` with a mapping in place of softmax.

    Args:
        d_model, ..., dtype: as in :class:`torch.nn.TransformerEncoderLayer`.
        mapping, learnable, log_n_scale, parameter: as in :class:`MultiheadAttention`.

    Example:
        >>> layer = TransformerEncoderLayer(16, 4, batch_first=True, mapping="k_softmax", k=3).eval()
        >>> layer(torch.randn(2, 5, 16)).shape
        torch.Size([2, 5, 16])
    """


class TransformerDecoderLayer(_TransformerLayer, nn.TransformerDecoderLayer):
    """:class:`torch.nn.TransformerDecoderLayer` with a mapping in place of softmax, in self- and cross-attention.

    Args:
        d_model, ..., dtype: as in :class:`torch.nn.TransformerDecoderLayer`.
        mapping, learnable, log_n_scale, parameter: as in :class:`MultiheadAttention`.

    Example:
        >>> layer = TransformerDecoderLayer(16, 4, batch_first=True, mapping="r_softmax", r=0.5)
        >>> layer(torch.randn(2, 5, 16), torch.randn(2, 7, 16)).shape
        torch.Size([2, 5, 16])
    """


def replace_attention(
    module: nn.Module, mapping: str, *, learnable: bool = False, log_n_scale: LogNFactors = False, **parameter: Value
) -> nn.Module:
    """Replace every :class:`torch.nn.MultiheadAttention` inside a module, in place; weights are shared, not copied.

    Args:
        module: any module that contains ``nn.MultiheadAttention``, or one itself.
        mapping, learnable, log_n_scale, parameter: as in :class:`MultiheadAttention`; each layer gets its own.

    Returns:
        The module, or the new attention module if it is one itself.

    Raises:
        ValueError: if there is no ``nn.MultiheadAttention``, or one of a subclass; the module is left unchanged.

    Example:
        >>> encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, batch_first=True), 2)
        >>> _ = replace_attention(encoder, "t_softmax", t=6.0, edge=0.0)
        >>> encoder.layers[1].self_attn.mapping
        TSoftmax(t=6, learnable=False, dim=-1, edge=0.0)
    """
    names = module.named_modules(remove_duplicate=False)  # a shared module has several names
    old = {name: part for name, part in names if isinstance(part, nn.MultiheadAttention)}
    if not old:
        raise ValueError(
            f"replace_attention: {type(module).__name__} contains no nn.MultiheadAttention; for Transformers models use"
            " set_attention, for code that calls F.scaled_dot_product_attention sparse_sdpa, both of rsoftmax.attention"
        )
    for name, part in old.items():
        if type(part) not in (nn.MultiheadAttention, MultiheadAttention):
            raise ValueError(
                f"replace_attention: {name or 'the module'} is a {type(part).__name__}, a subclass of"
                " nn.MultiheadAttention that may override forward; replace it by nn.MultiheadAttention first"
            )
    arguments = (mapping, learnable, log_n_scale, parameter)
    new = {part: _with_mapping(part, *arguments) for part in old.values()}
    for name, part in old.items():
        if name:
            module.set_submodule(name, new[part])
    for child in module.modules():
        if isinstance(child, nn.TransformerEncoder):
            child.use_nested_tensor = False  # its nested tensors are for torch's fast path
    return new[old[""]] if "" in old else module


def _with_mapping(
    old: nn.MultiheadAttention, mapping: str, learnable: bool, log_n_scale: LogNFactors, parameter: dict[str, Value]
) -> nn.Module:
    """A module with a mapping and the parameters of ``old``."""
    new, device = MultiheadAttention.__new__(MultiheadAttention), old.out_proj.weight.device
    nn.Module.__init__(new)
    for name, attribute in vars(old).items():
        if not name.startswith("_") or "embed" in name or "_hooks" in name:
            vars(new)[name] = attribute
    new._parameters, new._modules, new._buffers = dict(old._parameters), dict(old._modules), dict(old._buffers)
    new._qkv_same_embed_dim = False
    new.mapping = _mapping_module("replace_attention", mapping, learnable, parameter).to(device)
    new.log_scale = log_n_factors(old.num_heads, device, log_n_scale) if log_n_scale else None
    return new


@dataclass
class CallCounter:
    """The number of calls that :func:`sparse_sdpa` has replaced."""

    calls: int = 0


@contextmanager
def sparse_sdpa(mapping: str, **parameter: Value) -> Iterator[CallCounter]:
    """Replace :func:`torch.nn.functional.scaled_dot_product_attention` within a ``with`` block.

    For code that calls ``F.scaled_dot_product_attention``: timm, sentence-transformers, or your own. Code that imported
    the function by name keeps using torch's: check the number of calls. torch's fast path of ``nn.MultiheadAttention``,
    which does not call the function, is disabled within the block; with ``need_weights=True``, its default, the module
    does not call it either and stays dense: use :func:`replace_attention`.

    Args:
        mapping: a name in ``MAPPINGS``.
        parameter: the parameter of the mapping and its options, such as ``t=6.0, edge=0.0``.

    Yields:
        A counter: ``counter.calls`` is the number of calls so far.

    Warns:
        UserWarning: at the end, if there was no call.

    Example:
        >>> q, k, v = torch.randn(3, 1, 2, 5, 8)
        >>> with sparse_sdpa("t_softmax", t=6.0, edge=0.0) as counter:
        ...     output = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        >>> counter.calls
        1
    """
    _mapping_module("sparse_sdpa", mapping, False, parameter)  # raises for wrong arguments
    attention: Callable[..., Tensor] = partial(sparse_attention, mapping=mapping, **parameter)  # type: ignore[arg-type]
    counter, before, fast = CallCounter(), F.scaled_dot_product_attention, torch.backends.mha.get_fastpath_enabled()

    def attend(*arguments: Any, **options: Any) -> Tensor:
        counter.calls += 1
        return attention(*arguments, **options)

    F.scaled_dot_product_attention = attend
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield counter
    finally:
        F.scaled_dot_product_attention = before
        torch.backends.mha.set_fastpath_enabled(fast)
    if not counter.calls:
        warnings.warn("sparse_sdpa: no call of F.scaled_dot_product_attention within the block", stacklevel=3)
