"""Label sets from sparse marginals of very many labels, and the cost of ExpectedF1Classifier relative to a bare fit."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
from sklearn.base import clone
from sklearn.datasets import make_multilabel_classification
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from torch import Tensor

from rsoftmax.labels import AVERAGES, Decoder, ExpectedF1Classifier, decode_csr
from rsoftmax_lab.bench.benchmark import Benchmark, Goal, Group, Settings
from rsoftmax_lab.bench.rows import Case
from rsoftmax_lab.bench.timing import Call

CANDIDATES = 50  # entries per row
SPARSE = ((2_000, 5_000), (100_000, 670_000))  # rows, labels
QUICK_SPARSE = ((20, 100),)
DENSE = 10**8  # entries up to which the dense decoder is measured, too
ESTIMATORS: dict[str, Callable[[], Any]] = {
    "logistic regression": lambda: OneVsRestClassifier(LogisticRegression(max_iter=1000)),
    "random forest": lambda: RandomForestClassifier(random_state=0),
    "extra trees": lambda: ExtraTreesClassifier(random_state=0),
}
FITS: dict[str, dict[str, Any]] = {
    "five fits": {},
    "one fit": {"cv": 0.2},
    "one fit, one refit": {"cv": 0.2, "ensemble": False},
}
OUT_OF_BAG = {"out of bag": {"cv": "oob"}}  # of forests that draw their rows


def groups(settings: Settings) -> list[Group]:
    """Decoding by threads, shape and average, and fits by estimator."""
    shapes, rows = (QUICK_SPARSE, 60) if settings.quick else (SPARSE, 2_000)
    decoding = [
        Group(
            {"mode": f"decoding, {average}", "rows": n, "labels": k, "threads": threads, "measure": "us"},
            partial(_decodings, average, n, k),
            rounds=3,
        )
        for threads, (n, k), average in product(settings.threads, shapes, AVERAGES)
    ]
    fitting = [
        Group(
            {"mode": f"fit, {name}", "rows": rows, "labels": 14, "threads": threads, "measure": "us"},
            partial(_fits, name, rows),
            rounds=3,
        )
        for threads, name in product(settings.threads, ESTIMATORS)
    ]
    return decoding + fitting


def _decodings(average: Any, rows: int, labels: int) -> Sequence[tuple[Case, Call]]:
    """A threshold for all entries as the baseline, the best expected F1, and the same by the dense decoder."""
    indptr, indices, pi = _candidates(rows, labels)
    csr = partial(decode_csr, indptr, indices, pi, labels)
    calls: list[tuple[Case, Call]] = [({"method": "threshold"}, partial(csr, threshold=0.5))]
    calls.append(({"method": "sparse"}, partial(csr, average)))
    if rows * labels <= DENSE:
        u = torch.full((rows, labels), -torch.inf, dtype=torch.float64)
        u[torch.arange(rows).repeat_interleave(CANDIDATES), indices] = pi.double().logit()
        calls.append(({"method": "dense"}, partial(_dense, average, u)))
    return calls


def _candidates(rows: int, labels: int) -> tuple[Tensor, Tensor, Tensor]:
    """The best candidates of an extreme classifier: labels by a power law, marginals that fall with their rank."""
    generator = torch.Generator().manual_seed(0)
    place = torch.rand(rows, CANDIDATES, generator=generator) ** 3 * (labels // CANDIDATES)
    indices = place.long() * CANDIDATES + torch.arange(CANDIDATES)  # distinct within a row
    rank = torch.arange(CANDIDATES)
    pi = (2 * torch.randn(rows, CANDIDATES, generator=generator) - rank / 5).sigmoid()
    return torch.arange(rows + 1) * CANDIDATES, indices.flatten(), pi.flatten()


def _dense(average: Any, u: Tensor) -> Tensor:
    decoder = Decoder(u.shape[1], average).double().fit(u, torch.zeros(1), calibrate=False)
    labels: Tensor = decoder(u).labels
    return labels & u.isfinite()


def _fits(name: str, rows: int) -> Sequence[tuple[Case, Call]]:
    x, y = make_multilabel_classification(rows, n_features=100, n_classes=14, n_labels=4, random_state=0)
    bare = ESTIMATORS[name]()
    fits = FITS | OUT_OF_BAG if getattr(bare, "bootstrap", False) else FITS
    wrapped = {title: ExpectedF1Classifier(bare, random_state=0, **options) for title, options in fits.items()}
    models = {"bare": bare, **wrapped}
    return [({"method": title}, lambda model=model: clone(model).fit(x, y)) for title, model in models.items()]  # type: ignore[misc]


BENCHMARK = Benchmark(
    file="bench_labels.jsonl",
    groups=groups,
    baseline={},
    label="{method}",
    title="{mode}, {rows} x {labels} labels, threads: {threads}",
    place="{mode}, {rows} x {labels} labels, threads: {threads}",
    goals=(Goal("one fit, against a bare fit", 1.3, {"method": ("one fit", "out of bag")}),),
    threads=(1,),
)
