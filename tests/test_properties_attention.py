"""sparse_attention with all its options on random inputs, against the equations on the whole matrix.

The kernel that computes all of it is compared with the blocks that are computed with torch's products.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from strategies import FLOATS, Draw, examples
from torch import Tensor
from torch.testing import assert_close
from transformers_models import COMPOSITE, bert

from rsoftmax import MAPPINGS, MappingSpec, kernels, use_kernels
from rsoftmax.attention import (
    attention_layers,
    attention_weights,
    blocks,
    head_parameters,
    set_attention,
    set_head_parameters,
    sparse_attention,
)

ROUNDING = {torch.float64: 1e-8, torch.float32: 2e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}


class Case(NamedTuple):
    mapping: MappingSpec
    q: Tensor
    k: Tensor
    v: Tensor
    options: dict[str, Any]
    shared: int  # heads of queries for each head of keys

    @property
    def leaves(self) -> list[Tensor]:
        """The inputs with a gradient."""
        inputs = (self.q, self.k, self.v, *self.options.values())
        return [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]

    def call(self, v: Tensor | None = None) -> Any:
        v = self.v if v is None else v
        return sparse_attention(self.q, self.k, v, mapping=self.mapping.name, enable_gqa=True, **self.options)

    def weights(self) -> Tensor:
        options = {name: a for name, a in self.options.items() if name != "dropout_p"}
        return attention_weights(self.q, self.k, mapping=self.mapping.name, enable_gqa=True, **options)


def drawn(draw: Draw, dtype: torch.dtype, most_queries: int, most_keys: int, most_features: int) -> Case:
    mapping = draw.one_of(*MAPPINGS.values())
    lead = tuple(draw.integer(1, 3) for _ in range(draw.integer(0, 2)))
    heads, shared, queries, length = (draw.integer(1, most) for most in (3, 3, most_queries, most_keys))
    width, full = draw.integer(1, most_features), (*lead, heads * shared, queries, length)
    q = draw.normal(*lead, heads * shared, queries, width)
    k, v = draw.normal(*lead, heads, length, width), draw.normal(*lead, heads, length, draw.integer(1, most_features))
    q, k, v = (x.to(dtype).requires_grad_() for x in (q, k, v))
    options: dict[str, Any] = {"is_causal": draw.chance(0.3), "dropout_p": draw.one_of(0.0, 0.0, 0.3, 0.9)}
    if draw.chance(0.3):
        options["scale"] = draw.number(0.05, 2)
    if draw.chance(0.6):
        shape = draw.smaller(*full)
        options["attn_mask"] = keep = draw.keep(*shape)
        if draw.chance(0.5):
            bias = draw.normal(*shape).to(dtype).masked_fill(~keep, -math.inf)
            options["attn_mask"] = bias.requires_grad_(draw.chance(0.7))
    if mapping.parameter:
        per_head = draw.chance(0.5)
        value = draw.parameter(mapping, *([full[-3]] if per_head else (*draw.smaller(*full[:-1]), 1)))
        trained = isinstance(value, Tensor) and draw.chance(0.7)
        options[mapping.parameter.name] = value.requires_grad_() if trained else value
    return Case(mapping, q, k, v, options, shared)


@examples(30)
def test_attention_is_its_equations(draw: Draw) -> None:
    """One call, backward in another state of the process than forward."""
    case, seed = drawn(draw, draw.one_of(torch.float64, *FLOATS), 9, 12, 6), draw.integer(0, 1 << 30)
    rows = draw.one_of("native", "reference")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK", draw.one_of(1 << 18, 50, 10, 1))
        with state(draw.integer(1, 3), rows):
            noise = dropout_noise(case, seed)
            torch.manual_seed(seed)
            output = case.call()
        g = draw.normal(*output.shape)
        with state(draw.integer(1, 3), draw.one_of("native", "reference")):
            gradients = torch.autograd.grad(output, case.leaves, g.to(output.dtype))
    with use_kernels(rows):
        expected, p = equations(case, noise)
        expected_gradients = torch.autograd.grad(expected, case.leaves, g)
        weights = case.weights()
    assert output.dtype == weights.dtype == case.q.dtype
    tolerance = ROUNDING[case.q.dtype]
    assert_close(output.double(), expected, rtol=tolerance, atol=room(tolerance, expected))
    assert_close(weights.double(), p, rtol=tolerance, atol=tolerance)
    if case.q.dtype == torch.float64:
        for a, b in zip(gradients, expected_gradients, strict=True):
            assert a.dtype == b.dtype
            assert_close(a, b, rtol=tolerance, atol=room(tolerance, b))
    q, k, v = (x.detach().to("meta").requires_grad_() for x in (case.q, case.k, case.v))
    shape = case._replace(q=q, k=k, v=v).call()
    on_meta = (shape, *torch.autograd.grad(shape.sum(), (q, k, v)))
    assert [(x.shape, x.dtype) for x in on_meta] == [(x.shape, x.dtype) for x in (output, *gradients[:3])]


@examples(30)
def test_the_kernel_has_the_numbers_of_the_blocks(draw: Draw) -> None:
    """The kernel of attention and the blocks with native rows: equal up to rounding."""
    case = drawn(draw, torch.float32, *((40, 300, 70) if draw.chance(0.3) else (9, 40, 20)))
    seed, results = draw.integer(0, 1 << 30), []
    for kernel in (kernels.attention_kernel, lambda: None):
        with pytest.MonkeyPatch.context() as patch, state(draw.integer(1, 3), "native"):
            patch.setattr(kernels, "attention_kernel", kernel)
            torch.manual_seed(seed)
            output = case.call()
            g = torch.randn(output.shape, generator=torch.Generator().manual_seed(seed))
            results.append((output, *torch.autograd.grad(output, case.leaves, g)))
    for a, b in zip(*results, strict=True):
        assert a.dtype == b.dtype
        assert_close(a.double(), b.double(), rtol=1e-3, atol=room(1e-3, b))


def equations(case: Case, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Output and weights in float64, on one matrix."""
    q, k, v = (x.double() for x in (case.q, case.k, case.v))
    k, v = (x.repeat_interleave(case.shared, -3) for x in (k, v))
    scores = q @ k.mT * case.options.get("scale", 1 / math.sqrt(q.shape[-1]))
    keep, mask = torch.ones(scores.shape, dtype=torch.bool), case.options.get("attn_mask")
    if mask is not None:
        keep, scores = (mask.expand_as(scores), scores) if mask.dtype == torch.bool else (keep, scores + mask)
    if case.options["is_causal"]:
        keep = keep & torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    arguments = []
    if case.mapping.parameter:
        value = case.options[case.mapping.parameter.name]
        per_head = isinstance(value, Tensor) and value.dim() == 1 and value.shape[0] == case.q.shape[-3]
        arguments.append(value[:, None, None] if per_head else value)
    p = case.mapping.function(scores, *arguments, mask=keep)
    return (p * noise) @ v, p


@torch.no_grad()
def dropout_noise(case: Case, seed: int) -> Tensor:
    """The factor of each weight by dropout: seen with the unit vectors as values."""
    if case.options["dropout_p"] == 0:
        return torch.ones(())
    unit = torch.eye(case.k.shape[-2], dtype=case.v.dtype).expand(*case.k.shape[:-1], -1)
    torch.manual_seed(seed)
    dropped: Tensor = case.call(unit).double()
    return torch.where(dropped != 0, 65536 / (65536 - round(case.options["dropout_p"] * 65536)), 0.0)


@contextmanager
def state(threads: int, rows: str) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with use_kernels(rows):
            yield
    finally:
        torch.set_num_threads(before)


def room(tolerance: float, expected: Tensor) -> float:
    return tolerance * float(1 + expected.detach().abs().max())


@examples(30)
def test_a_masked_key_has_no_influence(draw: Draw) -> None:
    """The same call with NaN and infinity, and with zeros, at keys that no query sees."""
    batch, heads, queries, width = draw.integer(1, 2), draw.integer(1, 3), draw.integer(1, 9), draw.integer(1, 9)
    length, causal = queries + draw.integer(1, 40), draw.chance(0.3)
    dtype = draw.one_of(torch.float32, torch.float64)
    q, k, v = (draw.normal(batch, heads, n, width).to(dtype) for n in (queries, length, length))
    unseen, mask = torch.arange(length).expand(batch, heads, length) >= queries, None
    if not causal:
        keep = draw.keep(batch, heads, queries, length) & ~draw.keep(batch, heads, length)[:, :, None]
        unseen = ~keep.any(-2)
        mask = keep if draw.chance(0.5) else torch.zeros(keep.shape, dtype=dtype).masked_fill(~keep, -math.inf)
    name = draw.one_of(*MAPPINGS)
    options: dict[str, Any] = {"mapping": name, "attn_mask": mask, "is_causal": causal}
    if parameter := MAPPINGS[name].parameter:
        options[parameter.name] = float(draw.inside(parameter))
    g = draw.normal(batch, heads, queries, width).to(dtype)
    bad = torch.tensor([math.nan, math.inf, -math.inf], dtype=dtype)
    k_bad, v_bad = (torch.where(unseen[..., None], bad[(10 * draw.normal(*x.shape)).long() % 3], x) for x in (k, v))
    k, v = (x.masked_fill(unseen[..., None], 0) for x in (k, v))

    def run(*inputs: Tensor) -> list[Tensor]:
        leaves = [x.clone().requires_grad_() for x in inputs]
        output = sparse_attention(leaves[0], leaves[1], leaves[2], **options)
        return [output.detach(), *torch.autograd.grad(output, leaves, g.to(output.dtype))]

    with use_kernels(draw.one_of("native", "reference")):
        clean, spoiled = run(q, k, v), run(q, k_bad, v_bad)
    with use_kernels("reference"):
        exact = run(*(x.double() for x in (q, k, v)))
    for a, b, truth in zip(spoiled, clean, exact, strict=True):
        rounding = float((b.double() - truth).abs().max())  # slopes are as steep as scores are near
        assert_close(a, b, rtol=1e-6, atol=1e-6 + 4 * rounding)


@pytest.mark.train
def test_a_transformers_model_saved_with_sparse_attention_comes_back_as_it_was(tmp_path: Any) -> None:
    @examples(10)
    def saved_and_loaded(draw: Draw) -> None:
        model = draw.one_of(bert, *COMPOSITE.values())()
        name = draw.one_of(*MAPPINGS)
        parameter = MAPPINGS[name].parameter

        def value() -> Any:
            shape = draw.one_of((), (len(attention_layers(model)),))  # for each head: test_attention_saving
            return draw.inside(parameter, *shape).tolist() if parameter else None

        values = {parameter.name: value()} if parameter else {}
        set_attention(model, name, learnable=parameter is not None and draw.chance(0.5), **values)
        if parameter and draw.chance(0.5):
            set_head_parameters(model, value())
        for _ in range(2):
            model.save_pretrained(tmp_path)
            loaded = type(model).from_pretrained(tmp_path)
            assert attention_layers(loaded) == attention_layers(model)
            before, after = model.state_dict(), loaded.state_dict()
            assert before.keys() == after.keys()
            assert [key for key in before if not torch.equal(before[key], after[key])] == []
            trained = [{key for key, p in each.named_parameters() if p.requires_grad} for each in (model, loaded)]
            assert trained[0] == trained[1]
            if parameter:
                tables = [head_parameters(each).values.nan_to_num() for each in (model, loaded)]
                assert torch.equal(*tables)
            model = loaded

    saved_and_loaded()
