"""What makes a sparse model come back from its folder: three small additions to transformers' own methods.

transformers does not save which attention a model uses, and has no place where a model under construction could be
given a part. So, for models that use a mapping of ours and for nobody else:

* a configuration writes the mapping into its ``attn_implementation``, which ``from_pretrained`` reads. A program that
  has not imported ``rsoftmax.huggingface`` then stops with transformers' error that there is no such implementation;
* a model, when built, gets the rates of its configuration, before its weights are read: rates are among the weights;
* rates that the weights do not have keep the values of the configuration.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, initialization

from rsoftmax.attention import ROW_MAPPINGS
from rsoftmax.huggingface.interface import HOLDER
from rsoftmax.huggingface.rate import Rate
from rsoftmax.huggingface.rates import build_rates


def install() -> None:
    """Add them, once."""
    if hasattr(PreTrainedModel.post_init, "__wrapped__"):
        return
    PreTrainedConfig.to_dict = _names_its_attention(PreTrainedConfig.to_dict)  # type: ignore[method-assign]
    PreTrainedModel.post_init = _gets_its_rates(PreTrainedModel.post_init)  # type: ignore[method-assign]
    PreTrainedModel._initialize_weights = _keeps_its_rates(PreTrainedModel._initialize_weights)  # type: ignore[method-assign]


def _names_its_attention(to_dict: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    @wraps(to_dict)
    def with_attention(config: PreTrainedConfig) -> dict[str, Any]:
        output = to_dict(config)
        chosen = _implementation(config)
        if chosen in ROW_MAPPINGS if isinstance(chosen, str) else chosen is not None:
            output["attn_implementation"] = chosen
        return output

    return with_attention


def _implementation(config: PreTrainedConfig) -> str | dict[str, Any] | None:
    """The implementation of a configuration; where a part of it has another one of ours, that of each part."""
    own: str | None = config._attn_implementation
    parts = {key: _implementation(part) for key in config.sub_configs if (part := getattr(config, key, None))}
    if any(part != own and (isinstance(part, dict) or part in ROW_MAPPINGS) for part in parts.values()):
        return {"": own, **parts}
    return own


def _gets_its_rates(post_init: Callable[[PreTrainedModel], None]) -> Callable[[PreTrainedModel], None]:
    @wraps(post_init)
    def with_rates(model: PreTrainedModel) -> None:
        build_rates(model)
        post_init(model)
        # In half precision rates would be rounded when read; and who reads a sparse model as a dense one chose to.
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
