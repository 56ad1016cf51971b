"""Attention modules: torch's results with softmax in every mode, no fast path around the mapping, replaced in place."""

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cases import case
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.testing import assert_close

from rsoftmax.attention import (
    MultiheadAttention,
    TransformerDecoderLayer,
    TransformerEncoderLayer,
    attention_weights,
    replace_attention,
    sparse_sdpa,
)

pytestmark = pytest.mark.usefixtures("in_float64")
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "batch first": {"batch_first": True},
    "length first": {},
    "no bias": {"bias": False, "batch_first": True},
    "other widths": {"kdim": 10, "vdim": 6, "batch_first": True},
    "appended keys": {"add_bias_kv": True, "add_zero_attn": True, "batch_first": True},
}


def masks(batch: int, queries: int, keys: int, heads: int) -> dict[str, dict[str, Any]]:
    padding = torch.arange(keys) >= torch.tensor([keys, keys - 2])[:, None]
    removed = torch.zeros(padding.shape).masked_fill(padding, -math.inf)
    causal = torch.ones(queries, keys, dtype=torch.bool).triu(1)
    biases = torch.randn(batch * heads, queries, keys)
    return {
        "none": {},
        "padding": {"key_padding_mask": padding},
        "bool mask": {"attn_mask": causal},
        "causal hint": {"attn_mask": causal, "is_causal": True},
        "bias for each head": {"attn_mask": biases},
        "mask and padding": {"attn_mask": causal, "key_padding_mask": padding},
        "bias and padding": {"attn_mask": biases, "key_padding_mask": removed},
        "float padding": {"key_padding_mask": removed},
        "per-head weights": {"average_attn_weights": False},
        "no weights": {"need_weights": False},
    }


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_softmax_is_torchs_module(configuration: str) -> None:
    options = CONFIGURATIONS[configuration]
    theirs = nn.MultiheadAttention(8, 2, **options)
    ours = MultiheadAttention(8, 2, **options, mapping="softmax")
    ours.load_state_dict(theirs.state_dict())
    assert list(ours.state_dict()) == list(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    q, k, v = torch.randn(2, 5, 8), torch.randn(2, 7, options.get("kdim", 8)), torch.randn(2, 7, options.get("vdim", 8))
    if not options.get("batch_first"):
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    for training in (True, False):
        for name, arguments in masks(2, 5, 7, 2).items():
            with case("train" if training else "eval", name):
                found = [m.train(training)(q, k, v, **arguments) for m in (ours, theirs)]
                assert_close(found[0], found[1])
                mine, expected = (
                    torch.autograd.grad(o[0].sin().sum(), m.out_proj.weight)
                    for o, m in zip(found, (ours, theirs), strict=True)
                )
                assert_close(mine, expected)
                with torch.no_grad():
                    assert_close(ours(q, k, v, **arguments), theirs(q, k, v, **arguments))


def test_the_causal_hint_keeps_appended_keys() -> None:
    """torch's module does so if it returns the weights, and otherwise drops them."""
    theirs = nn.MultiheadAttention(8, 2, add_bias_kv=True, batch_first=True)
    assert theirs.bias_v is not None
    nn.init.normal_(theirs.bias_v)
    ours = replace_attention(theirs, "softmax")
    x, causal = torch.randn(2, 5, 8), torch.ones(5, 5, dtype=torch.bool).triu(1)
    expected = theirs(x, x, x, attn_mask=causal, is_causal=True)[0]
    for need_weights, is_causal in ((True, True), (False, True), (False, False)):
        options = {"attn_mask": causal, "need_weights": need_weights, "is_causal": is_causal}
        with case(need_weights, is_causal):
            assert_close(ours(x, x, x, **options)[0], expected)
    dropped = theirs(x, x, x, attn_mask=causal, need_weights=False, is_causal=True)[0]
    assert (dropped - expected).abs().max() > 0.01


def test_scripting_is_refused_with_the_remedy() -> None:
    attention = MultiheadAttention(8, 2, mapping="sparsemax")
    for module in (attention, nn.Sequential(nn.Linear(8, 8), TransformerEncoderLayer(8, 2, mapping="sparsemax"))):
        with pytest.raises(NotImplementedError, match=r"torch.jit.script is not supported.* use torch\.compile or"):
            torch.jit.script(module)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_self_attention_unbatched_and_nested_tensors() -> None:
    theirs = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    ours = replace_attention(theirs, "softmax")
    assert isinstance(ours, MultiheadAttention)
    x = torch.randn(5, 8)
    assert_close(ours(x, x, x), theirs(x, x, x))
    with torch.inference_mode():
        nested = torch.nested.nested_tensor([torch.randn(4, 8), torch.randn(6, 8)])
        mine, expected = (m(nested, nested, nested, need_weights=False)[0] for m in (ours, theirs))
    for a, b in zip(mine.unbind(), expected.unbind(), strict=True):
        assert_close(a, b)
    with pytest.raises(ValueError, match="nested tensors need batch_first=True"), torch.inference_mode():
        ours(nested, nested, nested.clone())
    with pytest.raises(ValueError, match="nested tensors take no masks"), torch.inference_mode():
        ours(nested, nested, nested, attn_mask=torch.ones(6, 6).bool().triu(1), is_causal=True)
    with pytest.raises(ValueError, match="nested tensors are for inference"):
        ours(nested, nested, nested)


def sparse_rows(module: nn.MultiheadAttention, x: Tensor) -> Any:
    return module(x, x, x, average_attn_weights=False)[1] == 0


def test_the_mapping_is_used_in_train_eval_and_no_grad() -> None:
    x = torch.randn(2, 9, 8)
    layer = TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, mapping="k_softmax", k=2, edge=0)
    dense = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    dense.load_state_dict(layer.state_dict())
    expected = layer.train()(x)
    assert not torch.allclose(expected, dense.train()(x), atol=1e-3)
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with case(mode), mode():
            assert_close(layer.eval()(x), expected)
    assert (sparse_rows(layer.self_attn, x).sum(-1) == 7).all()
    padding = torch.arange(9) >= torch.tensor([9, 4])[:, None]
    with torch.no_grad():
        assert_close(layer(x, src_key_padding_mask=padding)[1, :4], layer(x[1:, :4])[0])


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
def test_a_stack_of_layers_is_torchs_with_softmax_and_ours_otherwise() -> None:
    x, padding = torch.randn(2, 6, 8), torch.arange(6) >= torch.tensor([6, 3])[:, None]
    dense = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    same, sparse = (copy.deepcopy(dense) for _ in range(2))
    replace_attention(same, "softmax")
    replace_attention(sparse, "t_softmax", t=0.3, edge=0.0)
    own = nn.TransformerEncoder(TransformerEncoderLayer(8, 2, 16, batch_first=True, mapping="softmax"), 2).eval()
    own.load_state_dict(dense.state_dict())
    with torch.no_grad():
        for name, options in {"none": {}, "padding": {"src_key_padding_mask": padding}}.items():
            expected = dense(x, **options)
            keep = ~padding if options else torch.ones(2, 6, dtype=torch.bool)
            for model in (same, own):
                with case(name, type(model.layers[0]).__module__):
                    found = model(x, **options)
                    n = min(found.shape[1], expected.shape[1])
                    assert_close(found[:, :n][keep[:, :n]], expected[:, :n][keep[:, :n]])
            assert not torch.allclose(sparse(x, **options)[keep], expected[:, :6][keep], atol=1e-3)


def test_the_decoder_layer_is_torchs_with_softmax() -> None:
    theirs = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    ours = TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True, mapping="softmax")
    ours.load_state_dict(theirs.state_dict())
    x, memory = torch.randn(2, 5, 8), torch.randn(2, 7, 8)
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    for training in (True, False):
        with case(training):
            options = {"tgt_mask": causal, "tgt_is_causal": True}
            assert_close(ours.train(training)(x, memory, **options), theirs.train(training)(x, memory, **options))
    sparse = TransformerDecoderLayer(8, 2, 16, batch_first=True, mapping="r_softmax", r=0.5).eval()
    assert isinstance(sparse.multihead_attn, MultiheadAttention)
    assert not torch.allclose(sparse(x, memory), theirs(x, memory), atol=1e-3)


def test_a_parameter_for_each_head_is_learned_saved_and_loaded() -> None:
    x = torch.randn(2, 6, 8)
    ours = MultiheadAttention(8, 2, batch_first=True, mapping="r_softmax", r=torch.tensor([0.3, 0.7]), learnable=True)
    ours(x, x, x)[0].sin().sum().backward()
    assert ours.mapping.raw_value.grad.count_nonzero() == 2
    again = MultiheadAttention(8, 2, batch_first=True, mapping="r_softmax", r=torch.tensor([0.5, 0.5]), learnable=True)
    again.load_state_dict(ours.state_dict())
    assert_close(again(x, x, x), ours(x, x, x))
    again.load_state_dict(nn.MultiheadAttention(8, 2, batch_first=True).state_dict())  # the rates stay
    assert_close(again.mapping.r.detach(), torch.tensor([0.3, 0.7]))
    assert_close(copy.deepcopy(ours)(x, x, x), ours(x, x, x))
    again._reset_parameters()


def test_the_weights_are_those_of_the_mapping() -> None:
    x = torch.randn(2, 6, 8)
    ours = MultiheadAttention(8, 2, batch_first=True, bias=False, mapping="t_softmax", t=1.0, edge=0.5)
    q, k, _ = (y.unflatten(-1, (2, 4)).transpose(1, 2) for y in F.linear(x, ours.in_proj_weight).chunk(3, -1))
    expected = attention_weights(q, k, mapping="t_softmax", t=1.0, edge=0.5)
    assert_close(ours(x, x, x, average_attn_weights=False)[1], expected)
    assert_close(ours(x, x, x)[1], expected.mean(1))


def test_replacing_shares_weights_and_can_be_repeated() -> None:
    model: Any = nn.Sequential(nn.Linear(8, 8), nn.ModuleDict({"a": nn.MultiheadAttention(8, 2)}))
    weight = model[1]["a"].in_proj_weight
    unchanged: Any = replace_attention(model, "sparsemax")
    assert unchanged is model
    assert model[1]["a"].in_proj_weight is weight
    replace_attention(model, "t_softmax", t=2.0)
    assert model[1]["a"].mapping.t == 2.0
    assert len(list(model.parameters())) == 6


class Custom(nn.MultiheadAttention):
    pass


def test_wrong_arguments_leave_the_module_unchanged() -> None:
    model = nn.ModuleDict({"a": nn.MultiheadAttention(8, 2)})
    cases: list[tuple[Any, type, str]] = [
        (lambda: replace_attention(model, "softmin"), ValueError, "replace_attention: mapping must be one of softmax"),
        (lambda: replace_attention(model, "r_softmax"), TypeError, "replace_attention: r_softmax needs r, e.g. r=0.5"),
        (lambda: replace_attention(model, "r_softmax", r=2.0), ValueError, r"r must be in \[0, 1\], got 2.0"),
        (lambda: replace_attention(model, "t_softmax", t=2.0, edge=-1), ValueError, "edge must be >= 0, got -1"),
        (lambda: replace_attention(model, "softmax", learnable=True), ValueError, "softmax has no parameter to learn"),
        (lambda: replace_attention(nn.Linear(2, 2), "softmax"), ValueError, "Linear contains no nn.MultiheadAttention"),
        (
            lambda: replace_attention(nn.ModuleDict({"b": Custom(8, 2)}), "softmax"),
            ValueError,
            "b is a Custom, a subclass",
        ),
        (lambda: MultiheadAttention(8, 2, mapping="softmin"), ValueError, "MultiheadAttention: mapping must be one of"),
    ]
    for call, error, message in cases:
        with case(message), pytest.raises(error, match=message):
            call()
    assert type(model["a"]) is nn.MultiheadAttention
    x = torch.randn(3, 2, 8)
    with pytest.raises(RuntimeError, match="is_causal=True needs attn_mask"):
        MultiheadAttention(8, 2, mapping="softmax")(x, x, x, is_causal=True)


def test_sparse_sdpa_serves_calls_and_restores_torch() -> None:
    before = F.scaled_dot_product_attention
    q, k, v = torch.randn(3, 2, 4, 6, 8)
    mask = torch.rand(6, 6) < 0.8
    with sparse_sdpa("softmax") as counter:
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3)
        with torch.no_grad():
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()(torch.randn(2, 5, 8))
    assert counter.calls == 2
    assert F.scaled_dot_product_attention is before
    assert_close(found, before(q, k, v, attn_mask=mask, scale=0.3))
    with sparse_sdpa("k_softmax", k=2, edge=0):
        hard = F.scaled_dot_product_attention(q, k, torch.eye(6).expand(2, 4, 6, 6))
    assert (hard.count_nonzero(-1) == 2).all()
    with pytest.warns(UserWarning, match="no call of F.scaled_dot_product_attention"), sparse_sdpa("softmax"):
        pass
    with pytest.raises(TypeError, match="sparse_sdpa: t_softmax needs t"), sparse_sdpa("t_softmax"):
        pass
    with pytest.raises(KeyError), sparse_sdpa("softmax"):
        raise KeyError
    assert F.scaled_dot_product_attention is before


@pytest.mark.compile
def test_modules_and_the_context_compile() -> None:
    x = torch.randn(2, 5, 8)
    layer = TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, mapping="t_softmax", t=1.0, edge=0.5)
    torch._dynamo.reset()
    compiled: Any = torch.compile(layer, backend="aot_eager")
    for training in (True, False):
        assert_close(compiled.train(training)(x), layer.train(training)(x))
    torch._dynamo.reset()
    with sparse_sdpa("t_softmax", t=1.0) as counter:
        attend = torch.compile(lambda x: F.scaled_dot_product_attention(x, x, x), backend="aot_eager")
        assert_close(attend(x[None]), F.scaled_dot_product_attention(x[None], x[None], x[None]))
    assert counter.calls > 0


def test_the_scale_log_n_is_learned_for_each_head_and_ignores_padding() -> None:
    torch.manual_seed(0)
    module = MultiheadAttention(8, 2, batch_first=True, mapping="softmax", log_n_scale=True).double()
    plain = MultiheadAttention(8, 2, batch_first=True, mapping="softmax").double()
    module.load_state_dict(plain.state_dict())  # torch's state dicts lack it, too
    assert module.log_scale is not None
    assert "log_scale" in module.state_dict()
    x = torch.randn(1, 64, 8).double()
    assert_close(module(x, x, x)[0], plain(x, x, x)[0])  # the usual scale at 64 keys
    padding = torch.arange(64)[None] >= 5
    short = module(x[:, :5], x[:, :5], x[:, :5])[0]
    assert_close(module(x, x, x, key_padding_mask=padding)[0][:, :5], short)
    assert not torch.allclose(short, plain(x[:, :5], x[:, :5], x[:, :5])[0])
    short.square().sum().backward()
    assert module.log_scale.grad is not None
    assert (module.log_scale.grad != 0).all()


def test_the_adaptive_scale_starts_as_the_usual_one_and_is_learned_for_each_head() -> None:
    torch.manual_seed(0)
    module = MultiheadAttention(8, 2, batch_first=True, mapping="entmax15", log_n_scale="adaptive").double()
    plain = MultiheadAttention(8, 2, batch_first=True, mapping="entmax15").double()
    plain.load_state_dict({name: a for name, a in module.state_dict().items() if name != "log_scale"})
    x = torch.randn(1, 9, 8).double()
    assert_close(module(x, x, x), plain(x, x, x))
    assert module.log_scale is not None
    with torch.no_grad():
        module.log_scale[1] = torch.tensor([0.2, 0.5])
    module(x, x, x)[0].square().sum().backward()
    assert module.log_scale.shape == (3, 2)
    assert (module.log_scale.grad != 0).all()  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="log_n_scale must be True, False or 'adaptive', got 'log n'"):
        MultiheadAttention(8, 2, mapping="softmax", log_n_scale="log n")  # type: ignore[arg-type]


def test_layers_and_replaced_modules_take_the_scale() -> None:
    layer = TransformerEncoderLayer(8, 2, batch_first=True, mapping="t_softmax", t=4.0, log_n_scale=True)
    assert isinstance(layer.self_attn, MultiheadAttention)
    assert layer.self_attn.log_scale is not None
    replaced = replace_attention(nn.TransformerEncoderLayer(8, 2, batch_first=True), "softmax", log_n_scale=True)
    assert any(name.endswith("log_scale") for name, _ in replaced.named_parameters())
    again = replace_attention(replaced, "softmax")
    assert not any(name.endswith("log_scale") for name, _ in again.named_parameters())


def test_masks_of_integers_are_refused() -> None:
    attention, x = MultiheadAttention(8, 2, batch_first=True, r=0.5), torch.randn(2, 5, 8)
    with pytest.raises(TypeError, match=r"masks must be bool or float, got torch\.int64; use mask\.bool\(\)"):
        attention(x, x, x, key_padding_mask=torch.zeros(2, 5, dtype=torch.long), attn_mask=torch.zeros(5, 5).bool())


def test_a_shared_attention_is_replaced_under_all_its_names() -> None:
    model = nn.Module()
    model.a = model.b = nn.MultiheadAttention(8, 2)
    replace_attention(model, "t_softmax", t=2.0)
    assert isinstance(model.a, MultiheadAttention)
    assert model.a is model.b


def test_hooks_and_buffers_stay() -> None:
    model, x = nn.Sequential(nn.MultiheadAttention(8, 2)), torch.randn(5, 2, 8)
    handle = model[0].register_forward_hook(lambda module, args, output: (torch.zeros_like(output[0]), output[1]))
    prune.l1_unstructured(model[0], "in_proj_weight", 0.5)
    replace_attention(model, "t_softmax", t=2.0)
    assert not model[0](x, x, x)[0].any()
    handle.remove()
    for _ in range(2):
        model[0](x, x, x)[0].sum().backward()
    assert torch.count_nonzero(model[0].in_proj_weight) == 24 * 8 // 2  # type: ignore[arg-type]
