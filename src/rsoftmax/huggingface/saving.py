"""What makes a sparse model come back from its folder: six small additions to transformers' own methods.

transformers does not save which attention a model uses, and has no place where a model under construction could be
given a part. So, for models that use a mapping of ours and for no others:

* ``PreTrainedConfig.to_dict``: a configuration writes the mapping into its ``attn_implementation``, which
  ``from_pretrained`` reads. A program that has not imported ``rsoftmax.huggingface`` then stops with transformers'
  error that there is no such implementation;
* ``PreTrainedModel._check_and_adjust_attn_implementation``: if such a program has read and written the configuration
  alone, and ``attn_implementation`` is lost, the mapping is taken from our own entry;
* ``PreTrainedModel.post_init``: a model, when built, gets the mapping's parameter for each head, before its weights are
  read: the parameters are among the weights;
* ``PreTrainedModel._initialize_weights``: parameters that the weights do not have keep the values of the configuration;
* ``PreTrainedModel.set_attn_implementation``: a model that is told to use a mapping is refused if a part of it would
  stay dense;
* ``PreTrainedModel.save_pretrained``: parameters of a mapping that is no longer used, as after
  ``set_attn_implementation("sdpa")``, are not saved. The model keeps them: it can be told to use the mapping again.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from rsoftmax.attention import ROW_MAPPINGS
from rsoftmax.huggingface import adapter
from rsoftmax.huggingface.adapter import Implementation
from rsoftmax.huggingface.attend import register
from rsoftmax.huggingface.head_parameter import (
    ATTRIBUTE,
    DoesNotFitError,
    HeadParameter,
    HeadValues,
    attach,
    held_by,
    plain,
    spread,
)
from rsoftmax.huggingface.models import head_counts, refuse_dense
from rsoftmax.rows import Parameter

ENTRY = "rsoftmax"
"""The entry of a configuration that says what :func:`set_attention` was called with."""

SOURCE = f"config.json, entry {ENTRY!r}"
"""Where error messages say that a wrong setting was found."""


def install() -> None:
    """Add them; again changes nothing."""
    adapter.when_config_is_written(_write_mapping)
    adapter.when_attention_is_checked(_find_mapping)
    adapter.when_modules_are_built(_give_parameters)
    adapter.when_weights_are_initialized(HeadParameter, lambda held: held.stored, _initial)
    adapter.when_attention_is_set(_prepare_for)
    adapter.when_model_is_saved(_unused)


def remember(config: PreTrainedConfig, value: HeadValues | None, learn: bool) -> None:
    """Write into a configuration what was asked for; the values that heads have by now are among the weights."""
    vars(config).pop(ENTRY, None)
    parameter = _parameter(config)
    if parameter is not None:
        setattr(config, ENTRY, {parameter.name: plain(value), "learn": learn})


def _write_mapping(config: PreTrainedConfig, written: dict[str, Any]) -> None:
    chosen = adapter.implementations(config)
    if _mappings_in(chosen):
        written["attn_implementation"] = chosen
        written[ENTRY] = {**written.get(ENTRY, {}), "mapping": chosen}
    elif chosen is not None:  # dense attention was chosen: the mapping is not to come back
        written.pop(ENTRY, None)


def _find_mapping(config: PreTrainedConfig, name: str | None) -> str | None:
    """The implementation of a model under construction: the one given, else the mapping in our entry."""
    saved = getattr(config, ENTRY, {}).get("mapping")
    chosen: str | None = saved if name is None and isinstance(saved, str) else name
    _register(chosen)
    return chosen


def _prepare_for(model: PreTrainedModel, chosen: Implementation) -> None:
    """What comes before a model changes its implementation, if the old or the new one is a mapping."""
    if _mappings_in(chosen):
        refuse_dense(model)
        _register(chosen)
    if _mappings_in(chosen) or _mappings_in(adapter.implementation(model.config)):
        for part in adapter.overlooked_parts(model):
            part.set_attn_implementation(chosen)  # type: ignore[arg-type]


def _register(chosen: Implementation) -> None:
    """Make mappings known that were added to the table after this package was imported."""
    for name in _mappings_in(chosen):
        register(name)


def _mappings_in(chosen: Implementation) -> set[str]:
    """The mappings among the implementations of a model and its parts."""
    if isinstance(chosen, dict):
        return {name for part in chosen.values() for name in _mappings_in(part)}
    return {name for name in ROW_MAPPINGS if name == chosen}


def _unused(model: PreTrainedModel) -> set[str]:
    """The names of the tensors of parameters whose mapping is not in use."""
    return {
        f"{name}.{ATTRIBUTE}.{tensor}"
        for name, module in adapter.attention_modules(model).items()
        if (held := held_by(module)) is not None and held.name != adapter.implementation(module.config)  # type: ignore[arg-type]
        for tensor in held.state_dict()
    }


def _give_parameters(model: PreTrainedModel) -> None:
    """Give a model under construction the parameters that its configuration names."""
    if adapter.implementation(model.config) in ROW_MAPPINGS:
        refuse_dense(model)
        _attach_parameters(model)
    if hasattr(model.config, ENTRY):
        adapter.keep_in_float32(model, ATTRIBUTE)
        if not _is_as_saved(model.config):
            adapter.expect_in_files(model, rf"\.{ATTRIBUTE}\.")  # parameters of a mapping that is not wanted


def _is_as_saved(config: PreTrainedConfig) -> bool:
    """Whether a model under construction uses the mapping that its configuration was saved with."""
    return bool(getattr(config, ENTRY, {}).get("mapping") == adapter.implementations(config))


def _attach_parameters(model: PreTrainedModel) -> None:
    setting, parameter = getattr(model.config, ENTRY, {}), _parameter(model.config)
    if parameter is None:
        return
    if parameter.name not in setting:
        if _is_as_saved(model.config):
            raise ValueError(f"{SOURCE}: {adapter.implementation(model.config)} needs {parameter.explained()}")
        return
    modules = adapter.attention_modules(model)
    for module, held in zip(modules.values(), _built(model.config, parameter, head_counts(modules)), strict=True):
        attach(module, held)


def _built(config: PreTrainedConfig, parameter: Parameter, heads: list[int]) -> list[HeadParameter]:
    """A parameter for each attention module.

    A table of values that is meant for a larger model, of which this is a part, does not fit the part. Its parameters
    are NaN until the larger model is built, which gives them anew. If there is no larger model, and no values in the
    weights either, the problem is an error when the weights have been read, or else at the first call.
    """
    setting, name, problem = getattr(config, ENTRY), str(adapter.implementation(config)), None
    try:
        rows = spread(setting[parameter.name], parameter, heads, SOURCE)
    except DoesNotFitError as error:
        rows, problem = spread(parameter.example, parameter, heads), f"{error}. The weights have none either"
    held = [HeadParameter(name, row, _learn(setting)) for row in rows]
    for each in held if problem else ():
        each.problem, each.is_read = problem, adapter.builds_for_reading()
        each.initial.fill_(torch.nan)
    return held


def _initial(held: HeadParameter) -> Tensor:
    """What to store if there was nothing to read."""
    if held.problem is not None and held.is_read:
        raise ValueError(held.problem)
    return held.initial


def _learn(setting: dict[str, Any]) -> bool:
    """Whether values are to be learned; if an entry does not say so, they are not."""
    learn = setting.get("learn", False)
    if not isinstance(learn, bool):
        raise TypeError(f"{SOURCE}: 'learn' must be true or false, got {learn!r}")
    return learn


def _parameter(config: PreTrainedConfig) -> Parameter | None:
    """The parameter of the mapping that a configuration uses."""
    row = ROW_MAPPINGS.get(adapter.implementation(config) or "")
    return row.parameter if row else None
