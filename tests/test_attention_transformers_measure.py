"""Zeros and weights of a model's attention."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from torch import nn
from torch.testing import assert_close
from transformers_models import LAYERS, LONG, SHORT, WORDS, batch_for, built, clip, every_model, output

from rsoftmax.attention.transformers import attention_layers, attention_maps, head_parameters, set_attention, sparsity
from rsoftmax.attention.transformers.attend import Observer, observing

pytestmark = pytest.mark.usefixtures("in_float64")


@every_model
def test_attentions_come_with_the_output(name: str) -> None:
    model, batch = built(name), batch_for(name)
    set_attention(model, "r_softmax", r=0.3)
    found = model(**batch, output_attentions=True)
    shown = next(found[key] for key in ("encoder_attentions", "attentions") if found.get(key))
    assert len(shown) == LAYERS
    weights = attention_maps(model, batch)
    assert_close(shown[-1], list(weights.values())[min(LAYERS, len(weights)) - 1])


def test_layers_may_have_different_numbers_of_heads() -> None:
    model = clip(num_attention_heads=2)
    ragged: Any = [[0.1, 0.2, 0.3, 0.4], 0.5, [0.6, 0.7], 0.8]
    set_attention(model, "r_softmax", r=ragged)
    assert attention_layers(model)[0].startswith("text_model")
    assert head_parameters(model).values[2].tolist() == pytest.approx([0.6, 0.7, torch.nan, torch.nan], nan_ok=True)
    assert head_parameters(model).mean() == pytest.approx((1.0 + 2.0 + 1.3 + 1.6) / 12)


def test_zeros_are_counted_among_real_tokens_that_see_each_other() -> None:
    model = built("gpt2")
    batch = batch_for("gpt2")
    set_attention(model, "r_softmax", r=0.5)
    weights = attention_maps(model, batch)
    found = sparsity(model, batch)
    for layer, name in enumerate(found.layers):
        zeros = seen = 0
        for text, length in enumerate((LONG, SHORT)):
            for query in range(length):
                seen += query + 1
                zeros += int((weights[name][text, 2, query, : query + 1] == 0).sum())
        assert found.values[layer, 2] == pytest.approx(zeros / seen)
    assert str(found).splitlines()[0].split() == ["zeros", "mean", "0", "1", "2", "3"]
    assert not model.training


def test_zeros_of_a_decoder_leave_out_its_padding() -> None:
    model, batch = built("bart"), batch_for("bart")
    set_attention(model, "r_softmax", r=0.5)
    whole = sparsity(model, batch).values
    for key in ("decoder_input_ids", "decoder_attention_mask"):
        batch[key] = nn.functional.pad(batch[key], (0, 3))
    assert_close(sparsity(model, batch).values, whole)


def test_threads_that_look_into_one_model_at_once_see_their_own_calls_only() -> None:
    model = built("bert")
    set_attention(model, "r_softmax", r=0.3)
    batches = [{"input_ids": torch.randint(5, WORDS, (1, length))} for length in (LONG, SHORT)]
    alone = [(attention_maps(model, batch), sparsity(model, batch)) for batch in batches]
    both_are_here = threading.Barrier(2, timeout=600)

    def wait(*_: Any) -> None:
        both_are_here.wait()

    for module in model.encoder.layer:
        module.register_forward_pre_hook(wait)
    with ThreadPoolExecutor(2) as threads:
        weights = list(threads.map(lambda batch: attention_maps(model, batch), batches))
        zeros = list(threads.map(lambda batch: sparsity(model, batch), batches))
    assert_close(weights, [expected for expected, _ in alone])
    assert_close([table.values for table in zeros], [expected.values for _, expected in alone])


def test_an_observer_is_not_shown_what_another_thread_computes() -> None:
    model, other = built("bert"), built("bert")
    seen = []
    for each in (model, other):
        set_attention(each, "sparsemax")
    with observing(Observer(lambda observed: seen.append(observed.module))), ThreadPoolExecutor(1) as thread:
        thread.submit(output, other, batch_for("bert")).result()
        output(model, batch_for("bert"))
    assert seen == [model.get_submodule(name) for name in attention_layers(model)]


@pytest.mark.compile
def test_compiled_models_can_be_looked_into_and_stay_compiled() -> None:
    torch._dynamo.reset()
    model, batch = built("bert"), batch_for("bert")
    set_attention(model, "r_softmax", r=0.3)
    counter = torch._dynamo.testing.CompileCounterWithBackend("eager")
    compiled: Any = torch.compile(model, backend=counter, fullgraph=True)
    assert torch.equal(sparsity(compiled, batch).values, sparsity(model, batch).values)
    assert counter.frame_count == 0
    output(compiled, batch)
    assert counter.frame_count == 1
    assert_close(attention_maps(compiled, batch), attention_maps(model, batch))
    torch._dynamo.reset()


def test_looking_leaves_each_module_in_its_mode() -> None:
    model = built("bert").train()
    model.embeddings.eval()
    set_attention(model, "sparsemax")
    sparsity(model, batch_for("bert"))
    assert model.training
    assert model.encoder.layer[0].training
    assert not any(module.training for module in model.embeddings.modules())
