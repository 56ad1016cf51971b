"""Neural networks for multi-label targets, as a scikit-learn classifier."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags, check_random_state, compute_sample_weight
from sklearn.utils.validation import _check_sample_weight, check_consistent_length, check_is_fitted, validate_data
from torch import Tensor, nn

from rsoftmax.mappings import softmax
from rsoftmax.multilabel import Average, Evaluation, MultiLabelHead, Output, Scores, evaluated
from rsoftmax.multilabel.choices import choose
from rsoftmax.sklearn.data import Batches, Matrix, Rows
from rsoftmax.sklearn.features import prepared_by
from rsoftmax.sklearn.folds import stratified_folds
from rsoftmax.sklearn.scoring import label_score
from rsoftmax.sklearn.settings import check_settings
from rsoftmax.sklearn.targets import Targets
from rsoftmax.sklearn.training import Net, Stopping, new_net, train

OWNER = "SparseLabelClassifier"
SEEDS = 2**31
SMALL_BATCH, LARGE_BATCH, MANY_ROWS = 32, 128, 4000
Parts = list[tuple[Rows, Rows | None]]


class SparseLabelClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Neural networks for multi-label targets that find the labels of a row without a threshold to tune.

    A few networks, each with hidden layers of rectified linear units and a
    :class:`rsoftmax.multilabel.MultiLabelHead`. Each is trained by AdamW on all folds but one; the rows left out say
    when to stop, calibrate the marginals, and show where to cut for the F1 that counts. Their scores are averaged.

    Args:
        mapping: from scores to probabilities, or "auto"; as in :class:`rsoftmax.multilabel.MultiLabelHead`.
        loss: what to minimise, or "auto"; likewise.
        rate: how the number of labels is found, or "auto"; likewise.
        r: the rate of zeros, for ``rate="fixed"``.
        average: the F1 that counts, in ``score`` and, with the rate "expected_f1", in ``predict``: "micro" has one cut,
            "macro" a cut for each label, "samples" decides row by row.
        beta: recall counts beta times as much as precision.
        at_least: the smallest number of labels of a row.
        at_most: the largest; None: all.
        features: "auto": dense ones become normal by their quantiles, sparse counts are weighted by TF-IDF; "as_is".
        hidden: sizes of the hidden layers.
        dropout: the share of hidden units set to zero in training.
        input_dropout: the share of features set to zero in training.
        backbone: a module of your own in place of the hidden layers, from rows to a tensor [rows, features]; each net
            trains a copy, from the weights that it has.
        nets: how many networks are averaged; from 2 on, each leaves a fold out.
        epochs: passes over the training rows; at most, with early stopping.
        lr: learning rate.
        batch_size: rows in a step, and in a pass of prediction; "auto": 32, and 128 from 4000 rows on.
        weight_decay: AdamW's; 0 makes it Adam.
        class_weight: "balanced", or weights of labels by name, for rows that have them; of classes, if ``y`` is 1-d.
        calibration: "platt": of the marginals, on rows held out; None: marginals are those that the networks say.
        label_separator: what divides the labels in strings such as "a;c"; "" says that each string is one class.
        early_stopping: stop when the loss on rows held out has not fallen for ``patience`` epochs, and keep the weights
            of the epoch with the lowest one.
        patience: a number of epochs, for early stopping.
        validation_share: the share of rows to hold out from a single network, for early stopping.
        callbacks: of skorch; each net has a copy.
        warm_start: a further ``fit`` goes on from the weights that are there.
        device: where to compute, as torch names it.
        progress: show a progress bar.
        random_state: seed of weights, order of rows, dropout and folds; the same in any thread. A backbone of your own
            draws from torch's generator if it has dropout.

    Attributes:
        classes_: the labels: a data frame's columns, names, or column numbers; for 1-d targets, the classes.
        n_features_in_: the number of features.
        evaluation_: what the rows held out say about the labels found, as :class:`rsoftmax.multilabel.Evaluation`; of
            the training rows, if none were held out.
        nets_: the skorch nets; ``net_``, the first: ``net_.module_`` is the torch module, whose head holds calibration
            and cuts, ``net_.history`` what happened in each epoch.

    Example:
        >>> from sklearn.datasets import make_multilabel_classification
        >>> X, Y = make_multilabel_classification(400, n_classes=6, n_labels=2, random_state=0)
        >>> model = SparseLabelClassifier(random_state=0).fit(X[:300], Y[:300])
        >>> model.predict(X[300:302])
        array([[0, 1, 0, 0, 0, 1],
               [0, 0, 0, 0, 0, 0]])
        >>> marginals = model.predict_proba(X[300:302])
        >>> marginals.shape, bool(marginals[0, 5] > 0.9)
        ((2, 6), True)

    Sparse ``X`` and ``Y`` stay sparse, and a batch is made dense when it is needed; ``predict`` returns a sparse matrix
    if ``Y`` was one. A 1-d ``y`` of classes means that every row has one label: the most probable class is predicted,
    and with a rate the probabilities are those of softmax. Without rows held out (one net, no early stopping) there is
    no calibration, and the cut comes from the marginals of the training rows.
    """

    _targets: Targets

    def __init__(
        self,
        mapping: str = "auto",
        loss: str = "auto",
        rate: str | None = "auto",
        *,
        r: float | None = None,
        average: Average = "micro",
        beta: float = 1.0,
        at_least: int = 0,
        at_most: int | None = None,
        features: str = "auto",
        hidden: Sequence[int] = (512,),
        dropout: float = 0.5,
        input_dropout: float = 0.2,
        backbone: nn.Module | None = None,
        nets: int = 5,
        epochs: int = 150,
        lr: float = 1e-3,
        batch_size: int | str = "auto",
        weight_decay: float = 0.0,
        class_weight: Mapping[Any, float] | str | None = None,
        calibration: str | None = "platt",
        label_separator: str | None = None,
        early_stopping: bool = True,
        patience: int = 5,
        validation_share: float = 0.2,
        callbacks: Sequence[Any] | None = None,
        warm_start: bool = False,
        device: str = "cpu",
        progress: bool = False,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.mapping = mapping
        self.loss = loss
        self.rate = rate
        self.r = r
        self.average = average
        self.beta = beta
        self.at_least = at_least
        self.at_most = at_most
        self.features = features
        self.hidden = hidden
        self.dropout = dropout
        self.input_dropout = input_dropout
        self.backbone = backbone
        self.nets = nets
        self.epochs = epochs
        self.lr = lr
        self.batch_size = batch_size
        self.weight_decay = weight_decay
        self.class_weight = class_weight
        self.calibration = calibration
        self.label_separator = label_separator
        self.early_stopping = early_stopping
        self.patience = patience
        self.validation_share = validation_share
        self.callbacks = callbacks
        self.warm_start = warm_start
        self.device = device
        self.progress = progress
        self.random_state = random_state

    def fit(
        self, X: Matrix, y: Matrix, sample_weight: Matrix = None, *, validation: tuple[Matrix, Matrix] | None = None
    ) -> Self:
        """Train from the beginning, or go on with ``warm_start``.

        Args:
            X: features [rows, d], dense or sparse.
            y: labels [rows, K], 0 or 1, dense or sparse, NaN or -1 where not known; a data frame of them; lists or sets
                of names; strings of names, with ``label_separator``; or classes [rows].
            sample_weight: of the rows, [rows].
            validation: X and y to hold out, in place of folds: for early stopping, calibration and cuts.
        """
        first = not (self.warm_start and hasattr(self, "nets_"))
        rows = self._rows(X, y, first, sample_weight=sample_weight)
        self._start(rows) if first else self._renew_settings()
        parts = self._parts(rows, None if validation is None else self._validation(*validation))
        stopping = Stopping(self.patience) if self.early_stopping and parts[0][1] is not None else None
        self._train(parts, self.epochs, stopping)
        self._calibrate(rows, parts)
        return self

    def partial_fit(self, X: Matrix, y: Matrix, classes: Matrix = None, sample_weight: Matrix = None) -> Self:
        """Train for one more epoch on these rows, from the beginning at the first call.

        Nothing is held out: no early stopping, calibration or cuts, for which there is :meth:`calibrate`.

        Args:
            X: features [rows, d].
            y: labels, as in :meth:`fit`.
            classes: all classes, or names, that will come, needed at the first call if ``y`` lacks some.
            sample_weight: of the rows, [rows].
        """
        first = not hasattr(self, "nets_")
        rows = self._rows(X, y, first, classes, sample_weight)
        self._start(rows) if first else self._renew_settings()
        self._train([(rows, None)] * len(self.nets_), epochs=1, stopping=None)
        return self

    def calibrate(self, X: Matrix, y: Matrix) -> Self:
        """Learn calibration and cuts anew, from rows that were not trained on."""
        check_is_fitted(self, "nets_")
        rows = self._validation(X, y)
        self._calibrate(rows, [(rows, rows)])
        return self

    def predict(self, X: Matrix) -> Any:
        """The labels, in the form in which they came; for 1-d targets, the classes [rows]. NaN scores raise."""
        if self._one_class():
            return self.classes_[_finite(self.predict_proba(X)).argmax(1)]
        return self._targets.answer(self._found(X), X)

    def predict_labels(self, X: Matrix) -> list[list[Any]]:
        """The names of the labels of each row."""
        if self._one_class():
            return [[name] for name in self.predict(X).tolist()]
        return self._targets.names(self._found(X))

    def predict_proba(self, X: Matrix) -> NDArray[np.float32]:
        """The marginals [rows, K]: the probability of each label for itself; for 1-d targets, rows sum to one."""
        if self._one_class():
            return self.predict_distribution(X)
        return _stacked(output.marginals for output in self._outputs(X))

    def predict_distribution(self, X: Matrix) -> NDArray[np.float32]:
        """A distribution over the labels that are predicted, [rows, K]: the others are exactly zero.

        Each row sums to one, or to zero if it has no label.
        """
        one_class = self._one_class()
        return _stacked(_of_one_class(output) if one_class else output.p for output in self._outputs(X))

    def decision_function(self, X: Matrix) -> NDArray[np.float32]:
        """Calibrated scores [rows, K], less the threshold if the rate has one: log-odds then; 1-d for two classes."""
        u = _stacked(output.scores.u if output.odds is None else output.odds for output in self._outputs(X))
        return u[:, 1] - u[:, 0] if self._one_class() and u.shape[1] == 2 else u

    def score(self, X: Matrix, y: Matrix, sample_weight: Matrix = None) -> float:
        """The F1 that ``average`` and ``beta`` name; for 1-d targets, accuracy."""
        return label_score(self, X, y, sample_weight)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.classifier_tags.multi_label = True
        return tags

    def _rows(self, X: Matrix, y: Matrix, first: bool, classes: Matrix = None, sample_weight: Matrix = None) -> Rows:
        """Features prepared, labels as a matrix, weights; at first, learn the form of both."""
        check_settings(self.get_params(deep=False))
        targets = Targets(y, classes, separator=self.label_separator) if first else self._targets
        Y = targets.indicator(y, classes)
        X = self._checked(X, first)
        check_consistent_length(X, Y)
        if first:
            self._targets, self.classes_ = targets, targets.classes
            self._random = check_random_state(self.random_state)
            self._preparation = prepared_by(X, self.features, self._random)
        weight = None if sample_weight is None else _check_sample_weight(sample_weight, X)
        if self._targets.one_class and self.class_weight is not None:
            weight = (1.0 if weight is None else weight) * compute_sample_weight(self.class_weight, y)
        weight = None if weight is None else weight / max(weight.mean(), np.finfo(np.float64).tiny)
        return Rows(self._prepared(X), Y, weight, self._label_weights(Y))

    def _checked(self, X: Matrix, first: bool) -> Matrix:
        own = self.backbone is not None
        return validate_data(self, X, reset=first, accept_sparse="csr", dtype=np.float32, allow_nd=own)

    def _prepared(self, X: Matrix) -> Matrix:
        return X if self._preparation is None else self._preparation.transform(X)

    def _label_weights(self, Y: Matrix) -> Tensor | None:
        """Of negative and positive entries of each label, [2, K]."""
        if self.class_weight is None or self._targets.one_class:
            return None
        labels = Rows(np.zeros((Y.shape[0], 1)), Y).labels()
        if self.class_weight == "balanced":
            positive, known = labels.nansum(0), (~labels.isnan()).sum(0)
            return known / (2 * torch.stack([known - positive, positive]).clamp(min=1))
        if not isinstance(self.class_weight, Mapping) or not set(self.class_weight) <= set(self.classes_.tolist()):
            raise ValueError(
                f"{OWNER}: class_weight must be 'balanced' or weights of labels, got {self.class_weight!r}"
            )
        weights = [self.class_weight.get(name, 1.0) for name in self.classes_.tolist()]
        return torch.tensor([[1.0] * len(weights), weights], dtype=torch.float32, device="cpu")

    def _validation(self, X: Matrix, y: Matrix) -> Rows:
        return Rows(self._prepared(self._checked(X, first=False)), self._targets.indicator(y))

    def _parts(self, rows: Rows, validation: Rows | None) -> Parts:
        """For each net the rows to train on and the rows held out: a fold, a share, those given, or none."""
        if validation is not None:
            return [(rows, validation)] * len(self.nets_)
        folds = len(self.nets_)
        if folds > 1:
            fold = torch.from_numpy(stratified_folds(rows.labels().nan_to_num().numpy(), folds, self._random))
            return [
                (rows.part((fold != i).nonzero()[:, 0]), rows.part((fold == i).nonzero()[:, 0])) for i in range(folds)
            ]
        if not self.early_stopping:
            return [(rows, None)]
        aside = min(max(round(self.validation_share * len(rows)), 1), len(rows) - 1)
        if not aside:
            raise ValueError(f"{OWNER}: early stopping needs two rows at least, got n_samples = {len(rows)}")
        order = torch.randperm(len(rows), generator=torch.Generator("cpu").manual_seed(self._seed()), device="cpu")
        return [(rows.part(order[aside:]), rows.part(order[:aside]))]

    def _start(self, rows: Rows) -> None:
        """Make the nets."""
        self._batch_size = self.batch_size
        if self.batch_size == "auto":
            self._batch_size = LARGE_BATCH if len(rows) >= MANY_ROWS else SMALL_BATCH
        example = next(iter(Batches(rows, 2)))[0]
        self.nets_ = [self._new_net(example) for _ in range(min(self.nets, len(rows)))]

    def _new_net(self, example: Tensor) -> Net:
        return new_net(
            module__features=self.n_features_in_,
            module__labels=len(self.classes_),
            module__hidden=tuple(self.hidden),
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
        choices: dict[str, Any] = {"mapping": self.mapping, "loss": self.loss, "rate": self.rate, "r": self.r}
        bounds = {} if self._targets.one_class else {"at_least": self.at_least, "at_most": self.at_most}
        which = {"average": self.average, "beta": self.beta}
        return choices | bounds | (which if choose(**choices).name == "expected_f1" else {})

    @property
    def net_(self) -> Net:
        """The first net, whose head decodes the mean of all scores."""
        return self.nets_[0]

    def _renew_settings(self) -> None:
        """Learning rate, weight decay and batch size may change between two trainings."""
        for net in self.nets_:
            net.lr, net.batch_size = self.lr, self._batch_size if self.batch_size == "auto" else self.batch_size
            for group in net.optimizer_.param_groups:
                group.update(lr=self.lr, weight_decay=self.weight_decay)

    def _train(self, parts: Parts, epochs: int, stopping: Stopping | None) -> None:
        train(self.nets_, parts, epochs, self._seed(), stopping=stopping, progress=self.progress)

    def _calibrate(self, rows: Rows, parts: Parts) -> None:
        """Calibration and cuts from the rows held out; only cuts, from the training rows, if there are none."""
        if self._targets.one_class:
            return
        folds = len(parts) > 1 and parts[0][1] is not parts[1][1]
        held = [part[1] or rows for part in (parts if folds else parts[:1])]
        scores = _joined(
            [self._scores(part, [net] if folds else self.nets_) for part, net in zip(held, self.nets_, strict=False)]
        )
        known = torch.cat([part.labels() for part in held])
        weights = [part.weight for part in held if part.weight is not None]
        head = self.net_.module_.head.calibrate(
            scores,
            known.to(scores.z.device),
            weight=torch.cat(weights)[:, None].to(scores.z.device) if weights else None,
            calibration=self.calibration is not None and parts[0][1] is not None,
        )
        self.evaluation_ = self._evaluated(head, scores, known)

    @torch.no_grad()
    def _evaluated(self, head: MultiLabelHead, scores: Scores, known: Tensor) -> Evaluation:
        output = head.decode(scores)
        names = list(map(str, self.classes_.tolist()))
        return evaluated(output.marginals.cpu(), (output.p > 0).cpu(), known, names)

    def _seed(self) -> int:
        return int(self._random.randint(SEEDS))

    def _one_class(self) -> bool:
        check_is_fitted(self, "nets_")
        return self._targets.one_class

    def _found(self, X: Matrix) -> Matrix:
        return self._targets.stacked(_finite(output.p.cpu().numpy()) > 0 for output in self._outputs(X))

    def _outputs(self, X: Matrix) -> Iterable[Output]:
        """What the networks say about the rows, decoded, a batch at a time."""
        check_is_fitted(self, "nets_")
        rows, head = Rows(self._prepared(self._checked(X, first=False))), self.net_.module_.head
        with torch.no_grad():
            return [head.decode(scores) for scores in self._batches(rows, self.nets_)]

    def _scores(self, rows: Rows, nets: Sequence[Net]) -> Scores:
        return _joined(self._batches(rows, nets))

    def _batches(self, rows: Rows, nets: Sequence[Net]) -> list[Scores]:
        """The mean of the nets' scores, batch by batch."""
        return [_mean([net.scores(batch[0]) for net in nets]) for batch in Batches(rows, max(nets[0].batch_size, 512))]


def _mean(scores: Sequence[Scores]) -> Scores:
    def mean(values: Sequence[Any]) -> Any:
        return None if values[0] is None else torch.stack([*values]).mean(0)

    return Scores(*map(mean, zip(*scores, strict=True)))


def _joined(scores: Sequence[Scores]) -> Scores:
    """Scores of further rows, one below the other; a threshold may be one number for all of them."""
    sizes = [len(part.z) for part in scores]

    def joined(values: Sequence[Any]) -> Any:
        if values[0] is None:
            return None
        return torch.cat([value.expand(size, -1) for value, size in zip(values, sizes, strict=True)])

    return Scores(*map(joined, zip(*scores, strict=True)))


def _of_one_class(output: Output) -> Tensor:
    """Probabilities where every row has one class: softmax in place of a rate, which would find how many labels."""
    return output.p if output.theta is None and output.r is None else softmax(output.z)


def _finite(p: NDArray[Any]) -> NDArray[Any]:
    if np.isnan(p).any():
        raise ValueError(
            f"{OWNER}: the network answers with NaN for {np.isnan(p).any(1).sum()} rows, which is not 'no label';"
            " look for NaN in its weights"
        )
    return p


def _stacked(batches: Iterable[Tensor]) -> NDArray[np.float32]:
    return np.concatenate([batch.cpu().numpy() for batch in batches])
