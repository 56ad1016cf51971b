"""A key-value cache that grows in place, for generation.

A layer of transformers' ``DynamicCache`` copies all of its keys and values at every step. Here it has room to grow, and
a step writes its own token. The keys have a shadow, which lets attention skip most of them; those of a static cache
that ``generate`` makes, too. Sliding windows, quantized and offloaded caches stay transformers' own.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedConfig, PreTrainedModel, StaticCache

from rsoftmax._tensors import is_recorded
from rsoftmax.attention.transformers import adapter
from rsoftmax.attention.transformers.adapter import DynamicLayer, StaticLayer
from rsoftmax.kernels.key_shadow import KeyShadow
from rsoftmax.registry import MAPPINGS

SPARE = 4  # a new buffer has room for a quarter more tokens; memory that is not written costs nothing


@contextmanager
def writable_in_every_mode(is_recorded: bool = False) -> Iterator[None]:
    """Make tensors that can be written in every mode; those of inference mode cannot, and have no version."""
    with torch.inference_mode(False), torch.set_grad_enabled(is_recorded):
        yield


class GrowingCache(DynamicCache):
    """A ``DynamicCache`` whose layers with full attention grow in place; it speeds up dense models, too.

    Args:
        config: the model's configuration, which tells layers with a sliding window from layers with full attention.
            Without it, all layers have full attention.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> sizes = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "intermediate_size": 8}
        >>> model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, eos_token_id=None))
        >>> cache = GrowingCache(model.config)
        >>> _ = model.generate(torch.tensor([[3, 4, 5]]), past_key_values=cache, max_new_tokens=2)
        >>> cache.get_seq_length()
        4

    ``generate`` uses it by itself after :func:`set_attention` and :func:`sparsify`, unless another cache is requested.
    Keys and values are the same numbers as in a ``DynamicCache``, but views of a larger tensor. After ``crop``, the
    next tokens overwrite the removed ones.
    """

    def __init__(self, config: PreTrainedConfig | None = None) -> None:
        super().__init__(config=config)
        grow_in_place(self)


class Buffer:
    """Memory for a tensor [batch, heads, tokens, width] that grows along its tokens, and its shadow.

    The tensor is recognized by identity. If another was put in its place, the next step copies that one. Each memory
    has a shadow of its own, so that tensors which still use the memory of before keep theirs.
    """

    def __init__(self) -> None:
        self.memory = self.used = torch.empty(0, 0, 0, 0)
        self.shadow = KeyShadow()

    def append(self, before: Tensor, new: Tensor) -> Tensor:
        """The tensor with further tokens."""
        start, end = before.shape[-2], before.shape[-2] + new.shape[-2]
        if before is not self.used or end > self.memory.shape[-2]:
            memory = new.new_empty((*new.shape[:2], end + end // SPARE, new.shape[-1]))
            memory[:, :, :start] = before
            is_same = before is self.used
            self.shadow = self.shadow.map(Tensor.clone, self.memory, memory) if is_same else KeyShadow()
            self.memory = memory
        with self.shadow.writing(self.memory, start):
            self.memory[:, :, start:end] = new
        return self._use(end)

    def crop(self, before: Tensor, count: int) -> Tensor:
        """The first tokens of the tensor."""
        return self._use(count) if before is self.used else before[:, :, :count]

    def map_batch(self, before: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        """The tensor with other elements along its batch dimension."""
        if before is not self.used:
            return change(before)
        memory = change(self.memory)
        self.shadow = self.shadow.map(change, self.memory, memory)
        self.memory = memory
        return self._use(before.shape[-2])

    def _use(self, tokens: int) -> Tensor:
        self.used = self.memory[:, :, :tokens]
        self.used.shadow = self.shadow  # type: ignore[attr-defined]
        return self.used


class GrowingLayer(DynamicLayer):
    """The keys and values of one layer with full attention."""

    keys: Any
    values: Any

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]
        self.buffers = Buffer(), Buffer()

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append tokens; by concatenation, as in ``DynamicLayer``, in compiled graphs and where autograd records."""
        new, before = (key_states, value_states), (self.keys, self.values)
        if torch.compiler.is_compiling() or is_recorded(*new, *before) or not _fit(before, new):
            return super().update(*new, *args, **kwargs)
        if not self.get_seq_length():
            self.lazy_initialization(*new)
            before = key_states[:, :, :0], value_states[:, :, :0]
        self._set(Buffer.append, before, new)
        return self.keys, self.values

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last ``-tokens_to_remove`` tokens."""
        before = self.keys, self.values
        super().crop(tokens_to_remove)
        if self.is_initialized:
            self._set(Buffer.crop, before, (self.get_seq_length(),) * 2)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the beams."""
        self._map_batch(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each element of the batch."""
        self._map_batch(lambda x: x.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Select elements of the batch."""
        self._map_batch(lambda x: x[indices])

    def _map_batch(self, change: Callable[[Tensor], Tensor]) -> None:
        if self.get_seq_length():
            self._set(Buffer.map_batch, (self.keys, self.values), (change, change))

    def _set(self, method: Callable[[Buffer, Tensor, Any], Tensor], before: Any, arguments: Any) -> None:
        with writable_in_every_mode(is_recorded(*before)):
            self.keys, self.values = map(method, self.buffers, before, arguments)


class ShadowedStaticLayer(StaticLayer):
    """One layer of a static cache with full attention, whose keys have a shadow."""

    keys: Any
    values: Any

    def __init__(self, max_cache_len: int, **options: Any) -> None:
        super().__init__(max_cache_len, **options)
        self.shadow = KeyShadow()

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write tokens; without a shadow in compiled graphs and where autograd records."""
        if torch.compiler.is_compiling() or is_recorded(key_states, value_states):
            return super().update(key_states, value_states, *args, **kwargs)
        with writable_in_every_mode():
            if not self.is_initialized:
                self.lazy_initialization(key_states, value_states)
            with self.shadow.writing(self.keys, int(self.get_seq_length())):
                super().update(key_states, value_states, *args, **kwargs)
        self.keys.shadow = self.shadow
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the beams."""
        before = self.keys
        with writable_in_every_mode():
            super().reorder_cache(beam_idx)  # type: ignore[arg-type]
            if self.keys is not before:
                self.shadow = self.shadow.map(lambda x: x.index_select(0, beam_idx.to(x.device)), before, self.keys)
                self.keys.shadow = self.shadow


def _fit(before: tuple[Tensor | None, ...], new: tuple[Tensor, ...]) -> bool:
    """Whether tokens can be copied behind others. Concatenation promotes dtypes, and raises if shapes differ."""
    return all(x is None or not x.numel() or _layout(x) == _layout(y) for x, y in zip(before, new, strict=True))


def _layout(x: Tensor) -> tuple[Any, ...]:
    return x.dtype, x.device, x.shape[:2], x.shape[3:]


def skip_keys(cache: StaticCache) -> None:
    """Give the keys of an empty static cache a shadow."""
    with writable_in_every_mode():
        cache.layers = [
            ShadowedStaticLayer(layer.max_cache_len)
            if type(layer) is StaticLayer and not layer.is_initialized
            else layer
            for layer in cache.layers
        ]


def grow_in_place(cache: DynamicCache) -> None:
    """Replace the layers of an empty cache that would copy all of their tokens at every step."""
    cache.layers = [GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    if cache.layer_class_to_replicate is DynamicLayer:
        cache.layer_class_to_replicate = GrowingLayer


def _prepare_cache_for_generation(
    original: Callable[..., Any],
    model: PreTrainedModel,
    generation_config: Any,
    model_kwargs: dict[str, Any],
    *args: Any,
    **options: Any,
) -> Any:
    """Let the cache that ``generate`` makes grow in place or skip keys if a mapping is in place of softmax."""
    given = model_kwargs.get("past_key_values")
    result = original(model, generation_config, model_kwargs, *args, **options)
    cache: Any = model_kwargs.get("past_key_values")
    cache = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
    is_default = given is None and not getattr(cache, "offloading", True)
    if is_default and adapter.implementation(model.config.get_text_config(decoder=True)) in MAPPINGS:
        if type(cache) is DynamicCache:
            grow_in_place(cache)
        elif type(cache) is StaticCache:
            skip_keys(cache)
    return result
