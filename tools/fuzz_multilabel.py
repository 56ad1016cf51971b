"""Multi-label decoding and heads against slow oracles, one row at a time."""

import math
from typing import Any

import fuzz_losses
import numpy as np
import oracle
import torch
from fuzz_draw import FLOATS, Draw
from torch import Tensor
from torch.testing import assert_close

from rsoftmax import MAPPINGS
from rsoftmax.labels import RULES, MultiLabelHead, Output, expected_f1_count, keep_above, keep_count

ROUNDING = {torch.float64: 1e-9, torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
CHOICES = [(mapping, rate, loss) for rate, rule in RULES.items() for mapping in rule.mappings for loss in rule.losses]


def check(draw: Draw) -> None:
    """The functions, or a head."""
    draw.one_of(_check_expected_f1_count, _check_keep_count, _check_keep_above, _check_head)(draw)


def _check_expected_f1_count(draw: Draw) -> None:
    u = draw.scores(draw.integer(1, 4), draw.integer(1, 30), special=False).to(draw.one_of(*FLOATS))
    none = draw.normal(len(u), 1) if draw.chance(0.5) else None
    found = expected_f1_count(u, none)
    for row, (k, logits) in enumerate(zip(found[:, 0].tolist(), u.double().tolist(), strict=True)):
        expected = _expected_f1(logits, None if none is None else float(none[row]))
        assert expected[k] >= max(expected) - 1e-12, (k, expected)


def _expected_f1(logits: list[float], none: float | None) -> list[float]:
    """F(0), ..., F(K)."""
    pi = sorted((_sigmoid(x) for x in logits), reverse=True)
    empty = math.prod(_sigmoid(-x) for x in logits) if none is None else _sigmoid(none)
    return [empty, *(2 * sum(pi[:k]) / (k + sum(pi)) for k in range(1, len(pi) + 1))]


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else math.exp(x)


def _check_keep_count(draw: Draw) -> None:
    z = draw.scores(draw.integer(1, 4), draw.integer(1, 30), special=False).to(draw.one_of(*FLOATS))
    k = torch.tensor([[draw.integer(0, z.shape[-1])] for _ in z])
    _compare(keep_count(z, k), [_kept(row, int(count)) for row, count in zip(_rows(z), k, strict=True)], z.dtype)


def _kept(z: np.ndarray, k: int) -> np.ndarray:
    """r-softmax with r = 1 - k/K."""
    return oracle.r_softmax(z, (len(z) - k) / len(z)) if k else np.zeros_like(z)


def _check_keep_above(draw: Draw) -> None:
    z = draw.scores(draw.integer(1, 4), draw.integer(1, 30), special=False)
    theta = draw.normal(len(z), 1)
    _compare(keep_above(z, theta), [_above(row, float(t)) for row, t in zip(_rows(z), theta, strict=True)], z.dtype)


def _above(z: np.ndarray, theta: float) -> np.ndarray:
    return oracle.weighted_softmax(z, np.maximum(0, z - theta))


def _check_head(draw: Draw) -> None:
    mapping, rule, loss = draw.one_of(*CHOICES)
    labels, features = draw.integer(1, 20), draw.integer(1, 6)
    torch.manual_seed(draw.integer(0, 1 << 30))
    options: dict[str, Any] = {"average": "samples"} if rule == "expected_f1" else {}
    head = MultiLabelHead(features, labels, mapping, loss, rule, **options)
    output = head.double()(3 * draw.normal(draw.integer(1, 4), features))
    _compare(output.probs, [_decoded(head, _row(output, i)) for i in range(len(output.logits))], torch.float64)
    y = fuzz_losses.labels(draw, *output.logits.shape).double()
    assert_close(head.loss(output, y, reduction="none"), _loss(head, output, y), rtol=1e-9, atol=1e-9)


def _row(output: Output, i: int) -> dict[str, np.ndarray]:
    """What the head says about a row, without its answer."""
    scores = output.scores._asdict()
    return {name: x.detach().expand(len(output.logits), -1)[i].numpy() for name, x in scores.items() if x is not None}


def _decoded(head: MultiLabelHead, row: dict[str, np.ndarray]) -> np.ndarray:
    """The probabilities by the rule's definition."""
    z = row["logits"]
    match head.rule.name:
        case "expected_f1":
            expected = _expected_f1([*(z - row["threshold"])], float((row["no_label_logit"] - row["threshold"])[0]))
            return _kept(z, int(np.argmax(expected)))
        case "rate":
            return _kept(z, round(len(z) / (1 + math.exp(float(row["aux_logits"][0])))))
        case "count":
            return _kept(z, int(np.argmax(row["aux_logits"])))
        case "threshold" | "zero":
            return _above(z, float(row["threshold"][0]))
    taken = MAPPINGS[head.mapping].parameter
    return oracle.apply(head.mapping, z, taken.example if taken else None)


def _loss(head: MultiLabelHead, output: Output, y: Tensor) -> Tensor:
    """The loss by its definition, pair by pair."""
    z, given, extra = output.logits, _given(head, output, y), torch.zeros(())
    if head.rule.name == "expected_f1":
        assert output.no_label_logit is not None
        z, y = torch.cat([z, output.no_label_logit], -1), torch.cat([y, (y.sum(-1, keepdim=True) == 0).double()], -1)
    if head.rule.name == "rate":
        assert output.aux_logits is not None
        r, rate = output.aux_logits.sigmoid()[..., 0], 1 - y.mean(-1)
        extra = -rate * r.log() - (1 - rate) * (1 - r).log()
    if head.rule.name == "count":
        assert output.aux_logits is not None
        extra = -output.aux_logits.log_softmax(-1).gather(-1, y.sum(-1, keepdim=True).long())[..., 0]
    if output.threshold is not None and head.criterion != "multilabel_t_softmax_loss":
        z = z - output.threshold
    return fuzz_losses.PAIR_BY_PAIR[head.criterion](z, y, *given) + extra


def _given(head: MultiLabelHead, output: Output, y: Tensor) -> list[Any]:
    match head.criterion:
        case "multilabel_r_softmax_loss":
            if head.rule.name == "rate":
                assert output.aux_logits is not None
                return [output.aux_logits.sigmoid()]
            return [1 - y.mean(-1, keepdim=True)]
        case "multilabel_t_softmax_loss":
            return [output.threshold]
        case "sparsehourglass_hinge_loss":
            return [10.0]
    return []


def _rows(z: Tensor) -> np.ndarray:
    return z.detach().double().numpy()


def _compare(p: Tensor, expected: list[np.ndarray], dtype: torch.dtype) -> None:
    assert_close(p.detach().double(), torch.from_numpy(np.stack(expected)), rtol=0, atol=ROUNDING[dtype])
