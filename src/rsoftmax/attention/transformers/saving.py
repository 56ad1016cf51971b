"""Register the mappings with transformers, and save and load sparse models, by extending seven of its methods.

transformers does not save a model's attention implementation, and offers no way to add submodules to a model under
construction. Six methods of ``PreTrainedConfig`` and ``PreTrainedModel`` are extended by the functions of the same name
below, and one of ``GenerationMixin`` by that in ``cache``, for models that use one of our mappings and for no others.
Nothing is changed before :func:`register_attention` is called.
"""

from collections.abc import Callable
from numbers import Real
from typing import Any

from torch import nn
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel

from rsoftmax._transformers import ENTRY
from rsoftmax.attention.transformers import adapter
from rsoftmax.attention.transformers.adapter import Implementation
from rsoftmax.attention.transformers.attend import register
from rsoftmax.attention.transformers.cache import _prepare_cache_for_generation
from rsoftmax.attention.transformers.parameters import (
    ATTRIBUTE,
    HeadParameter,
    Setting,
    ShapeError,
    attach,
    build,
    head_counts,
    parameter_of,
)
from rsoftmax.registry import MAPPINGS

SOURCE = f"config.json, entry {ENTRY!r}"
"""Where a wrong setting was read, for error messages."""

TYPES: dict[str, tuple[Any, str]] = {
    "learnable": (bool, "true or false"),
    "edge": (float | int | None, "a number"),
    "log_n_scale": (bool, "true or false"),
    "certificate": (dict | None, "an object"),
}
"""The types of further settings in the entry, and how error messages describe them."""

SUPPORTED = (
    "BERT, RoBERTa, DistilBERT, ALBERT, ELECTRA, ModernBERT, ViT, GPT-2, Llama, Mistral, Qwen, BART, T5 and all others"
    " whose attention uses transformers' AttentionInterface"
)


def register_attention() -> None:
    """Let transformers load models that were saved with a mapping in place of softmax; idempotent.

    Call it before ``from_pretrained`` in a new process. :func:`set_attention` and :func:`sparsify` call it themselves.
    Without it, transformers stops with an error about an unknown ``attn_implementation``.

    Every mapping becomes an ``attn_implementation``, and seven methods of transformers are extended, so that models
    with a mapping are saved and loaded with its parameter, and generate with a :class:`GrowingCache`. Other models are
    not affected.

    Example:
        >>> from transformers import AttentionInterface
        >>> register_attention()
        >>> "r_softmax" in AttentionInterface().valid_keys()
        True
    """
    for name in MAPPINGS:
        if not adapter.RESERVED.search(name):
            register(name)
    adapter.extend(PreTrainedConfig, to_dict)
    building = (_check_and_adjust_attn_implementation, post_init, _initialize_weights)
    for method in (*building, set_attn_implementation, save_pretrained):
        adapter.extend(PreTrainedModel, method)
    adapter.extend(GenerationMixin, _prepare_cache_for_generation)


def remember(config: PreTrainedConfig, setting: Setting) -> None:
    """Write the arguments of :func:`set_attention` into a configuration; current values are in the checkpoint."""
    for part in adapter.configurations(config):
        vars(part).pop(ENTRY, None)
    parameter = MAPPINGS[str(adapter.implementation(config))].parameter
    if parameter is None and not setting.log_n_scale:
        return
    entry = {parameter.name: _to_json(setting.value)} if parameter else {}
    entry |= {"learnable": setting.learnable}
    entry |= {"edge": setting.edge} if setting.edge is not None else {}
    entry |= {"log_n_scale": True} if setting.log_n_scale else {}
    setattr(config, ENTRY, entry)


def _to_json(value: Any) -> Any:
    if hasattr(value, "tolist"):  # tensors and NumPy's arrays
        return value.tolist()
    return float(value) if isinstance(value, Real) else [_to_json(item) for item in value]


def certify(model: PreTrainedModel, certificate: dict[str, Any]) -> None:
    """Store what :func:`sparsify` certified in the model and its configuration."""
    getattr(model.config, ENTRY)["certificate"] = certificate
    for module in adapter.attention_modules(model).values():
        if (head_parameter := parameter_of(module)) is not None:
            head_parameter.max_length = certificate["max_length"]


def refuse_dense(module: nn.Module) -> None:
    """Raise if a part of a model, or of a module that contains one, computes its own attention weights."""
    if dense := adapter.dense_attention(module):
        raise refusal(module, f"{', '.join(sorted(dense))} would stay dense")


def refusal(module: nn.Module, why: str) -> ValueError:
    """The error for a model whose attention cannot be replaced."""
    return ValueError(f"sparse attention: {type(module).__name__} is not supported: {why}. Supported: {SUPPORTED}")


# ------------------------------------------------------------------------------------------- saving


def to_dict(original: Callable[..., dict[str, Any]], config: PreTrainedConfig) -> dict[str, Any]:
    """Write the mapping as ``attn_implementation``, which ``from_pretrained`` reads, and into our own entry.

    A program that has not registered the mappings then stops with transformers' error about an unknown implementation.
    The parts of a composite model get the settings of the whole, so that each can be loaded alone; values per layer are
    meant for the whole, and parts get theirs from the checkpoint.
    """
    written = original(config)
    implementations = adapter.implementations(config)
    if not _mappings_in(implementations):
        if implementations is not None:  # dense attention was chosen: do not restore the mapping
            written.pop(ENTRY, None)
        return written
    written["attn_implementation"] = implementations
    written[ENTRY] = {**written.get(ENTRY, {}), "mapping": implementations}
    shared = {name: x for name, x in written[ENTRY].items() if name != "mapping" and not isinstance(x, list | tuple)}
    for key in config.sub_configs:
        part = written.get(key)
        if isinstance(part, dict) and part.get("attn_implementation") == adapter.implementation(config):
            part[ENTRY] = {**shared, **part[ENTRY]}
    return written


def save_pretrained(original: Callable[..., Any], model: PreTrainedModel, *args: Any, **options: Any) -> Any:
    """Leave out parameters of a mapping that is not in use, for example after ``set_attn_implementation("sdpa")``.

    The model keeps them, and can switch back.
    """
    unused = {
        f"{name}.{ATTRIBUTE}.{tensor}"
        for name, module in adapter.attention_modules(model).items()
        if (head_parameter := parameter_of(module)) is not None
        and head_parameter.name != adapter.implementation(module.config)  # type: ignore[arg-type]
        for tensor in head_parameter.state_dict()
    }
    with adapter.ignoring_on_save(model, unused):
        return original(model, *args, **options)


# ------------------------------------------------------------------------------------------- loading


def _check_and_adjust_attn_implementation(
    original: Callable[..., str], model: PreTrainedModel, attn_implementation: str | None, *args: Any, **options: Any
) -> str:
    """Use the mapping of our own entry if a program that does not know it has dropped ``attn_implementation``."""
    saved = getattr(model.config, ENTRY, {}).get("mapping")
    chosen = saved if attn_implementation is None and isinstance(saved, str) else attn_implementation
    _register(chosen)
    return original(model, chosen, *args, **options)


def post_init(original: Callable[..., None], model: PreTrainedModel) -> None:
    """Give a new model the mapping's parameter for each head, before the checkpoint is read."""
    if adapter.implementation(model.config) in MAPPINGS:
        refuse_dense(model)
        adapter.note_mask_support(model)
        _attach_parameters(model)
    if hasattr(model.config, ENTRY):
        adapter.keep_in_float32(model, ATTRIBUTE)
        if not _is_as_saved(model.config):
            adapter.ignore_in_checkpoint(model, rf"\.{ATTRIBUTE}\.")  # parameters of a mapping that is not requested
    original(model)


def _initialize_weights(
    original: Callable[..., None], model: PreTrainedModel, module: nn.Module, *args: Any, **options: Any
) -> None:
    """Fill parameters that the checkpoint lacks with the values of the configuration."""
    if isinstance(module, HeadParameter):
        module.initialize()
    else:
        original(model, module, *args, **options)


def _attach_parameters(model: PreTrainedModel) -> None:
    """Add the parameters of a configuration to a model under construction.

    A part of a larger model may have no values, or a table that is meant for the whole. Its parameters are then NaN
    until the larger model is built. If there is none, and the checkpoint has no values either, the error is raised
    after loading, or else at the first call.
    """
    config, name = model.config, str(adapter.implementation(model.config))
    entry, parameter, missing = getattr(config, ENTRY, None), MAPPINGS[name].parameter, None
    if entry is None:
        return
    meant = parameter.name in entry if parameter else entry.get("mapping", name) == name
    if not meant and not _is_as_saved(config):
        return
    for key, (kind, expected) in TYPES.items():
        if key in entry and not isinstance(entry[key], kind):
            raise TypeError(f"{SOURCE}: {key!r} must be {expected}, got {entry[key]!r}")
    options = {key: entry[key] for key in TYPES if key in entry}
    setting, modules = (
        Setting(entry.get(parameter.name) if parameter else None, **options),
        adapter.attention_modules(model),
    )
    try:
        if parameter is not None and setting.value is None:
            raise ShapeError(f"{SOURCE}: {name} needs {parameter.describe()}")
        new = build(name, setting, head_counts(modules), SOURCE)
    except ShapeError as error:
        missing = f"{error}. The checkpoint has no values either"
        new = build(name, setting._replace(value=parameter.example), head_counts(modules), SOURCE)  # type: ignore[union-attr]
    for module, head_parameter in zip(modules.values(), new, strict=False):
        if missing:
            head_parameter.mark_missing(missing)
        if (before := parameter_of(module)) is None or before.missing is not None:  # else a part has its own settings
            attach(module, head_parameter)


# ------------------------------------------------------------------------------------------- both


def set_attn_implementation(
    original: Callable[..., None],
    model: PreTrainedModel,
    attn_implementation: Implementation,
    *args: Any,
    **options: Any,
) -> None:
    """Raise if the new implementation is a mapping and part of the model would stay dense; reach all parts."""
    if _mappings_in(attn_implementation):
        refuse_dense(model)
        adapter.note_mask_support(model)
        _register(attn_implementation)
    if _mappings_in(attn_implementation) or _mappings_in(adapter.implementation(model.config)):
        for part in adapter.overlooked_parts(model):
            part.set_attn_implementation(attn_implementation)  # type: ignore[arg-type]
    original(model, attn_implementation, *args, **options)


def _register(chosen: Implementation) -> None:
    """Register mappings that were added to the table after :func:`register_attention` was called."""
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
