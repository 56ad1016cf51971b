"""Multi-label learning as scikit-learn estimators; skorch runs the training.

Needs ``pip install 'rsoftmax[sklearn]'``.
"""

try:
    import safetensors  # noqa: F401
    import sklearn  # noqa: F401
    import skorch  # noqa: F401
except ImportError as missing:
    raise ImportError(f"rsoftmax.sklearn needs {missing.name}: pip install 'rsoftmax[sklearn]'") from missing

from rsoftmax.sklearn.classifier import PLAIN, SparseLabelClassifier
from rsoftmax.sklearn.expected_f1 import ExpectedF1Classifier
from rsoftmax.sklearn.features import Embedder
from rsoftmax.sklearn.risk_control import RiskControlledClassifier
from rsoftmax.sklearn.table_model import TableModel

__all__ = [
    "PLAIN",
    "Embedder",
    "ExpectedF1Classifier",
    "RiskControlledClassifier",
    "SparseLabelClassifier",
    "TableModel",
]
