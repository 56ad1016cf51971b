"""Label sets from sparse marginals: time and memory proportional to the stored entries, for many labels.

Marginals are given as CSR arrays: ``indptr`` [rows + 1], ``indices`` [entries] and ``pi`` [entries], such as the top
candidates of an extreme classifier or of a retrieval stage. Labels that are left out are never predicted; their
expected number, the tail, counts in the denominator of the F-measure.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from rsoftmax.labels.decoding import (
    Average,
    check_average,
    check_beta,
    expected_f1_threshold,
    maximise_ratio,
    threshold_at,
)

__all__ = ["decode_csr"]


class _Rows(NamedTuple):
    """Sparse marginals: the log-odds, the row and the label of each entry, and their sizes."""

    u: Tensor
    row: Tensor
    label: Tensor
    rows: int
    labels: int


def decode_csr(
    indptr: Tensor,
    indices: Tensor,
    pi: Tensor,
    num_labels: int,
    average: Average = "micro",
    *,
    beta: float = 1.0,
    min_labels: int = 0,
    max_labels: int | None = None,
    tail: float | Tensor = 0.0,
    threshold: float | Tensor | None = None,
) -> Tensor:
    """Return which entries of sparse marginals are predicted, bool [entries].

    Args:
        indptr, indices, pi: the marginals as CSR arrays; calibrated, in [0, 1].
        num_labels: the number of labels, K.
        average: the F-measure whose expectation is maximised over these rows: "micro", "macro" or "samples".
        beta: recall is weighted beta times as much as precision.
        min_labels: the minimum number of labels per row; a row with fewer entries gets all of them.
        max_labels: the maximum number of labels per row; None: all.
        tail: the expected number of labels of a row that are left out: a number or, for "samples", [rows]; for "macro"
            that of each label in all rows, [K].
        threshold: predict entries with at least this marginal, a number, [1] or [K], and maximise no F-measure;
            such as the sigmoid of :func:`rsoftmax.labels.recall_threshold`.

    Example:
        >>> indptr, indices = torch.tensor([0, 2, 3]), torch.tensor([7, 2, 99])
        >>> decode_csr(indptr, indices, torch.tensor([0.9, 0.1, 0.6]), num_labels=100)
        tensor([ True, False,  True])

    Equals :class:`rsoftmax.labels.Decoder` on dense log-odds that are ``-inf`` where there is no entry.
    """
    check_average(average)
    check_beta(beta)
    entries = _entries(indptr, indices, pi, num_labels)
    if threshold is None and average == "samples":
        k = _best_counts(entries, beta, tail, min_labels, max_labels)
        return _ranks(entries, entries.u) < k[entries.row]
    limit = _thresholds(entries, average, beta, tail, threshold)
    above = entries.u > limit if threshold is None else entries.u >= limit
    if not min_labels and max_labels is None:
        return above
    margin = entries.u - limit.where(limit.isfinite(), 0)
    k = entries.row[above].bincount(minlength=entries.rows)
    return _ranks(entries, margin) < k.clamp(min_labels, max_labels)[entries.row]


def _entries(indptr: Tensor, indices: Tensor, pi: Tensor, labels: int) -> _Rows:
    if len(indices) != len(pi) or int(indptr[-1]) != len(pi):
        raise ValueError(
            f"decode_csr: indptr must end with the number of entries, got {int(indptr[-1])} for {len(indices)} indices"
            f" and {len(pi)} marginals"
        )
    if len(pi) and not ((pi >= 0) & (pi <= 1)).all():
        raise ValueError("decode_csr: pi must be in [0, 1]; apply sigmoid to log-odds")
    if len(indices) and not (int(indices.min()) >= 0 and int(indices.max()) < labels):
        raise ValueError(f"decode_csr: indices must be from 0 to {labels - 1}, got {int(indices.max())}")
    rows = len(indptr) - 1
    row = torch.repeat_interleave(torch.arange(rows), indptr.diff().long())
    return _Rows(pi.double().logit(), row, indices.long(), rows, labels)


def _thresholds(
    entries: _Rows, average: Average, beta: float, tail: float | Tensor, threshold: float | Tensor | None
) -> Tensor:
    """The decision threshold of each entry as log-odds: [1] or [entries]."""
    if threshold is not None:
        return torch.as_tensor(threshold, dtype=torch.float64).logit().expand(entries.labels)[entries.label]
    if average == "micro":
        total = torch.as_tensor(tail, dtype=torch.float64)
        left_out = float(total * entries.rows if total.ndim == 0 else total.sum())
        return expected_f1_threshold(entries.u[None], beta=beta, tail=left_out)[0] if len(entries.u) else entries.u
    return _label_thresholds(entries, beta, _tail_of_labels(tail, entries.labels))[entries.label]


def _label_thresholds(entries: _Rows, beta: float, tail: Tensor) -> Tensor:
    """The threshold of each label, [K], as :func:`expected_f1_threshold` finds it for dense columns."""
    u, label, labels = entries.u, entries.label, entries.labels
    log_pi = F.logsigmoid(u)
    log_top = _top(log_pi, label, labels).clamp(min=torch.finfo(u.dtype).min)
    pi = (log_pi - log_top[label]).exp()

    def total(values: Tensor) -> Tensor:
        return torch.zeros(labels, dtype=u.dtype).index_add_(0, label, values)

    expected = beta**2 * (log_top.exp() * total(pi) + tail)
    share = maximise_ratio(pi, torch.ones_like(pi), expected, total, lambda share: share[label])
    top = _top(u, label, labels)
    second = _top(u.where(u < top[label], -torch.inf), label, labels)
    return threshold_at(share, log_top, top, second)


def _best_counts(entries: _Rows, beta: float, tail: float | Tensor, min_labels: int, max_labels: int | None) -> Tensor:
    """The number of labels of each row with the highest expected F-measure, [rows]."""
    u, row, rows = entries.u, entries.row, entries.rows
    left_out = torch.as_tensor(tail, dtype=torch.float64).expand(rows)
    order = _by_row(row, u)
    pi, row, k = u[order].sigmoid(), row[order], _ranks(entries, u)[order] + 1
    sums = torch.zeros(rows, dtype=u.dtype).index_add_(0, row, pi)
    before = torch.cat([pi.new_zeros(1), pi.cumsum(0)])
    inside = before[1:] - before[_starts(entries)][row]
    score = (1 + beta**2) * inside / (k + beta**2 * (sums + left_out)[row])
    allowed = (k >= min_labels) & (k <= (entries.labels if max_labels is None else max_labels))
    score = score.where(allowed, -1)
    best = torch.full((rows,), -1.0, dtype=u.dtype).scatter_reduce_(0, row, score, "amax")
    found = torch.full((rows,), entries.labels + 1).scatter_reduce_(
        0, row, k.where(score == best[row], len(k) + 1), "amin"
    )
    found = found.where(best >= 0, min_labels)
    empty = (torch.zeros(rows, dtype=u.dtype).index_add_(0, row, -F.softplus(u[order])) - left_out).exp()
    return found.where((best > empty) | (min_labels > 0), 0)


def _tail_of_labels(tail: float | Tensor, labels: int) -> Tensor:
    found = torch.as_tensor(tail, dtype=torch.float64)
    if found.ndim == 0 and float(found):
        raise ValueError(f"decode_csr: average='macro' needs the tail of each label, [{labels}], got {float(found)!r}")
    return found.expand(labels)


def _top(values: Tensor, group: Tensor, groups: int) -> Tensor:
    return torch.full((groups,), -torch.inf, dtype=values.dtype).scatter_reduce_(0, group, values, "amax")


def _by_row(row: Tensor, values: Tensor) -> Tensor:
    """The entries row by row, each row's highest value first."""
    order = values.argsort(descending=True, stable=True)
    return order[row[order].argsort(stable=True)]


def _ranks(entries: _Rows, values: Tensor) -> Tensor:
    """The rank of each entry within its row, starting at 0, the highest value first."""
    order = _by_row(entries.row, values)
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(len(order)) - _starts(entries)[entries.row[order]]
    return ranks


def _starts(entries: _Rows) -> Tensor:
    """Where each row begins, [rows]."""
    sizes = entries.row.bincount(minlength=entries.rows)
    return sizes.cumsum(0) - sizes
