"""A neural network for multi-label targets, as a scikit-learn classifier."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score, f1_score
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from rsoftmax.mappings import softmax
from rsoftmax.multilabel import Output
from rsoftmax.sklearn.data import Batches, Matrix, Rows
from rsoftmax.sklearn.settings import check_settings
from rsoftmax.sklearn.targets import Targets
from rsoftmax.sklearn.training import Net, Stopping, new_net, train

SEEDS = 2**31


class SparseLabelClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A neural network for multi-label targets that finds the labels of a row without a threshold to tune.

    Hidden layers of rectified linear units, then a :class:`rsoftmax.multilabel.MultiLabelHead`, trained by AdamW.

    Args:
        mapping: from scores to probabilities, or "auto"; as in :class:`rsoftmax.multilabel.MultiLabelHead`.
        loss: what to minimise, or "auto"; likewise.
        rate: how the number of labels is found, or "auto"; likewise.
        r: the rate of zeros, for ``rate="fixed"``.
        hidden: sizes of the hidden layers.
        epochs: passes over the training rows; at most, with early stopping.
        lr: learning rate.
        batch_size: rows in a step, and in a pass of prediction.
        weight_decay: AdamW's; 0 makes it Adam. On a few thousand rows of scaled features, 1 keeps the marginals well
            calibrated up to the last epoch, where 0 needs early stopping.
        device: where to compute, as torch names it.
        early_stopping: set a share of the rows aside, stop when the loss on them has not fallen for ``patience``
            epochs, and keep the weights of the epoch with the lowest one.
        patience: a number of epochs, for early stopping.
        validation_share: the share of rows to set aside for early stopping.
        progress: show a progress bar.
        random_state: seed of the initial weights, the order of the rows and the rows set aside.

    Attributes:
        classes_: the labels' column numbers; for 1-d targets, the classes.
        n_features_in_: the number of features.
        net_: the skorch net; ``net_.module_`` is the torch module, ``net_.history`` what happened in each epoch.

    Example:
        >>> from sklearn.datasets import make_multilabel_classification
        >>> X, Y = make_multilabel_classification(400, n_classes=6, n_labels=2, random_state=0)
        >>> model = SparseLabelClassifier(epochs=30, random_state=0).fit(X[:300], Y[:300])
        >>> model.predict(X[300:302])
        array([[0, 1, 0, 0, 0, 1],
               [0, 0, 0, 0, 0, 0]])
        >>> model.predict_proba(X[300:302]).round(1)
        array([[0., 0., 0., 0., 0., 1.],
               [0., 0., 0., 0., 0., 0.]], dtype=float32)

    Features are taken as they are: put a scaler before it in a pipeline if their scales differ. Sparse ``X`` and ``Y``
    stay sparse, and a batch is made dense when it is needed; ``predict`` returns a sparse matrix if ``Y`` was one. A
    1-d ``y`` of classes means that every row has one label: the most probable class is predicted, and with a rate the
    probabilities are those of softmax.
    """

    def __init__(
        self,
        mapping: str = "auto",
        loss: str = "auto",
        rate: str | None = "auto",
        *,
        r: float | None = None,
        hidden: Sequence[int] = (128,),
        epochs: int = 150,
        lr: float = 1e-3,
        batch_size: int = 128,
        weight_decay: float = 0.0,
        device: str = "cpu",
        early_stopping: bool = False,
        patience: int = 10,
        validation_share: float = 0.2,
        progress: bool = False,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.mapping = mapping
        self.loss = loss
        self.rate = rate
        self.r = r
        self.hidden = hidden
        self.epochs = epochs
        self.lr = lr
        self.batch_size = batch_size
        self.weight_decay = weight_decay
        self.device = device
        self.early_stopping = early_stopping
        self.patience = patience
        self.validation_share = validation_share
        self.progress = progress
        self.random_state = random_state

    def fit(self, X: Matrix, y: Matrix) -> Self:
        """Train from the beginning.

        Args:
            X: features [rows, d], dense or sparse.
            y: labels [rows, K], 0 or 1, dense or sparse; or classes [rows].
        """
        X, y = self._checked(X, y, first=True)
        return self._train(Rows(X, self._start(y)), self.epochs, self.early_stopping)

    def partial_fit(self, X: Matrix, y: Matrix, classes: Matrix = None) -> Self:
        """Train for one more epoch on these rows, from the beginning at the first call; no early stopping.

        Args:
            X: features [rows, d].
            y: labels [rows, K]; or classes [rows].
            classes: all classes that will come, needed at the first call if ``y`` is 1-d and lacks some.
        """
        first = not hasattr(self, "net_")
        X, y = self._checked(X, y, first)
        Y = self._start(y, classes) if first else self._targets.indicator(y, classes)
        return self._train(Rows(X, Y), epochs=1, early_stopping=False)

    def predict(self, X: Matrix) -> Any:
        """The labels [rows, K], 0 or 1, where the probability is not zero; for 1-d targets, the classes [rows]."""
        if self._one_class():
            return self.classes_[self.predict_proba(X).argmax(1)]
        return self._targets.stacked(output.labels.cpu().numpy() for output in self._outputs(X))

    def predict_proba(self, X: Matrix) -> NDArray[np.float32]:
        """Probabilities [rows, K]: each row sums to one, or to zero if it has no label."""
        one_class = self._one_class()
        return _stacked(_of_one_class(output) if one_class else output.p for output in self._outputs(X))

    def decision_function(self, X: Matrix) -> NDArray[np.float32]:
        """The scores [rows, K], less the threshold if the rate has one: log-odds then; 1-d for two classes."""
        u = _stacked(output.scores.u for output in self._outputs(X))
        return u[:, 1] - u[:, 0] if self._one_class() and u.shape[1] == 2 else u

    def score(self, X: Matrix, y: Matrix, sample_weight: Matrix = None) -> float:
        """Micro-F1 of the labels; for 1-d targets, accuracy."""
        found = self.predict(X)
        if self._one_class():
            return float(accuracy_score(y, found, sample_weight=sample_weight))
        return float(f1_score(y, found, average="micro", sample_weight=sample_weight, zero_division=1.0))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.classifier_tags.multi_label = True
        return tags

    def _checked(self, X: Matrix, y: Matrix, first: bool) -> tuple[Matrix, Matrix]:
        check_settings(self.get_params(deep=False))
        checked: tuple[Matrix, Matrix] = validate_data(
            self, X, y, reset=first, accept_sparse="csr", dtype=np.float32, multi_output=True
        )
        return checked

    def _start(self, y: Matrix, classes: Matrix = None) -> Matrix:
        """Learn the form of the targets, make the net, and return the targets as a matrix of 0 and 1."""
        self._targets = Targets(y, classes)
        Y = self._targets.indicator(y, classes)
        self._random = check_random_state(self.random_state)
        self.classes_ = self._targets.classes
        self.net_ = self._new_net()
        return Y

    def _new_net(self) -> Net:
        return new_net(
            self._seed(),
            module__features=self.n_features_in_,
            module__labels=len(self.classes_),
            module__hidden=tuple(self.hidden),
            module__head={"mapping": self.mapping, "loss": self.loss, "rate": self.rate, "r": self.r},
            optimizer__weight_decay=self.weight_decay,
            lr=self.lr,
            batch_size=self.batch_size,
            device=self.device,
        )

    def _train(self, rows: Rows, epochs: int, early_stopping: bool) -> Self:
        stopping = Stopping(self.patience, self.validation_share, self._seed()) if early_stopping else None
        train(self.net_, rows, epochs, self._seed(), stopping=stopping, progress=self.progress)
        return self

    def _seed(self) -> int:
        return int(self._random.randint(SEEDS))

    def _one_class(self) -> bool:
        check_is_fitted(self, "net_")
        return self._targets.one_class

    def _outputs(self, X: Matrix) -> Iterator[Output]:
        """What the network says about the rows, a batch at a time."""
        check_is_fitted(self, "net_")
        X = validate_data(self, X, reset=False, accept_sparse="csr", dtype=np.float32)
        for batch in Batches(Rows(X), self.batch_size):
            yield self.net_.evaluation_step(batch)


def _of_one_class(output: Output) -> Tensor:
    """Probabilities where every row has one class: softmax in place of a rate, which would find how many labels."""
    return output.p if output.theta is None and output.r is None else softmax(output.z)


def _stacked(batches: Iterable[Tensor]) -> NDArray[np.float32]:
    return np.concatenate([batch.cpu().numpy() for batch in batches])
