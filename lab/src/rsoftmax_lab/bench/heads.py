"""The time of multi-label heads, of decoding very many labels, of ExpectedF1Classifier, and of the labels of texts.

``heads``: a training step and a prediction with each head of the comparison, on a hidden layer of 128. A step is
forward, loss, backward and Adam. ``labels``: label sets from sparse marginals, the cost of ExpectedF1Classifier
relative to a bare fit, and the labels of texts.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.datasets import make_multilabel_classification
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from torch import Tensor, nn

from rsoftmax.labels import AVERAGES, Decoder, ExpectedF1Classifier, LabelModel, MultiLabelHead, decode_csr
from rsoftmax_lab.bench.benchmark import Benchmark, Case, Goal, Group, Settings
from rsoftmax_lab.bench.timing import Call, training_step
from rsoftmax_lab.comparison import METHODS, Training

SHAPES = ((128, 20), (128, 983), (64, 100_000))  # samples in a batch, labels
STEP, _ = MODES = ("training step", "prediction")


def head_groups(settings: Settings) -> Iterator[Group]:
    """All methods of the comparison, by shape and mode."""
    for (n, labels), mode in product(SHAPES[1:2] if settings.quick else SHAPES, MODES):
        case = {"mode": mode, "rows": n, "labels": labels}
        yield Group(case, partial(head_calls, mode, n, labels), seconds=4.0)


def head_calls(mode: str, n: int, labels: int) -> Iterator[tuple[Case, Call]]:
    """Each method on the same features and labels."""
    generator, width = torch.Generator().manual_seed(0), Training.hidden
    x = torch.randn(n, width, generator=generator)
    y = torch.rand(n, labels, generator=generator) < min(0.5, 10 / labels)
    for name, method in METHODS.items():
        torch.manual_seed(0)
        hidden = nn.Sequential(nn.Linear(width, width), nn.ReLU())
        average: dict[str, Any] = {"average": "samples"} if method.head["rule"] == "expected_f1" else {}
        head = MultiLabelHead(width, labels, **method.head, **average)
        yield {"method": name}, (_step if mode == STEP else _prediction)(hidden, head, x, y)


def _step(hidden: nn.Module, head: MultiLabelHead, x: Tensor, y: Tensor) -> Call:
    optimizer = torch.optim.Adam([*hidden.parameters(), *head.parameters()], lr=Training.lr)
    return training_step(optimizer, lambda: head.loss(head.scores(hidden(x)), y))


def _prediction(hidden: nn.Module, head: MultiLabelHead, x: Tensor, y: Tensor) -> Call:
    return torch.no_grad()(lambda: head(hidden(x)).labels)


HEADS = Benchmark(
    file="bench_heads.jsonl",
    groups=head_groups,
    baseline={"method": "bce"},
    label="{method}",
    title="{mode}, {rows} x {labels} labels, threads: {threads}",
    slowest="{rows} x {labels} labels, threads: {threads}",
    goals=(
        Goal(
            "a training step with the expected-F1 rule, against bce",
            1.15,
            {"method": ("r_softmax_expected_f1",), "mode": (STEP,)},
        ),
    ),
    threads=(1,),  # as in the comparison
)

# ---------------------------------------------------------------------------------- very many labels, and estimators

CANDIDATES = 50  # labels with a marginal, for each sample
SPARSE = ((2_000, 5_000), (100_000, 670_000))  # samples, labels
DENSE = 10**8  # entries up to which the dense decoder is measured, too
FITTED = {"rows": 2_000, "labels": 14}  # samples and labels of the fits
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
OUT_OF_BAG = {"out of bag": {"cv": "oob"}}  # of forests that draw their samples
TEXTS, LENGTH = 1_000, 100  # texts to label, and their words
TRAINED = {28: 1_000, 1_500: 3_000}  # labels, and the texts they are learned from


def label_groups(settings: Settings) -> Iterator[Group]:
    """Decoding by shape and average, fits by estimator, and the labels of texts from their words."""
    for (n, labels), average in product(SPARSE[:1] if settings.quick else SPARSE, AVERAGES):
        case = {"mode": f"decoding, {average}", "rows": n, "labels": labels}
        yield Group(case, partial(decoding_calls, average, n, labels), rounds=3)
    for name in ("random forest",) if settings.quick else ESTIMATORS:
        yield Group({"mode": f"fit, {name}", **FITTED}, partial(fit_calls, name), rounds=3)
    for labels in [*TRAINED][: 1 if settings.quick else None]:
        yield Group({"mode": "texts", "rows": TEXTS, "labels": labels}, partial(text_calls, labels), rounds=3)


def decoding_calls(average: Any, n: int, labels: int) -> Iterator[tuple[Case, Call]]:
    """A threshold for all entries as the baseline, the best expected F1, and the same by the dense decoder."""
    indices, marginals = _candidates(n, labels)
    csr = partial(decode_csr, torch.arange(n + 1) * CANDIDATES, indices.flatten(), marginals.flatten(), labels)
    yield {"method": "threshold"}, partial(csr, threshold=0.5)
    yield {"method": "sparse"}, partial(csr, average)
    if n * labels <= DENSE:
        log_odds = torch.full((n, labels), -torch.inf, dtype=torch.float64)
        log_odds.scatter_(1, indices, marginals.double().logit())
        yield {"method": "dense"}, partial(_decode_dense, average, log_odds)


def _candidates(n: int, labels: int) -> tuple[Tensor, Tensor]:
    """The best candidates of an extreme classifier: labels by a power law, marginals that fall with their rank."""
    generator, rank = torch.Generator().manual_seed(0), torch.arange(CANDIDATES)
    bucket = torch.rand(n, CANDIDATES, generator=generator) ** 3 * (labels // CANDIDATES)
    marginals = (2 * torch.randn(n, CANDIDATES, generator=generator) - rank / 5).sigmoid()
    return bucket.long() * CANDIDATES + rank, marginals  # indices are distinct within a sample


def _decode_dense(average: Any, log_odds: Tensor) -> Tensor:
    decoder = Decoder(log_odds.shape[1], average).double().fit(log_odds, torch.zeros(1), calibrate=False)
    labels: Tensor = decoder(log_odds).labels
    return labels & log_odds.isfinite()


def fit_calls(name: str) -> Iterator[tuple[Case, Call]]:
    """A bare fit as the baseline, and ExpectedF1Classifier around the same estimator."""
    x, y = make_multilabel_classification(FITTED["rows"], 100, n_classes=FITTED["labels"], n_labels=4, random_state=0)
    bare = ESTIMATORS[name]()
    yield {"method": "bare"}, lambda: clone(bare).fit(x, y)
    for title, options in (FITS | (OUT_OF_BAG if getattr(bare, "bootstrap", False) else {})).items():
        model = ExpectedF1Classifier(bare, random_state=0, **options)
        yield {"method": title}, lambda model=model: clone(model).fit(x, y)  # type: ignore[misc]


def text_calls(labels: int) -> Iterator[tuple[Case, Call]]:
    """The TF-IDF features of texts as the baseline, and their labels."""
    rng, size = np.random.default_rng(0), TRAINED[labels]
    topics, words = rng.integers(labels, size=(size, 3)), rng.zipf(1.5, (size, LENGTH)) % 20_000
    y = [[str(topic) for topic in set(row)] for row in topics.tolist()]
    rows = zip(topics, words, strict=True)
    texts = [" ".join([*(f"topic{i}" for i in some), *(f"word{i}" for i in others)]) for some, others in rows]
    model = LabelModel([str(label) for label in range(labels)]).fit(texts, y)
    yield {"method": "features"}, lambda: model.embed(texts[:TEXTS])
    yield {"method": "labels"}, lambda: model.sparse_outputs(texts[:TEXTS])


LABELS = Benchmark(
    file="bench_labels.jsonl",
    groups=label_groups,
    baseline={},
    label="{method}",
    title="{mode}, {rows} x {labels} labels, threads: {threads}",
    slowest="{mode}, {rows} x {labels} labels, threads: {threads}",
    goals=(Goal("one fit, against a bare fit", 1.3, {"method": ("one fit", "out of bag")}),),
    threads=(1,),
)
