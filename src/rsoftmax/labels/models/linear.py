"""One linear classifier for each label, on sparse features: a few to about a thousand labels."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.linear_model import LogisticRegression
from sklearn.utils import Tags
from torch import Tensor, nn

from rsoftmax.labels.decoding import Decoder
from rsoftmax.labels.estimators.expected_f1 import ExpectedF1Classifier
from rsoftmax.labels.evaluation import Evaluation
from rsoftmax.labels.models.stages import Stages
from rsoftmax.labels.sparse import evaluate_csr

__all__ = ["OneVsRest", "SparseOutput"]

C = 3.0  # the inverse strength of the ridge penalty
TOLERANCE = 0.1  # LIBLINEAR's own default for its dual solver
CERTAIN = 30.0  # log-odds of a label that every text has
SMALLEST = 0.01  # weights below it are left out; average precision is the same without them
WORTH_PROCESSES = 2**24  # entries of features times labels
ENTRIES = 2**22  # of texts times labels decoded at the same time


class SparseOutput(NamedTuple):
    """Marginals of the labels that a text may have, and which of them are predicted.

    Attributes:
        marginals: [items, K]; labels without an entry have probability zero.
        predicted: bool, for each entry of the marginals.
    """

    marginals: sp.csr_array
    predicted: NDArray[np.bool_]


class SparseRegressions(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A logistic regression for each label, without the weights that hardly matter.

    Args:
        random_state: seeds the solver.
        stages: finished regressions, named by what they were fitted on.

    Attributes:
        coef_: a sparse matrix [K, features].
        intercept_: [K].
    """

    def __init__(self, random_state: int, stages: Stages) -> None:
        self.random_state = random_state
        self.stages = stages

    def fit(self, X: sp.csr_matrix, y: NDArray[np.int64]) -> Self:
        """Fit to features [samples, d] and labels [samples, K] or [samples]."""
        labels = y.reshape(len(y), -1).astype(bool)
        content = hashlib.sha256()
        for array in (X.data, X.indices, X.indptr, labels):
            content.update(array.tobytes())
        tensors = self.stages(f"fold-{content.hexdigest()[:16]}", lambda: self._fit(X, labels))
        arrays = tuple(tensors[name].numpy() for name in ("data", "indices", "indptr"))
        self.coef_ = sp.csr_array(arrays, shape=(labels.shape[1], X.shape[1]))
        self.intercept_ = tensors["intercept"].numpy()
        return self

    def _fit(self, x: sp.csr_matrix, labels: NDArray[np.bool_]) -> dict[str, Tensor]:
        options = {"C": C, "solver": "liblinear", "dual": True, "tol": TOLERANCE, "random_state": self.random_state}
        weights, biases = [], []
        for column in labels.T:
            regression = LogisticRegression(**options).fit(x, column)
            weights.append(sp.csr_array(np.where(abs(regression.coef_) < SMALLEST, 0, regression.coef_)))
            biases.append(regression.intercept_)
        matrix = sp.csr_array(sp.vstack(weights))
        arrays = {name: getattr(matrix, name) for name in ("data", "indices", "indptr")}
        arrays["intercept"] = np.concatenate(biases)
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def decision_function(self, X: sp.csr_matrix) -> NDArray[np.float64]:
        """Log-odds [samples, K]."""
        log_odds: NDArray[np.float64] = (X @ self.coef_.T).toarray() + self.intercept_
        return log_odds

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label, tags.input_tags.sparse = True, True
        return tags


class Sized(nn.Module):
    """A module whose buffers take the sizes that they have in a state dict."""

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        for name, buffer in self._buffers.items():
            if buffer is not None and prefix + name in state_dict:
                setattr(self, name, torch.empty_like(state_dict[prefix + name], dtype=buffer.dtype))
        super()._load_from_state_dict(state_dict, prefix, *arguments)


class SparseLinear(Sized):
    """Linear functions of sparse features, ``x W + b``, with few weights: W is a sparse matrix [features, outputs]."""

    indptr: Tensor
    indices: Tensor
    weights: Tensor
    bias: Tensor

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.register_buffer("indptr", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("indices", torch.zeros(0, dtype=torch.int32))
        self.register_buffer("weights", torch.zeros(0))
        self.register_buffer("bias", torch.zeros(outputs))

    @property
    def matrix(self) -> sp.csr_array:
        """The weights, [features, outputs]."""
        arrays = self.weights.numpy(), self.indices.numpy(), self.indptr.numpy()
        return sp.csr_array(arrays, shape=(len(self.indptr) - 1, len(self.bias)))

    def assign(self, matrix: sp.csr_array, bias: Any) -> None:
        """Take over weights [features, outputs] and biases."""
        self.indptr, self.indices = torch.from_numpy(matrix.indptr).long(), torch.from_numpy(matrix.indices).int()
        self.weights, self.bias = torch.from_numpy(matrix.data).float(), torch.as_tensor(bias, dtype=torch.float32)

    def forward(self, x: sp.csr_array) -> Tensor:
        """The values of features [rows, features], dense [rows, outputs]."""
        return torch.from_numpy((x @ self.matrix).toarray()) + self.bias


class SparseClassifier(nn.Module, ABC):
    """A classifier of sparse features: subclasses compute scores, from which labels are decoded.

    Args:
        num_labels: the number of labels, K.
        options: of :class:`rsoftmax.labels.Decoder`.
    """

    def __init__(self, num_labels: int, options: dict[str, Any]) -> None:
        super().__init__()
        self.options, self.decoder = options, Decoder(num_labels, **options)

    @classmethod
    def from_tensors(cls, num_labels: int, options: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        """A fitted classifier from its ``state_dict``."""
        model = cls(num_labels, options)
        model.load_state_dict(tensors)
        for part in model.modules():
            if isinstance(part, SparseLinear):
                part.matrix.check_format()  # products do not look whether the indices are in range
        return model

    def set_threshold(self, threshold: Tensor) -> dict[str, Any]:
        """Predict the labels whose log-odds reach a threshold, [1] or [K]; return the new options."""
        self.decoder = self.decoder.at_threshold(threshold)
        self.options = {"average": self.decoder.average, "implies": self.decoder.constraints.implies}
        return self.options

    @abstractmethod
    def scores(self, x: sp.csr_array) -> Tensor:
        """The scores of the labels, [texts, K]; -inf for labels that a text does not have."""

    def contributions(
        self, x: sp.csr_array, labels: Sequence[Sequence[int]]
    ) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """What each feature adds to the log-odds of some labels, exactly, text by text; before rules about labels.

        Args:
            x: features [texts, d].
            labels: the numbers of the labels, for each text.

        Returns:
            For each text the contributions of its features that are not zero, [features, labels], and the log-odds
            without any feature, [labels].

        Raises:
            ValueError: the log-odds are no sum over features.
        """
        raise ValueError(f"LabelModel: the labels of {type(self).__name__} cannot be explained by words")

    @torch.no_grad()
    def predict(self, x: sp.csr_array) -> SparseOutput:
        """The marginals of the labels that texts may have, and the predicted ones."""
        rows = max(ENTRIES // len(self.decoder.calibration.slope), 1)
        starts = range(0, max(x.shape[0], 1), rows)
        decoded = (self.decoder(self.scores(x[start : start + rows])) for start in starts)
        marginals, predicted = zip(*(sparse_output(part.log_odds, part.labels) for part in decoded), strict=True)
        return SparseOutput(sp.vstack(marginals, "csr"), np.concatenate(predicted))


def sparse_output(log_odds: Tensor, labels: Tensor) -> SparseOutput:
    """Dense log-odds and labels [items, K] as a sparse output; labels are left out where the log-odds are -inf.

    Unless they are predicted: the rules may need labels that have no marginal.
    """
    entries = (log_odds != -torch.inf) | labels
    rows, columns = (part.numpy() for part in entries.nonzero(as_tuple=True))
    indptr = np.searchsorted(rows, np.arange(len(log_odds) + 1))
    marginals = sp.csr_array((log_odds[entries].sigmoid().numpy(), columns, indptr), shape=log_odds.shape)
    return SparseOutput(marginals, labels[entries].numpy())


def score(output: SparseOutput, y: sp.csr_array, names: Sequence[str]) -> Evaluation:
    """Compare an output with labels [items, K]; there may be more names than labels of the output."""
    t = torch.from_numpy
    marginals, predicted = output.marginals, output.predicted
    csr = t(marginals.indptr), t(marginals.indices), t(marginals.data), t(predicted)
    return evaluate_csr(*csr, t(y.indptr), t(y.indices), names)


class OneVsRest(SparseClassifier):
    """Logistic regressions, calibrated and decoded as :class:`rsoftmax.labels.ExpectedF1Classifier` does.

    Args:
        num_labels: the number of labels, K.
        options: of :class:`rsoftmax.labels.Decoder`.

    The weights of the fold models are averaged into one classifier.
    """

    def __init__(self, num_labels: int, options: dict[str, Any]) -> None:
        super().__init__(num_labels, options)
        self.linear = SparseLinear(num_labels)

    def scores(self, x: sp.csr_array) -> Tensor:
        """The scores of the labels, [texts, K]."""
        scores: Tensor = self.linear(x)
        return scores

    def contributions(
        self, x: sp.csr_array, labels: Sequence[Sequence[int]]
    ) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        r"""As in the base class, by

        .. math:: u_k = (a_k b_k + c_k) + \sum_t a_k w_{tk} x_t

        with weights w and bias b of the regressions, and the lines a, c of the calibration.
        """
        matrix, line = self.linear.matrix, self.decoder.calibration
        slope, offset, bias = (part.double().numpy() for part in (line.slope, line.offset, self.linear.bias))
        for start, end, chosen in zip(x.indptr[:-1], x.indptr[1:], labels, strict=True):
            weights = matrix[x.indices[start:end]][:, chosen].toarray().astype(np.float64)
            contributions = x.data[start:end, None] * weights * slope[chosen]
            yield contributions, slope[chosen] * bias[chosen] + offset[chosen]

    def fit(
        self,
        x: sp.csr_array,
        y: sp.csr_array,
        validation: tuple[sp.csr_array, sp.csr_array] | None,
        *,
        names: Sequence[str],
        random_state: int,
        verbose: bool,
        stages: Stages,
    ) -> Evaluation:
        """Fit classifiers and decoder; the evaluation is the one on held-out texts.

        Args:
            x: features [texts, d].
            y: labels [texts, K].
            validation: features and labels of held-out texts. None: cross-validation.
            names: the names of the labels.
            random_state: seeds the folds.
            verbose: show a progress bar.
            stages: finished folds.
        """
        cv: Any = 5
        if validation is not None:
            cv = [(np.arange(x.shape[0]), x.shape[0] + np.arange(validation[0].shape[0]))]
            x, y = sp.vstack([x, validation[0]], "csr"), sp.vstack([y, validation[1]], "csr")
        jobs = -1 if x.nnz * len(names) > WORTH_PROCESSES else None
        regressions = SparseRegressions(random_state, stages)
        model = ExpectedF1Classifier(
            regressions, cv=cv, random_state=random_state, verbose=int(verbose), n_jobs=jobs, **self.options
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
        labels = len(self.linear.bias)
        weights, bias, folds = sp.csr_array((labels, features)), np.zeros(labels), np.zeros(labels)
        for fold in model.models_[0]:
            for one in fold.models_:  # none, if no label varies
                columns, rows = fold.varying_, np.arange(len(fold.varying_))
                place = sp.csr_array((np.ones(len(rows)), (columns, rows)), shape=(labels, len(rows)))
                weights, bias, folds = weights + place @ one.coef_, bias + place @ one.intercept_, folds + place.sum(1)
        folds = folds.clip(min=1)
        weights.data /= np.repeat(folds, np.diff(weights.indptr))
        self.linear.assign(sp.csr_array(weights.T), bias / folds)
        self.decoder, constant = model.decoder_, torch.from_numpy(model._constant)
        never_varies, line = ~constant.isnan(), self.decoder.calibration
        line.slope[never_varies] = 0
        line.offset[never_varies] = constant[never_varies].clamp(-CERTAIN, CERTAIN).float()
