"""One linear classifier for each label, on sparse features: a few to about a thousand labels."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from rsoftmax.labels.decoding import Decoder
from rsoftmax.labels.estimators.expected_f1 import ExpectedF1Classifier
from rsoftmax.labels.evaluation import Evaluation

__all__ = ["OneVsRest", "SparseOutput"]

C = 3.0  # the inverse strength of the ridge penalty
TOLERANCE = 0.1  # LIBLINEAR's own default for its dual solver
CERTAIN = 30.0  # log-odds of a label that every text has
SMALLEST = 0.01  # weights below it are left out; average precision is the same without them
WORTH_PROCESSES = 2**24  # entries of features times labels
ROWS = 1000  # decoded at the same time


class SparseOutput(NamedTuple):
    """Marginals of the labels that a text may have, and which of them are predicted.

    Attributes:
        marginals: [items, K]; labels without an entry have probability zero.
        predicted: bool, for each entry of the marginals.
    """

    marginals: sp.csr_array
    predicted: NDArray[np.bool_]


class SparseRegression(LogisticRegression):  # type: ignore[misc]
    """A logistic regression without the weights that hardly matter, as a sparse matrix."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit, then leave out small weights."""
        super().fit(X, y, sample_weight)
        self.coef_[abs(self.coef_) < SMALLEST] = 0
        return self.sparsify()  # type: ignore[no-any-return]


class OneVsRest(nn.Module):
    """Logistic regressions, calibrated and decoded as :class:`rsoftmax.labels.ExpectedF1Classifier` does.

    Args:
        num_labels: the number of labels, K.
        options: of :class:`rsoftmax.labels.Decoder`.
        entries: the number of weights that are not zero.
        features: the number of features.

    The weights of the fold models are averaged into one classifier. They are stored as a sparse matrix
    [features, K].
    """

    indptr: Tensor
    indices: Tensor
    weights: Tensor
    bias: Tensor

    def __init__(self, num_labels: int, options: dict[str, Any], features: int = 0, entries: int = 0) -> None:
        super().__init__()
        self.options, self.decoder = options, Decoder(num_labels, **options)
        self.register_buffer("indptr", torch.zeros(features + 1, dtype=torch.int64))
        self.register_buffer("indices", torch.zeros(entries, dtype=torch.int32))
        self.register_buffer("weights", torch.zeros(entries))
        self.register_buffer("bias", torch.zeros(num_labels))

    @classmethod
    def from_tensors(cls, num_labels: int, options: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        """A fitted classifier from its ``state_dict``."""
        model = cls(num_labels, options, len(tensors["indptr"]) - 1, len(tensors["weights"]))
        model.load_state_dict(tensors)
        model.matrix.check_format()  # products do not look whether the indices are in range
        return model

    def set_threshold(self, threshold: Tensor) -> dict[str, Any]:
        """Predict the labels whose log-odds reach a threshold, [1] or [K]; return the new options."""
        self.decoder = self.decoder.at_threshold(threshold)
        self.options = {"average": self.decoder.average, "implies": self.decoder.constraints.implies}
        return self.options

    @property
    def matrix(self) -> sp.csr_array:
        """The weights, [features, K]."""
        arrays = self.weights.numpy(), self.indices.numpy(), self.indptr.numpy()
        return sp.csr_array(arrays, shape=(len(self.indptr) - 1, len(self.bias)))

    def fit(
        self,
        x: sp.csr_array,
        y: sp.csr_array,
        validation: tuple[sp.csr_array, sp.csr_array] | None,
        *,
        names: Sequence[str],
        random_state: int,
        verbose: bool,
    ) -> Evaluation:
        """Fit classifiers and decoder; the evaluation is the one on held-out texts.

        Args:
            x: features [texts, d].
            y: labels [texts, K].
            validation: features and labels of held-out texts. None: cross-validation.
            names: the names of the labels.
            random_state: seeds the folds.
            verbose: show a progress bar.
        """
        cv: Any = 5
        if validation is not None:
            cv = [(np.arange(x.shape[0]), x.shape[0] + np.arange(validation[0].shape[0]))]
            x, y = sp.vstack([x, validation[0]], "csr"), sp.vstack([y, validation[1]], "csr")
        jobs = -1 if x.nnz * len(names) > WORTH_PROCESSES else None
        regression = SparseRegression(C=C, solver="liblinear", dual=True, tol=TOLERANCE, random_state=random_state)
        model = ExpectedF1Classifier(
            regression, cv=cv, random_state=random_state, verbose=int(verbose), n_jobs=jobs, **self.options
        )
        rules = {rule: self.options.get(rule, ()) for rule in ("implies", "exclusive")}
        model.set_params(**{rule: [[names[i] for i in group] for group in groups] for rule, groups in rules.items()})
        model.fit(sp.csr_matrix(x, dtype=np.float64), y, classes=names)
        self._take_over(model, x.shape[1])
        if model.evaluation_ is None:
            raise ValueError(
                f"LabelModel: {y.shape[0]} texts are too few to learn labels from: every part of them needs a text"
                " with a label, and one without it"
            )
        return model.evaluation_

    def _take_over(self, model: ExpectedF1Classifier, features: int) -> None:
        """The mean of the fold models; labels without any are predicted always or never."""
        fitted: list[list[Any]] = [[] for _ in self.bias]
        for fold in model.models_[0]:
            for label, regression in zip(fold.varying_, fold.models_, strict=True):
                fitted[label].append(regression)
        none = sp.csr_array((1, features))
        means = [sum((one.coef_ for one in some), none) / max(len(some), 1) for some in fitted]
        matrix = sp.csr_array(sp.vstack(means).T)
        self.indptr, self.indices = torch.from_numpy(matrix.indptr).long(), torch.from_numpy(matrix.indices).int()
        self.weights = torch.from_numpy(matrix.data).float()
        biases = [[float(one.intercept_[0]) for one in some] for some in fitted]
        self.bias = torch.tensor([sum(some) / max(len(some), 1) for some in biases])
        self.decoder, constant = model.decoder_, torch.from_numpy(model._constant)
        never_varies, line = ~constant.isnan(), self.decoder.calibration
        line.slope[never_varies] = 0
        line.offset[never_varies] = constant[never_varies].clamp(-CERTAIN, CERTAIN).float()

    def scores(self, x: sp.csr_array) -> Tensor:
        """The scores of the labels, [texts, K]."""
        return torch.from_numpy((x @ self.matrix).toarray()) + self.bias

    @torch.no_grad()
    def predict(self, x: sp.csr_array) -> SparseOutput:
        """The marginals of all labels and the predicted ones."""
        parts = [self.decoder(self.scores(x[start : start + ROWS])) for start in range(0, max(x.shape[0], 1), ROWS)]
        return sparse_output(torch.cat([part.log_odds for part in parts]), torch.cat([part.labels for part in parts]))


def sparse_output(log_odds: Tensor, labels: Tensor) -> SparseOutput:
    """Dense log-odds and labels [items, K] as a sparse output, in which every label has an entry."""
    rows, columns = log_odds.shape
    indices, indptr = np.tile(np.arange(columns), rows), np.arange(rows + 1) * columns
    marginals = sp.csr_array((log_odds.sigmoid().flatten().numpy(), indices, indptr), shape=(rows, columns))
    return SparseOutput(marginals, labels.flatten().numpy())
