"""Everything this package assumes about the internals of transformers, and nothing else.

The other modules use this one and transformers' public names. ``tests/test_attention_transformers_adapter.py`` has a
test for each assumption. If a release of transformers breaks one, that test names it, and the fix belongs here.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel, initialization
from transformers.cache_utils import DynamicLayer as DynamicLayer  # the base of a layer that grows in place
from transformers.cache_utils import StaticLayer as StaticLayer
from transformers.masking_utils import sdpa_mask
from transformers.utils import output_capturing

Implementation = str | dict[str, Any] | None
"""The name of an attention function; for a composite model, a dictionary with one name per part."""

# ------------------------------------------------------------------------------------------- calls of attention

RESERVED = re.compile("eager|sdpa|flash|flex_attention|paged|/")
"""transformers gives a special meaning to attention functions whose names contain one of these."""

UNSUPPORTED = ("softcap", "s_aux", "cache", "indices", "block_indices")
"""Options of an attention call that no mapping supports."""

FUSED_ATTENTION = {"scaled_dot_product_attention", "multi_head_attention_forward"}
HANDWRITTEN_ATTENTION = {*FUSED_ATTENTION, "softmax", "Softmax", "eager_attention_forward", "ALL_ATTENTION_FUNCTIONS"}
"""Names in the code of an attention module that computes its own weights or bypasses ``get_interface``."""

MASKED = -1000.0
"""A key counts as masked if at most this is added to its score: some models mask by adding -1e4, for example."""


def register(name: str, attend: Callable[..., tuple[Tensor, Tensor | None]]) -> None:
    """Register an attention function with transformers, replacing one of the same name.

    A mask function of the same name is registered too. Without it, transformers would silently drop every mask.
    """
    if match := RESERVED.search(name):
        raise ValueError(f"{name!r} cannot be an attn_implementation: transformers reserves names with {match[0]!r}")
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
    NEEDS_MASK.update(type(part.config) for part in _models_in(model) if not part._supports_sdpa)


def _models_in(model: nn.Module) -> list[PreTrainedModel]:
    return [part for part in model.modules() if isinstance(part, PreTrainedModel)]


def is_causal(module: nn.Module, option: bool | None, queries: int) -> bool:
    """Whether a call without a mask is causal. A single query is the last one and sees every key."""
    causal = getattr(module, "is_causal", True) if option is None else option
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
    whole = implementation(config)
    configs = {key: part for key in config.sub_configs if (part := getattr(config, key, None)) is not None}
    parts = {key: implementations(part) or whole for key, part in configs.items()}
    return whole if all(part == whole for part in parts.values()) else {"": whole, **parts}


def attention_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that look up their attention function in transformers' ``AttentionInterface``, by name."""
    return {name: module for name, module in model.named_modules() if uses_interface(module)}


def dense_attention(model: nn.Module) -> set[str]:
    """The classes of modules that compute their own attention weights, judged by the names in their code."""
    kinds: set[type] = {type(module) for module in model.modules() if not uses_interface(module)}
    dense = {kind.__name__ for kind in kinds if issubclass(kind, nn.MultiheadAttention)}
    for kind in kinds:
        names = HANDWRITTEN_ATTENTION if re.search("Attention|Attn", kind.__name__) else FUSED_ATTENTION
        if names & _names_in_code(kind) and not kind.__module__.startswith("torch."):
            dense.add(kind.__name__)
    return dense


def uses_interface(module: nn.Module) -> bool:
    """Whether a module looks up its attention function in transformers' ``AttentionInterface``."""
    kind: type = type(module)
    return "get_interface" in _names_in_code(kind)


def configurations(config: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    """A configuration and the configurations of its parts."""
    yield config
    for key in config.sub_configs:
        if (part := getattr(config, key, None)) is not None:
            yield from configurations(part)


def torch_implementation(model: PreTrainedModel) -> str:
    """The name of torch's own attention; of the model's code where it does not support that."""
    return "sdpa" if all(part._supports_sdpa for part in _models_in(model)) else "eager"


def overlooked_parts(model: PreTrainedModel) -> list[PreTrainedModel]:
    """The parts that ``set_attn_implementation`` skips in releases before 5.20.

    These models have a copy of the whole model's configuration, like the encoder and decoder of T5.
    """
    parts = ((part, part.config) for part in _models_in(model))
    return [part for part, config in parts if config is not model.config and type(config) is type(model.config)]


def head_count(module: nn.Module) -> int | None:
    """The number of heads of an attention module; None if neither it nor its configuration says."""
    names = ("num_heads", "num_attention_heads", "n_heads")
    counts = (getattr(owner, name, None) for owner in (module, getattr(module, "config", None)) for name in names)
    return next((count for count in counts if isinstance(count, int)), None)


@cache
def _names_in_code(kind: type) -> frozenset[str]:
    """The names used in the byte code of a class's methods."""
    bases = [base for base in kind.__mro__ if base not in (nn.Module, object)]
    members = [inspect.unwrap(member) for base in bases for member in vars(base).values() if inspect.isfunction(member)]
    return frozenset(name for member in members for name in member.__code__.co_names)


# ------------------------------------------------------------------------------------------- logits of language models


def has_head(model: nn.Module) -> bool:
    """Whether a model is a decoder that can compute the logits of some tokens alone, from its base model's output."""
    if not isinstance(model, PreTrainedModel) or model.base_model is model or model.config.is_encoder_decoder:
        return False
    return "logits_to_keep" in inspect.signature(model.forward).parameters


def without_logits(model: nn.Module, batch: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs with which a decoder computes the logits of the last token alone, and no loss."""
    if not has_head(model):
        return dict(batch)
    return {name: value for name, value in batch.items() if name != "labels"} | {"logits_to_keep": 1}


def run_base(model: PreTrainedModel, batch: Mapping[str, Any]) -> Any:
    """The output of the base model of a decoder, without its cache."""
    outputs: list[Any] = []
    with model.base_model.register_forward_hook(lambda module, inputs, output: outputs.append(output)):
        model(**without_logits(model, batch))
    output = outputs[-1]
    return type(output)(**{name: value for name, value in output.items() if name != "past_key_values"})


def run_head(model: PreTrainedModel, batch: Mapping[str, Any], output: Any, tokens: Tensor) -> Tensor:
    """The logits of some tokens of each text, from the output of the base model, which does not run again."""
    base = model.base_model
    before = vars(base).get("forward")
    base.forward = lambda *inputs, **options: output
    try:
        logits: Tensor = model(**without_logits(model, batch) | {"logits_to_keep": tokens}).logits
    finally:
        vars(base).pop("forward")
        if before is not None:
            base.forward = before
    return logits


# ------------------------------------------------------------------------------------------- changing transformers

MARK = "_extended_by_rsoftmax"
"""The attribute of a transformers class that lists its extended methods."""


def extend(kind: type, around: Callable[..., Any]) -> None:
    """Wrap the method of the same name once: calls become ``around(original, ...)``.

    The mark is on the class. Another library that wraps the method would hide or copy a mark on the function.
    """
    name, extended = around.__name__, vars(kind).get(MARK, frozenset())
    if name in extended:
        return
    original = getattr(kind, name)

    @wraps(original)
    def method(*args: Any, **options: Any) -> Any:
        return around(original, *args, **options)

    setattr(kind, name, method)
    setattr(kind, MARK, extended | {name})


def initialize(tensor: Tensor, value: Callable[[], Tensor]) -> None:
    """Fill a tensor of a model, unless it was read from a checkpoint."""
    if not getattr(tensor, "_is_hf_initialized", False):
        initialization.copy_(tensor, value())


@contextmanager
def ignoring_on_save(model: PreTrainedModel, names: set[str]) -> Iterator[None]:
    """Leave tensors out of the checkpoints that are saved within the block."""
    before = model._keys_to_ignore_on_save
    model._keys_to_ignore_on_save = {*(before or ()), *names}
    try:
        yield
    finally:
        model._keys_to_ignore_on_save = before


def is_loading() -> bool:
    """Whether a model under construction will be loaded from a checkpoint: it is built on the meta device."""
    return torch.get_default_device().type == "meta"


def keep_in_float32(model: PreTrainedModel, submodule: str) -> None:
    """Load the tensors of submodules of this name in float32, whatever the model's dtype."""
    model._keep_in_fp32_modules_strict = [*(model._keep_in_fp32_modules_strict or ()), submodule]


def ignore_in_checkpoint(model: PreTrainedModel, pattern: str) -> None:
    """Do not report unexpected tensors of a checkpoint whose names match."""
    model._keys_to_ignore_on_load_unexpected = [*(model._keys_to_ignore_on_load_unexpected or ()), pattern]
