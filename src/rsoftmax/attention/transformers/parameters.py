"""What a mapping adds to an attention module: its parameter, one value per head, and the factors of log n."""

import warnings
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from rsoftmax._rows import ParamSpec, inside_domain
from rsoftmax._tensors import Value, is_eager_cpu
from rsoftmax.attention.layers import log_n_factors
from rsoftmax.attention.transformers import adapter
from rsoftmax.mappings import MAPPINGS
from rsoftmax.nn import module_of

HeadValues = float | Sequence[float] | Sequence[Sequence[float]] | Tensor
"""A number for the whole model, one per layer, or a table ``[layers, heads]``."""

ATTRIBUTE = "rsoftmax"
"""The submodule of an attention module that is its :class:`HeadParameter`; part of the names in the checkpoint."""


class ShapeError(ValueError):
    """The values do not match the model's layers and heads."""


class Setting(NamedTuple):
    """The arguments of :func:`set_attention`, as stored in a configuration."""

    value: HeadValues | None = None  # the mapping's parameter
    learnable: bool = False
    edge: float | None = None  # None: the mapping's default
    log_n_scale: bool = False
    certificate: dict[str, Any] | None = None  # of sparsify


class HeadParameter(nn.Module):
    """The mapping's parameter for the heads of one attention module, as a buffer or as a trainable parameter.

    It stays in float32 whatever dtype the model is cast to: half precision cannot represent r = 0.15 closely enough.
    The values are ``[heads]``, or None for a mapping without a parameter.
    """

    def __init__(self, name: str, heads: int, setting: Setting, values: Tensor | None) -> None:
        super().__init__()
        kind: Any = module_of(MAPPINGS[name])
        self.options = {} if setting.edge is None else {"edge": setting.edge}
        self.mapping = kind() if values is None else kind(values, learnable=setting.learnable, **self.options)
        self.log_scale = log_n_factors(heads) if setting.log_n_scale else None
        self.learnable = setting.learnable
        self.max_length = (setting.certificate or {}).get("max_length")  # the largest number of keys it was measured on
        self.initial = None if values is None else self.stored.detach().clone()
        self.missing: str | None = None  # the error to raise if the checkpoint has no values either
        self.is_loading = False  # the model is being loaded from a checkpoint

    @property
    def name(self) -> str:
        """The mapping's name."""
        return str(self.mapping.mapping.name)

    @property
    def parameter(self) -> ParamSpec | None:
        """The mapping's parameter: its name and its domain."""
        return MAPPINGS[self.name].parameter

    @property
    def stored(self) -> Tensor:
        """The tensor in the checkpoint: the values, or the unconstrained numbers they are computed from."""
        return self.mapping.raw_value if self.learnable else self.mapping.value  # type: ignore[no-any-return]

    @property
    def values(self) -> Tensor:
        """The values, ``[heads]``."""
        return self.mapping.current_value  # type: ignore[no-any-return]

    @values.setter
    def values(self, values: Tensor) -> None:
        self.mapping.current_value = values

    def loaded_value(self) -> Value:
        """The values, or the number that all heads share; raises if neither configuration nor checkpoint had any."""
        if self.missing is not None and self.stored.isnan().any():
            raise ValueError(self.missing)
        values = self.values
        if self.learnable or not is_eager_cpu(values):
            return values
        first, *others = values.tolist()
        if others.count(first) < len(others):
            return values
        return float(f"{first:.7g}")  # takes less time to check, and is 0.7 where float32 has 0.69999999

    def check_length(self, keys: int) -> None:
        """Warn if a call has more keys than :func:`sparsify` measured."""
        if not torch.compiler.is_compiling() and self.max_length is not None and keys > self.max_length:
            warnings.warn(
                f"{keys} keys, but sparsify measured at most {self.max_length}: the error may be larger; run sparsify"
                " again on longer texts",
                stacklevel=2,
            )
            self.max_length = None  # once

    def mark_missing(self, error: str) -> None:
        """Replace the values by NaN until the checkpoint, or a model that contains this one, provides them."""
        self.missing, self.is_loading = error, adapter.is_loading()
        if self.initial is not None:
            self.initial.fill_(torch.nan)

    def initialize(self) -> None:
        """Fill the tensors that a checkpoint lacks."""

        def initial() -> Tensor:
            if self.missing is not None and self.is_loading:
                raise ValueError(self.missing)
            return self.initial  # type: ignore[return-value]

        if self.initial is not None:
            adapter.initialize(self.stored, initial)
        if self.log_scale is not None:
            heads = len(self.log_scale)
            adapter.initialize(self.log_scale, lambda: log_n_factors(heads).detach())

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def move(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        super()._apply(move, recurse)  # type: ignore[no-untyped-call]
        return self


def parameter_of(module: nn.Module) -> HeadParameter | None:
    """What a mapping added to an attention module, if anything."""
    head_parameter = getattr(module, ATTRIBUTE, None)
    return head_parameter if isinstance(head_parameter, HeadParameter) else None


def attach(module: nn.Module, head_parameter: HeadParameter | None) -> None:
    """Set the parameter of an attention module; None removes it."""
    if head_parameter is not None:
        setattr(module, ATTRIBUTE, head_parameter.to(next(module.parameters()).device))
    elif hasattr(module, ATTRIBUTE):
        delattr(module, ATTRIBUTE)


def build(name: str, setting: Setting, heads: list[int], caller: str) -> list[HeadParameter]:
    """One parameter per attention module; ``heads`` counts each module's heads. None if there is nothing to add."""
    parameter = MAPPINGS[name].parameter
    if parameter is None:
        return [HeadParameter(name, count, setting, None) for count in heads if setting.log_n_scale]
    if setting.value is None:
        return []
    layers = per_head(setting.value, parameter, heads, caller)
    return [HeadParameter(name, len(values), setting, values) for values in layers]


def per_head(value: HeadValues, parameter: ParamSpec, heads: Sequence[int], caller: str) -> list[Tensor]:
    """The value of every head, one tensor per layer; ``heads`` counts each layer's heads."""
    single = isinstance(value, Real) or (isinstance(value, Tensor) and value.dim() == 0)
    try:
        items: list[Any] = [value] * len(heads) if single else list(value)  # type: ignore[arg-type]
        layers = [torch.as_tensor(item, dtype=torch.float32, device="cpu").detach() for item in items]
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{caller}: {parameter.name} must consist of numbers, got {value!r}") from None
    for layer in filter(Tensor.numel, layers):
        for end in layer.aminmax():
            inside_domain(caller, parameter, float(f"{end:.7g}"))  # rounded: show 0.1, not its float32 neighbour
    if len(layers) == len(heads) and all(x.shape in ((), (size,)) for x, size in zip(layers, heads, strict=True)):
        return [layer.expand(size).clone() for layer, size in zip(layers, heads, strict=True)]
    sizes = " or ".join(map(str, sorted(set(heads))))
    got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"{len(layers)} rows, {value!r}"
    raise ShapeError(
        f"{caller}: {parameter.name} must be a number, {len(heads)} numbers (one per layer) or a table of {len(heads)}"
        f" layers x {sizes} heads, got {got}; attention_layers(model) lists the layers in order"
    )


def head_counts(modules: dict[str, nn.Module]) -> list[int]:
    """The number of heads of each attention module."""
    counts = {name: adapter.head_count(module) for name, module in modules.items()}
    if unknown := [name for name, count in counts.items() if count is None]:
        kind = type(modules[unknown[0]]).__name__
        raise ValueError(f"sparse attention: the number of heads of {unknown[0]}, a {kind}, cannot be determined")
    return [count for count in counts.values() if count is not None]
