"""Sparse attention, labels and sampling with models of Hugging Face.

Importing this makes every mapping an ``attn_implementation``, and ``LabelModel`` known to ``AutoModel``.

>>> from transformers import BertConfig, BertModel
>>> from rsoftmax.huggingface import rates, set_attention
>>> model = BertModel(BertConfig(num_hidden_layers=2, hidden_size=8, num_attention_heads=2, intermediate_size=8))
>>> set_attention(model, "r_softmax", r=[0.1, 0.3])
>>> print(rates(model))
r                                mean      0      1
encoder.layer.0.attention.self  0.100  0.100  0.100
encoder.layer.1.attention.self  0.300  0.300  0.300

Needs ``pip install 'rsoftmax[hf]'``.
"""

try:
    import transformers  # noqa: F401
except ImportError as missing:
    raise ImportError(f"rsoftmax.huggingface needs {missing.name}: pip install 'rsoftmax[hf]'") from missing

from rsoftmax.attention import ROW_MAPPINGS
from rsoftmax.huggingface.attend import register
from rsoftmax.huggingface.head_table import HeadTable
from rsoftmax.huggingface.label_config import LabelModelConfig
from rsoftmax.huggingface.label_model import LabelModel, LabelOutput
from rsoftmax.huggingface.measure import attention_weights, sparsity
from rsoftmax.huggingface.rates import layers, parameter_groups, rates, set_attention, set_rate
from rsoftmax.huggingface.sampling import RSoftmaxWarper, TSoftmaxWarper
from rsoftmax.huggingface.saving import install
from rsoftmax.huggingface.schedule import SparsitySchedule

__all__ = [
    "HeadTable",
    "LabelModel",
    "LabelModelConfig",
    "LabelOutput",
    "RSoftmaxWarper",
    "SparsitySchedule",
    "TSoftmaxWarper",
    "attention_weights",
    "layers",
    "parameter_groups",
    "rates",
    "set_attention",
    "set_rate",
    "sparsity",
]

for _name in ROW_MAPPINGS:
    register(_name)
install()
