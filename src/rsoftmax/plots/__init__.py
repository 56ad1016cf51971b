"""Pictures: scores through every mapping, attention, a picture beside its labels, calibration, a model's scores.

Needs ``pip install 'rsoftmax[plots]'``.
"""

try:
    import matplotlib  # noqa: F401
except ImportError as missing:
    raise ImportError(f"rsoftmax.plots needs {missing.name}: pip install 'rsoftmax[plots]'") from missing

from rsoftmax.plots.attention_map import attention_figure, draw_attention_map
from rsoftmax.plots.calibration import draw_calibration
from rsoftmax.plots.evaluation import draw_evaluation
from rsoftmax.plots.mappings import compare_mappings, draw_mappings, mapping_gradients, mappings_figure
from rsoftmax.plots.picture import draw_labels

__all__ = [
    "attention_figure",
    "compare_mappings",
    "draw_attention_map",
    "draw_calibration",
    "draw_evaluation",
    "draw_labels",
    "draw_mappings",
    "mapping_gradients",
    "mappings_figure",
]
