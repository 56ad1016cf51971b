"""Another path to :mod:`rsoftmax.sklearn`, where the code is; both stay valid."""

from rsoftmax.sklearn import SparseLabelClassifier

__all__ = ["SparseLabelClassifier"]
