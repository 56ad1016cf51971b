"""Plots of mappings, attention maps, predicted labels and evaluations.

Needs ``pip install 'rsoftmax[plots]'``.
"""

try:
    import matplotlib  # noqa: F401
except ImportError as missing:
    raise ImportError(f"rsoftmax.plots needs {missing.name}: pip install 'rsoftmax[plots]'") from missing

from rsoftmax.plots.labels import draw_evaluation, draw_labels, formats, labels_figure
from rsoftmax.plots.sparsity import (
    attention_figure,
    compare_mappings,
    draw_attention_map,
    draw_mappings,
    draw_sparsified_heads,
    mapping_gradients,
    mappings_figure,
)

__all__ = [
    "attention_figure",
    "compare_mappings",
    "draw_attention_map",
    "draw_evaluation",
    "draw_labels",
    "draw_mappings",
    "draw_sparsified_heads",
    "formats",
    "labels_figure",
    "mapping_gradients",
    "mappings_figure",
]
