"""Sparse attention, multi-label models and sampling with Hugging Face transformers.

Importing this package registers every mapping as an ``attn_implementation``, and ``LabelModel`` with ``AutoModel``.

>>> from transformers import BertConfig, BertModel
>>> from rsoftmax.huggingface import parameters, set_attention
>>> model = BertModel(BertConfig(num_hidden_layers=2, hidden_size=8, num_attention_heads=2, intermediate_size=8))
>>> set_attention(model, "r_softmax", r=[0.1, 0.3])
>>> print(parameters(model))
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
from rsoftmax.huggingface.attention.api import (
    HeadTable,
    SparsitySchedule,
    layers,
    parameter_groups,
    parameters,
    set_attention,
    set_parameter,
)
from rsoftmax.huggingface.attention.attend import register
from rsoftmax.huggingface.attention.calibrate import Calibration, calibrate
from rsoftmax.huggingface.attention.compare import Trial, sweep
from rsoftmax.huggingface.attention.measure import attention_weights, sparsity
from rsoftmax.huggingface.attention.saving import install
from rsoftmax.huggingface.labels.model import LabelModel, LabelModelConfig, LabelOutput
from rsoftmax.huggingface.sampling import KSoftmaxWarper, RSoftmaxWarper, TSoftmaxWarper

__all__ = [
    "Calibration",
    "HeadTable",
    "KSoftmaxWarper",
    "LabelModel",
    "LabelModelConfig",
    "LabelOutput",
    "RSoftmaxWarper",
    "SparsitySchedule",
    "TSoftmaxWarper",
    "Trial",
    "attention_weights",
    "calibrate",
    "layers",
    "parameter_groups",
    "parameters",
    "set_attention",
    "set_parameter",
    "sparsity",
    "sweep",
]

for _name in ROW_MAPPINGS:
    register(_name)
install()
