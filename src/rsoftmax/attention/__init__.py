"""Attention with any mapping in place of softmax: a function, torch layers, and models of Hugging Face transformers.

>>> import torch
>>> from rsoftmax.attention import sparse_attention
>>> q, k, v = torch.randn(3, 2, 4, 9, 16)
>>> sparse_attention(q, k, v, r=1/3).shape
torch.Size([2, 4, 9, 16])

The function and the layers need torch alone. Pretrained models need ``pip install 'rsoftmax[attention]'``.
"""

from typing import TYPE_CHECKING

from rsoftmax._lazy import lazy_names

if TYPE_CHECKING:  # for type checkers and editors
    from rsoftmax.attention.functional import *  # noqa: F403
    from rsoftmax.attention.layers import *  # noqa: F403
    from rsoftmax.attention.transformers import *  # noqa: F403
else:
    __getattr__, __all__ = lazy_names(
        __name__,
        {
            "functional": "attention_weights sparse_attention",
            "layers": "MultiheadAttention TransformerDecoderLayer TransformerEncoderLayer replace_attention"
            " sparse_sdpa",
            "transformers": "ExpectedTime GrowingCache HeadTable SparsifyReport SparsitySchedule attention_layers"
            " attention_maps expected_time head_parameters parameter_groups register_attention set_attention"
            " set_head_parameters sparsify sparsity",
        },
        extra="attention",
    )

    def __dir__() -> list[str]:
        return [*globals(), *__all__]
