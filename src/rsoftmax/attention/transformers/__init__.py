"""Sparse attention in models of Hugging Face transformers.

>>> from transformers import BertConfig, BertModel
>>> from rsoftmax.attention import head_parameters, set_attention
>>> model = BertModel(BertConfig(num_hidden_layers=2, hidden_size=8, num_attention_heads=2, intermediate_size=8))
>>> set_attention(model, "r_softmax", r=[0.1, 0.3])
>>> print(head_parameters(model))
r                                mean      0      1
encoder.layer.0.attention.self  0.100  0.100  0.100
encoder.layer.1.attention.self  0.300  0.300  0.300

The first call registers every mapping as an ``attn_implementation`` of transformers; importing changes nothing there.
Needs ``pip install 'rsoftmax[attention]'``.
"""

try:
    import transformers  # noqa: F401
except ImportError as missing:
    message = f"rsoftmax.attention.transformers needs {missing.name}: pip install 'rsoftmax[attention]'"
    raise ModuleNotFoundError(message, name=missing.name) from missing

from rsoftmax.attention.transformers.api import (
    HeadTable,
    SparsitySchedule,
    attention_layers,
    head_parameters,
    parameter_groups,
    set_attention,
    set_head_parameters,
)
from rsoftmax.attention.transformers.cache import GrowingCache
from rsoftmax.attention.transformers.measure import attention_maps, sparsity
from rsoftmax.attention.transformers.saving import register_attention
from rsoftmax.attention.transformers.sparsify import SparsifyReport, sparsify
from rsoftmax.attention.transformers.timing import ExpectedTime, expected_time

__all__ = [
    "ExpectedTime",
    "GrowingCache",
    "HeadTable",
    "SparsifyReport",
    "SparsitySchedule",
    "attention_layers",
    "attention_maps",
    "expected_time",
    "head_parameters",
    "parameter_groups",
    "register_attention",
    "set_attention",
    "set_head_parameters",
    "sparsify",
    "sparsity",
]
