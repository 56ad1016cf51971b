"""What makes a sparse model come back from its folder: five small additions to transformers' own methods.

transformers does not save which attention a model uses, and has no place where a model under construction could be
given a part. So, for models that use a mapping of ours and for nobody else:

* a configuration writes the mapping into its ``attn_implementation``, which ``from_pretrained`` reads. A program that
  has not imported ``rsoftmax.huggingface`` then stops with transformers' error that there is no such implementation;
* if such a program has read and written the configuration alone, and ``attn_implementation`` is lost, the mapping is
  taken from our own entry;
* a model, when built, gets the rates of its configuration, before its weights are read: rates are among the weights;
* rates that the weights do not have keep the values of the configuration;
* a model that is told to use a mapping, or built with one, is refused if a part of it would stay dense.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, initialization

from rsoftmax.attention import ROW_MAPPINGS
from rsoftmax.huggingface.interface import HOLDER
from rsoftmax.huggingface.rate import Rate
from rsoftmax.huggingface.rates import build_rates, refuse_dense

Implementation = str | dict[str, Any] | None


def install() -> None:
    """Add them, once."""
    if hasattr(PreTrainedModel.post_init, "__wrapped__"):
        return
    for kind, method, addition in (
        (PreTrainedConfig, "to_dict", _names_its_attention),
        (PreTrainedModel, "_check_and_adjust_attn_implementation", _finds_its_attention),
        (PreTrainedModel, "post_init", _gets_its_rates),
        (PreTrainedModel, "_initialize_weights", _keeps_its_rates),
        (PreTrainedModel, "set_attn_implementation", _stays_whole),
    ):
        setattr(kind, method, addition(getattr(kind, method)))


def _names_its_attention(to_dict: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    @wraps(to_dict)
    def with_attention(config: PreTrainedConfig) -> dict[str, Any]:
        output = to_dict(config)
        if _sparse(chosen := _implementation(config)):
            output["attn_implementation"] = chosen
            output[HOLDER] = {**output.get(HOLDER, {}), "mapping": chosen}
        elif chosen is not None:  # who has made it dense has said so
            output.pop(HOLDER, None)
        return output

    return with_attention


def _implementation(config: PreTrainedConfig) -> Implementation:
    """The implementation of a configuration, or, where its parts differ, of each of them."""
    own: Implementation = config._attn_implementation
    named = {key: part for key in config.sub_configs if (part := getattr(config, key, None)) is not None}
    parts = {key: _implementation(part) or own for key, part in named.items()}
    return own if all(part == own for part in parts.values()) else {"": own, **parts}


def _sparse(chosen: Implementation) -> bool:
    return any(map(_sparse, chosen.values())) if isinstance(chosen, dict) else chosen in ROW_MAPPINGS


def _finds_its_attention(check: Callable[..., str]) -> Callable[..., str]:
    @wraps(check)
    def with_ours(model: PreTrainedModel, attn_implementation: str | None, *args: Any, **options: Any) -> str:
        if attn_implementation is None and isinstance(ours := getattr(model.config, HOLDER, {}).get("mapping"), str):
            attn_implementation = ours
        return check(model, attn_implementation, *args, **options)

    return with_ours


def _gets_its_rates(post_init: Callable[[PreTrainedModel], None]) -> Callable[[PreTrainedModel], None]:
    @wraps(post_init)
    def with_rates(model: PreTrainedModel) -> None:
        build_rates(model)
        post_init(model)
        if hasattr(model.config, HOLDER):
            # Half precision would round what is read; and who reads a sparse model as a dense one has said so.
            model._keep_in_fp32_modules_strict = {*(model._keep_in_fp32_modules_strict or ()), HOLDER}
            ignored = model._keys_to_ignore_on_load_unexpected or ()
            model._keys_to_ignore_on_load_unexpected = {*ignored, rf"\.{HOLDER}\."}

    return with_rates


def _keeps_its_rates(initialize: Callable[..., None]) -> Callable[..., None]:
    @wraps(initialize)
    def with_rates(model: PreTrainedModel, module: nn.Module, *args: Any) -> None:
        if isinstance(module, Rate):
            initialization.copy_(module.stored, module.start)  # which leaves alone what was read from a file
        else:
            initialize(model, module, *args)

    return with_rates


def _stays_whole(change: Callable[..., None]) -> Callable[..., None]:
    @wraps(change)
    def checked(model: PreTrainedModel, attn_implementation: str | dict[str, Any], *args: Any, **options: Any) -> None:
        if _sparse(attn_implementation):
            refuse_dense(model)
        change(model, attn_implementation, *args, **options)

    return checked
