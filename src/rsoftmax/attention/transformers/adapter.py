"""Everything this package assumes about the internals of transformers, and nothing else.

The other modules use this one and transformers' public names. ``tests/test_huggingface_adapter.py`` has a test for
each assumption. If a release of transformers breaks one, that test names it, and the fix belongs here.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache, wraps
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    PreTrainedConfig,
    PreTrainedModel,
    initialization,
)
from transformers.masking_utils import sdpa_mask
from transformers.utils import output_capturing
from transformers.utils.generic import ModelOutput as ModelOutput

Implementation = str | dict[str, Any] | None
"""The name of an attention function; for a composite model, a dictionary with one name per part."""

AttentionFunction = Callable[..., tuple[Tensor, Tensor | None]]
Module = TypeVar("Module", bound=nn.Module)

# ------------------------------------------------------------------------------------------- calls of attention

RESERVED = re.compile("eager|sdpa|flash|flex_attention|paged|/")
"""transformers gives a special meaning to attention functions whose names contain one of these."""

UNSUPPORTED = ("softcap", "s_aux", "cache", "indices", "block_indices")
"""Options of an attention call that no mapping supports."""

BY_HAND = {
    "softmax", "Softmax", "scaled_dot_product_attention", "multi_head_attention_forward",
    "eager_attention_forward", "ALL_ATTENTION_FUNCTIONS",
}  # fmt: skip
"""Names in the code of an attention module that computes its own weights or bypasses ``get_interface``."""

WITHOUT_WEIGHTS = "rsoftmax_without_weights"
"""The name of an attention function that computes no weights and returns zeros."""

HIDDEN = -1000.0
"""A key counts as masked if at most this is added to its score: some models mask by adding -1e4, for example."""


def register(name: str, attend: AttentionFunction) -> None:
    """Register an attention function with transformers, replacing one of the same name.

    A mask function of the same name is registered too. Without it, transformers would silently drop every mask.
    """
    if found := RESERVED.search(name):
        raise ValueError(f"{name!r} cannot be an attn_implementation: transformers reserves names with {found[0]!r}")
    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, make_mask)


def make_mask(*args: Any, config: PreTrainedConfig | None = None, **options: Any) -> Tensor | None:
    """The mask of a call as booleans, True = keep, or None where SDPA needs none.

    None means what it means to transformers' SDPA function: causal if :func:`is_causal`, else nothing is masked. Models
    without SDPA support are not tested with it, and always get a mask.
    """
    if type(config) in NEEDS_MASK:
        options |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    mask: Tensor | None = sdpa_mask(*args, **options)
    return mask


NEEDS_MASK: set[type] = set()
"""The configuration classes of models without SDPA support."""


def note_mask_support(model: PreTrainedModel) -> None:
    """Remember which parts of a model do not support SDPA."""
    parts = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    NEEDS_MASK.update(type(part.config) for part in parts if not part._supports_sdpa)


def attend_without_weights(model: PreTrainedModel) -> None:
    """Make a model use an attention function that computes no weights and returns zeros."""

    def zeros(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: Any, **options: Any) -> Any:
        return value.new_zeros(*query.transpose(1, 2).shape[:-1], value.shape[-1]), None

    register(WITHOUT_WEIGHTS, zeros)
    for part in (model, *overlooked_parts(model)):
        part.set_attn_implementation(WITHOUT_WEIGHTS)


def is_causal(module: nn.Module, asked: bool | None, queries: int) -> bool:
    """Whether a call without a mask is causal. A single query is the last one and sees every key."""
    causal = getattr(module, "is_causal", True) if asked is None else asked
    return bool(causal) and queries > 1


def weights_wanted(options: dict[str, Any]) -> bool:
    """Whether the caller asked for attention weights. Some models do not pass ``output_attentions`` on."""
    if options.get("output_attentions") or torch.compiler.is_compiling():
        return bool(options.get("output_attentions"))
    collected = output_capturing._active_collector.get()
    return collected is not None and any("attentions" in key for key in collected)


# ------------------------------------------------------------------------------------------- inspecting models


def implementation(config: PreTrainedConfig) -> str | None:
    """The attention implementation that a configuration selects."""
    name: str | None = config._attn_implementation
    return name


def implementations(config: PreTrainedConfig) -> Implementation:
    """The attention implementation, or a dictionary if parts of the configuration differ from the whole."""
    own = implementation(config)
    configs = {key: part for key in config.sub_configs if (part := getattr(config, key, None)) is not None}
    parts = {key: implementations(part) or own for key, part in configs.items()}
    return own if all(part == own for part in parts.values()) else {"": own, **parts}


def attention_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that look up their attention function in transformers' ``AttentionInterface``, by name."""
    return {name: module for name, module in model.named_modules() if uses_interface(module)}


def dense_attention(model: nn.Module) -> set[str]:
    """The classes of modules whose code computes attention weights or bypasses ``get_interface``."""
    return {type(module).__name__ for module in model.modules() if _computes_weights(module)}


def uses_interface(module: nn.Module) -> bool:
    """Whether a module looks up its attention function in transformers' ``AttentionInterface``."""
    return "get_interface" in _names_called_by(module)


def is_named_attention(module: nn.Module) -> bool:
    """Whether a module's class name contains "Attention"."""
    return bool(re.search("Attention|Attn", type(module).__name__))


def configurations(config: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    """A configuration and the configurations of its parts."""
    yield config
    for key in config.sub_configs:
        if (part := getattr(config, key, None)) is not None:
            yield from configurations(part)


def architecture(config: PreTrainedConfig) -> dict[str, Any]:
    """The settings of a configuration and its parts, without those about attention implementations and dtypes."""

    def strip(settings: dict[str, Any]) -> dict[str, Any]:
        kept = {
            name: value for name, value in settings.items() if name not in ("attn_implementation", "rsoftmax", "dtype")
        }
        return {name: strip(value) if isinstance(value, dict) else value for name, value in kept.items()}

    return strip(config.to_dict())


def overlooked_parts(model: PreTrainedModel) -> list[PreTrainedModel]:
    """The parts that ``set_attn_implementation`` skips in releases before 5.20.

    These models have a copy of the whole model's configuration, like the encoder and decoder of T5.
    """
    parts = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    return [part for part in parts if part.config is not model.config and type(part.config) is type(model.config)]


def head_count(module: nn.Module) -> int | None:
    """The number of heads of an attention module, or None if it cannot be found."""
    words = ("num_heads", "num_attention_heads", "n_heads")
    found = (getattr(place, word, None) for place in (module, getattr(module, "config", None)) for word in words)
    return next((count for count in found if isinstance(count, int)), None)


def _computes_weights(module: nn.Module) -> bool:
    by_hand = not uses_interface(module) and is_named_attention(module) and _names_called_by(module) & BY_HAND
    return isinstance(module, nn.MultiheadAttention) or bool(by_hand)


def _names_called_by(module: nn.Module) -> frozenset[str]:
    kind: type = type(module)
    return _names(kind)


@cache
def _names(kind: type) -> frozenset[str]:
    """The names used in the byte code of a class's methods."""
    bases = [base for base in kind.__mro__ if base not in (nn.Module, object)]
    members = [inspect.unwrap(member) for base in bases for member in vars(base).values() if inspect.isfunction(member)]
    return frozenset(name for member in members for name in member.__code__.co_names)


# ------------------------------------------------------------------------------------------- hooks

MARK = "_extended_by_rsoftmax"
"""The attribute of a transformers class that lists its extended methods."""


def on_config_to_dict(change: Callable[[PreTrainedConfig, dict[str, Any]], None]) -> None:
    """Call ``change(config, written)`` on the dictionary of every ``config.to_dict()``."""

    def to_dict(original: Callable[..., dict[str, Any]], config: PreTrainedConfig) -> dict[str, Any]:
        written = original(config)
        change(config, written)
        return written

    _extend(PreTrainedConfig, to_dict)


def on_attention_check(choose: Callable[[PreTrainedConfig, str | None], str | None]) -> None:
    """Use ``choose(config, name)`` in place of the requested ``name``, or None, for a model under construction."""

    def _check_and_adjust_attn_implementation(
        original: Callable[..., str],
        model: PreTrainedModel,
        attn_implementation: str | None,
        *args: Any,
        **options: Any,
    ) -> str:
        return original(model, choose(model.config, attn_implementation), *args, **options)

    _extend(PreTrainedModel, _check_and_adjust_attn_implementation)


def on_modules_built(add: Callable[[PreTrainedModel], None]) -> None:
    """Call ``add(model)`` when a model has all its modules, before its checkpoint is read."""

    def post_init(original: Callable[..., None], model: PreTrainedModel) -> None:
        add(model)
        original(model)

    _extend(PreTrainedModel, post_init)


def on_weights_initialized(
    kind: type[Module], initial: Callable[[Module], Iterable[tuple[Tensor, Callable[[], Tensor]]]]
) -> None:
    """Initialize tensors of a module class that the checkpoint lacks; ``initial(module)`` yields them with values."""

    def _initialize_weights(
        original: Callable[..., None], model: PreTrainedModel, module: nn.Module, *args: Any, **options: Any
    ) -> None:
        if not isinstance(module, kind):
            original(model, module, *args, **options)
            return
        for stored, value in initial(module):
            if not getattr(stored, "_is_hf_initialized", False):
                initialization.copy_(stored, value())

    _extend(PreTrainedModel, _initialize_weights)


def on_attention_set(check: Callable[[PreTrainedModel, Implementation], None]) -> None:
    """Call ``check(model, implementation)`` before a model changes its attention implementation."""

    def set_attn_implementation(
        original: Callable[..., None],
        model: PreTrainedModel,
        attn_implementation: Implementation,
        *args: Any,
        **options: Any,
    ) -> None:
        check(model, attn_implementation)
        original(model, attn_implementation, *args, **options)

    _extend(PreTrainedModel, set_attn_implementation)


def on_model_saved(left_out: Callable[[PreTrainedModel], set[str]]) -> None:
    """Leave the tensors named by ``left_out(model)`` out of the checkpoint."""

    def save_pretrained(original: Callable[..., Any], model: PreTrainedModel, *args: Any, **options: Any) -> Any:
        before = model._keys_to_ignore_on_save
        model._keys_to_ignore_on_save = {*(before or ()), *left_out(model)}
        try:
            return original(model, *args, **options)
        finally:
            model._keys_to_ignore_on_save = before

    _extend(PreTrainedModel, save_pretrained)


def is_loading() -> bool:
    """Whether a model under construction will be loaded from a checkpoint: it is built on the meta device."""
    return torch.get_default_device().type == "meta"


def keep_in_float32(model: PreTrainedModel, submodule: str) -> None:
    """Load the tensors of submodules of this name in float32, whatever the model's dtype."""
    model._keep_in_fp32_modules_strict = [*(model._keep_in_fp32_modules_strict or ()), submodule]


def ignore_in_checkpoint(model: PreTrainedModel, pattern: str) -> None:
    """Do not report unexpected tensors of a checkpoint whose names match."""
    model._keys_to_ignore_on_load_unexpected = [*(model._keys_to_ignore_on_load_unexpected or ()), pattern]


def _extend(kind: type, around: Callable[..., Any]) -> None:
    """Wrap the method of the same name once: calls become ``around(original, ...)``.

    The mark is on the class. Another library that wraps the method would hide or copy a mark on the function.
    """
    name, extended = around.__name__, vars(kind).get(MARK, frozenset())
    if name not in extended:
        setattr(kind, name, _around(around, getattr(kind, name)))
        setattr(kind, MARK, extended | {name})


def _around(around: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def extended(*args: Any, **options: Any) -> Any:
        return around(original, *args, **options)

    return extended
