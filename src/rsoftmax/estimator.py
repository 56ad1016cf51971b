"""Another path to :mod:`rsoftmax.sklearn`, where the code is; both stay valid."""

from rsoftmax.sklearn import PLAIN, ExpectedF1Classifier, SparseLabelClassifier, TableModel

__all__ = ["PLAIN", "ExpectedF1Classifier", "SparseLabelClassifier", "TableModel"]
