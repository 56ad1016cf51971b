"""Sparse marginals: the same labels as dense decoding, in time and memory proportional to the entries."""

import re
import subprocess
import sys

import pytest
import torch
from cases import draw_labels
from torch import Tensor

from rsoftmax.labels import AVERAGES, Decoder, decode_csr, evaluate_csr


def to_csr(pi: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows, columns = pi.nonzero(as_tuple=True)
    counts = (pi > 0).sum(1)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)]), columns, pi[rows, columns]


def to_dense(pi: Tensor, kept: Tensor) -> Tensor:
    found = torch.zeros_like(pi, dtype=torch.bool)
    found[pi > 0] = kept
    return found


def test_csr_decoding_equals_dense_decoding() -> None:
    for seed in range(5):
        u, _ = draw_labels(60, 12, seed=seed, shift=-2)
        u[torch.rand(u.shape, generator=torch.Generator().manual_seed(seed)) < 0.6] = -torch.inf
        u[0] = -torch.inf  # a row without candidates
        pi = u.sigmoid()
        for average in AVERAGES:
            for beta, low, high, zero in ((1.0, 0, None, 1), (2.0, 0, None, 0), (0.5, 0, 2, 1), (1.0, 1, 3, 0)):
                decoder = (
                    Decoder(12, average, beta, low, high, zero).double().fit(u, torch.zeros_like(u), calibrate=False)
                )
                dense = decoder(u).labels & (pi > 0)
                options = {"beta": beta, "min_labels": low, "max_labels": high, "zero_division": zero}
                kept = decode_csr(*to_csr(pi), 12, average, **options)  # type: ignore[arg-type]
                assert torch.equal(to_dense(pi, kept), dense), (seed, average, options)


def test_a_tail_lowers_the_cut_and_a_threshold_replaces_it() -> None:
    u, _ = draw_labels(200, 10, shift=-2)
    pi = u.sigmoid()
    for average, tail in (("micro", 1.0), ("samples", 1.0), ("macro", torch.full((10,), 100.0))):
        without, with_tail = (int(decode_csr(*to_csr(pi), 10, average, tail=t).sum()) for t in (0.0, tail))  # type: ignore[arg-type]
        assert with_tail > without, average
    kept = decode_csr(*to_csr(pi), 10, threshold=0.25)
    assert torch.equal(to_dense(pi, kept), u.double() >= torch.tensor(0.25).double().logit())
    each = torch.linspace(0.1, 0.5, 10).double()
    assert torch.equal(to_dense(pi, decode_csr(*to_csr(pi), 10, threshold=each)), u >= each.logit())


def test_nothing_in_nothing_out() -> None:
    for average in AVERAGES:
        assert not len(decode_csr(torch.zeros(4).long(), torch.zeros(0).long(), torch.zeros(0), 5, average))


def test_wrong_arrays_say_what_is_wrong() -> None:
    indptr, indices, pi = torch.tensor([0, 2]), torch.tensor([0, 3]), torch.tensor([0.5, 0.2])
    with pytest.raises(ValueError, match=r"indptr must end with the number of entries, got \[2\] for 2 indices and 1"):
        decode_csr(indptr, indices, pi[:1], 4)
    with pytest.raises(ValueError, match=r"marginals must be in \[0, 1\]"):
        decode_csr(indptr, indices, 3 * pi, 4)
    with pytest.raises(ValueError, match="indices must be from 0 to 2, got 3"):
        decode_csr(indptr, indices, pi, 3)
    with pytest.raises(ValueError, match="indices must be from 0 to 3, got -1"):
        decode_csr(indptr, torch.tensor([2, -1]), pi, 4)
    for average, size in (("micro", 1), ("samples", 1), ("macro", 4)):
        with pytest.raises(ValueError, match=rf"tail must be a number or \[{size}\], got shape \[3\]"):
            decode_csr(indptr, indices, pi, 4, average, tail=torch.ones(3))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"threshold must be a number or \[1\] or \[4\], got shape \[2\]"):
        decode_csr(indptr, indices, pi, 4, threshold=torch.tensor([0.1, 0.2]))
    with pytest.raises(ValueError, match=r"average='macro' needs the tail of each label, \[4\], got 0.5"):
        decode_csr(indptr, indices, pi, 4, "macro", tail=0.5)
    with pytest.raises(ValueError, match=r"min_labels <= max_labels <= 4 .* got min_labels=2, max_labels=1"):
        decode_csr(indptr, indices, pi, 4, min_labels=2, max_labels=1)
    with pytest.raises(TypeError, match="indices must be a tensor, got ndarray"):
        decode_csr(indptr, indices.numpy(), pi, 4)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"indptr must be a 1-d tensor of integers, got shape \[2\], torch.float32"):
        decode_csr(indptr.float(), indices, pi, 4)
    for decreasing in ([1, 2], [0, 2, 1, 2]):
        with pytest.raises(ValueError, match="indptr must start at 0 and never decrease"):
            decode_csr(torch.tensor(decreasing), indices, pi, 4)
    with pytest.raises(ValueError, match="sample 1 has several entries of label 3"):
        decode_csr(torch.tensor([0, 1, 4]), torch.tensor([3, 3, 0, 3]), torch.rand(4), 4)
    with pytest.raises(ValueError, match="tail must not be negative or NaN, got -1"):
        decode_csr(indptr, indices, pi, 4, tail=-1)
    with pytest.raises(ValueError, match=r"threshold must be in \[0, 1\], got nan"):
        decode_csr(indptr, indices, pi, 4, threshold=torch.tensor([0.1, float("nan"), 0.2, 0.3]))


@pytest.mark.process
def test_a_million_entries_of_670_000_labels_fit_in_a_gigabyte() -> None:
    program = """
import resource, torch
from rsoftmax.labels import AVERAGES, decode_csr
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows, top, labels = 20_000, 50, 670_000
g = torch.Generator().manual_seed(0)
indptr = torch.arange(rows + 1) * top
indices = torch.randint(labels // top, (rows, top), generator=g) * top + torch.arange(top)
pi = torch.rand(rows * top, generator=g) ** 6
for average in AVERAGES:
    assert 0 < decode_csr(indptr, indices.flatten(), pi, labels, average).float().mean() < 1
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(done.stdout) * unit < 2**30


def test_thresholds_of_one_number_and_at_the_ends() -> None:
    indptr, indices, pi = torch.tensor([0, 3]), torch.tensor([0, 1, 2]), torch.tensor([0.0, 0.5, 1.0])
    for threshold, found in ((0.0, [True, True, True]), (0.5, [False, True, True]), (1.0, [False, False, True])):
        for form in (threshold, torch.tensor([threshold]), torch.full((3,), threshold)):
            assert decode_csr(indptr, indices, pi, 3, threshold=form).tolist() == found
            assert decode_csr(indptr, indices, pi, 3, threshold=form, max_labels=1).tolist() == [False, False, True]


def test_arrays_that_do_not_fit_together_are_not_evaluated() -> None:
    right = {
        "indptr": torch.tensor([0, 2, 3]),
        "indices": torch.tensor([3, 0, 3]),
        "marginals": torch.tensor([0.9, 0.1, 0.6]),
        "predicted": torch.tensor([True, False, True]),
        "y_indptr": torch.tensor([0, 1, 2]),
        "y_indices": torch.tensor([3, 1]),
    }
    names = list("abcd")
    assert evaluate_csr(**right, names=names).num_samples == 2
    wrong: dict[str, list[tuple[object, str]]] = {
        "indptr": [
            (torch.tensor([0, 2]), "indptr must end with the number of entries"),
            ([0, 2, 3], "must be a tensor"),
        ],
        "indices": [(torch.tensor([3, 0, 4]), "indices must be from 0 to 3, got 4")],
        "marginals": [
            (torch.tensor([0.9, 0.1]), "got [3] for 3 indices and 2 marginals and 3 predicted"),
            (torch.tensor([0.9, 0.1, 1.5]), "marginals must be in [0, 1], got 1.5"),
        ],
        "predicted": [(torch.tensor([1, 0, 1]), "predicted must be a 1-d tensor of bool")],
        "y_indptr": [
            (torch.tensor([0, 2]), "must have as many samples, at least one, got 2 and 1"),
            (torch.tensor([0, 3, 2]), "y_indptr must start at 0 and never decrease"),
        ],
        "y_indices": [
            (torch.tensor([3.0, 1.0]), "y_indices must be a 1-d tensor of integers"),
            (torch.tensor([3, -1]), "y_indices must be from 0 to 3, got -1"),
        ],
    }
    for name, values in wrong.items():
        for value, message in values:
            with pytest.raises((TypeError, ValueError), match=f"evaluate_csr: .*{re.escape(message)}"):
                evaluate_csr(**(right | {name: value}), names=names)  # type: ignore[arg-type]
    repeated = right | {"y_indptr": torch.tensor([0, 2, 2]), "y_indices": torch.tensor([3, 3])}
    with pytest.raises(ValueError, match="sample 0 has several entries of label 3 in y_indices"):
        evaluate_csr(**repeated, names=names)
