"""sparse_attention with all its options on random inputs, against the equations on the whole matrix.

In float64 the numbers are equal; those of less precise dtypes are judged by rounding.py.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from rounding import check_attention
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


def drawn(draw: Draw, dtype: torch.dtype, leading: int, most_queries: int, most_keys: int, most_features: int) -> Case:
    mapping = draw.one_of(*MAPPINGS.values())
    lead = tuple(draw.integer(1, 3) for _ in range(leading))
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
    """One call in float64, backward in another state of the process than forward."""
    case, seed = drawn(draw, torch.float64, draw.integer(0, 2), 9, 12, 6), draw.integer(0, 1 << 30)
    rows = draw.one_of("native", "reference")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK", draw.one_of(1 << 18, 50, 10, 1))
        with state(draw.integer(1, 3), rows):
            noise = dropout_noise(case, seed)
            torch.manual_seed(seed)
            output = case.call()
        g = draw.normal(*output.shape)
        with state(draw.integer(1, 3), draw.one_of("native", "reference")):
            gradients = torch.autograd.grad(output, case.leaves, g)
    with use_kernels(rows):
        expected, p = equations(case, noise)
        expected_gradients = torch.autograd.grad(expected, case.leaves, g)
        weights = case.weights()
    for a, b in zip((output, weights, *gradients), (expected, p, *expected_gradients), strict=True):
        assert_close(a, b, rtol=1e-8, atol=1e-8 * float(1 + b.detach().abs().max()))


@examples(30)
def test_the_kernel_and_the_blocks_differ_from_the_equations_by_rounding(draw: Draw) -> None:
    """Outputs, weights and gradients in single and half precision, with and without the kernel of attention."""
    dtype, rows = draw.one_of(torch.float32, *FLOATS[1:]), draw.one_of("native", "reference")
    case = drawn(draw, dtype, 1, *((40, 300, 70) if draw.chance(0.3) else (9, 40, 20)))
    seed = draw.integer(0, 1 << 30)

    def attend(q: Tensor, k: Tensor, v: Tensor, /, **options: Any) -> Tensor:
        torch.manual_seed(seed)
        return sparse_attention(q, k, v, **options)

    def weigh(q: Tensor, k: Tensor, v: Tensor, /, *, dropout_p: float, **options: Any) -> Tensor:
        p = attention_weights(q, k, **options)
        assert p.dtype == dtype
        return p.to(v.dtype) @ v.repeat_interleave(case.shared, -3)

    for kernel in (kernels.attention_kernel, lambda: None):
        with pytest.MonkeyPatch.context() as patch, state(draw.integer(1, 3), rows):
            patch.setattr(kernels, "attention_kernel", kernel)
            factors = dropout_noise(case, seed) if case.options["dropout_p"] else None
            judge = partial(check_attention, mapping=case.mapping.name, **case.options)
            judge(attend, case.q, case.k, case.v, factors=factors)
    if dtype == torch.float32:
        judge(weigh, case.q, case.k, case.v)
    q, k, v = (x.detach().to("meta").requires_grad_() for x in (case.q, case.k, case.v))
    shape = case._replace(q=q, k=k, v=v).call()
    assert (shape.shape, shape.dtype) == ((*q.shape[:-1], v.shape[-1]), dtype)
    gradients = torch.autograd.grad(shape.sum(), (q, k, v))
    assert [(x.shape, x.dtype) for x in gradients] == [(x.shape, x.dtype) for x in (q, k, v)]


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
    bad = torch.tensor([math.nan, math.inf, -math.inf], dtype=dtype)
    k, v = (x.masked_fill(unseen[..., None], 0) for x in (k, v))
    more = [torch.where(unseen[..., None], bad[(10 * draw.normal(*x.shape)).long() % 3], 0) for x in (k, v)]

    def spoiled(q: Tensor, k: Tensor, v: Tensor, /, **options: Any) -> Tensor:
        return sparse_attention(q, k + more[0], v + more[1], **options)

    def results(attend: Any) -> list[Tensor]:
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        output = attend(*leaves, **options)
        return [output.detach(), *torch.autograd.grad(output.sin().sum(), leaves)]

    with use_kernels(draw.one_of("native", "reference")):
        if dtype == torch.float64:
            assert_close(results(spoiled), results(sparse_attention))
        else:
            check_attention(spoiled, q, k, v, **options)


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
