"""The multi-label head: how many labels, which, and what teaches it."""

import subprocess
import sys
from itertools import combinations, product

import numpy as np
import pytest
import torch
from cases import scores as score
from cases import spread_apart
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck
from torch.testing import assert_close

from rsoftmax import MAPPINGS, losses, r_softmax, softmax, t_softmax
from rsoftmax.multilabel import (
    LOSSES,
    RATES,
    RULES,
    Decoder,
    MultiLabelHead,
    Output,
    Rule,
    Scores,
    expected_f1_count,
    keep_above,
    keep_count,
)

KEEPING_ORDER = [name for name, mapping in MAPPINGS.items() if mapping.keeps_order]
PAIRS = [(mapping, rate) for rate, rule in RULES.items() for mapping in rule.mappings]
CHOICES = [(mapping, rate, loss) for mapping, rate in PAIRS for loss in RULES[rate].losses]
every_choice = pytest.mark.parametrize(("mapping", "rate", "loss"), CHOICES)


def head_of(mapping: str, rate: str | None, loss: str = "auto", labels: int = 6, seed: int = 0) -> MultiLabelHead:
    torch.manual_seed(seed)
    r = 0.4 if rate == "fixed" else None
    return MultiLabelHead(5, labels, mapping, loss, rate, r=r).double()


def targets(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """Labels, among them a row without any and a row with all."""
    y = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.4
    y.view(-1, shape[-1])[0], y.view(-1, shape[-1])[1] = False, True
    return y.double()


@every_choice
def test_every_choice_gives_probabilities_and_a_loss_with_true_derivatives(
    mapping: str, rate: str | None, loss: str
) -> None:
    head = head_of(mapping, rate, loss)
    h = 3 * spread_apart((2, 4, 5))
    output = head(h)
    assert output.z.shape == output.p.shape == output.labels.shape == (2, 4, 6)
    total = output.p.sum(-1)
    assert (output.p >= 0).all()
    assert_close(total, (total > 0.5).double())
    y = targets((2, 4, 6))
    assert_close(head.loss(head.scores(h), y), head.loss(output, y))
    assert_close(head.loss(output, y), head.loss(output, y, reduction="none").mean())
    assert gradcheck(lambda h: head.loss(head(h), y, reduction="none"), (h.requires_grad_(),))
    (head.loss(head(h), y) + head(h).p.square().sum()).backward()
    assert all(w.grad is not None and w.grad.isfinite().all() for name, w in head.named_parameters())


def test_every_mapping_that_keeps_the_order_has_a_rule_and_no_other_mapping_has_one() -> None:
    assert {mapping for mapping, _ in PAIRS} == set(KEEPING_ORDER)
    assert all(rate == rule.name for rate, rule in RULES.items())


def test_the_tables_of_rates_and_losses_are_extracts_from_the_rules() -> None:
    assert {(mapping, rate) for mapping, rates in RATES.items() for rate in rates} == {p for p in PAIRS if p[1]}
    assert {(mapping, rate, loss) for mapping, rate in PAIRS for loss in LOSSES[rate]} == set(CHOICES)


@pytest.mark.parametrize("rate", [rate for rate in RULES if rate != "fixed"])
def test_a_rate_alone_chooses_its_mapping_and_its_loss(rate: str | None) -> None:
    head = MultiLabelHead(4, 7, rate=rate).double()
    assert (head.rate, head.mapping) == (rate, RULES[rate].mappings[0])
    assert head.loss(head(torch.randn(3, 4).double()), targets((3, 7))).isfinite()


def test_the_mappings_that_rates_choose() -> None:
    found = {rate: MultiLabelHead(16, 5, rate=rate).mapping for rate in RULES if rate != "fixed"}
    assert found == {
        "expected_f1": "r_softmax",
        "count": "r_softmax",
        "threshold": "t_softmax",
        "zero": "t_softmax",
        None: "sparsemax",
    }
    assert MultiLabelHead(16, 5, rate="fixed", r=0.5).mapping == "r_softmax"
    assert MultiLabelHead(16, 5).mapping == "r_softmax"
    assert MultiLabelHead(16, 5, r=0.5).mapping == "r_softmax"


class TopTwo(Rule):
    """The two best labels, by softmax or sparsemax, learned by any loss for an order."""

    name = "top_two"
    mappings = ("softmax", "sparsemax")
    losses = ("cross_entropy", "sparsemax_hinge_loss")

    def decode(self, scores: Scores, decoder: Decoder) -> Output:
        best = scores.z >= scores.z.topk(2, -1).values[..., 1:]
        return Output(*scores, None, MAPPINGS[self.mapping].function(scores.z, mask=best))


def test_a_rate_from_outside_is_a_class_and_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="no rate is called 'top_two'"):
        MultiLabelHead(5, 6, rate="top_two")
    monkeypatch.setitem(RULES, TopTwo.name, TopTwo)
    head = MultiLabelHead(5, 6, rate="top_two").double()
    assert (head.mapping, head.criterion) == ("softmax", "cross_entropy")
    assert (head(spread_apart((7, 5))).labels.sum(-1) == 2).all()
    head.loss(head.scores(spread_apart((7, 5))), targets((7, 6))).backward()
    assert all(weights.grad is not None for weights in head.parameters())
    assert MultiLabelHead(5, 6, "sparsemax").rate is None  # the rows above it keep their place as defaults
    assert MultiLabelHead(5, 6, "sparsemax", "sparsemax_hinge_loss", "top_two").rate == "top_two"
    with pytest.raises(ValueError, match="rate='top_two' does not go with mapping='r_softmax'"):
        MultiLabelHead(5, 6, "r_softmax", rate="top_two")
    with pytest.raises(ValueError, match="use 'auto' or one of 'cross_entropy', 'sparsemax_hinge_loss'"):
        MultiLabelHead(5, 6, loss="zlpr_loss", rate="top_two")


def test_the_weights_keep_the_names_under_which_they_are_saved() -> None:
    heads = {rate: head_of("auto", rate) for rate in RULES}
    found = {rate: {name: tuple(w.shape) for name, w in head.named_parameters()} for rate, head in heads.items()}
    logits = {"logits.weight": (6, 5), "logits.bias": (6,)}
    threshold = {"threshold.weight": (1, 5), "threshold.bias": (1,)}
    assert found == {
        "expected_f1": {"logits.weight": (7, 5), "logits.bias": (7,)} | threshold,
        "count": logits | {"count.weight": (7, 5), "count.bias": (7,)},
        "fixed": logits,
        "threshold": logits | threshold,
        "zero": logits,
        None: logits,
    }
    for head in heads.values():
        assert {name: tuple(b.shape) for name, b in head.named_buffers()} == {
            "decoder.cut": (1,),
            "decoder.calibration.slope": (6,),
            "decoder.calibration.offset": (6,),
            "decoder.none.slope": (1,),
            "decoder.none.offset": (1,),
        }


@pytest.mark.parametrize(
    ("rate", "field", "use"),
    [
        ("expected_f1", "none", "decode"), ("expected_f1", "none", "loss"), ("count", "c", "decode"),
        ("count", "c", "loss"), ("threshold", "theta", "decode"), ("threshold", "theta", "loss"),
    ],
)  # fmt: skip
def test_scores_of_another_head_are_refused(rate: str, field: str, use: str) -> None:
    head, strange = head_of("auto", rate), Scores(torch.zeros(2, 6).double())
    with pytest.raises(ValueError, match=rf"needs Scores\.{field}, which is None here; pass what head\.scores\(h\)"):
        head.decode(strange) if use == "decode" else head.loss(strange, targets((2, 6)))


@pytest.mark.parametrize("mapping", KEEPING_ORDER)
def test_any_mapping_works_without_further_choices(mapping: str) -> None:
    head = MultiLabelHead(4, 7, mapping).double()
    assert head.loss(head(torch.randn(3, 4).double()), targets((3, 7))).isfinite()


def test_the_default_choices() -> None:
    heads = {mapping: MultiLabelHead(4, 7, mapping) for mapping in KEEPING_ORDER}
    found = {mapping: (head.rate, head.criterion) for mapping, head in heads.items()}
    assert found["r_softmax"] == ("expected_f1", LOSSES["expected_f1"][0])
    assert found["t_softmax"] == ("threshold", "t_softmax_loss")
    assert found["softmax"] == (None, "cross_entropy")
    assert found["sparsemax"] == (None, "sparsemax_huber_loss")
    assert found["sparsehourglass"] == (None, "sparsehourglass_loss")
    assert found["entmax15"] == (None, "sparsemax_hinge_loss")
    assert MultiLabelHead(4, 7, r=0.5).rate == "fixed"
    assert MultiLabelHead(4, 7, rate="count").criterion == "r_softmax_loss"


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"mapping": "hardmax"}, r"no mapping is called 'hardmax'; there are softmax, t_softmax, r_softmax"),
        ({"mapping": "spherical_softmax"}, r"does not keep the order of scores.* use one of softmax"),
        (
            {"mapping": "r_softmax", "rate": "threshold"},
            r"mapping='r_softmax', which takes 'expected_f1', 'count', 'fixed'; there are also .*'auto' takes",
        ),
        ({"mapping": "t_softmax", "rate": None}, r"rate=None does not go with .* 'threshold', 'zero'; there are also"),
        ({"mapping": "sparsemax", "rate": "count"}, r"mapping='sparsemax', which takes None; there are also"),
        ({"rate": "counts"}, r"no rate is called 'counts'; there are 'expected_f1', .*'zero', None, and 'auto'"),
        (
            {"mapping": "r_softmax", "rate": "counts"},
            r"rate='counts' does not go with .* are also 'threshold' with mapping='t_softmax'",
        ),
        ({"rate": "fixed"}, r"rate='fixed' needs r, say r=0.9"),
        ({"rate": "count", "r": 0.5}, r"r=0\.5 needs rate='fixed', got rate='count'"),
        ({"mapping": "softmax", "r": 0.5}, r"r=0\.5 needs rate='fixed', got rate=None"),
        ({"r": 1.5}, r"r must be in \[0, 1\], got 1\.5"),
        ({"loss": "cross_entropy"}, r"loss='cross_entropy' does not teach .* rate='expected_f1' needs; use 'auto'"),
        ({"loss": "mse", "mapping": "softmax"}, r"loss='mse' does not teach"),
        ({"labels": 0}, r"needs a feature and a label at least, got in_features=4, labels=0"),
    ],
)  # fmt: skip
def test_an_impossible_choice_says_what_works(choices: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiLabelHead(4, **{"labels": 7, **choices})  # type: ignore[arg-type]


@given(st.lists(st.floats(-8, 8), min_size=1, max_size=8))
@settings(max_examples=200, deadline=None)
def test_the_expected_f1_rate_beats_every_set_of_labels(row: list[float]) -> None:
    u = np.array(row)
    pi = 1 / (1 + np.exp(-u))

    def promise(chosen: tuple[int, ...]) -> float:
        if not chosen:
            return float(np.prod(1 - pi))
        return float(2 * pi[list(chosen)].sum() / (len(chosen) + pi.sum()))

    k = int(expected_f1_count(torch.tensor(u)))
    best = max(promise(chosen) for size in range(len(u) + 1) for chosen in combinations(range(len(u)), size))
    assert promise(tuple(np.argsort(-u, kind="stable")[:k])) == pytest.approx(best, rel=1e-12)


def test_the_expected_f1_count_in_easy_cases() -> None:
    u = torch.tensor([[9.0, 9.0, -9.0, -9.0], [-9.0] * 4, [9.0] * 4, [-30.0, -40.0, -50.0, 0.1]])
    assert expected_f1_count(u).flatten().tolist() == [2, 0, 4, 1]
    assert expected_f1_count(u.half()).flatten().tolist() == [2, 0, 4, 1]
    assert expected_f1_count(torch.full((1, 100_000), -20.0)).item() == 0


def test_log_odds_of_no_label_replace_the_assumption_of_independence() -> None:
    u = torch.full((2, 4), -2.0)  # independent labels: none with probability 0.6
    assert expected_f1_count(u).flatten().tolist() == [0, 0]
    assert expected_f1_count(u, torch.tensor([[-9.0], [9.0]])).flatten().tolist() == [4, 0]


def test_the_expected_f1_head_learns_whether_there_is_any_label() -> None:
    head = head_of("r_softmax", "expected_f1")
    scores, y = head.scores(spread_apart((3, 5))), torch.tensor([[0] * 6, [1, 0, 0, 0, 0, 0], [1] * 6])
    assert scores.theta is not None
    assert scores.none is not None
    marginals = losses.binary_cross_entropy(scores.z - scores.theta, y, reduction="none")
    empty = losses.binary_cross_entropy(scores.none - scores.theta, torch.tensor([[1], [0], [0]]), reduction="none")
    assert_close(head.loss(scores, y, reduction="none"), marginals + empty)


@pytest.mark.parametrize("labels", [1, 2, 3, 10, 983])
def test_keeping_k_labels_keeps_exactly_the_k_best(labels: int) -> None:
    z = torch.randperm(labels, generator=torch.Generator().manual_seed(0)).float() / labels
    k = torch.arange(labels + 1)[:, None]
    p = keep_count(z.expand(labels + 1, -1), k)
    assert torch.equal(p > 0, z >= z.sort(descending=True).values[(k - 1).clamp(min=0)].where(k > 0, torch.inf))


@pytest.mark.parametrize("k", [0, 1, 7, 1000, 33_333, 99_999, 100_000])
def test_keeping_k_of_a_hundred_thousand(k: int) -> None:
    z = torch.randperm(100_000, generator=torch.Generator().manual_seed(0)).float() / 1000
    assert keep_count(z / 10, torch.tensor([k])).count_nonzero() == k


def test_no_label_means_zeros_and_zero_gradient() -> None:
    z = torch.randn(3, 4, requires_grad=True)
    p = keep_count(z, torch.tensor([[0], [2], [0]]))
    assert_close(p.sum(-1), torch.tensor([0.0, 1.0, 0.0]))
    (gradient,) = torch.autograd.grad(p.square().sum(), z)
    assert gradient.isfinite().all()
    assert not gradient[[0, 2]].any()
    assert gradient[1].any()


@pytest.mark.parametrize(("mapping", "rate"), PAIRS)
def test_a_row_with_nan_gets_nan_and_not_the_answer_no_label(mapping: str, rate: str | None) -> None:
    head = head_of(mapping, rate, "auto")
    h = torch.randn(2, 5).double()
    h[0] = torch.nan
    output = head(h)
    for found in (output.p, output.marginals):
        assert found[0].isnan().all()
        assert found[1].isfinite().all()
    with pytest.raises(ValueError, match="1 rows have NaN scores, which is not 'no label'"):
        _ = output.labels


@given(st.lists(score(), min_size=1, max_size=9), score())
@settings(max_examples=200, deadline=None)
def test_keeping_above_a_threshold_is_t_softmax_or_nothing(row: list[float], threshold: float) -> None:
    z, theta = torch.tensor(row, dtype=torch.float64), torch.tensor(threshold, dtype=torch.float64)
    p = keep_above(z, theta)
    assert torch.equal(p > 0, z > theta)
    t = z.max() - theta
    assert_close(p, t_softmax(z, t.item()) if t > 0 else torch.zeros_like(z))


def test_the_count_head_keeps_its_most_probable_number_of_labels() -> None:
    head = head_of("r_softmax", "count", labels=6)
    z = spread_apart((7, 6))
    c = torch.nn.functional.one_hot(torch.arange(7), 7).double()
    output = head.decode(Scores(z, None, c))
    assert output.labels.sum(-1).tolist() == list(range(7))
    assert output.r is not None
    assert_close(output.r.flatten(), 1 - torch.arange(7) / 6, check_dtype=False)
    assert torch.equal(output.p[6], softmax(z[6]))


def test_the_paper_loss_takes_the_true_rate_and_adds_the_count() -> None:
    head = head_of("r_softmax", "count", labels=6)
    scores = head.scores(spread_apart((4, 5)))
    y = targets((4, 6))
    r = 1 - y.sum(-1, keepdim=True) / 6
    assert scores.c is not None
    expected = losses.r_softmax_loss(scores.z, y, r) + losses.label_count_loss(scores.c, y)
    assert_close(head.loss(scores, y), expected)


def test_threshold_and_expected_f1_read_labels_off_the_same_log_odds() -> None:
    threshold, best = head_of("t_softmax", "threshold"), head_of("r_softmax", "expected_f1")
    h = torch.randn(50, 5).double()
    scores = threshold.scores(h)
    assert scores.theta is not None
    assert torch.equal(threshold(h).labels, scores.z > scores.theta)
    scores = best.scores(h)
    assert scores.theta is not None
    assert scores.none is not None
    k = expected_f1_count(scores.z - scores.theta, scores.none - scores.theta)
    assert torch.equal(best(h).labels.sum(-1, keepdim=True), k)
    assert_close(best(h).r, 1 - k / 6, check_dtype=False)


def test_fixed_and_zero() -> None:
    h = torch.randn(20, 5).double()
    fixed = head_of("r_softmax", "fixed")
    assert torch.equal(fixed(h).p, r_softmax(fixed.scores(h).z, 0.4))
    zero = head_of("t_softmax", "zero")
    assert torch.equal(zero(h).labels, zero.scores(h).z > 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("mapping", "rate"), PAIRS)
def test_half_precision(mapping: str, rate: str | None, dtype: torch.dtype) -> None:
    head = head_of(mapping, rate).to(dtype)
    output = head(torch.randn(4, 5, dtype=dtype))
    assert output.p.dtype == dtype
    assert head.loss(output, targets((4, 6))).isfinite()


@pytest.mark.parametrize("rate", RULES)
def test_a_head_compiles_into_one_graph(rate: str | None) -> None:
    head = head_of("auto", rate)
    h = torch.randn(4, 5).double()
    compiled = torch.compile(head, fullgraph=True, backend="eager")(h)
    assert isinstance(compiled, Output)
    assert_close(compiled.p, head(h).p)


@pytest.mark.parametrize(
    ("mapping", "rate", "loss"),
    [
        c
        for c in CHOICES
        if c[1] in ("expected_f1", "threshold", "zero") or (c[2] == "r_softmax_loss" and c[1] == "count")
    ],
)
def test_learns_which_labels_and_how_many(mapping: str, rate: str, loss: str) -> None:
    """All 16 sets of four labels, the empty one included, told by their own bits."""
    y = torch.tensor(list(product([0.0, 1.0], repeat=4)), dtype=torch.float64)
    torch.manual_seed(0)
    body = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU()).double()
    head = MultiLabelHead(32, 4, mapping, loss, rate).double()
    optimiser = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=0.02)
    for _ in range(300):
        optimiser.zero_grad()
        head.loss(head.scores(body(2 * y - 1)), y).backward()
        optimiser.step()
    assert torch.equal(head(body(2 * y - 1)).labels, y == 1)


@pytest.mark.parametrize("rate", ["expected_f1", "count"])
def test_a_head_of_a_hundred_thousand_labels_fits_in_a_gigabyte(rate: str) -> None:
    """Peak memory of a process of its own, above what importing torch takes; K x K in float32 would be 40 GB a row."""
    program = f"""
import resource, torch
from rsoftmax.multilabel import MultiLabelHead
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
head = MultiLabelHead(16, 100_000, rate={rate!r})
y = torch.rand(16, 100_000) < 0.001
output = head(torch.randn(16, 16))
head.loss(output, y).backward()
assert output.labels.any() and all(w.grad.isfinite().all() for w in head.parameters())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes there, kilobytes elsewhere
    assert int(done.stdout) * unit < 2**30
