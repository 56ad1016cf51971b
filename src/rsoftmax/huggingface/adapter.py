"""Everything that this package assumes about the inside of transformers, and nothing else.

The other files use the words of this one and transformers' public names. ``tests/test_huggingface_contract.py`` has a
test for each assumption: if a release of transformers breaks one, that test says which, and the repair is here.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    logging,
)
from transformers.masking_utils import sdpa_mask
from transformers.utils import output_capturing
from transformers.utils.generic import ModelOutput as ModelOutput

Implementation = str | dict[str, Any] | None
"""The name of an attention function; for a model of several parts, a dictionary with the name of each."""

AttentionFunction = Callable[..., tuple[Tensor, Tensor | None]]
Module = TypeVar("Module", bound=nn.Module)

# ------------------------------------------------------------------------------------------- calls of attention

RESERVED = re.compile("eager|sdpa|flash|flex_attention|paged|/")
"""Names of attention functions that contain one of these are treated in a way of their own."""

UNSUPPORTED = ("softcap", "s_aux", "cache", "indices", "block_indices")
"""What a model may ask of its attention function besides scale, mask, bias and dropout."""

BY_HAND = {
    "softmax", "Softmax", "scaled_dot_product_attention", "multi_head_attention_forward",
    "eager_attention_forward", "ALL_ATTENTION_FUNCTIONS",
}  # fmt: skip
"""Names in the code of an attention module that computes its weights, or looks its function up in its own way."""

WITHOUT_WEIGHTS = "rsoftmax_without_weights"
"""The name of an attention function that computes no weights."""

HIDDEN = -1000.0
"""Older models hide a key by adding a number like -1e4 to its score, never a higher one than this."""


def register(name: str, attend: AttentionFunction) -> None:
    """Make an attention function known to transformers under a name, in place of one that had it before.

    A function without a mask function of the same name would be called without any mask: both are registered.
    """
    if found := RESERVED.search(name):
        raise ValueError(f"{name!r} cannot be an attn_implementation: transformers reserves names with {found[0]!r}")
    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, keep_mask)


def keep_mask(*args: Any, **options: Any) -> Tensor | None:
    """The mask of a call as booleans, True = keep; never None because torch's own kernel could do without it."""
    mask: Tensor | None = sdpa_mask(
        *args, **{**options, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    )
    return mask


def attend_without_weights(model: PreTrainedModel) -> None:
    """Let a model use a function that computes no attention weights, and answers with zeros."""

    def zeros(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: Any, **options: Any) -> Any:
        return value.new_zeros(*query.transpose(1, 2).shape[:-1], value.shape[-1]), None

    register(WITHOUT_WEIGHTS, zeros)
    for part in (model, *overlooked_parts(model)):
        part.set_attn_implementation(WITHOUT_WEIGHTS)


def is_causal(module: nn.Module, asked: bool | None, queries: int) -> bool:
    """Whether a call without a mask lets no query see a later key. A single query is the last one: it sees all."""
    causal = getattr(module, "is_causal", True) if asked is None else asked
    return bool(causal) and queries > 1


def weights_wanted(options: dict[str, Any]) -> bool:
    """Whether the caller of the model asked for its attention weights; some models do not pass that on in a call."""
    if options.get("output_attentions") or torch.compiler.is_compiling():
        return bool(options.get("output_attentions"))
    collected = output_capturing._active_collector.get()
    return collected is not None and any("attentions" in key for key in collected)


# ------------------------------------------------------------------------------------------- models as they are


def implementation(config: PreTrainedConfig) -> str | None:
    """The name of the attention function that a configuration, or the module that has it, uses."""
    name: str | None = config._attn_implementation
    return name


def implementations(config: PreTrainedConfig) -> Implementation:
    """The same, or a dictionary where parts of the configuration use another one than the whole."""
    own = implementation(config)
    configs = {key: part for key in config.sub_configs if (part := getattr(config, key, None)) is not None}
    parts = {key: implementations(part) or own for key, part in configs.items()}
    return own if all(part == own for part in parts.values()) else {"": own, **parts}


def attention_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that ask transformers which attention function to call, under their names."""
    return {name: module for name, module in model.named_modules() if asks(module)}


def dense_attention(model: nn.Module) -> set[str]:
    """The classes of modules whose code computes attention weights, or looks its function up in another way."""
    return {type(module).__name__ for module in model.modules() if _computes_weights(module)}


def asks(module: nn.Module) -> bool:
    """Whether a module asks transformers which attention function to call."""
    return "get_interface" in _names_called_by(module)


def is_called_attention(module: nn.Module) -> bool:
    """Whether the name of a module's class says that it attends."""
    return bool(re.search("Attention|Attn", type(module).__name__))


def configurations(config: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    """A configuration and those of its parts."""
    yield config
    for key in config.sub_configs:
        if (part := getattr(config, key, None)) is not None:
            yield from configurations(part)


def overlooked_parts(model: PreTrainedModel) -> list[PreTrainedModel]:
    """The parts that ``set_attn_implementation`` passes over in releases before 5.20.

    These are models with a copy of the whole model's configuration, as the encoder and the decoder of T5.
    """
    parts = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    return [part for part in parts if part.config is not model.config and type(part.config) is type(model.config)]


def head_count(module: nn.Module) -> int | None:
    """How many heads an attention module has, or None if it does not say."""
    words = ("num_heads", "num_attention_heads", "n_heads")
    found = (getattr(place, word, None) for place in (module, getattr(module, "config", None)) for word in words)
    return next((count for count in found if isinstance(count, int)), None)


def _computes_weights(module: nn.Module) -> bool:
    by_hand = not asks(module) and is_called_attention(module) and _names_called_by(module) & BY_HAND
    return isinstance(module, nn.MultiheadAttention) or bool(by_hand)


def _names_called_by(module: nn.Module) -> frozenset[str]:
    kind: type = type(module)
    return _names(kind)


@cache
def _names(kind: type) -> frozenset[str]:
    """The names in the byte code of a class's methods: what they call."""
    bases = [base for base in kind.__mro__ if base not in (nn.Module, object)]
    members = [inspect.unwrap(member) for base in bases for member in vars(base).values() if inspect.isfunction(member)]
    return frozenset(name for member in members for name in member.__code__.co_names)


# ------------------------------------------------------------------------------------------- models as they change

MARK = "_extended_by_rsoftmax"
"""The attribute of a class of transformers that names the methods that are extended already."""


def when_config_is_written(change: Callable[[PreTrainedConfig, dict[str, Any]], None]) -> None:
    """Call ``change(config, written)`` with every dictionary that a configuration is written as."""

    def to_dict(original: Callable[..., dict[str, Any]], config: PreTrainedConfig) -> dict[str, Any]:
        written = original(config)
        change(config, written)
        return written

    _extend(PreTrainedConfig, to_dict)


def when_attention_is_checked(choose: Callable[[PreTrainedConfig, str | None], str | None]) -> None:
    """Check the implementation ``choose(config, name)`` when a model under construction was given ``name``, or None."""

    def _check_and_adjust_attn_implementation(
        original: Callable[..., str],
        model: PreTrainedModel,
        attn_implementation: str | None,
        *args: Any,
        **options: Any,
    ) -> str:
        return original(model, choose(model.config, attn_implementation), *args, **options)

    _extend(PreTrainedModel, _check_and_adjust_attn_implementation)


def when_modules_are_built(add: Callable[[PreTrainedModel], None]) -> None:
    """Call ``add(model)`` when a model has all its modules, and before its weights are read."""

    def post_init(original: Callable[..., None], model: PreTrainedModel) -> None:
        add(model)
        original(model)

    _extend(PreTrainedModel, post_init)


def when_weights_are_initialized(
    kind: type[Module], stored: Callable[[Module], Tensor], initial: Callable[[Module], Tensor]
) -> None:
    """Give ``stored(module)`` the value ``initial(module)`` unless it was read from a file; for modules of a class."""

    def _initialize_weights(
        original: Callable[..., None], model: PreTrainedModel, module: nn.Module, *args: Any, **options: Any
    ) -> None:
        if not isinstance(module, kind):
            original(model, module, *args, **options)
        elif not getattr(stored(module), "_is_hf_initialized", False):
            initialization.copy_(stored(module), initial(module))

    _extend(PreTrainedModel, _initialize_weights)


def when_attention_is_set(check: Callable[[PreTrainedModel, Implementation], None]) -> None:
    """Call ``check(model, implementation)`` before a model is given another implementation."""

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


def when_model_is_saved(left_out: Callable[[PreTrainedModel], set[str]]) -> None:
    """Leave the tensors of these names out of the files of a model."""

    def save_pretrained(original: Callable[..., Any], model: PreTrainedModel, *args: Any, **options: Any) -> Any:
        before = model._keys_to_ignore_on_save
        model._keys_to_ignore_on_save = {*(before or ()), *left_out(model)}
        try:
            return original(model, *args, **options)
        finally:
            model._keys_to_ignore_on_save = before

    _extend(PreTrainedModel, save_pretrained)


def builds_for_reading() -> bool:
    """Whether models that are built now are to be read from files: they are built without values."""
    return torch.get_default_device().type == "meta"


def keep_in_float32(model: PreTrainedModel, submodule: str) -> None:
    """Read the tensors of submodules of this name as float32, whatever dtype a model is read in."""
    model._keep_in_fp32_modules_strict = [*(model._keep_in_fp32_modules_strict or ()), submodule]


def expect_in_files(model: PreTrainedModel, pattern: str) -> None:
    """Do not report tensors of a file whose names match, and that the model does not have."""
    model._keys_to_ignore_on_load_unexpected = [*(model._keys_to_ignore_on_load_unexpected or ()), pattern]


def _extend(kind: type, around: Callable[..., Any]) -> None:
    """Let ``around(original, ...)`` be what a class does for its method of the same name, unless it is already.

    The mark is on the class and has a name of our own. A mark on the function would be hidden, or copied, by another
    library that wraps the method.
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


# ------------------------------------------------------------------------------------------- messages


@contextmanager
def quiet() -> Iterator[None]:
    """Within it, transformers shows no progress bars and logs errors only; also a decorator."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
