"""The multi-label head: which rule, how many labels, and the losses that train it."""

import subprocess
import sys
from itertools import product
from typing import Any

import pytest
import torch
from cases import scores as score
from cases import spread_apart
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck
from torch.testing import assert_close

from rsoftmax import MAPPINGS, softmax, t_softmax
from rsoftmax.labels import (
    AVERAGES,
    RULES,
    Decoder,
    MultiLabelHead,
    Output,
    Rule,
    Scores,
    expected_f1_count,
    keep_above,
    keep_count,
    losses,
)

KEEPING_ORDER = [name for name, mapping in MAPPINGS.items() if mapping.keeps_order]
NAMES = ("expected_f1", "rate", "threshold", "zero", None)  # RULES may hold rules of other packages
PAIRS = [(mapping, name) for name, rule in RULES.items() if name in NAMES for mapping in rule.mappings]
CHOICES = [(mapping, name, loss) for mapping, name in PAIRS for loss in RULES[name].losses]


def head_of(mapping: str, rule: str | None, loss: str = "auto", labels: int = 6, **options: Any) -> MultiLabelHead:
    torch.manual_seed(0)
    return MultiLabelHead(5, labels, mapping, loss, rule, **options).double()


def targets(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """Labels, among them a row without any and a row with all."""
    y = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.4
    y.view(-1, shape[-1])[0], y.view(-1, shape[-1])[1] = False, True
    return y.double()


def test_every_choice_gives_probabilities_and_a_loss_with_true_derivatives() -> None:
    for choice in CHOICES:
        head, y, h = head_of(*choice), targets((2, 4, 6)), 3 * spread_apart((2, 4, 5))
        output = head(h)
        assert output.logits.shape == output.probs.shape == output.labels.shape == (2, 4, 6), choice
        total = output.probs.sum(-1)
        assert (output.probs >= 0).all(), choice
        if MAPPINGS[head.mapping].sums_to_one:
            assert_close(total, (total > 0.5).double(), msg=str(choice))
        assert_close(head.loss(head.scores(h), y), head.loss(output, y), msg=str(choice))
        assert_close(head.loss(output, y), head.loss(output, y, reduction="none").mean(), msg=str(choice))
        (head.loss(head(h), y) + head(h).probs.square().sum()).backward()
        assert all(w.grad is not None and w.grad.isfinite().all() for w in head.parameters()), choice
        small = 3 * spread_apart((3, 5))  # derivatives of three rows are as telling as those of eight
        assert gradcheck(
            lambda h, head=head: head.loss(head(h), targets((3, 6)), reduction="none"),
            (small.requires_grad_(),),
            fast_mode=True,
        ), choice


def test_every_order_preserving_mapping_has_a_rule_and_no_other_mapping_has_one() -> None:
    assert {mapping for mapping, _ in PAIRS} == set(KEEPING_ORDER)
    assert all(name == rule.name for name, rule in RULES.items())
    for mapping in KEEPING_ORDER:
        head = MultiLabelHead(4, 7, mapping).double()
        assert head.loss(head(torch.randn(3, 4).double()), targets((3, 7))).isfinite(), mapping


def test_the_default_choices() -> None:
    heads = [MultiLabelHead(4, 7, rule=rule) for rule in NAMES]
    assert {head.rule.name: (head.mapping, head.criterion) for head in heads} == {
        "expected_f1": ("r_softmax", "sigmoid_binary_cross_entropy"),
        "rate": ("r_softmax", "multilabel_r_softmax_loss"),
        "threshold": ("t_softmax", "multilabel_t_softmax_loss"),
        "zero": ("t_softmax", "sigmoid_binary_cross_entropy"),
        None: ("sparsemax", "sparsemax_huber_loss"),
    }
    found = {name: MultiLabelHead(4, 7, name) for name in KEEPING_ORDER}
    assert (found["r_softmax"].rule.name, found["t_softmax"].rule.name) == ("expected_f1", "threshold")
    assert {name: head.criterion for name, head in found.items() if head.rule.name is None} == {
        **dict.fromkeys(set(KEEPING_ORDER) - {"r_softmax", "t_softmax"}, "sparsemax_hinge_loss"),
        "softmax": "softmax_cross_entropy",
        "sparsemax": "sparsemax_huber_loss",
        "sparsehourglass": "sparsehourglass_hinge_loss",
        "budget": "budget_loss",
    }
    assert {MultiLabelHead(4, 7).decoder.average, Decoder(3).average} == {"micro"}


class TopTwo(Rule):
    """The two best labels, by softmax or sparsemax, trained by a ranking loss."""

    name = "top_two"
    mappings = ("softmax", "sparsemax")
    losses = ("softmax_cross_entropy", "sparsemax_hinge_loss")

    def decode(self, scores: Scores, decoder: Decoder) -> Output:
        best = scores.logits >= scores.logits.topk(2, -1).values[..., 1:]
        return Output(*scores, None, MAPPINGS[self.mapping].function(scores.logits, mask=best))


def test_a_rule_from_outside_is_a_class_and_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="rule='top_two' does not work with mapping='auto'"):
        MultiLabelHead(5, 6, rule="top_two")
    monkeypatch.setitem(RULES, TopTwo.name, TopTwo)
    head = MultiLabelHead(5, 6, rule="top_two").double()
    assert (head.mapping, head.criterion) == ("softmax", "softmax_cross_entropy")
    assert (head(spread_apart((7, 5))).labels.sum(-1) == 2).all()
    head.loss(head.scores(spread_apart((7, 5))), targets((7, 6))).backward()
    assert all(weights.grad is not None for weights in head.parameters())
    assert MultiLabelHead(5, 6, "sparsemax").rule.name is None  # the rows above it keep their place as defaults
    assert MultiLabelHead(5, 6, "sparsemax", "sparsemax_hinge_loss", "top_two").rule.name == "top_two"
    with pytest.raises(ValueError, match="rule='top_two' does not work with mapping='r_softmax'"):
        MultiLabelHead(5, 6, "r_softmax", rule="top_two")
    with pytest.raises(ValueError, match="use 'auto' or one of 'softmax_cross_entropy', 'sparsemax_hinge_loss'"):
        MultiLabelHead(5, 6, loss="zlpr_loss", rule="top_two")


def test_the_weights_keep_the_names_under_which_they_are_saved() -> None:
    heads = {rule: head_of("auto", rule) for rule in NAMES}
    found = {rule: {name: tuple(w.shape) for name, w in head.named_parameters()} for rule, head in heads.items()}
    logits = {"logits.weight": (6, 5), "logits.bias": (6,)}
    threshold = {"threshold.weight": (1, 5), "threshold.bias": (1,)}
    assert found == {
        "expected_f1": {"logits.weight": (7, 5), "logits.bias": (7,)} | threshold,
        "rate": logits
        | {"rate.0.weight": (64, 6), "rate.0.bias": (64,), "rate.2.weight": (1, 64), "rate.2.bias": (1,)},
        "threshold": logits | threshold,
        "zero": logits,
        None: logits,
    }
    for head in heads.values():
        assert {name: tuple(b.shape) for name, b in head.named_buffers()} == {
            "decoder.threshold": (1,),
            "decoder.calibration.slope": (6,),
            "decoder.calibration.offset": (6,),
            "decoder.no_label.slope": (1,),
            "decoder.no_label.offset": (1,),
        }


def test_scores_of_another_head_are_refused() -> None:
    strange, y = Scores(torch.zeros(2, 6).double()), targets((2, 6))
    for rule, field in (("rate", "aux_logits"), ("threshold", "threshold")):
        head = head_of("auto", rule)
        message = rf"needs Scores\.{field}, got None; pass what head\.scores\(h\)"
        with pytest.raises(ValueError, match=message):
            head.decode(strange)
        with pytest.raises(ValueError, match=message):
            head.loss(strange, y)


def test_logits_of_another_network_are_enough_where_the_rule_needs_nothing_else() -> None:
    logits, y = 3 * spread_apart((8, 6)), targets((8, 6))
    for rule in ("expected_f1", "zero"):
        head = head_of("auto", rule)
        assert_close(head.loss(logits, y), losses.sigmoid_binary_cross_entropy(logits, y), msg=rule)
        unknown = y.where(torch.arange(6) > 0, torch.nan)
        assert_close(head.loss(logits, unknown), losses.sigmoid_binary_cross_entropy(logits[:, 1:], y[:, 1:]), msg=rule)
        assert torch.equal(head.calibrate(logits, y).decode(logits).labels, head.decode(Scores(logits)).labels), rule
    decoder = Decoder(6, "samples").double().fit(logits, y)
    head = head_of("auto", "expected_f1", average="samples").calibrate(logits, y)
    assert torch.equal(head.decode(logits).labels, decoder(logits).labels)
    for mapping in ("softmax", "sparsemax"):
        head = head_of(mapping, None)
        assert_close(head.loss(logits, y), getattr(losses, head.criterion)(logits, y))
        assert torch.equal(head.decode(logits).probs, MAPPINGS[mapping].function(logits))
    for rule, field in (("rate", "aux_logits"), ("threshold", "threshold")):
        with pytest.raises(ValueError, match=rf"pass what head.scores\(h\) returns, or Scores\(logits, {field}="):
            head_of("auto", rule).loss(logits, y)


def test_an_impossible_choice_says_what_works() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        (
            {"mapping": "hardmax"},
            r"does not work with mapping='hardmax'.* 'expected_f1' with r_softmax; .* 'auto' selects",
        ),
        (
            {"mapping": "spherical_softmax"},
            r"does not work with mapping='spherical_softmax'.* order-preserving mappings",
        ),
        (
            {"mapping": "r_softmax", "rule": "threshold"},
            r"rule='threshold' does not work with mapping='r_softmax'.* 'threshold' with t_softmax; .*'auto' selects",
        ),
        (
            {"mapping": "t_softmax", "rule": None},
            r"rule=None does not work with mapping='t_softmax'.* None with sparsemax, softmax",
        ),
        (
            {"mapping": "sparsemax", "rule": "rate"},
            r"rule='rate' does not work with mapping='sparsemax'.* 'rate' with r_softmax",
        ),
        ({"rule": "counts"}, r"rule='counts'.* 'expected_f1' with .*'zero' with .*None with"),
        (
            {"mapping": "r_softmax", "rule": "counts"},
            r"rule='counts' does not work with mapping='r_softmax'.* 'threshold' with t_softmax",
        ),
        (
            {"loss": "softmax_cross_entropy"},
            r"loss='softmax_cross_entropy' does not work .* rule='expected_f1'; use 'auto'",
        ),
        ({"loss": "mse", "mapping": "softmax"}, r"loss='mse' does not work"),
        ({"num_labels": 0}, r"in_features and num_labels must be positive integers, got in_features=4, num_labels=0"),
        ({"num_labels": "3"}, r"in_features and num_labels must be positive integers, .* num_labels='3'"),
        ({"beta": "1"}, "beta must be positive and finite, got '1'"),
        ({"max_labels": "1"}, "must hold for integers, got min_labels=0, max_labels='1'"),
        ({"min_labels": 1.5}, "must hold for integers, got min_labels=1.5"),
        ({"rule": "rate", "average": "macro", "max_labels": 2}, r"average='macro', max_labels=2 needs rule='expected"),
        ({"average": "weighted"}, r"average must be one of 'micro', 'macro', 'samples', got 'weighted'"),
        ({"beta": 0.0}, "beta must be positive and finite, got 0.0"),
        (
            {"min_labels": 8},
            r"0 <= min_labels <= max_labels <= 7 \(the number of labels\) must hold for integers, got min_labels=8",
        ),
        ({"min_labels": 2, "max_labels": 1}, "got min_labels=2, max_labels=1"),
    ]
    for choices, message in cases:
        with pytest.raises(ValueError, match=message):
            MultiLabelHead(4, **{"num_labels": 7, **choices})


def test_the_expected_f1_head_is_trained_on_whether_there_is_any_label() -> None:
    head = head_of("r_softmax", "expected_f1")
    scores, y = head.scores(spread_apart((3, 5))), torch.tensor([[0] * 6, [1, 0, 0, 0, 0, 0], [1] * 6])
    assert scores.threshold is not None
    assert scores.no_label_logit is not None
    marginals = losses.sigmoid_binary_cross_entropy(scores.logits - scores.threshold, y, reduction="none")
    empty = losses.sigmoid_binary_cross_entropy(
        scores.no_label_logit - scores.threshold, torch.tensor([[1], [0], [0]]), reduction="none"
    )
    assert_close(head.loss(scores, y, reduction="none"), marginals + empty)


def test_keeping_k_labels_keeps_exactly_the_k_best() -> None:
    for labels in (1, 2, 3, 10, 983):
        z = torch.randperm(labels, generator=torch.Generator().manual_seed(0)).float() / labels
        k = torch.arange(labels + 1)[:, None]
        p = keep_count(z.expand(labels + 1, -1), k)
        best = z >= z.sort(descending=True).values[(k - 1).clamp(min=0)].where(k > 0, torch.inf)
        assert torch.equal(p > 0, best), labels
    z = torch.randperm(100_000, generator=torch.Generator().manual_seed(0)).float() / 10_000
    for kept in (0, 1, 7, 1000, 33_333, 99_999, 100_000):
        assert keep_count(z, torch.tensor([kept])).count_nonzero() == kept


def test_labels_are_kept_where_weights_underflow_or_tie() -> None:
    far = torch.tensor([[150.0, 2.0, -1.0]])
    assert (keep_above(far, torch.tensor(0.0)) > 0).tolist() == [[True, True, False]]
    z = torch.cat([far, torch.zeros(1, 3), torch.tensor([[1.0, 1.0, 0.0]])]).requires_grad_()
    for k in range(4):
        p = keep_count(z, torch.full((3, 1), k))
        assert ((p > 0).sum(-1) == k).all()
        assert_close(p.sum(-1), torch.full((3,), float(k > 0)))
        assert p.sum().isfinite()
        assert torch.autograd.grad(p[:, 0].sum(), z)[0].isfinite().all()
    compiled = torch.compile(keep_count, backend="eager", fullgraph=True)
    assert_close(compiled(z, torch.full((3, 1), 2)), keep_count(z, torch.full((3, 1), 2)))


def test_no_label_means_zeros_and_zero_gradient() -> None:
    z = torch.randn(3, 4, requires_grad=True)
    p = keep_count(z, torch.tensor([[0], [2], [0]]))
    assert_close(p.sum(-1), torch.tensor([0.0, 1.0, 0.0]))
    (gradient,) = torch.autograd.grad(p.square().sum(), z)
    assert gradient.isfinite().all()
    assert not gradient[[0, 2]].any()
    assert gradient[1].any()


def test_a_row_with_nan_gets_nan_and_not_the_answer_no_label() -> None:
    heads = [(pair, head_of(*pair)) for pair in PAIRS]
    heads += [(("average", name), head_of("auto", "expected_f1", average=name)) for name in AVERAGES]
    for pair, head in heads:
        h = torch.randn(2, 5).double()
        h[0] = torch.nan
        output = head(h)
        for found in (output.probs, output.marginals):
            assert found[0].isnan().all(), pair
            assert found[1].isfinite().all(), pair
        with pytest.raises(ValueError, match="scores of 1 samples contain NaN; cannot decode labels"):
            _ = output.labels


@given(st.lists(score(), min_size=1, max_size=9), score())
@settings(max_examples=200, deadline=None)
def test_keeping_above_a_threshold_is_t_softmax_or_nothing(row: list[float], threshold: float) -> None:
    z, theta = torch.tensor(row, dtype=torch.float64), torch.tensor(threshold, dtype=torch.float64)
    p = keep_above(z, theta)
    assert torch.equal(p > 0, z > theta)
    t = z.max() - theta
    assert_close(p, t_softmax(z, t.item()) if t > 0 else torch.zeros_like(z))


def test_a_threshold_in_double_precision_decides_as_given() -> None:
    """Labels whose log-odds reach it are predicted, also if it lies between two numbers of single precision."""
    odds = torch.tensor([0.1]).nextafter(torch.tensor([1.0, -1.0])).repeat(3, 1)
    odds[1] = 0.1
    for shift in (0, 1, -1, 1e-12, -1e-12):
        exact = torch.full((2,), odds[1, 0].item(), dtype=torch.float64)
        threshold = exact.nextafter(exact + shift) if abs(shift) == 1 else exact + shift
        head = MultiLabelHead(5, 2).set_threshold(threshold)
        assert (head.decoder.decide(odds).labels == (odds >= threshold)).all(), shift


def test_the_rate_head_keeps_the_number_of_labels_nearest_to_its_rate() -> None:
    head, z = head_of("r_softmax", "rate"), spread_apart((7, 6))
    for offset in (-0.05, 0.0, 0.05):  # the rates of k and k + 1 labels are 1/6 apart
        r = (1 - torch.arange(7).double()[:, None] / 6 + offset).clamp(1e-3, 1 - 1e-3)
        output = head.decode(Scores(z, None, r.logit()))
        assert output.labels.sum(-1).tolist() == list(range(7))
        assert output.rate is not None
        assert_close(output.rate.flatten(), 1 - torch.arange(7) / 6, check_dtype=False)
    assert torch.equal(output.probs[6], softmax(z[6]))
    extreme = head.decode(Scores(z[:2], None, torch.tensor([[1e4], [-1e4]]).double()))
    assert extreme.labels.sum(-1).tolist() == [0, 6]
    lost = head.decode(Scores(z[:2], None, torch.tensor([[torch.nan], [0.0]]).double()))
    assert lost.probs.isnan().any(-1).tolist() == [True, False]


def test_the_paper_loss_takes_the_predicted_rate_and_learns_it_through_r_softmax() -> None:
    head, y = head_of("r_softmax", "rate"), targets((4, 6))
    scores = head.scores(spread_apart((4, 5)))
    assert scores.aux_logits is not None
    paper = losses.multilabel_r_softmax_loss(scores.logits, y, scores.aux_logits.sigmoid())
    assert_close(head.loss(scores, y), paper + losses.label_rate_loss(scores.aux_logits, y))
    (through,) = torch.autograd.grad(paper, scores.aux_logits, retain_graph=True)
    assert through.abs().max() > 0
    assert_close(scores.aux_logits, head.get_submodule("rate")(scores.logits))


def test_a_head_draws_no_random_numbers_after_its_construction() -> None:
    for rule in RULES:
        head, before = head_of("auto", rule), torch.get_rng_state()
        head.loss(head(spread_apart((4, 5))), targets((4, 6)))
        assert torch.equal(torch.get_rng_state(), before), rule


def test_each_rule_decodes_by_its_definition() -> None:
    h = torch.randn(50, 5).double()
    threshold, zero = (head_of("auto", rule) for rule in ("threshold", "zero"))
    scores = threshold.scores(h)
    assert scores.threshold is not None
    assert torch.equal(threshold(h).labels, scores.logits > scores.threshold)
    assert torch.equal(zero(h).labels, zero.scores(h).logits > 0)
    best = head_of("r_softmax", "expected_f1", average="samples")
    scores = best.scores(h)
    assert scores.threshold is not None
    assert scores.no_label_logit is not None
    k = expected_f1_count(scores.margins, scores.no_label_logit - scores.threshold)
    assert torch.equal(best(h).labels.sum(-1, keepdim=True), k)
    assert_close(best(h).rate, 1 - k / 6, check_dtype=False)


def test_half_precision() -> None:
    for pair in PAIRS:
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            head = head_of(*pair).to(dtype)
            output = head(torch.randn(4, 5, dtype=dtype))
            assert output.probs.dtype == dtype, (pair, dtype)
            assert head.loss(output, targets((4, 6))).isfinite(), (pair, dtype)


def test_unknown_labels_are_ignored_by_the_loss() -> None:
    """NaN in y is what calibrate, classifiers and LabelModel take for an unknown label; so does the loss."""
    for rule, loss in (
        ("expected_f1", "sigmoid_binary_cross_entropy"),
        ("threshold", "sigmoid_binary_cross_entropy"),
        ("zero", "auto"),
    ):
        head, h, y = head_of("auto", rule, loss), torch.randn(6, 5).double(), targets((6, 6))
        known = torch.ones(6, 6).double()
        known[:, 2], known[0] = 0, 0
        unknown = y.where(known > 0, torch.nan)
        assert_close(head.loss(head(h), unknown), head.loss(head(h), y, weight=known), msg=rule)
        rows = torch.rand(6, 1).double()
        assert_close(head.loss(head(h), unknown, weight=rows), head.loss(head(h), y, weight=known * rows), msg=rule)
        head.loss(head(h), unknown).backward()
        assert all(w.grad.isfinite().all() for w in head.parameters() if w.grad is not None), rule
    head = head_of("auto", "rate")
    with pytest.raises(
        ValueError,
        match=r"loss='multilabel_r_softmax_loss' takes neither .* unknown labels \(NaN in y\); use loss='sig",
    ):
        head.loss(head(h), unknown)


def test_the_loss_reports_the_shape_and_the_value_that_the_user_passed() -> None:
    head = MultiLabelHead(5, 3)
    output = head(torch.randn(2, 5))
    with pytest.raises(ValueError, match=r"labels and logits must both be \[\.\.\., K\], got \(2, 4\) and \(2, 3\)"):
        head.loss(output, torch.ones(2, 4))
    with pytest.raises(ValueError, match=r"labels of shape \(2, 3\) must be 0 or 1, or NaN where unknown, got 0\.5"):
        head.loss(output, torch.full((2, 3), 0.5))
    with pytest.raises(TypeError, match=r"labels must be a torch\.Tensor, got list"):
        head.loss(output, [[1, 0, 0]] * 2)  # type: ignore[arg-type]


def test_weights_of_rows_and_entries() -> None:
    head = MultiLabelHead(5, 4).double()
    h, y = torch.randn(6, 5).double(), (torch.rand(6, 4) < 0.5).double()
    everything = head.loss(head(h), y)
    assert_close(head.loss(head(h), y, weight=torch.ones(6, 4).double()), everything)
    assert_close(head.loss(head(h), y, weight=torch.full((6, 1), 2.0).double()), 2 * everything)
    known = torch.ones(6, 4)
    known[:, 2] = 0
    flipped = y.clone()
    flipped[:, 2] = 1 - y[:, 2]
    assert_close(head.loss(head(h), y, weight=known), head.loss(head(h), flipped, weight=known))
    for rule in ("expected_f1", "rate"):  # a weight per row of a single label
        head, weight = MultiLabelHead(5, 1, rule=rule).double(), torch.rand(6, 1).double()
        rows = head.loss(head(h), y[:, :1], reduction="none")
        assert_close(head.loss(head(h), y[:, :1], weight=weight), (rows * weight[:, 0]).mean(), msg=rule)
    rate = MultiLabelHead(5, 4, rule="rate").double()
    with pytest.raises(ValueError, match="loss='multilabel_r_softmax_loss' takes neither weights of single labels"):
        rate.loss(rate(h), y, weight=torch.ones(6, 4))


def compile_head(**options: Any) -> None:
    torch._dynamo.reset()  # dynamo compiles a function a limited number of times
    head = head_of("auto", options.pop("rule", "auto"), **options)
    h, y = torch.randn(4, 5).double(), targets((4, 6))
    compiled = torch.compile(head, fullgraph=True, backend="eager")(h)
    assert isinstance(compiled, Output)
    assert_close(compiled.probs, head(h).probs, msg=str(options))
    loss = torch.compile(lambda h: head.loss(head.scores(h), y), fullgraph=True, backend="eager")
    assert_close(loss(h), head.loss(head(h), y), msg=str(options))


def test_the_default_head_compiles_into_one_graph() -> None:
    compile_head()


@pytest.mark.compile
def test_heads_of_every_rule_and_average_compile_into_one_graph() -> None:
    for rule in RULES:
        compile_head(rule=rule)
    for average in AVERAGES:
        compile_head(average=average, max_labels=2)


def labels_after_training(mapping: str, rule: str | None, loss: str, steps: int) -> tuple[Tensor, Tensor, list[float]]:
    """Train on all 16 sets of four labels, the empty one included, with their own bits as features."""
    y = torch.tensor(list(product([0.0, 1.0], repeat=4)), dtype=torch.float64)
    torch.manual_seed(0)
    body = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU()).double()
    head = MultiLabelHead(32, 4, mapping, loss, rule).double()
    optimizer, found = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=0.02), []
    for _ in range(steps):
        optimizer.zero_grad()
        value = head.loss(head.scores(body(2 * y - 1)), y)
        value.backward()
        optimizer.step()
        found.append(value.item())
    return head(body(2 * y - 1)).labels, y == 1, found


def test_training_lowers_the_loss() -> None:
    for choice in CHOICES:
        *_, found = labels_after_training(*choice, steps=8)
        assert found[-1] < found[0], choice


@pytest.mark.train
def test_heads_learn_which_labels_and_how_many() -> None:
    for mapping, rule, loss in CHOICES:
        if rule in ("expected_f1", "threshold", "zero") or (rule == "rate" and loss == "multilabel_r_softmax_loss"):
            found, y, _ = labels_after_training(mapping, rule, loss, steps=300)
            assert torch.equal(found, y), (mapping, rule, loss)


@pytest.mark.process
def test_a_head_of_a_hundred_thousand_labels_fits_in_a_gigabyte() -> None:
    """Peak memory of a separate process, above what importing torch takes; K x K in float32 would be 40 GB per row."""
    program = """
import resource, torch
from rsoftmax.labels import MultiLabelHead
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for rule in ("expected_f1", "rate"):
    head = MultiLabelHead(16, 100_000, rule=rule)
    y = torch.rand(16, 100_000) < 0.001
    output = head(torch.randn(16, 16))
    head.loss(output, y).backward()
    assert output.labels.any() and all(w.grad.isfinite().all() for w in head.parameters())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes there, kilobytes elsewhere
    assert int(done.stdout) * unit < 2**30
