"""Decoding with the shadow of the keys: the same bits as without, whatever the keys are."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf
from strategies import Draw, examples
from test_attention import threads
from torch import Tensor

from rsoftmax.attention import GrowingCache, attention_weights, set_attention, sparse_attention
from rsoftmax.attention.transformers.cache import GrowingLayer, ShadowedStaticLayer, skip_keys
from rsoftmax.kernels import cpu
from rsoftmax.kernels.key_shadow import shadow_of

pytestmark = pytest.mark.skipif(not cpu.LEVEL, reason="the kernels were not compiled here")

SETTINGS: list[dict[str, Any]] = [
    {"mapping": "t_softmax", "t": 6.0, "edge": 0.0},
    {"mapping": "t_softmax", "t": 1.0},
    {"mapping": "t_softmax", "t": 0.05, "edge": 0.01},
    {"mapping": "t_softmax", "t": torch.tensor([0.5, 1.0, 2.0, 4.0, 8.0, 16.0])},
    {"mapping": "k_softmax", "k": 20.0},
    {"mapping": "k_softmax", "k": 64.5, "edge": 0.0},
    {"mapping": "r_softmax", "r": 0.9},
    {"mapping": "r_softmax", "r": 1.0},
    {"mapping": "sparsemax"},
    {"mapping": "entmax15"},
    {"mapping": "entmax", "alpha": 1.3},
    {"mapping": "entmax", "alpha": 3.0},
]
every_setting = pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: "-".join(str(x) for x in s.values())[:24])


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def on_a_line(k: Tensor) -> Tensor:
    """With a query along the line, scores that lie exactly t below the maximum."""
    k = torch.zeros_like(k)
    k[..., 0] = torch.arange(k.shape[-2]) / 64
    return k


def with_some(k: Tensor, value: float) -> Tensor:
    k = k.clone()
    k[:, :, 3::50, 1] = value
    return k


HOSTILE: dict[str, Callable[[Tensor], Tensor]] = {
    "random": lambda k: k,
    "sharp": lambda k: 4 * k,
    "norms from tiny to huge": lambda k: k * torch.logspace(-6, 3, k.shape[-2])[:, None],
    "an outlier in each key": lambda k: k * torch.tensor([1000.0] + [1.0] * (k.shape[-1] - 1)),
    "nearly equal": lambda k: k[:, :, :1] + 1e-4 * k,
    "ties": torch.sign,
    "exact distances": on_a_line,
    "zeros": lambda k: k * (k[..., :1] > 0),
    "tiny": lambda k: 1e-30 * k,
    "huge": lambda k: 1e19 * k,
    "a large common part": lambda k: k + 300,
    "NaN": lambda k: with_some(k, math.nan),
    "inf": lambda k: with_some(k, math.inf),
    "overflow": lambda k: with_some(k, 1e38),
}


def filled(k: Tensor, v: Tensor) -> GrowingLayer:
    layer = GrowingLayer()
    layer.update(k, v)
    return layer


def both(q: Tensor, k: Tensor, v: Tensor, /, mask: Tensor | None = None, **setting: Any) -> tuple[Tensor, Tensor]:
    """With the shadow, and without: a view has none."""
    assert shadow_of(k) is not None
    assert shadow_of(k[:]) is None
    options: dict[str, Any] = {"enable_gqa": True, **setting}
    return sparse_attention(q, k, v, mask, **options), sparse_attention(q, k[:], v, mask, **options)


def assert_same(q: Tensor, k: Tensor, v: Tensor, /, mask: Tensor | None = None, **setting: Any) -> None:
    actual, expected = both(q, k, v, mask, **setting)
    assert torch.equal(actual.isnan(), expected.isnan())
    assert torch.equal(actual.nan_to_num(), expected.nan_to_num())


def state(k: Tensor) -> Tensor:
    """For each head how many keys its shadow has, and how many calls it is left alone."""
    shadow = shadow_of(k)
    assert shadow is not None
    assert shadow.memory is not None
    return shadow.memory[..., :16].contiguous().view(torch.int64)


def is_used(k: Tensor) -> bool:
    return bool((state(k) == torch.tensor([k.shape[-2], 0])).all())


@every_setting
def test_hostile_keys_give_the_same_bits(setting: dict[str, Any]) -> None:
    for i, (name, change) in enumerate(HOSTILE.items()):
        width, dtype = (64, 32, 128, 80, 256, 30)[i % 6], (torch.float32, torch.bfloat16)[i // 2 % 2]
        q, k, v = random(1, 6, 1, width), change(random(1, 2, 420, width, seed=1)), random(1, 2, 420, width, seed=2)
        q = torch.full_like(q, 8.0) if name == "exact distances" else q
        assert_same(
            q.to(dtype), *filled(k.to(dtype), v.to(dtype)).update(*random(2, 1, 2, 1, width).to(dtype)), **setting
        )


@every_setting
def test_most_keys_are_not_even_read(setting: dict[str, Any]) -> None:
    q, k, v = random(1, 6, 1, 64), random(1, 2, 500, 64, seed=1), random(1, 2, 500, 64, seed=2)
    if setting.get("t") is SETTINGS[3]["t"]:
        k *= 8
    k, v = filled(4 * k, v).update(*random(2, 1, 2, 1, 64))
    actual, expected = both(q, k, v, **setting)
    assert is_used(k)
    with torch.inference_mode():  # overwritten behind the back of the shadow: at a distance from the maximum
        scores = (q.view(1, 2, 3, 64) @ k.mT).amax(2)
    low = scores.argsort(-1)[..., :50]
    k.data.scatter_(2, low[..., None].expand(-1, -1, -1, 64), math.nan)
    assert torch.equal(sparse_attention(q, k, v, enable_gqa=True, **setting), expected)
    assert torch.equal(actual, expected)
    k[:, :, 0] *= 1  # a change that torch reports
    assert sparse_attention(q, k, v, enable_gqa=True, **setting).isnan().all()


CHANGES: dict[str, Callable[[Any], Any]] = {
    "crop": lambda layer: layer.crop(-40),
    "reorder": lambda layer: layer.reorder_cache(torch.tensor([1, 1, 0])),
    "repeat": lambda layer: layer.batch_repeat_interleave(2),
    "select": lambda layer: layer.batch_select_indices(torch.tensor([1, 0])),
    "reset": lambda layer: layer.reset(),
    "negative": lambda layer: setattr(layer, "keys", -layer.keys),
    "in place": lambda layer: layer.keys[:, :, 5:9].neg_(),
    "in place, then crop": lambda layer: (layer.keys.neg_(), layer.crop(-40)),
    "in place, then reorder": lambda layer: (layer.keys.neg_(), layer.reorder_cache(torch.tensor([2, 1, 0]))),
    "offload": lambda layer: (layer.offload(), layer.prefetch()),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("setting", [SETTINGS[1], SETTINGS[4]], ids=["t", "k"])
def test_changes_of_the_cache_are_noticed(setting: dict[str, Any], change: str) -> None:
    layer = filled(4 * random(3, 2, 400, 64, seed=1), random(3, 2, 400, 64, seed=2))
    for step in range(12):
        if step % 6 == 3:
            CHANGES[change](layer)
        batch, tokens = (len(layer.keys), 1) if layer.get_seq_length() else (3, 300)
        before = layer.keys
        k, v = layer.update(*(4 * random(2, batch, 2, tokens + 60 * (step == 5), 64, seed=step)))
        q = random(batch, 4, 1, 64, seed=step)
        assert_same(q, k, v, **setting)
        if before is not None and shadow_of(before) and before.shape[-2] and len(before) == batch:
            assert_same(q, before, v[:, :, :1].expand(*before.shape), **setting)
    assert is_used(k)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_copies_have_their_own_shadow(duplicate: Callable[[Any], Any]) -> None:
    layer = filled(random(1, 2, 400, 64), random(1, 2, 400, 64, seed=2))
    both(random(1, 4, 1, 64), layer.keys, layer.values, **SETTINGS[1])
    other = duplicate(layer)
    for step in range(3):
        for one in (layer, other):
            k, v = one.update(*random(2, 1, 2, 1, 64, seed=step + 10 * (one is other)))
            assert_same(random(1, 4, 1, 64, seed=step), k, v, **SETTINGS[1])


def test_an_interrupt_before_the_keys_are_rounded_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k = random(1, 2, 1, 32), 3 * random(1, 2, 400, 32, seed=1)
    layer = filled(k, k)
    assert_same(q, layer.keys, layer.values, **SETTINGS[1])
    layer.crop(-300)
    other = 3 * random(1, 2, 300, 32, seed=2)
    layer.update(other, other)
    with monkeypatch.context() as patch:
        patch.setattr(cpu, "library", None)
        with pytest.raises(AttributeError):
            sparse_attention(q, layer.keys, layer.values, **SETTINGS[1])
    assert_same(q, layer.keys, layer.values, **SETTINGS[1])


def test_padding_several_queries_and_threads() -> None:
    k, v = filled(4 * random(3, 2, 600, 64, seed=1), random(3, 2, 600, 64, seed=2)).update(*random(2, 3, 2, 1, 64))
    mask = torch.arange(601) >= torch.tensor([0, 37, 500])[:, None, None, None]
    further = mask & (torch.arange(601) <= torch.tensor([450, 598, 600])[:, None])
    holes = further & (torch.arange(601) % 5 > 0)
    for setting in SETTINGS[:3] + SETTINGS[4:]:
        for count in (1, 3):
            with threads(count):
                assert_same(random(3, 4, 1, 64), k, v, mask, **setting)
                for queries, heads in ((3, 4), (1, 16), (3, 2), (3, 8)):
                    assert_same(random(3, heads, queries, 64), k, v, **setting)
                for one in (further, holes, ~further & ~mask):
                    assert_same(random(3, 4, 3, 64), k, v, one, **setting)


def test_bias_dropout_gradients_and_other_dtypes_do_without() -> None:
    k, v = filled(4 * random(1, 2, 400, 64, seed=1), random(1, 2, 400, 64, seed=2)).update(*random(2, 1, 2, 1, 64))
    q = random(1, 4, 1, 64)
    assert_same(q, k, v, random(1, 1, 1, 401), t=1.0, mapping="t_softmax")
    assert_same(q, k, v, mapping="softmax")
    assert_same(q.requires_grad_(), k, v, t=1.0, mapping="t_softmax")
    with torch.random.fork_rng():
        dropped = []
        for keys in (k, k[:]):
            torch.manual_seed(0)
            dropped.append(sparse_attention(q, keys, v, None, 0.5, enable_gqa=True, mapping="t_softmax", t=1.0))
        assert torch.equal(*dropped)
    assert shadow_of(k).memory is None  # type: ignore[union-attr]
    k64, v64 = filled(k.double(), v.double()).update(*random(2, 1, 2, 1, 64).double())
    assert_same(q.double(), k64, v64, t=1.0, mapping="t_softmax")


def test_a_head_with_dense_weights_is_left_alone_for_some_calls() -> None:
    k = 4 * random(1, 2, 400, 64, seed=1)
    k[:, 0] *= 1e-3
    k, v = filled(k, random(1, 2, 400, 64, seed=2)).update(*random(2, 1, 2, 1, 64))
    assert_same(random(1, 4, 1, 64), k, v, **SETTINGS[1])
    dense, sparse = state(k)[0]
    assert dense[1] > 0
    assert sparse.tolist() == [401, 0]
    for _ in range(int(dense[1])):
        assert_same(random(1, 4, 1, 64), k, v, **SETTINGS[1])
    assert state(k)[0, 0, 1] == 0


def test_the_zeros_are_those_of_float64() -> None:
    """The weights are read from values that are unit vectors. About one score in 10^6 lies within rounding of t."""
    keys, width = 2048, 64
    q, k = random(1, 6, 1, width), 4 * random(1, 2, keys, width, seed=1)
    k, _ = filled(k, k).update(k[:, :, :0], k[:, :, :0])
    for setting in (SETTINGS[0], SETTINGS[4], SETTINGS[8], SETTINGS[9]):
        eye = torch.eye(keys).expand(1, 2, keys, keys)
        p = sparse_attention(q, k, eye, enable_gqa=True, **setting)
        exact = attention_weights(q.double(), k.double(), enable_gqa=True, **setting)
        assert torch.equal(p == 0, exact == 0)
        assert is_used(k)


@examples(30)
def test_any_call_gives_the_same_bits(draw: Draw) -> None:
    heads, shared, queries, keys = (draw.integer(1, most) for most in (3, 4, 3, 900))
    width, batch, new = draw.integer(1, 256), draw.integer(1, 2), draw.integer(1, 3)
    setting = draw.one_of(*SETTINGS[:3], *SETTINGS[4:])
    dtype = draw.one_of(torch.float32, torch.bfloat16, torch.float16)
    change = draw.one_of(*HOSTILE.values())
    sharpness = draw.one_of(0.1, 1.0, 5.0)
    q = sharpness * draw.normal(batch, heads * shared, queries, width)
    k, v = change(draw.normal(batch, heads, keys, width)), draw.normal(batch, heads, keys, draw.integer(1, 70))
    layer = filled(k.to(dtype), v.to(dtype))
    for _ in range(3):
        assert_same(q.to(dtype), *layer.update(k[:, :, :new].to(dtype), v[:, :, :new].to(dtype)), **setting)


def llama(setting: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    sizes |= {"num_hidden_layers": 2, "intermediate_size": 32, "vocab_size": 60, "max_position_embeddings": 1024}
    model: Any = hf.LlamaForCausalLM(hf.LlamaConfig(**sizes, eos_token_id=None, pad_token_id=0)).eval()
    for layer in model.model.layers:  # random ones are so small that all scores are equal
        layer.self_attn.q_proj.weight.data *= 30
        layer.self_attn.k_proj.weight.data *= 30
    set_attention(model, **setting)
    return model


GREEDY: dict[str, Any] = {"max_new_tokens": 200}
BEAMS: dict[str, Any] = {"max_new_tokens": 12, "num_beams": 3}


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        (SETTINGS[1], BEAMS),
        (SETTINGS[4], BEAMS),
        pytest.param(SETTINGS[1], GREEDY, marks=pytest.mark.train),
        pytest.param(SETTINGS[4], GREEDY, marks=pytest.mark.train),
        pytest.param(SETTINGS[9], GREEDY, marks=pytest.mark.train),
    ],
)
def test_the_logits_of_a_model_are_the_same(setting: dict[str, Any], options: dict[str, Any]) -> None:
    model, tokens = llama(setting), torch.randint(3, 60, (2, 280), generator=torch.Generator().manual_seed(0))
    attention_mask = torch.ones_like(tokens)
    attention_mask[1, :11] = 0
    cache = GrowingCache(model.config)
    options = {"do_sample": False, "output_logits": True, "return_dict_in_generate": True} | options
    expected, actual = (
        model.generate(tokens, attention_mask=attention_mask, past_key_values=past, **options)
        for past in (hf.DynamicCache(config=model.config), cache)
    )
    static = model.generate(tokens, attention_mask=attention_mask, cache_implementation="static", **options)
    for result in (actual, static):
        assert torch.equal(expected.sequences, result.sequences)
        assert all(map(torch.equal, expected.logits, result.logits))
        assert all((state(layer.keys)[..., 1] == 0).any() for layer in result.past_key_values.layers)


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("options", [BEAMS, {"max_new_tokens": 5}])
def test_inference_mode_changes_nothing(options: dict[str, Any], cache: str | None) -> None:
    model, tokens = llama(SETTINGS[1]), torch.randint(3, 60, (2, 20), generator=torch.Generator().manual_seed(0))
    options = {"do_sample": False, "output_logits": True, "return_dict_in_generate": True} | options
    expected = model.generate(tokens, past_key_values=hf.DynamicCache(config=model.config), **options)
    for mode in (torch.inference_mode, torch.no_grad, torch.inference_mode):
        with mode():
            result = model.generate(tokens, cache_implementation=cache, **options)
        assert torch.equal(expected.sequences, result.sequences)
        assert all(map(torch.equal, expected.logits, result.logits))
    if cache is None:
        with torch.inference_mode():
            result.past_key_values.batch_repeat_interleave(2)
        keys = result.past_key_values.layers[0].keys[:, :, :1]
        result.past_key_values.update(keys, keys, 0)


@pytest.mark.compile
def test_compiled_steps_do_without() -> None:
    model = llama(SETTINGS[1])
    tokens = torch.randint(3, 60, (2, 306), generator=torch.Generator().manual_seed(0))
    compiled: Any = torch.compile(model, backend="eager")

    def logits(cache: Any, calls: list[Any]) -> list[Tensor]:
        with torch.no_grad():
            model(tokens[:, :300], past_key_values=cache)
            return [call(tokens[:, i : i + 1], past_key_values=cache).logits for i, call in enumerate(calls, start=300)]

    expected = logits(hf.DynamicCache(config=model.config), [model] * 6)
    static, shadowed = (hf.StaticCache(config=model.config, max_cache_len=306) for _ in range(2))
    assert all(map(torch.equal, expected, logits(static, [model] * 6)))
    skip_keys(shadowed)
    for cache in (GrowingCache(model.config), shadowed):
        assert all(map(torch.equal, expected, logits(cache, [model, compiled, compiled, model, compiled, model])))
        layers: Any = cache.layers
        assert all(is_used(layer.keys) for layer in layers)  # again, in the eager step after a compiled one


def test_changes_of_a_static_cache_are_noticed() -> None:
    layer: Any = ShadowedStaticLayer(400)
    q, k, v = 3 * random(3, 6, 1, 32), random(3, 2, 390, 32), random(3, 2, 390, 32, seed=1)
    written = torch.arange(400) < 391
    for i in range(5):
        layer.update(k + i, v)
        layer.update(random(3, 2, 1, 32), random(3, 2, 1, 32))
        for change in (
            lambda: None,
            lambda: layer.reorder_cache(torch.tensor([1, 1, 0])),
            lambda: layer.keys.mul_(-1),
            lambda: setattr(layer, "keys", 2 * layer.keys),
        ):
            change()
            layer.cumulative_length -= 1
            keys, values = layer.update(random(3, 2, 1, 32, seed=i), random(3, 2, 1, 32, seed=i))
            assert_same(q, keys, values, written, mapping="t_softmax", t=2.0, edge=0.0)
            assert (state(keys)[..., 0] == 391).all()
        layer.reset()
