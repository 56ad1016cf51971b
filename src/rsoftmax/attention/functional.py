"""Attention with any mapping in place of softmax, without holding the whole matrix of weights.

``arguments`` checks them and brings them into one layout; ``reference`` is the definition. ``plan`` computes it by
one kernel where possible and by ``blocks`` otherwise, in eager code or, as an operator, in compiled code.
"""

from torch import Tensor

from rsoftmax._tensors import Value, in_graph, is_plain, without_autocast
from rsoftmax.attention import plan, reference
from rsoftmax.attention.arguments import LogNScale, prepare
from rsoftmax.mappings import MAPPINGS as MAPPINGS  # importing it registers the built-in mappings

__all__ = ["attention_weights", "sparse_attention"]


def sparse_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | Tensor | None = None,
    enable_gqa: bool = False,
    *,
    log_n_scale: LogNScale = False,
    mapping: str = "r_softmax",
    **parameter: Value,
) -> Tensor:
    r"""Attention with a mapping in place of softmax; otherwise like torch's.

    .. math:: o = \mathrm{dropout}(p)\, v, \qquad p = \mathrm{mapping}(\mathrm{scale} \cdot q k^T + \mathrm{mask})

    The arguments are those of :func:`torch.nn.functional.scaled_dot_product_attention`, in the same order and with the
    same meaning, followed by the mapping and its parameter.

    Args:
        query: [..., Hq, Q, D].
        key: [..., H, L, D].
        value: [..., H, L, Dv].
        attn_mask: broadcasts to [..., Hq, Q, L]; bool, True = keep, or float, added to the scores, ``-inf`` = masked.
            A float mask receives a gradient. Finite numbers mask nothing, however low: they are part of the score.
        dropout_p: the probability of dropping a weight, rounded to 1 / 65536. It applies at every call: pass 0 in
            evaluation.
        is_causal: query i sees keys 0 to i. With ``attn_mask``, it sees the keys that both keep.
        scale: a number, default 1 / sqrt(D); or a tensor [Hq] with one value for each head, or one that broadcasts to
            [..., Hq, Q, 1].
        enable_gqa: allow H to be a divisor of Hq; adjacent query heads share a key head.
        log_n_scale: multiply the scale by log(n), where n is the number of keys that the query may see, at least 2.
            Softmax needs it to stay equally sharp in a longer context (SSMax, Nakanishi 2025, where a factor is learned
            for each head: pass it as ``scale``). A triple (delta, beta, gamma) multiplies by delta + beta log(n)^gamma
            instead (ASEntmax, Vasylenko et al. 2025); each is a number or a tensor, as ``scale``.
        mapping: a name in ``MAPPINGS``.
        parameter: the parameter of the mapping by its name, such as ``r=0.5`` or ``t=2.0``. A number, a tensor [Hq]
            with one value for each head, or a tensor that broadcasts to [..., Hq, Q, 1]; differentiable.

    Returns:
        [..., Hq, Q, Dv], in the dtype of ``query``.

    Example:
        >>> import torch
        >>> q, k, v = (torch.randn(2, 4, 5, 8) for _ in range(3))
        >>> sparse_attention(q, k, v, r=0.4).shape
        torch.Size([2, 4, 5, 8])
        >>> sparse_attention(q, k, v, is_causal=True, mapping="t_softmax", t=torch.tensor([0.5, 1.0, 2.0, 4.0])).shape
        torch.Size([2, 4, 5, 8])

    A query whose keys are all masked gets zeros, with zero gradient. A masked key (by a mask, ``-inf`` or
    ``is_causal``) has no influence, forward and backward, whatever its values: padding may be NaN. Half precision is
    computed in float32. In code that is exported or transformed, and for second derivatives, the whole matrix is in
    memory; compiled code calls the operator ``rsoftmax::attention``, which avoids it. Backward uses the blocks, the
    kernels and the dropout mask of forward, even if the number of threads, :func:`rsoftmax.use_kernels` or autocast
    have changed. On the meta device only shapes and dtypes are computed.

    Reference: Bałazy et al., r-softmax (2023), section 4.3.
    """
    tensors = (query, key, value)
    args, shape = prepare(
        "sparse_attention", tensors, attn_mask, dropout_p, is_causal, scale, enable_gqa, log_n_scale, mapping, parameter
    )
    with without_autocast(query):
        if in_graph() and plan.has_graph_op(query.device):
            o = plan.graph_output(args)
        elif not query.is_meta and is_plain(*(x for x in args.tensors if x is not None)):
            o = plan.output(args)
        else:
            o = reference.output(args)
    return o.to(args.q.dtype).reshape(*shape, value.shape[-1])


def attention_weights(
    query: Tensor,
    key: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | Tensor | None = None,
    enable_gqa: bool = False,
    *,
    log_n_scale: LogNScale = False,
    mapping: str = "r_softmax",
    **parameter: Value,
) -> Tensor:
    """The weights of :func:`sparse_attention` before dropout: the whole matrix.

    Args:
        query: [..., Hq, Q, D].
        key: [..., H, L, D].
        attn_mask, is_causal, scale, enable_gqa, log_n_scale, mapping, parameter: as in :func:`sparse_attention`.

    Returns:
        [..., Hq, Q, L], in the dtype of ``query``; each row sums to one if the mapping's rows do.

    Example:
        >>> import torch
        >>> q, k = torch.randn(2, 2, 4, 5, 8)
        >>> (attention_weights(q, k, r=0.4) == 0).sum(-1).unique()
        tensor([2])
    """
    tensors = (query, key, key)
    args, shape = prepare(
        "attention_weights", tensors, attn_mask, 0.0, is_causal, scale, enable_gqa, log_n_scale, mapping, parameter
    )
    with without_autocast(query):
        p = reference.weights(reference.separate_non_finite(args.wide())[0])
    return p.to(args.q.dtype).reshape(*shape, key.shape[-2])
