"""A scikit-learn estimator around :class:`rsoftmax.multilabel.MultiLabelHead`; skorch runs the training.

Needs ``pip install 'rsoftmax[sklearn]'``.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from rsoftmax.mappings import softmax
from rsoftmax.multilabel import MultiLabelHead, Output, Scores

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.metrics import accuracy_score, f1_score
    from sklearn.utils import Tags, check_random_state, column_or_1d
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
    from skorch import NeuralNet
    from skorch.callbacks import Callback, EarlyStopping
    from tqdm.auto import tqdm
except ImportError as missing:
    raise ImportError(f"rsoftmax.estimator needs {missing.name}: pip install 'rsoftmax[sklearn]'") from missing

__all__ = ["SparseLabelClassifier"]

Matrix = Any  # what scikit-learn takes: an array, a sparse matrix, a data frame, lists
SEEDS = 2**31


class SparseLabelClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A neural network for multi-label targets that says which labels, not only how likely.

    Hidden layers of rectified linear units, then a :class:`rsoftmax.multilabel.MultiLabelHead`, trained by AdamW.

    Args:
        mapping: from scores to probabilities; as in :class:`rsoftmax.multilabel.MultiLabelHead`.
        loss: what to minimise, or "auto"; likewise.
        rate: how the number of labels is found, or "auto"; likewise.
        r: the rate of zeros, for ``rate="fixed"``.
        hidden: sizes of the hidden layers.
        epochs: passes over the training rows; at most, with early stopping.
        lr: learning rate.
        batch_size: rows in a step, and in a pass of prediction.
        weight_decay: AdamW's; 0 makes it Adam. On a few thousand rows of scaled features, 1 keeps the marginals honest
            to the last epoch, where 0 needs early stopping.
        device: where to compute, as torch names it.
        early_stopping: keep the weights of the epoch with the lowest loss on rows set aside, and stop when it has not
            fallen for ``patience`` epochs.
        patience: see there.
        validation_share: the share of rows to set aside for early stopping; unused without it.
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
    stay sparse, a batch at a time; ``predict`` returns what ``Y`` was. A 1-d ``y`` of classes means that every row has
    one label: the most probable class is predicted, and with a rate the probabilities are those of softmax.
    """

    def __init__(
        self,
        mapping: str = "r_softmax",
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
        self._check_parameters()
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float32, multi_output=True)
        Y = self._start(y)
        return self._train(_Rows(X, Y), self.epochs, self.early_stopping)

    def partial_fit(self, X: Matrix, y: Matrix, classes: Matrix = None) -> Self:
        """Train for one more epoch on these rows, from the beginning at the first call; no early stopping.

        Args:
            X: features [rows, d].
            y: labels [rows, K]; or classes [rows].
            classes: all classes that will come, needed at the first call if ``y`` is 1-d; the same ever after.
        """
        self._check_parameters()
        first = not hasattr(self, "net_")
        X, y = validate_data(self, X, y, reset=first, accept_sparse="csr", dtype=np.float32, multi_output=True)
        Y = self._start(y, classes) if first else self._indicator(y, classes)
        return self._train(_Rows(X, Y), epochs=1, early_stopping=False)

    def predict(self, X: Matrix) -> Any:
        """The labels [rows, K], 0 or 1, where the probability is not zero; for 1-d targets, the classes [rows]."""
        if not self._single_label():
            make = sp.csr_array if self._sparse_labels else np.asarray
            found = [make((batch.p > 0).cpu().numpy().astype(np.int64)) for batch in self._decoded(X)]
            return sp.vstack(found, "csr") if self._sparse_labels else np.concatenate(found)
        return self.classes_[self.predict_proba(X).argmax(1)]

    def predict_proba(self, X: Matrix) -> NDArray[np.float32]:
        """Probabilities [rows, K]: each row sums to one, or to zero if it has no label."""
        one = self._single_label()
        return self._gathered(_of_one_label(batch) if one else batch.p for batch in self._decoded(X))

    def decision_function(self, X: Matrix) -> NDArray[np.float32]:
        """The scores [rows, K], less the threshold if the rate knows one: log-odds then; 1-d for two classes."""
        one = self._single_label()
        u = self._gathered(b.z if b.theta is None else b.z - b.theta for b in self._decoded(X))
        return u[:, 1] - u[:, 0] if one and u.shape[1] == 2 else u

    def score(self, X: Matrix, y: Matrix, sample_weight: Matrix = None) -> float:
        """Micro-F1 of the labels; for 1-d targets, accuracy."""
        found = self.predict(X)
        if self._single_label():
            return float(accuracy_score(y, found, sample_weight=sample_weight))
        return float(f1_score(y, found, average="micro", sample_weight=sample_weight, zero_division=1.0))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.classifier_tags.multi_label = True
        return tags

    def _check_parameters(self) -> None:
        if not isinstance(self.hidden, Sequence):
            raise ValueError(f"SparseLabelClassifier: hidden must be sizes of layers, say (128,), got {self.hidden!r}")
        sizes = {"epochs": self.epochs, "batch_size": self.batch_size, "patience": self.patience}
        sizes |= {f"hidden[{i}]": size for i, size in enumerate(self.hidden)}
        for name, size in sizes.items():
            if not isinstance(size, int | np.integer) or size < 1:
                raise ValueError(f"SparseLabelClassifier: {name} must be a whole number from 1, got {size!r}")
        if not self.lr > 0 or not self.weight_decay >= 0:
            raise ValueError(
                "SparseLabelClassifier: lr must be above 0 and weight_decay not below,"
                f" got lr={self.lr!r} and weight_decay={self.weight_decay!r}"
            )
        if not 0 < self.validation_share < 1:
            raise ValueError(
                f"SparseLabelClassifier: validation_share must be between 0 and 1, got {self.validation_share!r}"
            )

    def _start(self, y: Matrix, classes: Matrix = None) -> Matrix:
        """Learn what the targets are, make the net, and return the targets as an indicator matrix."""
        self._sparse_labels = sp.issparse(y)
        check_classification_targets(y)
        if y.ndim == 2 and y.shape[1] > 1:
            self.classes_ = np.arange(y.shape[1])
            self._classes: NDArray[Any] | None = None
        else:
            y = column_or_1d(y, warn=True)
            self.classes_ = self._classes = np.unique(y if classes is None else classes)
        Y = self._indicator(y, classes)
        self._random = check_random_state(self.random_state)
        with _seeded(self._random.randint(SEEDS)), torch.device("cpu"):
            self.net_ = _Net(
                _Network,
                module__features=self.n_features_in_,
                module__labels=len(self.classes_),
                module__hidden=tuple(self.hidden),
                module__choices={"mapping": self.mapping, "loss": self.loss, "rate": self.rate, "r": self.r},
                criterion=nn.Identity,  # the head brings its own
                optimizer=torch.optim.AdamW,
                optimizer__weight_decay=self.weight_decay,
                lr=self.lr,
                batch_size=self.batch_size,
                iterator_train=_Batches,
                iterator_train__shuffle=True,
                iterator_valid=_Batches,
                train_split=None,
                callbacks__print_log=None,
                device=self.device,
                verbose=0,
            ).initialize()
        return Y

    def _indicator(self, y: Matrix, classes: Matrix) -> Matrix:
        if classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(
                f"SparseLabelClassifier: {classes=} are not those of the targets, {self.classes_}; leave them out"
            )
        if self._classes is None:
            if y.ndim != 2 or y.shape[1] != len(self.classes_):
                raise ValueError(
                    f"SparseLabelClassifier: y must be [rows, {len(self.classes_)}] of 0 and 1, as at the first call"
                )
            values = y.data if sp.issparse(y) else y
            wrong = values[(values != 0) & (values != 1)]
            if len(wrong):
                raise ValueError(
                    f"SparseLabelClassifier: y must hold 0 or 1, got {wrong[0].item()!r};"
                    " scikit-learn's MultiLabelBinarizer makes such a matrix"
                )
            return y
        y = column_or_1d(y)
        unknown = np.setdiff1d(y, self._classes)
        if len(unknown):
            raise ValueError(f"SparseLabelClassifier: y has {unknown[0]!r}, which is not among classes={self._classes}")
        return y[:, None] == self._classes

    def _train(self, rows: "_Rows", epochs: int, early_stopping: bool) -> Self:
        net, usual = self.net_, list(self.net_.callbacks_)
        stopping = EarlyStopping(patience=self.patience, threshold=0.0, load_best=True)
        try:
            if self.progress:
                net.callbacks_.append(("progress", _Progress(epochs)))
            if early_stopping:
                net.callbacks_.append(("early_stopping", stopping))
                net.train_split = _Split(self.validation_share, self._random.randint(SEEDS))
            net.notify("on_train_begin", X=rows, y=None)
            try:
                with _seeded(self._random.randint(SEEDS)):
                    net.fit_loop(rows, epochs=epochs)
            except KeyboardInterrupt:  # how skorch's early stopping stops; a user's Ctrl-C goes on
                if not early_stopping or stopping.misses_ < self.patience:
                    raise
            net.notify("on_train_end", X=rows, y=None)
        finally:
            net.callbacks_, net.train_split = usual, None
        if not all(weights.isfinite().all() for weights in net.module_.parameters()):
            raise ValueError(
                "SparseLabelClassifier: training diverged, the weights are no longer finite;"
                f" scale the features or lower lr={self.lr!r}"
            )
        return self

    def _single_label(self) -> bool:
        check_is_fitted(self)
        return self._classes is not None

    def _decoded(self, X: Matrix) -> Iterator[Output]:
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, accept_sparse="csr", dtype=np.float32)
        for batch in _Batches(_Rows(X), self.batch_size):
            yield self.net_.evaluation_step(batch)

    @staticmethod
    def _gathered(batches: Iterator[Tensor]) -> NDArray[np.float32]:
        return np.concatenate([batch.cpu().numpy() for batch in batches])


class _Network(nn.Module):
    """Hidden layers and a head; in training, the scores that the loss needs, else everything."""

    def __init__(self, features: int, labels: int, hidden: tuple[int, ...], choices: dict[str, Any]) -> None:
        super().__init__()
        sizes = [features, *hidden]
        self.backbone = nn.Sequential(*(layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())))
        self.head = MultiLabelHead(sizes[-1], labels, **choices)
        self.float()  # as the features are, whatever torch's default

    def forward(self, x: Tensor) -> Scores | Output:
        h = self.backbone(x)
        return self.head.scores(h) if self.training else self.head(h)


class _Net(NeuralNet):  # type: ignore[misc]
    """skorch's training loop, with the head's loss."""

    def get_loss(self, y_pred: Scores | Output, y_true: Tensor, *_: Any, **__: Any) -> Tensor:
        loss: Tensor = self.module_.head.loss(y_pred, y_true.to(self.device))
        return loss


class _Rows(Dataset[Any]):
    """Features and labels, dense or sparse, taken many rows at a time; on the CPU, whatever torch's default."""

    def __init__(self, X: Matrix, Y: Matrix = None) -> None:
        self.X = X if sp.issparse(X) else _tensor(X)
        self.Y = Y if Y is None or sp.issparse(Y) else _tensor(Y)

    def __len__(self) -> int:
        return int(self.X.shape[0])

    def __getitem__(self, index: Tensor) -> tuple[Tensor, Tensor | None]:
        return _dense(self.X, index), None if self.Y is None else _dense(self.Y, index)

    def part(self, index: Tensor) -> "_Rows":
        part = _Rows.__new__(_Rows)
        part.X, part.Y = self.X[index.numpy()], self.Y[index.numpy()]
        return part


class _Batches:
    """A data loader that cuts whole batches out of :class:`_Rows`, instead of putting single rows together."""

    def __init__(self, rows: _Rows, batch_size: int, shuffle: bool = False) -> None:
        self.rows, self.batch_size, self.shuffle = rows, batch_size, shuffle

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        n = len(self.rows)
        order = torch.randperm(n, device="cpu") if self.shuffle else torch.arange(n, device="cpu")
        return map(self.rows.__getitem__, order.split(self.batch_size))


class _Split:
    """Sets a share of the rows aside, at least one."""

    def __init__(self, share: float, seed: int) -> None:
        self.share, self.seed = share, seed

    def __call__(self, rows: _Rows, y: None = None) -> tuple[_Rows, _Rows]:
        n = len(rows)
        aside = min(max(round(self.share * n), 1), n - 1)
        if not aside:
            raise ValueError(f"SparseLabelClassifier: early stopping needs two rows at least, got {n}")
        order = torch.randperm(n, generator=torch.Generator().manual_seed(self.seed), device="cpu")
        return rows.part(order[aside:]), rows.part(order[:aside])


class _Progress(Callback):  # type: ignore[misc]
    """A bar of epochs, with the latest loss."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs

    def on_train_begin(self, net: NeuralNet, *_: Any, **__: Any) -> None:
        self.bar = tqdm(total=self.epochs, unit="epoch")

    def on_epoch_end(self, net: NeuralNet, *_: Any, **__: Any) -> None:
        losses = {name: net.history[-1].get(name) for name in ("train_loss", "valid_loss")}
        self.bar.set_postfix({name: f"{loss:.4g}" for name, loss in losses.items() if loss is not None}, refresh=False)
        self.bar.update()

    def on_train_end(self, net: NeuralNet, *_: Any, **__: Any) -> None:
        self.bar.close()


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """A block in which torch's random numbers start at a seed; outside it nothing changes."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def _dense(rows: Matrix, index: Tensor) -> Tensor:
    return _tensor(rows[index.numpy()].toarray()) if sp.issparse(rows) else rows[index]


def _tensor(rows: NDArray[Any]) -> Tensor:
    contiguous = np.ascontiguousarray(rows)  # torch knows no negative strides
    return torch.tensor(contiguous, dtype=torch.float32, device="cpu")


def _of_one_label(output: Output) -> Tensor:
    """The probabilities where every row has one label: a rate, which says how many there are, has nothing to say."""
    return output.p if output.theta is None and output.r is None else softmax(output.z)
