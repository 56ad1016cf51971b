"""Neural networks for multi-label targets as a scikit-learn classifier."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags, check_random_state, compute_sample_weight
from sklearn.utils.validation import _check_sample_weight as check_sample_weight  # has no public counterpart
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data
from torch import Tensor, nn

from rsoftmax.labels.constraints import Implications, by_index
from rsoftmax.labels.decoding import DEFAULTS, Average
from rsoftmax.labels.estimators.features import fit_preprocessing
from rsoftmax.labels.estimators.options import HeadOptions, TrainingOptions, check_ranges
from rsoftmax.labels.estimators.splits import stratified_parts
from rsoftmax.labels.estimators.targets import Matrix, Targets, label_score
from rsoftmax.labels.estimators.training import Network, Samples, TrainingData, train
from rsoftmax.labels.evaluation import evaluate
from rsoftmax.labels.head import MultiLabelHead, resolve_rule
from rsoftmax.labels.rules import Output, Scores
from rsoftmax.labels.windows import Windows, pool_scores
from rsoftmax.mappings import softmax

__all__ = ["SparseLabelClassifier"]

Options = TypeVar("Options", HeadOptions, TrainingOptions)
OWNER = "SparseLabelClassifier"
SMALL_BATCH, LARGE_BATCH, MANY_SAMPLES = 32, 128, 4000
MOST_NETWORKS, MOST_EPOCHS, FEWEST_EPOCHS = 5, 150, 3
WORK = 10**12  # samples times weights of all networks in all epochs: about two minutes on two cores
CALIBRATED = 5 * 10**7  # held-out entries, samples times labels, that calibration and thresholds are computed from


class SparseLabelClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """An ensemble of neural networks for multi-label targets that needs no threshold tuning.

    Each network has hidden layers with ReLU and a :class:`rsoftmax.labels.MultiLabelHead`, and is trained by AdamW
    on all folds but one. The held-out fold decides when to stop, calibrates the marginals and yields the decision
    thresholds for the F1 selected by ``average``. The scores of the networks are averaged.

    Args:
        average: the F1 that ``score`` reports and, with the rule "expected_f1", ``predict`` maximises: "micro" has one
            threshold, "macro" one per label, "samples" decides sample by sample.
        beta: recall is weighted beta times as much as precision.
        min_labels: the minimum number of labels per sample.
        max_labels: the maximum number of labels per sample; None: all.
        zero_division: the F1 where there is no label and none is predicted, as in scikit-learn's ``f1_score``: 1; or
            0, its default, with which "samples" predicts a label for every sample.
        implies: labels that imply others, such as ``{"corn": "grain"}``: a child and its parent, or a list of parents.
            Whatever has the child is predicted to have the parent, too, which is at least as probable.
        exclusive: groups of labels of which at most one is predicted, such as ``[("buy", "sell")]``.
        hidden_layer_sizes: sizes of the hidden layers.
        backbone: a module in place of the hidden layers, from samples to a tensor [samples, features]; each network
            trains a copy, starting from its weights.
        n_estimators: the number of networks; if there are several, each holds out a fold. "auto": 5, or as few as 2 if
            there are so many samples and labels that training would be slow.
        class_weight: "balanced", or a dict with the weight of each label in samples that have it; of each class, if
            ``y`` is 1-d.
        label_separator: separates the labels in strings such as "a;c"; "": each string is one class.
        warm_start: another call of ``fit`` continues from the current weights.
        device: the torch device to compute on.
        verbose: 1 shows a progress bar, 0 does not; None shows it once training has taken ten seconds.
        random_state: seeds weights, order of samples, dropout and folds; the result is the same in any thread. A
            backbone with dropout draws from torch's global generator.
        head: rule, mapping, loss and calibration; None: ``HeadOptions()``.
        training: preprocessing, dropout, learning rate, early stopping and so on; None: ``TrainingOptions()``.

    Attributes:
        classes_: the labels: a data frame's columns, names, or column numbers; for 1-d targets, the classes.
        n_features_in_: the number of features.
        evaluation_: the :class:`rsoftmax.labels.Evaluation` on held-out samples, cross-validated if there are folds;
            on the training samples, if none were held out.
        estimators_: the networks, torch modules. ``estimators_[0].head`` holds calibration and thresholds of the
            ensemble.
        history_: the losses of each epoch, mean over the networks: ``[{"train_loss": ..., "valid_loss": ...}, ...]``.

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
    one. A 1-d ``y`` of classes means that every sample has one label: the most probable class is predicted, and
    probabilities are those of softmax. Without held-out samples (one network, no early stopping) there is no
    calibration, and thresholds come from the marginals of the training samples.
    """

    _targets: Targets
    _split: Tensor | None

    def __init__(
        self,
        *,
        average: Average = "micro",
        beta: float = 1.0,
        min_labels: int = 0,
        max_labels: int | None = None,
        zero_division: float = 1.0,
        implies: Implications = (),
        exclusive: Collection[Collection[Any]] = (),
        hidden_layer_sizes: Sequence[int] = (512,),
        backbone: nn.Module | None = None,
        n_estimators: int | Literal["auto"] = "auto",
        class_weight: Mapping[Any, float] | str | None = None,
        label_separator: str | None = None,
        warm_start: bool = False,
        device: str = "cpu",
        verbose: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        head: HeadOptions | None = None,
        training: TrainingOptions | None = None,
    ) -> None:
        self.average = average
        self.beta = beta
        self.min_labels = min_labels
        self.max_labels = max_labels
        self.zero_division = zero_division
        self.implies = implies
        self.exclusive = exclusive
        self.hidden_layer_sizes = hidden_layer_sizes
        self.backbone = backbone
        self.n_estimators = n_estimators
        self.class_weight = class_weight
        self.label_separator = label_separator
        self.warm_start = warm_start
        self.device = device
        self.verbose = verbose
        self.random_state = random_state
        self.head = head
        self.training = training

    def fit(
        self,
        X: Matrix,
        y: Matrix,
        sample_weight: Matrix = None,
        *,
        classes: Matrix = None,
        validation: tuple[Matrix, Matrix] | None = None,
    ) -> Self:
        """Train new networks or, with ``warm_start``, continue with the current ones.

        Args:
            X: features [samples, d], dense or sparse.
            y: labels [samples, K], 0 or 1, dense or sparse, NaN or -1 where unknown; a data frame of them; lists or
                sets of names; strings of names, with ``label_separator``; or classes [samples].
            sample_weight: weights of the samples, [samples].
            classes: the names of the columns of a matrix ``y``; all names or classes, if ``y`` lacks some.
            validation: X and y of held-out samples in place of folds: for early stopping, calibration and thresholds.
        """
        continues = self.warm_start and hasattr(self, "estimators_")
        samples = self._samples(X, y, classes, sample_weight, continues)
        parts = self._parts(samples, None if validation is None else self._held_out(*validation))
        epochs, stops = self._training.max_epochs, self._training.early_stopping and parts[0][1] is not None
        self._train(
            parts, self._auto_epochs if epochs == "auto" else epochs, self._training.patience if stops else None
        )
        self._calibrate(samples, parts)
        return self

    def partial_fit(self, X: Matrix, y: Matrix, classes: Matrix = None, sample_weight: Matrix = None) -> Self:
        """Train for one more epoch on these samples.

        No samples are held out: there is no early stopping or calibration; call :meth:`calibrate` with held-out ones.

        Args:
            X: features [samples, d].
            y: labels, as in :meth:`fit`.
            classes: as in :meth:`fit`, needed at the first call if ``y`` lacks some.
            sample_weight: weights of the samples, [samples].
        """
        samples = self._samples(X, y, classes, sample_weight, continues=hasattr(self, "estimators_"))
        self._train([(samples, None)] * len(self.estimators_), epochs=1)
        return self

    def calibrate(self, X: Matrix, y: Matrix) -> Self:
        """Fit calibration and thresholds on held-out samples."""
        check_is_fitted(self, "estimators_")
        samples = self._held_out(X, y)
        self._calibrate(samples, [(samples, samples)])
        return self

    def predict(self, X: Matrix) -> Any:
        """Predict labels in the format of ``y``; for 1-d targets, classes [samples]. Raises on NaN scores."""
        if self._one_class():
            return self.classes_[_check_nan(self.predict_proba(X)).argmax(1)]
        return self._targets.inverse_transform(self._predict_matrix(X), X)

    def predict_labels(self, X: Matrix) -> list[list[Any]]:
        """Predict the names of the labels of each sample."""
        if self._one_class():
            return [[name] for name in self.predict(X).tolist()]
        return self._targets.names(self._predict_matrix(X))

    def predict_proba(self, X: Matrix) -> NDArray[np.float32]:
        """Predict the marginal probability of each label, [samples, K]; for 1-d targets, rows sum to one."""
        if self._one_class():
            return self.predict_distribution(X)
        return _concatenate(output.marginals for output in self._outputs(X))

    def predict_distribution(self, X: Matrix) -> NDArray[np.float32]:
        """Predict one distribution over the predicted labels, [samples, K]; all others are exactly zero.

        Each row sums to one, or to zero if the sample has no label.
        """
        outputs = self._outputs(X)
        if self._one_class():  # softmax, unless the mapping has no number of labels to decide
            return _concatenate(
                o.probs if o.threshold is None and o.rate is None else softmax(o.logits) for o in outputs
            )
        return _concatenate(output.probs for output in outputs)

    def decision_function(self, X: Matrix) -> NDArray[np.float32]:
        """Compute calibrated scores [samples, K]: log-odds, for rules with a threshold; 1-d for two classes."""
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

    @property
    def _head(self) -> HeadOptions:
        return _options("head", self.head, HeadOptions)

    @property
    def _training(self) -> TrainingOptions:
        return _options("training", self.training, TrainingOptions)

    @property
    def _batch_size(self) -> int:
        size = self._training.batch_size
        return self._auto_batch_size if size == "auto" else size

    def _samples(self, X: Matrix, y: Matrix, classes: Matrix, sample_weight: Matrix, continues: bool) -> Samples:
        """Preprocessed features, labels as a matrix, weights; at the first call, creates the networks."""
        check_ranges(OWNER, self.get_params(deep=False))
        targets = self._targets if continues else Targets(y, self, classes)
        Y = targets.indicator(y, classes)
        X = self._check_features(X, reset=not continues)
        check_consistent_length(X, Y)
        if not continues:
            self._targets, self.classes_ = targets, targets.classes
            self._random = check_random_state(self.random_state)
            self._preprocessing = fit_preprocessing(X, self._training.preprocessing, self._random)
        weight = None if sample_weight is None else check_sample_weight(sample_weight, X, ensure_non_negative=True)
        if self._targets.one_class and self.class_weight is not None:
            weight = (1.0 if weight is None else weight) * compute_sample_weight(self.class_weight, y)
        weight = None if weight is None else weight / max(weight.mean(), np.finfo(np.float64).tiny)
        samples = Samples(self._preprocess(X), Y, weight, self._label_weights(Y))
        if not continues:
            self._create_networks(samples)
        return samples

    def _held_out(self, X: Matrix, y: Matrix) -> Samples:
        X, Y = self._check_features(X), self._targets.indicator(y)
        check_consistent_length(X, Y)
        return Samples(self._preprocess(X), Y)

    def _check_features(self, X: Matrix, reset: bool = False) -> Matrix:
        if isinstance(X, Windows):  # of an EncoderModel
            self.n_features_in_ = X.shape[1]
            return X
        allow_nd = self.backbone is not None
        return validate_data(self, X, reset=reset, accept_sparse="csr", dtype=np.float32, allow_nd=allow_nd)

    def _preprocess(self, X: Matrix) -> Matrix:
        return X if self._preprocessing is None else self._preprocessing.transform(X)

    def _label_weights(self, Y: Matrix) -> Tensor | None:
        """Weights of negative and positive entries of each label, [2, K]."""
        if self.class_weight is None or self._targets.one_class:
            return None
        if isinstance(self.class_weight, str) and self.class_weight == "balanced":
            labels = Samples(Y, Y).labels()
            positive, known = labels.nansum(0), (~labels.isnan()).sum(0)
            return known / (2 * torch.stack([known - positive, positive]).clamp(min=1))
        names = self.classes_.tolist()
        if not isinstance(self.class_weight, Mapping) or not set(self.class_weight) <= set(names):
            raise ValueError(
                f"{OWNER}: class_weight must be None, 'balanced' or a dict of weights by label,"
                f" got {self.class_weight!r}"
            )
        weights = [self.class_weight.get(name, 1.0) for name in names]
        return torch.tensor([[1.0] * len(weights), weights], dtype=torch.float32, device="cpu")

    def _create_networks(self, samples: Samples) -> None:
        self._auto_batch_size = LARGE_BATCH if len(samples) >= MANY_SAMPLES else SMALL_BATCH
        backbone = (self.n_features_in_, *self.hidden_layer_sizes) if self.backbone is None else self.backbone
        dropout = self._training.input_dropout, self._training.dropout
        example: Any = samples.features(torch.arange(min(len(samples), 2), device="cpu"))

        def create() -> Network:
            network = Network(backbone, len(self.classes_), self._head_arguments(), self._seed(), dropout, example)
            return network.to(self.device)

        networks = [create()]
        rows = len(samples.X.x) if isinstance(samples.X, Windows) else len(samples)
        n, self._auto_epochs = _affordable(rows * sum(weights.numel() for weights in networks[0].parameters()))
        n = n if self.n_estimators == "auto" else self.n_estimators
        self.estimators_ = networks + [create() for _ in range(min(n, len(samples)) - 1)]
        self._optimizers = [torch.optim.AdamW(network.parameters()) for network in self.estimators_]
        self.history_: list[dict[str, float]] = []
        self._split = None

    def _head_arguments(self) -> dict[str, Any]:
        """Arguments of the head; bounds do not apply to classes, averages only to one rule."""
        head: dict[str, Any] = {name: getattr(self._head, name) for name in ("mapping", "loss", "rule")}
        options = {name: getattr(self, name) for name in DEFAULTS}
        options |= by_index(self.classes_.tolist(), self.implies, self.exclusive)
        if self._targets.one_class:
            options |= {name: DEFAULTS[name] for name in ("min_labels", "max_labels", "implies", "exclusive")}
        if resolve_rule(**head).name != "expected_f1":
            options |= {name: DEFAULTS[name] for name in ("average", "beta", "zero_division")}
        return head | {name: value for name, value in options.items() if value != DEFAULTS[name]}  # type: ignore[literal-required]

    def _parts(self, samples: Samples, validation: Samples | None) -> Sequence[TrainingData]:
        """The training and held-out samples of each network: a fold, a fraction, the validation set, or none."""
        n = len(self.estimators_)
        if validation is not None or (n == 1 and not self._training.early_stopping):
            return [(samples, validation)] * n
        if n > 1:
            Y = samples.Y == 1
            fold = self._remember(samples, lambda: torch.from_numpy(stratified_parts(Y, [1 / n] * n, self._random)))
            indices = [((fold != i).nonzero()[:, 0], (fold == i).nonzero()[:, 0]) for i in range(n)]
        else:
            size = min(max(round(self._training.validation_fraction * len(samples)), 1), len(samples) - 1)
            if not size:
                raise ValueError(f"{OWNER}: early stopping needs at least two samples, got n_samples = {len(samples)}")
            generator = torch.Generator("cpu").manual_seed(self._seed())
            order = self._remember(samples, lambda: torch.randperm(len(samples), generator=generator, device="cpu"))
            indices = [(order[size:], order[:size])]
        return [(samples.take(train), samples.take(held_out)) for train, held_out in indices]

    def _remember(self, samples: Samples, draw: Callable[[], Tensor]) -> Tensor:
        """A random split that a warm start repeats: a sample that was trained on is not held out later."""
        if self._split is None or len(self._split) != len(samples):
            self._split = draw()
        return self._split

    def _train(self, parts: Sequence[TrainingData], epochs: int, patience: int | None = None) -> None:
        for group in (group for optimizer in self._optimizers for group in optimizer.param_groups):
            group.update(lr=self._training.lr, weight_decay=self._training.weight_decay)
        self.history_ += train(
            self.estimators_,
            self._optimizers,
            parts,
            epochs=epochs,
            batch_size=self._batch_size,
            seed=self._seed(),
            patience=patience,
            verbose=self.verbose,
        )

    @torch.no_grad()
    def _calibrate(self, samples: Samples, parts: Sequence[TrainingData]) -> None:
        """Fit calibration and thresholds on held-out samples; without any, thresholds only, on the training samples."""
        if self._targets.one_class:
            return
        folds = len(parts) > 1 and parts[0][1] is not parts[1][1]
        held_out = [part[1] or samples for part in (parts if folds else parts[:1])]
        networks = [[network] for network in self.estimators_] if folds else [self.estimators_]
        most = max(CALIBRATED // len(self.classes_) // len(held_out), 100)
        held_out = [
            part.take(torch.arange(most) * len(part) // most) if len(part) > most else part for part in held_out
        ]
        batches = [batch for part, nets in zip(held_out, networks, strict=True) for batch in self._scores(part, nets)]
        scores = _by_field(batches, torch.cat)
        y = torch.cat([part.labels() for part in held_out])
        weights: list[Any] = [part.weight for part in held_out]
        head = self._decoding_head.calibrate(
            scores,
            y.to(scores.logits.device),
            weight=None if weights[0] is None else torch.cat(weights)[:, None].to(scores.logits.device),
            calibrate_scores=self._head.calibration is not None and parts[0][1] is not None,
        )
        output, names = head.decode(scores), [str(name) for name in self.classes_]
        self.evaluation_ = evaluate(output.marginals.cpu(), (output.probs > 0).cpu(), y, names)

    @property
    def _decoding_head(self) -> MultiLabelHead:
        """The head of the first network, which decodes the mean of all scores."""
        return self.estimators_[0].head

    def _seed(self) -> int:
        return int(self._random.randint(2**31))

    def _one_class(self) -> bool:
        check_is_fitted(self, "estimators_")
        return self._targets.one_class

    def _predict_matrix(self, X: Matrix) -> Matrix:
        return self._targets.matrix(_check_nan(output.probs.cpu().numpy()) > 0 for output in self._outputs(X))

    @torch.no_grad()
    def _outputs(self, X: Matrix) -> Iterator[Output]:
        """The decoded outputs of the ensemble, batch by batch."""
        check_is_fitted(self, "estimators_")
        samples = Samples(self._preprocess(self._check_features(X)))
        yield from map(self._decoding_head.decode, self._scores(samples, self.estimators_))

    @torch.no_grad()
    def _scores(self, samples: Samples, networks: Sequence[Network]) -> Iterator[Scores]:
        """The mean scores of some networks, batch by batch."""

        def mean(x: Tensor) -> Scores:
            scores = [network.eval().scores(x) for network in networks]
            return _by_field(scores, lambda values: torch.stack(values).mean(0))

        for index in samples.batches(max(self._batch_size, 512)):
            yield pool_scores(mean, samples.features(index))


def _affordable(work: int) -> tuple[int, int]:
    """The number of networks and of epochs for samples times weights: 5 and 150, less if they take long.

    Example:
        >>> _affordable(10**8), _affordable(10**10), _affordable(10**12)
        ((5, 150), (5, 20), (2, 3))
    """
    epochs = WORK // max(work, 1)
    networks = min(max(epochs // 20, 2), MOST_NETWORKS)
    return networks, min(max(epochs // networks, FEWEST_EPOCHS), MOST_EPOCHS)


def _by_field(scores: Sequence[Scores], combine: Callable[[list[Tensor]], Tensor]) -> Scores:
    """Combine scores field by field; a threshold may be one number for all samples."""
    sizes = [len(part.logits) for part in scores]

    def combined(values: Sequence[Any]) -> Any:
        return None if values[0] is None else combine([v.expand(n, -1) for v, n in zip(values, sizes, strict=True)])

    return Scores(*map(combined, zip(*scores, strict=True)))


def _options(name: str, options: Options | None, kind: type[Options]) -> Options:
    if not isinstance(options, kind | None):
        raise TypeError(f"{OWNER}: {name} must be {kind.__name__}(...) or None, got {options!r}")
    return options or kind()


def _check_nan(p: NDArray[Any]) -> NDArray[Any]:
    if np.isnan(p).any():
        raise ValueError(
            f"{OWNER}: the scores of {np.isnan(p).any(1).sum()} samples contain NaN; cannot decode labels. Check the"
            " weights for NaN"
        )
    return p


def _concatenate(batches: Iterable[Tensor]) -> NDArray[np.float32]:
    return np.concatenate([batch.cpu().numpy() for batch in batches])
