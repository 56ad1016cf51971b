"""Attention with any mapping of the table in place of softmax, without ever holding its whole matrix of weights.

function.py is what people call; inputs.py brings everything into one layout; equations.py is what is computed.
passes.py computes it forward and backward, by one kernel where that can go, by flex.py or by blocks.py;
operator.py is the same for compiled graphs.
"""

from rsoftmax.attention.function import sparse_attention
from rsoftmax.table import ROW_MAPPINGS as ROW_MAPPINGS

__all__ = ["sparse_attention"]
