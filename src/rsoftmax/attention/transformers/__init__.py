"""Sparse attention in models of Hugging Face transformers.

Importing this package registers every mapping as an ``attn_implementation``.

>>> from transformers import BertConfig, BertModel
>>> from rsoftmax.attention.transformers import parameters, set_attention
>>> model = BertModel(BertConfig(num_hidden_layers=2, hidden_size=8, num_attention_heads=2, intermediate_size=8))
>>> set_attention(model, "r_softmax", r=[0.1, 0.3])
>>> print(parameters(model))
r                                mean      0      1
encoder.layer.0.attention.self  0.100  0.100  0.100
encoder.layer.1.attention.self  0.300  0.300  0.300

Needs ``pip install 'rsoftmax[attention]'``.
"""

try:
    import transformers  # noqa: F401
except ImportError as missing:
    raise ImportError(
        f"rsoftmax.attention.transformers needs {missing.name}: pip install 'rsoftmax[attention]'"
    ) from missing

from rsoftmax.attention.transformers.api import (
    HeadTable,
    SparsitySchedule,
    layers,
    parameter_groups,
    parameters,
    set_attention,
    set_parameter,
)
from rsoftmax.attention.transformers.attend import register
from rsoftmax.attention.transformers.compare import Trial, sweep
from rsoftmax.attention.transformers.measure import attention_maps, sparsity
from rsoftmax.attention.transformers.saving import install
from rsoftmax.attention.transformers.sparsify import Calibration, calibrate
from rsoftmax.registry import MAPPINGS

__all__ = [
    "Calibration",
    "HeadTable",
    "SparsitySchedule",
    "Trial",
    "attention_maps",
    "calibrate",
    "layers",
    "parameter_groups",
    "parameters",
    "set_attention",
    "set_parameter",
    "sparsity",
    "sweep",
]

for _name in MAPPINGS:
    register(_name)
install()
