"""Save sparse models and load them again, by extending six methods of transformers.

transformers does not save a model's attention implementation, and offers no way to add submodules to a model under
construction. For models that use one of our mappings, and for no others:

* ``PreTrainedConfig.to_dict`` writes the mapping as ``attn_implementation``, which ``from_pretrained`` reads. A program
  that has not imported this package then stops with transformers' error about an unknown implementation;
* ``PreTrainedModel._check_and_adjust_attn_implementation`` takes the mapping from our own entry if such a program has
  rewritten the configuration and dropped ``attn_implementation``;
* ``PreTrainedModel.post_init`` gives a new model the mapping's parameter for each head, before the checkpoint is read;
* ``PreTrainedModel._initialize_weights`` fills parameters that the checkpoint lacks with the values of the
  configuration;
* ``PreTrainedModel.set_attn_implementation`` raises if part of the model would stay dense;
* ``PreTrainedModel.save_pretrained`` leaves out parameters of a mapping that is not in use, for example after
  ``set_attn_implementation("sdpa")``. The model keeps them, and can switch back.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from rsoftmax._rows import ParamSpec
from rsoftmax._transformers import ENTRY
from rsoftmax.attention.layers import NEUTRAL_SCALE
from rsoftmax.attention.transformers import adapter
from rsoftmax.attention.transformers.adapter import Implementation
from rsoftmax.attention.transformers.attend import register
from rsoftmax.attention.transformers.parameters import (
    ATTRIBUTE,
    HeadParameter,
    Setting,
    ShapeError,
    attach,
    build,
    head_counts,
    parameter_of,
    to_json,
)
from rsoftmax.attention.transformers.probe import refuse_dense
from rsoftmax.registry import MAPPINGS

"""The entry of a configuration that holds the arguments of :func:`set_attention`."""

SOURCE = f"config.json, entry {ENTRY!r}"
"""Where a wrong setting was found, for error messages."""


TYPES: dict[str, tuple[Any, str]] = {
    "learnable": (bool, "true or false"),
    "edge": (float | int | None, "a number"),
    "calibration": (dict | None, "an object"),
    "scale": (str | None, "a string"),
}
"""The types of further settings in the entry, and how error messages describe them."""


def install() -> None:
    """Install the hooks; idempotent."""
    adapter.on_config_to_dict(_write_mapping)
    adapter.on_attention_check(_choose_mapping)
    adapter.on_modules_built(_add_parameters)
    adapter.on_weights_initialized(HeadParameter, _initial_tensors)
    adapter.on_attention_set(_prepare)
    adapter.on_model_saved(_unused)


def remember(config: PreTrainedConfig, setting: Setting) -> None:
    """Write the arguments of :func:`set_attention` into a configuration; current values are in the checkpoint."""
    for part in adapter.configurations(config):
        vars(part).pop(ENTRY, None)
    parameter = _parameter(config)
    if parameter is not None:
        entry = {parameter.name: to_json(setting.value), **setting._asdict()}
        setattr(config, ENTRY, {name: value for name, value in entry.items() if name != "value" and value is not None})


def certify(model: PreTrainedModel, calibration: dict[str, Any]) -> None:
    """Store what :func:`calibrate` measured in the model and its configuration."""
    getattr(model.config, ENTRY)["calibration"] = calibration
    for module in adapter.attention_modules(model).values():
        if (held := parameter_of(module)) is not None:
            held.max_length = calibration["max_length"]


# ------------------------------------------------------------------------------------------- saving


def _write_mapping(config: PreTrainedConfig, written: dict[str, Any]) -> None:
    chosen = adapter.implementations(config)
    if _mappings_in(chosen):
        written["attn_implementation"] = chosen
        written[ENTRY] = {**written.get(ENTRY, {}), "mapping": chosen}
        _pass_on(config, written)
    elif chosen is not None:  # dense attention was chosen: do not restore the mapping
        written.pop(ENTRY, None)


def _pass_on(config: PreTrainedConfig, written: dict[str, Any]) -> None:
    """Write the settings of the whole model to its parts, so that each part can be loaded alone.

    A table has rows for the whole model. Its parts get their rows from the checkpoint.
    """
    own = adapter.implementation(config)
    setting = {
        name: value for name, value in written[ENTRY].items() if name != "mapping" and not isinstance(value, list)
    }
    for key in config.sub_configs:
        part = written.get(key)
        if isinstance(part, dict) and part.get("attn_implementation") == own:
            part[ENTRY] = {**setting, **part[ENTRY]}


def _unused(model: PreTrainedModel) -> set[str]:
    """The checkpoint names of parameters whose mapping is not in use."""
    return {
        f"{name}.{ATTRIBUTE}.{tensor}"
        for name, module in adapter.attention_modules(model).items()
        if (held := parameter_of(module)) is not None and held.name != adapter.implementation(module.config)  # type: ignore[arg-type]
        for tensor in held.state_dict()
    }


# ------------------------------------------------------------------------------------------- loading


def _choose_mapping(config: PreTrainedConfig, name: str | None) -> str | None:
    """The implementation of a model under construction: the requested one, else the mapping in our entry."""
    saved = getattr(config, ENTRY, {}).get("mapping")
    chosen: str | None = saved if name is None and isinstance(saved, str) else name
    _register(chosen)
    return chosen


def _add_parameters(model: PreTrainedModel) -> None:
    """Give a model under construction the parameters named in its configuration."""
    if adapter.implementation(model.config) in MAPPINGS:
        refuse_dense(model)
        adapter.note_mask_support(model)
        _attach_parameters(model)
    if hasattr(model.config, ENTRY):
        adapter.keep_in_float32(model, ATTRIBUTE)
        if not _is_as_saved(model.config):
            adapter.ignore_in_checkpoint(model, rf"\.{ATTRIBUTE}\.")  # parameters of a mapping that is not requested


def _attach_parameters(model: PreTrainedModel) -> None:
    parameter, setting = _parameter(model.config), getattr(model.config, ENTRY, None)
    if parameter is None or setting is None or not (parameter.name in setting or _is_as_saved(model.config)):
        return
    modules = adapter.attention_modules(model)
    for module, held in zip(modules.values(), _build(model.config, parameter, head_counts(modules)), strict=True):
        if (own := parameter_of(module)) is None or own.missing is not None:  # else a part has its own settings
            attach(module, held)


def _build(config: PreTrainedConfig, parameter: ParamSpec, heads: list[int]) -> list[HeadParameter]:
    """The parameter of each attention module.

    A part of a larger model may have no values, or a table that is meant for the whole. Its parameters are then NaN
    until the larger model is built. If there is none, and the checkpoint has no values either, the error is raised
    after loading, or else at the first call.
    """
    setting, name, missing = _read_entry(config, parameter), str(adapter.implementation(config)), None
    try:
        if setting.value is None:
            raise ShapeError(f"{SOURCE}: {name} needs {parameter.describe()}")
        held = build(name, setting, heads, SOURCE)
    except ShapeError as error:
        missing = f"{error}. The checkpoint has no values either"
        held = build(name, setting._replace(value=parameter.example), heads, SOURCE)
    for each in held if missing else ():
        each.mark_missing(str(missing))
    return held


def _initial_tensors(held: HeadParameter) -> Iterator[tuple[Tensor, Callable[[], Tensor]]]:
    yield held.stored, partial(_initial, held)
    if held.log_scale is not None:
        yield held.log_scale, partial(torch.full, held.log_scale.shape, NEUTRAL_SCALE)


def _initial(held: HeadParameter) -> Tensor:
    """The tensor to store if the checkpoint has none."""
    if held.missing is not None and held.is_loading:
        raise ValueError(held.missing)
    return held.initial


def _read_entry(config: PreTrainedConfig, parameter: ParamSpec) -> Setting:
    """The arguments of :func:`set_attention` in a configuration; raises if they have wrong types."""
    entry: dict[str, Any] = getattr(config, ENTRY)
    setting = Setting(entry.get(parameter.name), **{name: entry[name] for name in TYPES if name in entry})
    for name, (kind, expected) in TYPES.items():
        if not isinstance(found := getattr(setting, name), kind):
            raise TypeError(f"{SOURCE}: {name!r} must be {expected}, got {found!r}")
    return setting


# ------------------------------------------------------------------------------------------- both


def _prepare(model: PreTrainedModel, chosen: Implementation) -> None:
    """Before a model changes its implementation: check the model if the new one is a mapping, and reach all parts."""
    if _mappings_in(chosen):
        refuse_dense(model)
        adapter.note_mask_support(model)
        _register(chosen)
    if _mappings_in(chosen) or _mappings_in(adapter.implementation(model.config)):
        for part in adapter.overlooked_parts(model):
            part.set_attn_implementation(chosen)  # type: ignore[arg-type]


def _register(chosen: Implementation) -> None:
    """Register mappings that were added to the table after this package was imported."""
    for name in _mappings_in(chosen):
        register(name)


def _mappings_in(chosen: Implementation) -> set[str]:
    """The mappings among the implementations of a model and its parts."""
    if isinstance(chosen, dict):
        return {name for part in chosen.values() for name in _mappings_in(part)}
    return {name for name in MAPPINGS if name == chosen}


def _is_as_saved(config: PreTrainedConfig) -> bool:
    """Whether a model under construction uses the mapping it was saved with."""
    return bool(getattr(config, ENTRY, {}).get("mapping") == adapter.implementations(config))


def _parameter(config: PreTrainedConfig) -> ParamSpec | None:
    """The parameter of the mapping that a configuration selects."""
    row = MAPPINGS.get(adapter.implementation(config) or "")
    return row.parameter if row else None
