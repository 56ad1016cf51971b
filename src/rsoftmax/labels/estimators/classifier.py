"""Neural networks for multi-label targets as a scikit-learn classifier."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags, check_random_state, compute_sample_weight
from sklearn.utils.validation import _check_sample_weight, check_consistent_length, check_is_fitted, validate_data
from torch import Tensor, nn

from rsoftmax.labels.decoding import DEFAULTS, Average
from rsoftmax.labels.estimators.features import PREPROCESSING, fit_preprocessing
from rsoftmax.labels.estimators.targets import Matrix, Targets, label_score, stratified_folds
from rsoftmax.labels.estimators.training import Batches, Net, Rows, Stopping, new_net, train
from rsoftmax.labels.evaluation import Evaluation, evaluate
from rsoftmax.labels.head import MultiLabelHead, resolve_rule
from rsoftmax.labels.rules import Output, Scores
from rsoftmax.mappings import softmax

__all__ = ["PLAIN", "SparseLabelClassifier"]

OWNER = "SparseLabelClassifier"
SEEDS = 2**31
SMALL_BATCH, LARGE_BATCH, MANY_ROWS = 32, 128, 4000
MOST_NETS, MOST_EPOCHS, FEWEST_EPOCHS = 5, 150, 3
WORK = 10**12  # rows times weights of all networks in all epochs: about two minutes on two cores
CALIBRATED = 5 * 10**7  # held-out entries, rows times labels, that calibration and thresholds are computed from
Parts = list[tuple[Rows, Rows | None]]

RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "lr": (lambda value: value > 0, "positive"),
    "weight_decay": (lambda value: value >= 0, "non-negative"),
    "validation_fraction": (lambda value: 0 < value < 1, "in (0, 1)"),
    "dropout": (lambda value: 0 <= value < 1, "in [0, 1)"),
    "input_dropout": (lambda value: 0 <= value < 1, "in [0, 1)"),
}
AUTOMATIC = ("max_epochs", "batch_size", "n_estimators")
SIZES = (*AUTOMATIC, "patience")
CHOICES: dict[str, tuple[Any, ...]] = {"preprocessing": PREPROCESSING, "calibration": ("platt", None)}

# A single network as the paper trains it: no preprocessing, no dropout, no calibration, labels chosen row by row.
PLAIN: dict[str, Any] = {
    "average": "samples",
    "preprocessing": None,
    "hidden_layer_sizes": (128,),
    "dropout": 0.0,
    "input_dropout": 0.0,
    "n_estimators": 1,
    "batch_size": 128,
    "early_stopping": False,
    "calibration": None,
}


class SparseLabelClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """An ensemble of neural networks for multi-label targets that needs no threshold tuning.

    Each network has hidden layers with ReLU and a :class:`rsoftmax.labels.MultiLabelHead`, and is trained by AdamW
    on all folds but one. The held-out fold decides when to stop, calibrates the marginals and yields the decision
    thresholds for the F1 selected by ``average``. The scores of the networks are averaged.

    Args:
        rule: how the number of labels is decided, or "auto"; see :class:`rsoftmax.labels.MultiLabelHead`.
        mapping: from logits to probabilities, or "auto", as in the head.
        loss: the training loss, or "auto", as in the head.
        average: the F1 that ``score`` reports and, with the rule "expected_f1", ``predict`` maximises: "micro" has one
            threshold, "macro" one per label, "samples" decides row by row.
        beta: recall is weighted beta times as much as precision.
        min_labels: the minimum number of labels per row.
        max_labels: the maximum number of labels per row; None: all.
        preprocessing: "auto": dense features are mapped to a normal distribution by their quantiles, sparse counts are
            weighted by TF-IDF. None: no preprocessing.
        hidden_layer_sizes: sizes of the hidden layers.
        dropout: dropout rate of the hidden layers.
        input_dropout: dropout rate of the features.
        backbone: a module in place of the hidden layers, from rows to a tensor [rows, features]; each network trains a
            copy, starting from its weights.
        n_estimators: the number of networks; if there are several, each holds out a fold. "auto": 5, or as few as 2 if
            there are so many rows and labels that training would be slow.
        max_epochs: the number of epochs; with early stopping, the largest number. "auto": 150, or fewer in the same
            cases.
        lr: learning rate.
        batch_size: rows per step, in training and prediction; "auto": 32, or 128 for 4000 rows or more.
        weight_decay: weight decay of AdamW; 0 makes it Adam.
        class_weight: "balanced", or a dict with the weight of each label in rows that have it; of each class, if ``y``
            is 1-d.
        calibration: "platt": Platt scaling per label on held-out rows; None: no calibration.
        label_separator: separates the labels in strings such as "a;c"; "": each string is one class.
        early_stopping: stop when the loss on held-out rows has not fallen for ``patience`` epochs, and restore the
            weights of the best epoch.
        patience: a number of epochs, for early stopping.
        validation_fraction: the fraction of rows held out from a single network, for early stopping.
        callbacks: skorch callbacks; each network gets its own copy.
        warm_start: another call of ``fit`` continues from the current weights.
        device: the torch device to compute on.
        verbose: 1 shows a progress bar, 0 does not; None shows it once training has taken ten seconds.
        random_state: seeds weights, order of rows, dropout and folds; the result is the same in any thread. A backbone
            with dropout draws from torch's global generator.

    Attributes:
        classes_: the labels: a data frame's columns, names, or column numbers; for 1-d targets, the classes.
        n_features_in_: the number of features.
        evaluation_: the :class:`rsoftmax.labels.Evaluation` on held-out rows, cross-validated if there are folds;
            on the training rows, if none were held out.
        estimators_: the skorch nets. ``estimators_[0].module_`` is a torch module whose head holds calibration and
            thresholds of the ensemble, ``estimators_[0].history`` the record of its epochs.

    Example:
        >>> from sklearn.datasets import make_multilabel_classification
        >>> X, Y = make_multilabel_classification(400, n_classes=6, n_labels=2, random_state=0)
        >>> model = SparseLabelClassifier(n_estimators=1, random_state=0).fit(X[:300], Y[:300])
        >>> model.predict(X[300:302])[:, 5]
        array([1, 0])
        >>> marginals = model.predict_proba(X[300:302])
        >>> marginals.shape, bool(marginals[0, 5] > marginals[1, 5])
        ((2, 6), True)

    Sparse ``X`` and ``Y`` stay sparse; only batches are made dense. ``predict`` returns a sparse matrix if ``Y`` was
    one. A 1-d ``y`` of classes means that every row has one label: the most probable class is predicted, and
    probabilities are those of softmax. Without held-out rows (one network, no early stopping) there is no calibration,
    and thresholds come from the marginals of the training rows.
    """

    _targets: Targets
    _folds: Tensor | None

    def __init__(
        self,
        *,
        rule: str | None = "auto",
        mapping: str = "auto",
        loss: str = "auto",
        average: Average = "micro",
        beta: float = 1.0,
        min_labels: int = 0,
        max_labels: int | None = None,
        preprocessing: str | None = "auto",
        hidden_layer_sizes: Sequence[int] = (512,),
        dropout: float = 0.5,
        input_dropout: float = 0.2,
        backbone: nn.Module | None = None,
        n_estimators: int | Literal["auto"] = "auto",
        max_epochs: int | Literal["auto"] = "auto",
        lr: float = 1e-3,
        batch_size: int | Literal["auto"] = "auto",
        weight_decay: float = 0.0,
        class_weight: Mapping[Any, float] | str | None = None,
        calibration: str | None = "platt",
        label_separator: str | None = None,
        early_stopping: bool = True,
        patience: int = 5,
        validation_fraction: float = 0.2,
        callbacks: Sequence[Any] | None = None,
        warm_start: bool = False,
        device: str = "cpu",
        verbose: int | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.rule = rule
        self.mapping = mapping
        self.loss = loss
        self.average = average
        self.beta = beta
        self.min_labels = min_labels
        self.max_labels = max_labels
        self.preprocessing = preprocessing
        self.hidden_layer_sizes = hidden_layer_sizes
        self.dropout = dropout
        self.input_dropout = input_dropout
        self.backbone = backbone
        self.n_estimators = n_estimators
        self.max_epochs = max_epochs
        self.lr = lr
        self.batch_size = batch_size
        self.weight_decay = weight_decay
        self.class_weight = class_weight
        self.calibration = calibration
        self.label_separator = label_separator
        self.early_stopping = early_stopping
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.callbacks = callbacks
        self.warm_start = warm_start
        self.device = device
        self.verbose = verbose
        self.random_state = random_state

    def fit(
        self, X: Matrix, y: Matrix, sample_weight: Matrix = None, *, validation: tuple[Matrix, Matrix] | None = None
    ) -> Self:
        """Train new networks or, with ``warm_start``, continue with the current ones.

        Args:
            X: features [rows, d], dense or sparse.
            y: labels [rows, K], 0 or 1, dense or sparse, NaN or -1 where unknown; a data frame of them; lists or sets
                of names; strings of names, with ``label_separator``; or classes [rows].
            sample_weight: weights of the rows, [rows].
            validation: X and y of held-out rows in place of folds: for early stopping, calibration and thresholds.
        """
        first = not (self.warm_start and hasattr(self, "estimators_"))
        rows = self._rows(X, y, first, sample_weight=sample_weight)
        self._start(rows) if first else self._update_settings()
        parts = self._parts(rows, None if validation is None else self._validation(*validation))
        stopping = Stopping(self.patience) if self.early_stopping and parts[0][1] is not None else None
        self._train(parts, self._max_epochs, stopping)
        self._calibrate(rows, parts)
        return self

    def partial_fit(self, X: Matrix, y: Matrix, classes: Matrix = None, sample_weight: Matrix = None) -> Self:
        """Train for one more epoch on these rows.

        No rows are held out: there is no early stopping or calibration; call :meth:`calibrate` with held-out rows.

        Args:
            X: features [rows, d].
            y: labels, as in :meth:`fit`.
            classes: all classes or names, needed at the first call if ``y`` lacks some.
            sample_weight: weights of the rows, [rows].
        """
        first = not hasattr(self, "estimators_")
        rows = self._rows(X, y, first, classes, sample_weight)
        self._start(rows) if first else self._update_settings()
        self._train([(rows, None)] * len(self.estimators_), epochs=1, stopping=None)
        return self

    def calibrate(self, X: Matrix, y: Matrix) -> Self:
        """Fit calibration and thresholds on held-out rows."""
        check_is_fitted(self, "estimators_")
        rows = self._validation(X, y)
        self._calibrate(rows, [(rows, rows)])
        return self

    def predict(self, X: Matrix) -> Any:
        """Predict labels in the format of ``y``; for 1-d targets, classes [rows]. Raises on NaN scores."""
        if self._one_class():
            return self.classes_[_check_finite(self.predict_proba(X)).argmax(1)]
        return self._targets.answer(self._predict_matrix(X), X)

    def predict_labels(self, X: Matrix) -> list[list[Any]]:
        """Predict the names of the labels of each row."""
        if self._one_class():
            return [[name] for name in self.predict(X).tolist()]
        return self._targets.names(self._predict_matrix(X))

    def predict_proba(self, X: Matrix) -> NDArray[np.float32]:
        """Predict the marginal probability of each label, [rows, K]; for 1-d targets, rows sum to one."""
        if self._one_class():
            return self.predict_distribution(X)
        return _concatenate(output.marginals for output in self._outputs(X))

    def predict_distribution(self, X: Matrix) -> NDArray[np.float32]:
        """Predict one distribution over the predicted labels, [rows, K]; all others are exactly zero.

        Each row sums to one, or to zero if it has no label.
        """
        one_class = self._one_class()
        return _concatenate(_class_distribution(output) if one_class else output.probs for output in self._outputs(X))

    def decision_function(self, X: Matrix) -> NDArray[np.float32]:
        """Compute calibrated scores [rows, K]: log-odds, for rules with a threshold; 1-d for two classes."""
        u = _concatenate(
            output.scores.margins if output.log_odds is None else output.log_odds for output in self._outputs(X)
        )
        return u[:, 1] - u[:, 0] if self._one_class() and u.shape[1] == 2 else u

    def score(self, X: Matrix, y: Matrix, sample_weight: Matrix = None) -> float:
        """Return the F1 selected by ``average`` and ``beta``; for 1-d targets, accuracy."""
        return label_score(self, X, y, sample_weight)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.classifier_tags.multi_label = True
        return tags

    def _rows(self, X: Matrix, y: Matrix, first: bool, classes: Matrix = None, sample_weight: Matrix = None) -> Rows:
        """Preprocessed features, labels as a matrix, weights; at the first call, fit preprocessing and targets."""
        _check_settings(self.get_params(deep=False))
        targets = Targets(y, classes, separator=self.label_separator) if first else self._targets
        Y = targets.indicator(y, classes)
        X = self._check_features(X, first)
        check_consistent_length(X, Y)
        if first:
            self._targets, self.classes_ = targets, targets.classes
            self._random = check_random_state(self.random_state)
            self._preprocessing = fit_preprocessing(X, self.preprocessing, self._random)
        weight = None if sample_weight is None else _check_sample_weight(sample_weight, X)
        if self._targets.one_class and self.class_weight is not None:
            weight = (1.0 if weight is None else weight) * compute_sample_weight(self.class_weight, y)
        weight = None if weight is None else weight / max(weight.mean(), np.finfo(np.float64).tiny)
        return Rows(self._preprocess(X), Y, weight, self._label_weights(Y))

    def _check_features(self, X: Matrix, first: bool) -> Matrix:
        own = self.backbone is not None
        return validate_data(self, X, reset=first, accept_sparse="csr", dtype=np.float32, allow_nd=own)

    def _preprocess(self, X: Matrix) -> Matrix:
        return X if self._preprocessing is None else self._preprocessing.transform(X)

    def _label_weights(self, Y: Matrix) -> Tensor | None:
        """Weights of negative and positive entries of each label, [2, K]."""
        if self.class_weight is None or self._targets.one_class:
            return None
        labels = Rows(np.zeros((Y.shape[0], 1)), Y).labels()
        if self.class_weight == "balanced":
            positive, known = labels.nansum(0), (~labels.isnan()).sum(0)
            return known / (2 * torch.stack([known - positive, positive]).clamp(min=1))
        if not isinstance(self.class_weight, Mapping) or not set(self.class_weight) <= set(self.classes_.tolist()):
            raise ValueError(
                f"{OWNER}: class_weight must be None, 'balanced' or a dict of weights by label,"
                f" got {self.class_weight!r}"
            )
        weights = [self.class_weight.get(name, 1.0) for name in self.classes_.tolist()]
        return torch.tensor([[1.0] * len(weights), weights], dtype=torch.float32, device="cpu")

    def _validation(self, X: Matrix, y: Matrix) -> Rows:
        X, Y = self._check_features(X, first=False), self._targets.indicator(y)
        check_consistent_length(X, Y)
        return Rows(self._preprocess(X), Y)

    def _parts(self, rows: Rows, validation: Rows | None) -> Parts:
        """The training and held-out rows of each network: a fold, a fraction, the rows given, or none."""
        if validation is not None:
            return [(rows, validation)] * len(self.estimators_)
        folds = len(self.estimators_)
        if folds > 1:
            fold = self._kept(rows, lambda: torch.from_numpy(stratified_folds(rows.positive(), folds, self._random)))
            return [
                (rows.take((fold != i).nonzero()[:, 0]), rows.take((fold == i).nonzero()[:, 0])) for i in range(folds)
            ]
        if not self.early_stopping:
            return [(rows, None)]
        aside = min(max(round(self.validation_fraction * len(rows)), 1), len(rows) - 1)
        if not aside:
            raise ValueError(f"{OWNER}: early stopping needs at least two rows, got n_samples = {len(rows)}")
        random = torch.Generator("cpu").manual_seed(self._seed())
        order = self._kept(rows, lambda: torch.randperm(len(rows), generator=random, device="cpu"))
        return [(rows.take(order[aside:]), rows.take(order[:aside]))]

    def _kept(self, rows: Rows, draw: Callable[[], Tensor]) -> Tensor:
        """Folds of the rows, kept by a warm start: a row that was trained on is not held out later."""
        if self._folds is None or len(self._folds) != len(rows):
            self._folds = draw()
        return self._folds

    def _start(self, rows: Rows) -> None:
        """Create the networks."""
        self._folds = None
        self._batch_size = self.batch_size
        if self.batch_size == "auto":
            self._batch_size = LARGE_BATCH if len(rows) >= MANY_ROWS else SMALL_BATCH
        example = next(iter(Batches(rows, 2)))[0]
        first = self._new_net(example)
        nets, self._max_epochs = _affordable(len(rows) * sum(weights.numel() for weights in first.module_.parameters()))
        nets = nets if self.n_estimators == "auto" else self.n_estimators
        self._max_epochs = self._max_epochs if self.max_epochs == "auto" else self.max_epochs
        self.estimators_ = [first, *(self._new_net(example) for _ in range(min(nets, len(rows)) - 1))]

    def _new_net(self, example: Tensor) -> Net:
        return new_net(
            module__features=self.n_features_in_,
            module__labels=len(self.classes_),
            module__hidden=tuple(self.hidden_layer_sizes),
            module__head=self._head(),
            module__seed=self._seed(),
            module__dropout=self.dropout,
            module__input_dropout=self.input_dropout,
            module__backbone=self.backbone,
            module__example=example,
            optimizer__weight_decay=self.weight_decay,
            callbacks=copy.deepcopy(list(self.callbacks or [])),
            lr=self.lr,
            batch_size=self._batch_size,
            device=self.device,
        )

    def _head(self) -> dict[str, Any]:
        """Arguments of the head; bounds do not apply to classes, averages only to one rule."""
        choices: dict[str, Any] = {"mapping": self.mapping, "loss": self.loss, "rule": self.rule}
        options = {name: getattr(self, name) for name in DEFAULTS}
        if self._targets.one_class:
            options |= {"min_labels": 0, "max_labels": None}
        if resolve_rule(**choices).name != "expected_f1":
            options |= {"average": DEFAULTS["average"], "beta": DEFAULTS["beta"]}
        return choices | {name: value for name, value in options.items() if value != DEFAULTS[name]}  # type: ignore[literal-required]

    def _update_settings(self) -> None:
        """Learning rate, weight decay, batch size and number of epochs may change between two calls."""
        self._max_epochs = self._max_epochs if self.max_epochs == "auto" else self.max_epochs
        for net in self.estimators_:
            net.lr, net.batch_size = self.lr, self._batch_size if self.batch_size == "auto" else self.batch_size
            for group in net.optimizer_.param_groups:
                group.update(lr=self.lr, weight_decay=self.weight_decay)

    def _train(self, parts: Parts, epochs: int, stopping: Stopping | None) -> None:
        train(self.estimators_, parts, epochs, self._seed(), stopping=stopping, progress=self.verbose)

    @property
    def _decoding_head(self) -> MultiLabelHead:
        """The head of the first network, which decodes the mean of all scores."""
        head: MultiLabelHead = self.estimators_[0].module_.head
        return head

    def _calibrate(self, rows: Rows, parts: Parts) -> None:
        """Fit calibration and thresholds on held-out rows; without any, thresholds only, on the training rows."""
        if self._targets.one_class:
            return
        folds = len(parts) > 1 and parts[0][1] is not parts[1][1]
        held_out = [part[1] or rows for part in (parts if folds else parts[:1])]
        most = max(CALIBRATED // len(self.classes_) // len(held_out), 100)
        held_out = [part if len(part) <= most else part.take(_spread(len(part), most)) for part in held_out]
        pairs = zip(held_out, self.estimators_, strict=False)
        batches = (self._batches(part, [net] if folds else self.estimators_) for part, net in pairs)
        scores = _stack([batch for part in batches for batch in part])
        y = torch.cat([part.labels() for part in held_out])
        weights = [part.weight for part in held_out if part.weight is not None]
        head = self._decoding_head.calibrate(
            scores,
            y.to(scores.logits.device),
            weight=torch.cat(weights)[:, None].to(scores.logits.device) if weights else None,
            calibration=self.calibration is not None and parts[0][1] is not None,
        )
        self.evaluation_ = self._evaluate(head, scores, y)

    @torch.no_grad()
    def _evaluate(self, head: MultiLabelHead, scores: Scores, y: Tensor) -> Evaluation:
        output = head.decode(scores)
        names = list(map(str, self.classes_.tolist()))
        return evaluate(output.marginals.cpu(), (output.probs > 0).cpu(), y, names)

    def _seed(self) -> int:
        return int(self._random.randint(SEEDS))

    def _one_class(self) -> bool:
        check_is_fitted(self, "estimators_")
        return self._targets.one_class

    def _predict_matrix(self, X: Matrix) -> Matrix:
        return self._targets.stack(_check_finite(output.probs.cpu().numpy()) > 0 for output in self._outputs(X))

    @torch.no_grad()
    def _outputs(self, X: Matrix) -> Iterator[Output]:
        """The decoded outputs of the ensemble, batch by batch."""
        check_is_fitted(self, "estimators_")
        rows, head = Rows(self._preprocess(self._check_features(X, first=False))), self._decoding_head
        for scores in self._batches(rows, self.estimators_):
            yield head.decode(scores)

    def _batches(self, rows: Rows, nets: Sequence[Net]) -> Iterator[Scores]:
        """The mean scores of some networks, batch by batch."""
        for batch in Batches(rows, max(nets[0].batch_size, 512)):
            yield _mean([net.scores(batch[0]) for net in nets])


def _check_settings(settings: dict[str, Any]) -> None:
    """Raise ValueError if a setting is out of range; the head checks its own."""
    hidden = settings["hidden_layer_sizes"]
    if not isinstance(hidden, Sequence):
        raise ValueError(f"{OWNER}: hidden_layer_sizes must be a sequence such as (128,), got {hidden!r}")
    sizes = {name: settings[name] for name in SIZES} | {
        f"hidden_layer_sizes[{i}]": size for i, size in enumerate(hidden)
    }
    for name, size in sizes.items():
        if (not isinstance(size, int | np.integer) or size < 1) and (size != "auto" or name not in AUTOMATIC):
            raise ValueError(f"{OWNER}: {name} must be a positive integer, got {size!r}")
    for name, (inside, text) in RANGES.items():
        if not inside(settings[name]):
            raise ValueError(f"{OWNER}: {name} must be {text}, got {settings[name]!r}")
    for name, choices in CHOICES.items():
        if settings[name] not in choices:
            raise ValueError(f"{OWNER}: {name} must be one of {choices}, got {settings[name]!r}")


def _affordable(size: int) -> tuple[int, int]:
    """The number of networks and of epochs, given rows times weights: 5 networks, 150 epochs, less if they take long.

    Example:
        >>> _affordable(10**8), _affordable(10**10), _affordable(10**12)
        ((5, 150), (5, 20), (2, 3))
    """
    epochs = WORK // max(size, 1)
    nets = min(max(epochs // 20, 2), MOST_NETS)
    return nets, min(max(epochs // nets, FEWEST_EPOCHS), MOST_EPOCHS)


def _spread(rows: int, most: int) -> Tensor:
    return torch.arange(most) * rows // most


def _mean(scores: Sequence[Scores]) -> Scores:
    def mean(values: Sequence[Any]) -> Any:
        return None if values[0] is None else torch.stack([*values]).mean(0)

    return Scores(*map(mean, zip(*scores, strict=True)))


def _stack(scores: Sequence[Scores]) -> Scores:
    """Concatenate the scores of several batches; a threshold may be one number per batch."""
    sizes = [len(part.logits) for part in scores]

    def stack(values: Sequence[Any]) -> Any:
        if values[0] is None:
            return None
        return torch.cat([value.expand(size, -1) for value, size in zip(values, sizes, strict=True)])

    return Scores(*map(stack, zip(*scores, strict=True)))


def _class_distribution(output: Output) -> Tensor:
    """Probabilities where every row has one class: softmax, unless the mapping has no number of labels to decide."""
    return output.probs if output.threshold is None and output.rate is None else softmax(output.logits)


def _check_finite(p: NDArray[Any]) -> NDArray[Any]:
    if np.isnan(p).any():
        raise ValueError(
            f"{OWNER}: the output is NaN for {np.isnan(p).any(1).sum()} rows, which is not 'no label';"
            " check the weights for NaN"
        )
    return p


def _concatenate(batches: Iterable[Tensor]) -> NDArray[np.float32]:
    return np.concatenate([batch.cpu().numpy() for batch in batches])
