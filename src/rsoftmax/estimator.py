"""Another path to :mod:`rsoftmax.sklearn`, where the code is; both stay valid."""

from rsoftmax.sklearn import ExpectedF1Classifier, SparseLabelClassifier

__all__ = ["ExpectedF1Classifier", "SparseLabelClassifier"]
