"""Losses, decoding and heads on random scores, against definitions written pair by pair and row by row."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import oracle
import pytest
import torch
import torch.nn.functional as F
from rounding import UNIT, Truth, off_by
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import make_multilabel_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.metrics import f1_score
from sklearn.multioutput import MultiOutputClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import LinearSVC
from strategies import FLOATS, Draw, examples
from torch import Tensor
from torch.testing import assert_close

from rsoftmax import MAPPINGS, budget, r_softmax, sparsemax, use_kernels, weighted_softmax
from rsoftmax.labels import (
    RULES,
    ExpectedF1Classifier,
    MultiLabelHead,
    Output,
    expected_f1_count,
    keep_above,
    keep_count,
    losses,
)

# --------------------------------------------------------------------------------------------------------- losses


def eta(y: Tensor) -> Tensor:
    return y / y.sum(-1, keepdim=True).clamp(min=1)


def hinge(z: Tensor, y: Tensor, margin: Tensor) -> Tensor:
    """The sum over positive i and negative j of ``max(0, margin - (z_i - z_j))``."""
    both = y[..., :, None] * (1 - y[..., None, :])
    return (both * F.relu(margin[..., None] - (z[..., :, None] - z[..., None, :]))).sum((-1, -2))


def spread(z: Tensor, y: Tensor) -> Tensor:
    both = y[..., :, None] * y[..., None, :]
    return (both * (z[..., :, None] - z[..., None, :]).abs()).sum((-1, -2)) / 2


def margin(y: Tensor) -> Tensor:
    return eta(y).amax(-1, keepdim=True) + (y.sum(-1, keepdim=True) == 0)


def multilabel_r_softmax_loss(z: Tensor, y: Tensor, r: Any) -> Tensor:
    return (y * (r_softmax(z, r) - eta(y)) ** 2).sum(-1) + hinge(z, y, margin(y))


def multilabel_t_softmax_loss(z: Tensor, y: Tensor, theta: Any) -> Tensor:
    p = weighted_softmax(z, F.relu(z - theta))
    return (y * (p - eta(y)) ** 2).sum(-1) + sigmoid_binary_cross_entropy(z - theta, y)


def softmax_cross_entropy(z: Tensor, y: Tensor) -> Tensor:
    return (eta(y) * (z.logsumexp(-1, keepdim=True) - z)).sum(-1)


def sparsemax_huber_loss(z: Tensor, y: Tensor) -> Tensor:
    p = sparsemax(z)
    loss = (z * (p - eta(y))).sum(-1) + (eta(y) ** 2 - p**2).sum(-1) / 2
    return loss * y.any(-1)


def budget_loss(z: Tensor, y: Tensor) -> Tensor:
    p = budget(z, y.sum(-1, keepdim=True).to(z.dtype))
    return (z * (p - y)).sum(-1) + (y**2 - p**2).sum(-1) / 2


def sparsemax_hinge_loss(z: Tensor, y: Tensor) -> Tensor:
    return spread(z, y) + hinge(z, y, margin(y))


def sparsehourglass_hinge_loss(z: Tensor, y: Tensor, q: Any) -> Tensor:
    n = z.shape[-1]
    a = (1 + n * q) / (z.sum(-1, keepdim=True).abs() + n * q)
    return spread(z, y) + hinge(z, y, margin(y) / a)


def sigmoid_binary_cross_entropy(z: Tensor, y: Tensor) -> Tensor:
    return -(y * F.logsigmoid(z) + (1 - y) * F.logsigmoid(-z)).sum(-1)


def zlpr_loss(z: Tensor, y: Tensor) -> Tensor:
    return torch.log1p((z.exp() * (1 - y)).sum(-1)) + torch.log1p(((-z).exp() * y).sum(-1))


PAIR_BY_PAIR: dict[str, Callable[..., Tensor]] = {
    f.__name__: f
    for f in (
        multilabel_r_softmax_loss, multilabel_t_softmax_loss, softmax_cross_entropy, sparsemax_huber_loss,
        budget_loss, sparsemax_hinge_loss, sparsehourglass_hinge_loss, sigmoid_binary_cross_entropy, zlpr_loss,
    )
}  # fmt: skip
PARAMETERS = {  # the domain of the loss's parameter
    "multilabel_r_softmax_loss": (0, 1),
    "multilabel_t_softmax_loss": (-2, 2),
    "sparsehourglass_hinge_loss": (0.1, 20),
}


@examples(60)
def test_a_loss_is_its_sum_pair_by_pair(draw: Draw) -> None:
    """Values and gradients of one loss, in every reduction, dtype of logits and dtype of labels."""
    name, dtype = draw.one_of(*PAIR_BY_PAIR), draw.one_of(*FLOATS)
    lead = tuple(draw.integer(1, 3) for _ in range(draw.integer(0, 2)))
    shape = (*lead, draw.one_of(1, 2, 3, 7, 20, 60))
    z = draw.scores(*shape).to(dtype).requires_grad_()
    y = draw.labels(*shape).to(draw.one_of(torch.bool, torch.int64, torch.float32))
    arguments: list[Any] = []
    if name in PARAMETERS:
        number = draw.number(*PARAMETERS[name])
        arguments = [number if draw.chance(0.5) else torch.full((*draw.smaller(*lead), 1), number)]
    reduction = draw.one_of("batchmean", "sum", "none")
    with use_kernels(draw.one_of("native", "reference")):
        value = getattr(losses, name)(z, y, *arguments, reduction=reduction)
        gradient = torch.autograd.grad(value.sum(), z)[0]
    exact = z.detach().double()
    rounding = 4 * UNIT * (1 + exact.abs() + exact.abs().amax(-1, keepdim=True))  # of differences and sums of scores
    copies = off_by(exact, rounding, alike=True).requires_grad_()
    with use_kernels("reference"):
        numbers = [torch.as_tensor(a).double() for a in arguments]
        expected = PAIR_BY_PAIR[name](copies, y.double().expand(copies.shape), *numbers)
        if reduction != "none":
            expected = getattr(expected.reshape(len(copies), -1), reduction.removeprefix("batch"))(-1)
        expected_gradient = torch.autograd.grad(expected.sum(), copies)[0]
    assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    results = [("loss", value, expected)]
    if not undecided(name, exact, 1e-9 if dtype == torch.float64 else 1e-4):
        results.append(("gradient", gradient, expected_gradient))
    for what, found, truth in results:
        if dtype == torch.float64:
            assert_close(found, truth[0], rtol=1e-9, atol=1e-9 * float(1 + truth[0].detach().abs().max()))
        else:
            of_sum = UNIT * math.sqrt(shape[-1]) * (1 + truth[0].detach().abs().max())
            Truth.of(truth.detach(), of_sum).check(f"{what} of {name}", found)


def undecided(name: str, z: Tensor, rounding: float) -> bool:
    """Whether there are entries whose order is a matter of rounding, or, if tied, of choice; or a sum at its kink."""
    if name == "sparsehourglass_hinge_loss" and (z.sum(-1).abs() < 100 * rounding).any():
        return True
    gaps = z.sort(-1).values.diff(dim=-1)
    close = gaps < rounding if name == "multilabel_r_softmax_loss" else (gaps > 0) & (gaps < rounding)
    return bool(close.any())


# -------------------------------------------------------------------------------------------- decoding and heads

DECODED = {torch.float64: 1e-9, torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
CHOICES = [(mapping, name, loss) for name, rule in RULES.items() for mapping in rule.mappings for loss in rule.losses]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else math.exp(x)


def expected_f1(logits: list[float], no_label: float | None) -> list[float]:
    """F(0), ..., F(K)."""
    marginals = sorted((sigmoid(x) for x in logits), reverse=True)
    empty = math.prod(sigmoid(-x) for x in logits) if no_label is None else sigmoid(no_label)
    return [empty, *(2 * sum(marginals[:k]) / (k + sum(marginals)) for k in range(1, len(marginals) + 1))]


def best(z: np.ndarray, k: int) -> np.ndarray:
    """r-softmax with r = 1 - k/K."""
    return oracle.r_softmax(z, (len(z) - k) / len(z)) if k else np.zeros_like(z)


def above(z: np.ndarray, theta: float) -> np.ndarray:
    return oracle.weighted_softmax(z, np.maximum(0, z - theta))


def compare(p: Tensor, expected: list[np.ndarray], dtype: torch.dtype) -> None:
    assert_close(p.detach().double(), torch.from_numpy(np.stack(expected)), rtol=0, atol=DECODED[dtype])


@examples(60)
def test_the_expected_f1_count_has_the_highest_expected_f1(draw: Draw) -> None:
    u = draw.scores(draw.integer(1, 4), draw.integer(1, 30)).to(draw.one_of(*FLOATS))
    no_label = draw.normal(len(u), 1) if draw.chance(0.5) else None
    counts = expected_f1_count(u, no_label)[:, 0].tolist()
    for i, (k, logits) in enumerate(zip(counts, u.double().tolist(), strict=True)):
        expected = expected_f1(logits, None if no_label is None else float(no_label[i]))
        assert expected[k] >= max(expected) - 1e-12, (k, expected)


@examples(40)
def test_the_best_labels_and_those_above_a_threshold_are_mappings(draw: Draw) -> None:
    z = draw.scores(draw.integer(1, 4), draw.integer(1, 30)).to(draw.one_of(*FLOATS))
    rows = list(z.double().numpy())
    k = torch.tensor([[draw.integer(0, z.shape[-1])] for _ in z])
    p = keep_count(z, k)
    assert torch.equal((p > 0).sum(-1, keepdim=True), k)
    assert (z.masked_fill(p == 0, math.inf).amin(-1) >= z.masked_fill(p > 0, -math.inf).amax(-1)).all()
    expected = [best(row, int(count)) for row, count in zip(rows, k, strict=True)]
    clear = [int(count) == np.count_nonzero(row) for row, count in zip(expected, k, strict=True)]  # not tied at k
    compare(p, [row if is_clear else q.double().numpy() for row, is_clear, q in zip(expected, clear, p, strict=True)],
            z.dtype)  # fmt: skip
    theta = draw.normal(len(z), 1)
    compare(keep_above(z.double(), theta), [above(*pair) for pair in zip(rows, theta.numpy()[:, 0], strict=True)],
            torch.float64)  # fmt: skip


@examples(60)
def test_a_head_decodes_and_learns_by_the_definition_of_its_rule(draw: Draw) -> None:
    mapping, rule, loss = draw.one_of(*CHOICES)
    labels, features = draw.integer(1, 20), draw.integer(1, 6)
    torch.manual_seed(draw.integer(0, 1 << 30))
    average: dict[str, Any] = {"average": "samples"} if rule == "expected_f1" else {}
    head = MultiLabelHead(features, labels, mapping, loss, rule, **average)
    output = head.double()(3 * draw.normal(draw.integer(1, 4), features))
    n = len(output.logits)
    scores = {name: x.detach().expand(n, -1).numpy() for name, x in output.scores._asdict().items() if x is not None}
    decoded = [by_definition(head, {name: x[i] for name, x in scores.items()}) for i in range(n)]
    compare(output.probs, decoded, torch.float64)
    y = draw.labels(*output.logits.shape).double()
    assert_close(head.loss(output, y, reduction="none"), pair_by_pair(head, output, y), rtol=1e-9, atol=1e-9)


def by_definition(head: MultiLabelHead, scores: dict[str, np.ndarray]) -> np.ndarray:
    """The probabilities of one sample."""
    z = scores["logits"]
    match head.rule.name:
        case "expected_f1":
            no_label = float((scores["no_label_logit"] - scores["threshold"])[0])
            return best(z, int(np.argmax(expected_f1([*(z - scores["threshold"])], no_label))))
        case "rate":
            return best(z, round(len(z) / (1 + math.exp(float(scores["aux_logits"][0])))))
        case "count":  # the lab's
            return best(z, int(np.argmax(scores["aux_logits"])))
        case "threshold" | "zero":
            return above(z, float(scores["threshold"][0]))
    parameter = MAPPINGS[head.mapping].parameter
    return oracle.apply(head.mapping, z, parameter.example if parameter else None)


def pair_by_pair(head: MultiLabelHead, output: Output, y: Tensor) -> Tensor:
    """The loss of each sample."""
    z, rule, extra, arguments = output.logits, head.rule.name, torch.zeros(()), []
    rate: Any = 1 - y.mean(-1, keepdim=True)
    if rule == "expected_f1":
        assert output.no_label_logit is not None
        z, y = torch.cat([z, output.no_label_logit], -1), torch.cat([y, (y.sum(-1, keepdim=True) == 0).double()], -1)
    if rule == "rate":
        assert output.aux_logits is not None
        r = output.aux_logits.sigmoid()
        extra, rate = (-rate * r.log() - (1 - rate) * (1 - r).log())[..., 0], r
    if rule == "count":
        assert output.aux_logits is not None
        extra = -output.aux_logits.log_softmax(-1).gather(-1, y.sum(-1, keepdim=True).long())[..., 0]
    if output.threshold is not None and head.criterion != "multilabel_t_softmax_loss":
        z = z - output.threshold
    parameters = {
        "multilabel_r_softmax_loss": rate,
        "multilabel_t_softmax_loss": output.threshold,
        "sparsehourglass_hinge_loss": 10.0,
    }
    arguments = [parameters[head.criterion]] if head.criterion in parameters else []
    return PAIR_BY_PAIR[head.criterion](z, y, *arguments) + extra


# ------------------------------------------------------------------------------------------------------ estimators

CLASSIFIERS: tuple[Callable[[int], Any], ...] = (
    lambda seed: LogisticRegression(),
    lambda seed: SGDClassifier(random_state=seed),
    lambda seed: LinearSVC(random_state=seed),
    lambda seed: GaussianNB(),
    lambda seed: KNeighborsClassifier(),
    lambda seed: RandomForestClassifier(20, random_state=seed),
)


@pytest.mark.train
@examples(5)
def test_expected_f1_is_not_worse_than_calibrated_marginals_above_one_half(draw: Draw) -> None:
    """In micro-F1, but for chance; any classifier, scales of features from 0.01 to 100."""
    seed, labels = draw.integer(0, 1 << 20), draw.integer(2, 6)
    x, y = make_multilabel_classification(900, draw.integer(5, 20), n_classes=labels, n_labels=draw.integer(1, 3),
                                          random_state=seed)  # fmt: skip
    x = x * 10 ** draw.number(-2, 2)
    base, half = draw.one_of(*CLASSIFIERS)(seed), len(x) // 2
    if not ((y[:half].sum(0) > 10) & (y[:half].sum(0) < half - 10)).all():
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = ExpectedF1Classifier(base, random_state=seed).fit(x[:half], y[:half])
        plain = MultiOutputClassifier(CalibratedClassifierCV(base, method="sigmoid")).fit(x[:half], y[:half])
    marginals = np.asarray(model.predict_proba(x[half:]))
    assert np.isfinite(marginals).all()
    assert ((marginals >= 0) & (marginals <= 1)).all()
    mine, theirs = (f1_score(y[half:], m.predict(x[half:]), average="micro", zero_division=0) for m in (model, plain))
    assert mine >= theirs - 0.05, (type(base).__name__, mine, theirs)
