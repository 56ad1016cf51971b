"""Label sets from sparse marginals: time and memory proportional to the stored entries, for many labels.

Marginals are given as CSR arrays: ``indptr`` [samples + 1], ``indices`` [entries] and ``marginals`` [entries], such as
the top candidates of an extreme classifier or of a retrieval stage. Labels that are left out are never predicted; their
expected number, the tail, counts in the denominator of the F-measure.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from rsoftmax.labels.calibration import check_not_negative
from rsoftmax.labels.decoding import Average, Groups, check_bounds, check_options, expected_f1_threshold, f_measure
from rsoftmax.labels.evaluation import TOP, Evaluation, LabelScores, curve_of

__all__ = ["decode_csr", "evaluate_csr"]

ZERO = torch.zeros((), dtype=torch.float64)
KINDS = {"marginals": "floating-point numbers", "predicted": "bool"}  # of numbers in an array; others: integers


def decode_csr(
    indptr: Tensor,
    indices: Tensor,
    marginals: Tensor,
    num_labels: int,
    average: Average = "micro",
    *,
    beta: float = 1.0,
    min_labels: int = 0,
    max_labels: int | None = None,
    zero_division: float = 1.0,
    tail: float | Tensor = 0.0,
    threshold: float | Tensor | None = None,
) -> Tensor:
    """Return which entries of sparse marginals are predicted, bool [entries].

    Args:
        indptr, indices, marginals: CSR arrays; the marginals calibrated, in [0, 1].
        num_labels: the number of labels, K.
        average: the F-measure whose expectation is maximised over these samples: "micro", "macro" or "samples".
        beta: recall is weighted beta times as much as precision.
        min_labels: the minimum number of labels per sample; a sample with fewer entries gets all of them.
        max_labels: the maximum number of labels per sample; None: all.
        zero_division: for "samples", the F-measure of predicting nothing for a sample without labels, 1 or 0.
        tail: the expected number of labels of a sample that are left out: a number or [samples]; for
            "macro" that of each label in all samples, [K].
        threshold: predict entries with at least this marginal, a number, [1] or [K], and maximise no F-measure;
            such as the sigmoid of :func:`rsoftmax.labels.recall_threshold`.

    Example:
        >>> indptr, indices = torch.tensor([0, 2, 3]), torch.tensor([7, 2, 99])
        >>> decode_csr(indptr, indices, torch.tensor([0.9, 0.1, 0.6]), num_labels=100)
        tensor([ True, False,  True])

    Equals :class:`rsoftmax.labels.Decoder` on dense log-odds that are ``-inf`` where there is no entry.
    """
    check_options(average, beta, zero_division)
    check_bounds(num_labels, min_labels, max_labels)
    check_not_negative("decode_csr: tail", tail)
    sample = _check_csr("decode_csr", num_labels, indptr=indptr, indices=indices, marginals=marginals)
    _check_probabilities("decode_csr: threshold", torch.as_tensor(0.0 if threshold is None else threshold))
    _check_sizes("tail", tail, num_labels if average == "macro" else len(indptr) - 1)
    _check_sizes("threshold", 0.0 if threshold is None else threshold, 1, num_labels)
    entries = Entries(marginals.double().logit(), sample, indices.long(), len(indptr) - 1, num_labels)
    tail, u = torch.as_tensor(tail, dtype=torch.float64), entries.u
    if threshold is None and average == "samples":
        k = entries.best_counts(beta, tail.expand(entries.num_samples), min_labels, max_labels, zero_division)
        return entries.ranks(u) < k[sample]
    if threshold is None:
        at = entries.thresholds(average, beta, tail)
    else:
        at = torch.as_tensor(threshold, dtype=torch.float64).logit()
    at = at.expand(num_labels)[entries.label]
    above = u > at if threshold is None else u >= at
    if not min_labels and max_labels is None:
        return above
    k = sample[above].bincount(minlength=entries.num_samples).clamp(min_labels, max_labels)
    return entries.ranks(u - at.where(at.isfinite(), 0)) < k[sample]


class Entries(NamedTuple):
    """Sparse marginals: the log-odds, the sample and the label of each entry, and the numbers of samples and labels."""

    u: Tensor
    sample: Tensor
    label: Tensor
    num_samples: int
    num_labels: int

    def thresholds(self, average: Average, beta: float, tail: Tensor = ZERO) -> Tensor:
        """Those of :func:`expected_f1_threshold` for dense marginals: [1] for "micro", [K] for "macro"."""
        if average == "macro":
            return self._label_thresholds(beta, tail)
        left_out = float(tail * self.num_samples if tail.ndim == 0 else tail.sum())
        return expected_f1_threshold(self.u[None], beta=beta, tail=left_out)[0] if len(self.u) else self.u.new_zeros(1)

    def _label_thresholds(self, beta: float, tail: Tensor) -> Tensor:
        if tail.ndim == 0 and float(tail):
            raise ValueError(
                f"decode_csr: average='macro' needs the tail of each label, [{self.num_labels}], got {float(tail)!r}"
            )
        zeros, lowest = self.u.new_zeros(self.num_labels), self.u.new_full((self.num_labels,), -torch.inf)
        groups = Groups(
            lambda x: zeros.index_add(0, self.label, x),
            lambda x: lowest.scatter_reduce(0, self.label, x, "amax"),
            lambda x: x[self.label],
        )
        return groups.thresholds(self.u, torch.ones_like(self.u), beta, tail)

    def best_counts(
        self, beta: float, tail: Tensor, min_labels: int, max_labels: int | None, zero_division: float
    ) -> Tensor:
        """The number of labels of each sample with the highest expected F-measure, [samples]."""
        order = self._by_sample(self.u)
        pi, sample, k = self.u[order].sigmoid(), self.sample[order], self.ranks(self.u)[order] + 1
        zeros = self.u.new_zeros(self.num_samples)
        before = torch.cat([pi.new_zeros(1), pi.cumsum(0)])
        inside = before[1:] - before[self._starts()][sample]
        expected = (zeros.index_add(0, sample, pi) + tail)[sample]
        allowed = (k >= min_labels) & (k <= (self.num_labels if max_labels is None else max_labels))
        f_of_k = f_measure(inside, k, expected, beta).where(allowed, -1)
        best = (zeros - 1).scatter_reduce(0, sample, f_of_k, "amax")
        last = torch.full((self.num_samples,), self.num_labels + 1)
        best_k = last.scatter_reduce(0, sample, k.where(f_of_k == best[sample], len(k) + 1), "amin")
        best_k = best_k.where(best >= 0, min_labels)
        f_of_0 = zero_division * (zeros.index_add(0, sample, -F.softplus(self.u[order])) - tail).exp()
        return best_k.where((best > f_of_0) | (min_labels > 0), 0)

    def ranks(self, values: Tensor) -> Tensor:
        """The rank of each entry within its sample, starting at 0, the highest value first."""
        order = self._by_sample(values)
        ranks = torch.empty_like(order)
        ranks[order] = torch.arange(len(order)) - self._starts()[self.sample[order]]
        return ranks

    def _by_sample(self, values: Tensor) -> Tensor:
        """The order of the entries sample by sample, each sample's highest value first."""
        order = values.argsort(descending=True, stable=True)
        return order[self.sample[order].argsort(stable=True)]

    def _starts(self) -> Tensor:
        """The position of the first entry of each sample, [samples]."""
        sizes = self.sample.bincount(minlength=self.num_samples)
        return sizes.cumsum(0) - sizes


def _check_csr(owner: str, num_labels: int, **arrays: Tensor) -> Tensor:
    """Check indptr, indices and further arrays of the entries, by their names, and return the sample of each entry."""
    for name, array in arrays.items():
        if not isinstance(array, Tensor):
            raise TypeError(f"{owner}: {name} must be a tensor, got {type(array).__name__}; use torch.as_tensor")
        kind = KINDS.get(name, "integers")
        if array.ndim != 1 or kind != _kind(array.dtype):
            raise ValueError(
                f"{owner}: {name} must be a 1-d tensor of {kind}, got shape {[*array.shape]}, {array.dtype}"
            )
    (ends, indptr), (labels, indices) = list(arrays.items())[:2]
    sizes = {name: len(array) for name, array in arrays.items() if name != ends}
    if not len(indptr) or set(sizes.values()) != {int(indptr[-1])}:
        raise ValueError(
            f"{owner}: {ends} must end with the number of entries, got {indptr[-1:].tolist()} for"
            f" {' and '.join(f'{size} {name}' for name, size in sizes.items())}"
        )
    if int(indptr[0]) != 0 or (indptr.diff() < 0).any():
        raise ValueError(f"{owner}: {ends} must start at 0 and never decrease")
    if "marginals" in arrays:
        _check_probabilities(f"{owner}: marginals", arrays["marginals"])
    if len(beyond := indices[(indices < 0) | (indices >= num_labels)]):
        raise ValueError(f"{owner}: {labels} must be from 0 to {num_labels - 1}, got {int(beyond[0])}")
    sample = torch.repeat_interleave(torch.arange(len(indptr) - 1), indptr.diff().long())
    entry = (sample * num_labels + indices).sort().values
    if len(repeated := entry[1:][entry.diff() == 0]):
        row, label = divmod(int(repeated[0]), num_labels)
        raise ValueError(f"{owner}: sample {row} has several entries of label {label} in {labels}; keep one")
    return sample


def _kind(dtype: torch.dtype) -> str:
    return "floating-point numbers" if dtype.is_floating_point else "bool" if dtype == torch.bool else "integers"


def _check_probabilities(name: str, pi: Tensor) -> None:
    if len(wrong := pi[~((pi >= 0) & (pi <= 1))]):
        raise ValueError(f"{name} must be in [0, 1], got {wrong[0]:g}; apply sigmoid to log-odds")


def _check_sizes(name: str, value: float | Tensor, *sizes: int) -> None:
    """Raise unless a value is a number, or a tensor [n] of one of the sizes."""
    shape = tuple(torch.as_tensor(value).shape)
    if shape and shape not in [(size,) for size in sizes]:
        kinds = " or ".join(["a number", *(f"[{size}]" for size in sizes)])
        raise ValueError(f"decode_csr: {name} must be {kinds}, got shape {[*shape]}")


def evaluate_csr(
    indptr: Tensor,
    indices: Tensor,
    marginals: Tensor,
    predicted: Tensor,
    y_indptr: Tensor,
    y_indices: Tensor,
    names: Sequence[str],
) -> Evaluation:
    """Score predictions as :func:`rsoftmax.labels.evaluate` does, from sparse marginals and labels.

    Args:
        indptr, indices, marginals: CSR arrays, as in :func:`decode_csr`; labels without an entry have marginal 0.
        predicted: bool, for each entry.
        y_indptr, y_indices: the labels of each sample.
        names: the names of the labels.

    Raises:
        TypeError, ValueError: the arrays do not fit together; the message names the array and the value.

    Example:
        >>> indptr, indices = torch.tensor([0, 2, 3]), torch.tensor([7, 2, 99])
        >>> marginals, predicted = torch.tensor([0.9, 0.1, 0.6]), torch.tensor([True, False, True])
        >>> y_indptr, y_indices, names = torch.tensor([0, 1, 2]), torch.tensor([7, 5]), [*map(str, range(100))]
        >>> evaluate_csr(indptr, indices, marginals, predicted, y_indptr, y_indices, names).micro
        0.5
    """
    num_samples, num_labels = len(indptr) - 1, len(names)
    entries_of = {"indptr": indptr, "indices": indices, "marginals": marginals, "predicted": predicted}
    sample = _check_csr("evaluate_csr", num_labels, **entries_of)
    y_sample = _check_csr("evaluate_csr", num_labels, y_indptr=y_indptr, y_indices=y_indices)
    if len(y_indptr) != len(indptr) or not num_samples:
        samples = f"{num_samples} and {len(y_indptr) - 1}"
        raise ValueError(f"evaluate_csr: marginals and labels must have as many samples, at least one, got {samples}")
    indices, y_indices = indices.long(), y_indices.long()
    positive = torch.isin(sample * num_labels + indices, y_sample * num_labels + y_indices)
    correct = predicted & positive

    def f1_of(groups: Tensor, y_groups: Tensor, size: int) -> Tensor:
        both = groups[predicted].bincount(minlength=size) + y_groups.bincount(minlength=size)
        return torch.where(both == 0, 1.0, 2 * groups[correct].bincount(minlength=size).double() / both.clamp(min=1))

    of_samples = f1_of(sample, y_sample, num_samples)
    empty = (sample[predicted].bincount(minlength=num_samples) + y_sample.bincount(minlength=num_samples)) == 0
    support, hits = y_indices.bincount(minlength=num_labels), indices[correct].bincount(minlength=num_labels).double()
    f1 = f1_of(indices, y_indices, num_labels).where(support > 0, torch.nan)
    precision, recall = hits / indices[predicted].bincount(minlength=num_labels), hits / support
    entries = Entries(marginals.double().logit(), sample, indices, num_samples, num_labels)
    ranks = entries.ranks(marginals)
    missed = len(y_indices) - int(positive.sum())
    pi, y = torch.cat([marginals.double(), torch.zeros(missed)]), torch.cat([positive.double(), torch.ones(missed)])
    curve = curve_of(pi, y, zeros=num_samples * num_labels - len(pi))
    columns = (column.tolist() for column in (precision, recall, f1, support))
    whole = torch.zeros(1, dtype=torch.long)
    return Evaluation(
        num_samples=num_samples,
        micro=float(f1_of(whole.expand(len(sample)), whole.expand(len(y_sample)), 1)),
        macro=float(f1.nanmean()),
        samples=float(of_samples.mean()),
        samples_zero=float(of_samples.where(~empty, 0).mean()),
        precision_at={k: float(positive[ranks < k].sum()) / (k * num_samples) for k in TOP if k < num_labels},
        brier=curve.brier,
        calibration_error=curve.error_of_labels,
        labels=[LabelScores(*scores) for scores in zip(names, *columns, strict=True)],
        curve=curve,
    )
