"""Multi-label learning as scikit-learn estimators; skorch runs the training.

Needs ``pip install 'rsoftmax[sklearn]'``. The classes can be imported from :mod:`rsoftmax.estimator` too.
"""

try:
    import safetensors  # noqa: F401
    import sklearn  # noqa: F401
    import skorch  # noqa: F401
except ImportError as missing:
    raise ImportError(f"rsoftmax.sklearn needs {missing.name}: pip install 'rsoftmax[sklearn]'") from missing

from rsoftmax.sklearn.classifier import SparseLabelClassifier
from rsoftmax.sklearn.expected_f1 import ExpectedF1Classifier
from rsoftmax.sklearn.settings import PLAIN
from rsoftmax.sklearn.table_model import TableModel

__all__ = ["PLAIN", "ExpectedF1Classifier", "SparseLabelClassifier", "TableModel"]
