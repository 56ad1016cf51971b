r"""A label tree, for more than about a thousand labels: similar labels form clusters, of which a text belongs to few.

.. math:: P(\text{label} \mid x) = P(\text{cluster} \mid x) \; P(\text{label} \mid \text{cluster}, x)

With :math:`\sqrt{K}` clusters of :math:`\sqrt{K}` labels, both factors are linear classifiers that are fitted quickly:
there are few clusters, and the labels of a cluster are learned from its texts alone. A few trees with different
clusters are averaged, and held-out texts calibrate the mean.

Reference: Prabhu et al., Parabel: partitioned label trees for extreme classification (2018).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any
from warnings import catch_warnings

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.isotonic import isotonic_regression
from sklearn.preprocessing import normalize
from sklearn.svm import LinearSVC
from torch import Tensor, nn
from tqdm.auto import tqdm

from rsoftmax.labels.calibration import PlattScaling
from rsoftmax.labels.decoding import Decoder
from rsoftmax.labels.evaluation import Evaluation
from rsoftmax.labels.models.linear import Sized, SparseClassifier, SparseLinear, score
from rsoftmax.labels.models.stages import Stages

__all__ = ["LabelTrees", "PooledIsotonic"]

TREES = 3
CANDIDATES = 50  # labels of a text that get a marginal
HELD_OUT = 0.1  # the fraction of texts that calibrate
C = 3.0  # the inverse strength of the ridge penalty
PASSES = 5  # of LIBLINEAR's dual solver over the texts; until convergence it takes 10 to 25 and ranks no better
CERTAIN = 10.0  # the score of a label that every text has; those of others are mostly between -1 and 1
SMALLEST = 0.1  # weights below it are left out
NODES = 32  # of the quadrature of integrated gradients
BUCKETS = 1024  # dimensions in which labels are compared
ROUNDS = 10  # of two-means
AT_ONCE = 8  # clusters whose classifiers are fitted by one process
WORTH_PROCESSES = 2**22  # entries of features
LOWEST = math.log(0.05 / 0.95)  # of the thresholds, as log-odds
THRESHOLD_ENTRIES = 2**26  # of held-out texts times labels that set the thresholds


class LabelTrees(SparseClassifier):
    """The mean of a few label trees, calibrated by isotonic regression; a text has marginals of its 50 best labels."""

    def __init__(self, num_labels: int, options: dict[str, Any]) -> None:
        super().__init__(num_labels, options)
        self.trees: Any = nn.ModuleList(Tree(num_labels) for _ in range(TREES))
        self.calibration = PooledIsotonic()

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
        """Fit trees, calibration and decoder; the evaluation is the one on held-out texts.

        Args:
            x: features [texts, d].
            y: labels [texts, K].
            validation: features and labels of held-out texts. None: a random tenth of the texts.
            names: the names of the labels.
            random_state: seeds the clusters and the choice of held-out texts.
            verbose: show a progress bar.
            stages: finished trees.
        """
        if validation is None:
            order = np.random.default_rng(random_state).permutation(x.shape[0])
            size = max(round(HELD_OUT * len(order)), 1)
            held_out, train = np.sort(order[:size]), np.sort(order[size:])
            validation, x, y = (x[held_out], y[held_out]), x[train], y[train]
        if not y.nnz or not validation[1].nnz:
            sizes = f"{y.shape[0]} texts to learn labels from, and {validation[1].shape[0]} held-out ones"
            raise ValueError(f"LabelModel: {sizes}, are too few: both need a text with a label")
        x = sp.csr_matrix(x, dtype=np.float64)
        with tqdm(total=TREES * y.shape[1], desc="learning", unit="labels", disable=not verbose) as bar:
            for number, tree in enumerate(self.trees):
                fit = partial(tree.fit, x, y, validation, random_state + number, bar.update)
                tree.load_state_dict(stages(f"tree-{number}", fit))
                bar.update((number + 1) * y.shape[1] - bar.n)
        self._fit_decoder(*validation)
        return score(self.predict(validation[0]), validation[1], names)

    @torch.no_grad()
    def scores(self, x: sp.csr_array) -> Tensor:
        """Calibrated log-odds of the best labels of each text, -inf for the others, [texts, K]."""
        log_p = log_mean([tree(x) for tree in self.trees])
        lowest = log_p.topk(min(CANDIDATES, log_p.shape[1])).values[:, -1:]
        calibrated: Tensor = self.calibration(log_odds(log_p))
        return calibrated.where(log_p >= lowest, -torch.inf)

    def contributions(
        self, x: sp.csr_array, labels: Sequence[Sequence[int]]
    ) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        r"""As in the base class, by integrated gradients, which add up as the terms of a linear function do.

        .. math:: c_t \propto x_t \int_0^1 \frac{\partial u}{\partial x_t}(\alpha x) \, d\alpha

        where u are the log-odds before their calibration, and the constant of each label makes the sum the one after
        it.

        Reference: Sundararajan et al., Axiomatic attribution for deep networks (2017).
        """
        trees: list[Any] = [*self.trees]
        matrices = [(tree.to_clusters.matrix, tree.to_labels.matrix) for tree in trees]
        nodes, weights = (torch.from_numpy(part)[:, None, None] / 2 for part in np.polynomial.legendre.leggauss(NODES))
        for start, end, chosen in zip(x.indptr[:-1], x.indptr[1:], labels, strict=True):
            features, values = x.indices[start:end], x.data[start:end, None].astype(np.float64)
            clusters = [tree.cluster[chosen].numpy() for tree in trees]
            parts = [
                matrix[features][:, columns].toarray() * values
                for pair, own in zip(matrices, clusters, strict=True)
                for matrix, columns in zip(pair, (own, chosen), strict=True)
            ]
            biases = [
                bias.double()
                for tree, own in zip(trees, clusters, strict=True)
                for bias in (tree.to_clusters.bias[own], tree.to_labels.bias[chosen])
            ]
            terms, base = torch.from_numpy(np.stack(parts)), torch.stack(biases)  # [2 trees, features, labels]
            path = (base + (nodes + 0.5) * terms.sum(1)).requires_grad_()
            (gradient,) = torch.autograd.grad(self._log_odds(path).sum(), path)
            shares = ((weights * gradient).sum(0)[:, None] * terms).sum(0)
            with torch.no_grad():
                none, every = self.calibration(self._log_odds(torch.stack([base, base + terms.sum(1)])))
            total = shares.sum(0)
            scale = ((every - none) / total).where(total != 0, 0)
            yield (shares * scale).numpy(), none.numpy()

    def _log_odds(self, scores: Tensor) -> Tensor:
        """Log-odds before calibration from the scores of cluster and label in each tree, [..., 2 trees, labels]."""
        pairs = zip(self.trees, scores.unflatten(-2, (-1, 2)).unbind(-3), strict=True)
        return log_odds(log_mean([tree.log_p(*pair.unbind(-2)) for tree, pair in pairs]))

    def set_threshold(self, threshold: Tensor) -> dict[str, Any]:
        """As in the base class; raises if labels would be needed that have no marginal."""
        if (threshold == -torch.inf).any():
            raise ValueError(
                f"this level needs more than the {CANDIDATES} most probable labels of a text, and others have no"
                " marginal; lower it"
            )
        return super().set_threshold(threshold)

    @torch.no_grad()
    def _fit_decoder(self, x: sp.csr_array, y: sp.csr_array) -> None:
        """Calibration and thresholds from held-out texts."""
        rows = max(THRESHOLD_ENTRIES // y.shape[1], 1)
        x, truth = x[:rows], torch.from_numpy(y[:rows].toarray())
        scores = self.scores(x)
        entries = scores.isfinite()
        self.calibration.fit(scores[entries].double().numpy(), truth[entries].double().numpy())
        fit_thresholds(self.decoder, self.scores(x), truth)


class Tree(nn.Module):
    """One label tree.

    Args:
        num_labels: the number of labels, K.

    Attributes:
        cluster: the cluster of each label, [K].
        to_clusters, to_labels: the classifiers of clusters, and of labels within their clusters.
        cluster_line, label_line: calibrate their scores, by one line each.
    """

    cluster: Tensor

    def __init__(self, num_labels: int) -> None:
        super().__init__()
        self.register_buffer("cluster", torch.zeros(num_labels, dtype=torch.int64))
        self.to_clusters, self.to_labels = SparseLinear(number_of_clusters(num_labels)), SparseLinear(num_labels)
        self.cluster_line, self.label_line = PlattScaling(1), PlattScaling(1)

    def fit(
        self,
        x: sp.csr_matrix,
        y: sp.csr_array,
        held_out: tuple[sp.csr_array, sp.csr_array],
        random_state: int,
        advance: Callable[[float], Any],
    ) -> dict[str, Tensor]:
        """Fit clusters, classifiers and lines, return all; ``advance`` is told how many labels are done."""
        clusters = clusters_of(label_vectors(x, y, random_state), random_state)
        for number, labels in enumerate(clusters):
            self.cluster[torch.from_numpy(labels)] = number
        in_cluster, every = self._clusters_of(y), np.arange(x.shape[0])
        numbers = [np.arange(len(clusters))[start : start + AT_ONCE] for start in range(0, len(clusters), AT_ONCE)]
        tasks = [(every, in_cluster[:, some]) for some in numbers]
        self.to_clusters.assign(*fit_all(x, tasks, numbers, lambda _: None))
        texts = [in_cluster[:, [number]].nonzero()[0] for number in range(len(clusters))]
        tasks = [(some, y[some][:, labels]) for some, labels in zip(texts, clusters, strict=True)]
        self.to_labels.assign(*fit_all(x, tasks, clusters, advance))
        self._fit_lines(*held_out)
        return self.state_dict()

    def forward(self, x: sp.csr_array) -> Tensor:
        """The log-probabilities of the labels of texts, [texts, K]."""
        of_clusters = F.logsigmoid(line(self.cluster_line, self.to_clusters(x)))
        return of_clusters[:, self.cluster] + F.logsigmoid(line(self.label_line, self.to_labels(x)))

    def log_p(self, of_cluster: Tensor, of_label: Tensor) -> Tensor:
        """The log-probability of labels from the scores of their clusters and their own."""
        return F.logsigmoid(line(self.cluster_line, of_cluster)) + F.logsigmoid(line(self.label_line, of_label))

    @torch.no_grad()
    def _fit_lines(self, x: sp.csr_array, y: sp.csr_array) -> None:
        """Calibrate clusters on all held-out texts, and labels on the held-out texts of their clusters."""
        in_cluster = torch.from_numpy(self._clusters_of(y).toarray())
        scores, truth = self.to_clusters(x), torch.from_numpy(y.toarray())
        self.cluster_line.fit(scores.reshape(-1, 1), in_cluster.reshape(-1, 1))
        inside = in_cluster[:, self.cluster] > 0
        self.label_line.fit(self.to_labels(x)[inside][:, None], truth[inside][:, None])

    def _clusters_of(self, y: sp.csr_array) -> sp.csr_array:
        """The clusters that texts belong to, with 1, [texts, clusters]."""
        num_labels, num_clusters = len(self.cluster), len(self.to_clusters.bias)
        ones, indptr = np.ones(num_labels, np.float32), np.arange(num_labels + 1)
        y = sp.csr_array(y @ sp.csr_array((ones, self.cluster.numpy(), indptr), shape=(num_labels, num_clusters)))
        y.data[:] = 1
        return y


class PooledIsotonic(Sized):
    """Maps log-odds to calibrated log-odds by one rising function for all labels, fitted by isotonic regression.

    The points are the centres of the regression's constant parts, with lines between them and beyond, so that the order
    of scores never changes (centered isotonic regression).

    Attributes:
        u, log_odds: the points, buffers.

    Example:
        >>> u, y = np.array([-2.0, -1.0, 0.0, 1.0, 2.0, 3.0]), np.array([0, 0, 1, 0, 1, 1])
        >>> PooledIsotonic().fit(u, y)(torch.tensor([-1.5, 0.5, 2.5, 3.5])).round(decimals=1)
        tensor([-1.6000,  0.0000,  1.6000,  2.6000])

    Reference: Oron and Flournoy, Centered isotonic regression (2017).
    """

    u: Tensor
    log_odds: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("u", torch.zeros(1))
        self.register_buffer("log_odds", torch.zeros(1))

    def fit(self, u: NDArray[np.float64], y: NDArray[np.float64]) -> "PooledIsotonic":
        """Fit to scores and labels of held-out entries, [entries]."""
        order = np.argsort(u, kind="stable")
        u, y = u[order], y[order]
        _, block = np.unique(isotonic_regression(y), return_inverse=True)
        size, positive = np.bincount(block), np.bincount(block, y)
        p = (positive + 0.5) / (size + 1)
        rising = np.append(True, p[1:] > np.maximum.accumulate(p)[:-1])
        self.u = torch.from_numpy(np.bincount(block, u) / size)[rising].float()
        self.log_odds = torch.from_numpy(np.log(p) - np.log1p(-p))[rising].float()
        return self

    def forward(self, u: Tensor) -> Tensor:
        """Calibrated log-odds, of any shape."""
        inside = u.clamp(self.u[0], self.u[-1])
        mapped = np.interp(inside.numpy(), self.u.numpy(), self.log_odds.numpy())
        return torch.from_numpy(mapped).to(u.dtype) + (u - inside)


def log_mean(log_p: Sequence[Tensor]) -> Tensor:
    """The logarithm of the mean of probabilities, given their logarithms."""
    return torch.stack([*log_p]).logsumexp(0) - float(np.log(len(log_p)))


def log_odds(log_p: Tensor) -> Tensor:
    """Log-odds from the logarithms of probabilities."""
    log_p = log_p.clamp(max=-torch.finfo(log_p.dtype).eps)
    return log_p - torch.log(-torch.expm1(log_p))


def fit_thresholds(decoder: Decoder, log_odds: Tensor, y: Tensor) -> Decoder:
    """Set thresholds from calibrated log-odds of held-out texts; none is below a probability of .05.

    The best threshold of a label that these texts hardly have would be the noise of its marginals. With 10,000 training
    texts of EURLEX57K, the bound is worth 2.5 points of macro-F1 on dev texts.
    """
    decoder.fit(log_odds, y, calibrate=False)
    decoder.threshold.clamp_(min=LOWEST)
    return decoder


def number_of_clusters(num_labels: int) -> int:
    """The power of two that is nearest to the root of the number of labels."""
    return int(2 ** round(np.log2(num_labels) / 2))


def label_vectors(x: sp.csr_array, y: sp.csr_array, random_state: int) -> NDArray[np.float32]:
    """Unit vectors [K, buckets]: the mean features of the texts of each label, hashed into a few buckets."""
    rng, (_, terms) = np.random.default_rng(random_state), x.shape
    signs, buckets = rng.choice([-1.0, 1.0], terms).astype(np.float32), rng.integers(BUCKETS, size=terms)
    hashing = sp.csr_array((signs, buckets, np.arange(terms + 1)), shape=(terms, BUCKETS))
    vectors: NDArray[np.float32] = normalize(y.T @ (x @ hashing).toarray().astype(np.float32))
    return vectors


def clusters_of(vectors: NDArray[np.float32], random_state: int) -> list[NDArray[np.intp]]:
    """Clusters of similar labels, of equal size, by halving all labels again and again."""
    rng, clusters = np.random.default_rng(random_state), [np.arange(len(vectors))]
    while len(clusters) < number_of_clusters(len(vectors)):
        clusters = [half for labels in clusters for half in halves(vectors, labels, rng)]
    return clusters


def halves(
    vectors: NDArray[np.float32], labels: NDArray[np.intp], rng: np.random.Generator
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Labels in two halves of equal size, by two-means of their vectors."""
    own, middle = vectors[labels], len(labels) // 2
    centres = own[rng.choice(len(labels), 2, replace=False)]
    for _ in range(ROUNDS):
        order = np.argsort(own @ (centres[1] - centres[0]), kind="stable")
        centres = normalize(np.stack([own[order[:middle]].sum(0), own[order[middle:]].sum(0)]))
    return labels[order[:middle]], labels[order[middle:]]


def fit_labels(x: sp.csr_matrix, rows: NDArray[np.intp], y: sp.csr_array) -> tuple[sp.csr_array, list[float]]:
    """A linear classifier for each label of some rows: weights [labels, d] and biases."""
    x, labels = (x if len(rows) == x.shape[0] else x[rows]), y.toarray().astype(np.int8)
    weights, biases = zip(*(fit_label(x, column) for column in labels.T), strict=True)
    return sp.csr_array(sp.vstack(weights, "csr")), list(biases)


def fit_label(x: sp.csr_matrix, y: NDArray[np.int8]) -> tuple[sp.csr_array, float]:
    """Weights [1, d] and bias of one label; only a bias for a label that all rows have, or none."""
    if len(y) == 0 or y.min() == y.max():
        return sp.csr_array((1, x.shape[1])), CERTAIN if len(y) and y[0] else -CERTAIN
    with catch_warnings(action="ignore", category=ConvergenceWarning):
        machine = LinearSVC(C=C, max_iter=PASSES, random_state=0).fit(x, y)
    weights = machine.coef_
    weights[abs(weights) < SMALLEST] = 0
    return sp.csr_array(weights), float(machine.intercept_[0])


def fit_all(
    x: sp.csr_matrix,
    tasks: Sequence[tuple[NDArray[np.intp], sp.csr_array]],
    labels: Sequence[NDArray[np.intp]],
    advance: Callable[[float], Any],
) -> tuple[sp.csr_array, NDArray[np.float64]]:
    """The classifiers of all labels, weights [d, labels] and biases, from the rows and targets of some at a time."""
    jobs = Parallel(-1 if x.nnz > WORTH_PROCESSES else 1, return_as="generator")
    weights, biases = [], []
    for some, bias in jobs(delayed(fit_labels)(x, *task) for task in tasks):
        weights.append(some)
        biases.append(bias)
        advance(len(bias))
    order = np.argsort(np.concatenate(labels))
    return sp.csr_array(sp.vstack(weights, "csr")[order].T), np.concatenate(biases)[order]


def line(scaling: PlattScaling, scores: Tensor) -> Tensor:
    """Scores of any shape, mapped by a common line."""
    mapped: Tensor = scaling(scores[..., None])
    return mapped[..., 0]
