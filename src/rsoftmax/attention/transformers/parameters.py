"""The mapping's parameter in attention: one value per head of each attention module."""

import warnings
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from rsoftmax._rows import ParamSpec, inside_domain
from rsoftmax._tensors import Value, is_eager_cpu
from rsoftmax.attention.layers import log_scale
from rsoftmax.attention.transformers import adapter
from rsoftmax.mappings import MAPPINGS
from rsoftmax.nn import ParametricModule, module_of

HeadValues = float | Sequence[float] | Sequence[Sequence[float]] | Tensor
"""A number for the whole model, one per layer, or a table ``[layers, heads]``."""

ATTRIBUTE = "rsoftmax"
"""The submodule of an attention module that holds its :class:`HeadParameter`; part of the names in the checkpoint."""


class ShapeError(ValueError):
    """The values do not match the model's layers and heads."""


class HeadParameter(nn.Module):
    """The mapping's parameter for the heads of one attention module, as a buffer or as a trainable parameter.

    It stays in float32 whatever dtype the model is cast to: half precision cannot represent r = 0.15 closely enough.

    Args:
        name: the mapping's name.
        values: ``[heads]``.
        learnable: whether to train the values.
        edge: the width of the mapping's edge in nats, or None for its default.
        max_length: the largest number of keys that the values were calibrated for.
        scale: "log n" for a learned factor of log n per head, or None for the model's own scale.
    """

    def __init__(
        self,
        name: str,
        values: Tensor,
        learnable: bool,
        edge: float | None = None,
        max_length: int | None = None,
        scale: str | None = None,
    ) -> None:
        super().__init__()
        kind: Any = module_of(MAPPINGS[name])
        self.options = {} if edge is None else {"edge": edge}
        self.max_length = max_length
        self.mapping: ParametricModule = kind(values, learnable=learnable, **self.options)
        self.log_scale = log_scale("set_attention", scale, len(values))
        self.initial = self.stored.detach().clone()
        self.missing: str | None = None  # the error to raise if the checkpoint has no values either
        self.is_loading = False  # the model is being loaded from a checkpoint

    @property
    def name(self) -> str:
        """The mapping's name."""
        return self.mapping.mapping.name

    @property
    def parameter(self) -> ParamSpec:
        """The mapping's parameter: its letter and its domain."""
        parameter = self.mapping.mapping.parameter
        assert parameter is not None
        return parameter

    @property
    def stored(self) -> Tensor:
        """The tensor in the checkpoint: the values, or the unconstrained numbers they are computed from."""
        stored = self.mapping.value if self.mapping.raw_value is None else self.mapping.raw_value
        assert isinstance(stored, Tensor)
        return stored

    @property
    def learnable(self) -> bool:
        """Whether the values are trained."""
        return self.mapping.raw_value is not None

    @property
    def values(self) -> Tensor:
        """The values, ``[heads]``."""
        values = self.mapping.current_value
        assert isinstance(values, Tensor)
        return values

    @values.setter
    def values(self, values: Tensor) -> None:
        self.mapping.current_value = values

    @property
    def scale(self) -> str | None:
        """The argument of :func:`set_attention`."""
        return None if self.log_scale is None else "log n"

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
        """Warn if a call has more keys than the values were calibrated for."""
        if not torch.compiler.is_compiling() and self.max_length is not None and keys > self.max_length:
            warnings.warn(
                f"{keys} keys, but the thresholds were calibrated for at most {self.max_length}: the error may be"
                " larger; calibrate again on longer texts",
                stacklevel=2,
            )
            self.max_length = None  # once

    def mark_missing(self, error: str) -> None:
        """Replace the values by NaN until the checkpoint, or a model that contains this one, provides them."""
        self.missing, self.is_loading = error, adapter.is_loading()
        self.initial.fill_(torch.nan)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def move(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        super()._apply(move, recurse)  # type: ignore[no-untyped-call]
        return self


def parameter_of(module: nn.Module) -> HeadParameter | None:
    """The parameter of an attention module, if it has one."""
    held = getattr(module, ATTRIBUTE, None)
    return held if isinstance(held, HeadParameter) else None


def attach(module: nn.Module, held: HeadParameter | None) -> None:
    """Set the parameter of an attention module; None removes it."""
    if held is not None:
        setattr(module, ATTRIBUTE, held.to(next(module.parameters()).device))
    elif hasattr(module, ATTRIBUTE):
        delattr(module, ATTRIBUTE)


class Setting(NamedTuple):
    """The arguments of :func:`set_attention`, as stored in a configuration.

    Attributes:
        value: the mapping's parameter; None for a mapping without one.
        learnable: whether to train it.
        edge: the width of the mapping's edge in nats, or None for its default.
        calibration: what :func:`calibrate` certified, or None.
        scale: "log n", or None.
    """

    value: HeadValues | None = None
    learnable: bool = False
    edge: float | None = None
    calibration: dict[str, Any] | None = None
    scale: str | None = None


def build(name: str, setting: Setting, heads: list[int], caller: str) -> list[HeadParameter]:
    """One parameter per attention module, where ``heads`` counts each module's heads.

    Returns:
        An empty list for a mapping without a parameter.
    """
    parameter, (value, learnable, edge, calibration, scale) = MAPPINGS[name].parameter, setting
    if parameter is None or value is None:
        return []
    rows = per_head(value, parameter, heads, caller)
    return [HeadParameter(name, row, learnable, edge, (calibration or {}).get("max_length"), scale) for row in rows]


def per_head(value: HeadValues, parameter: ParamSpec, heads: Sequence[int], caller: str) -> list[Tensor]:
    """The value of every head, one tensor per layer; ``heads`` counts each layer's heads."""
    rows = _per_layer(value, parameter, len(heads), caller)
    if len(rows) == len(heads) and all(row.shape in ((), (size,)) for row, size in zip(rows, heads, strict=True)):
        return [row.expand(size).clone() for row, size in zip(rows, heads, strict=True)]
    letter, count, sizes = parameter.name, len(heads), " or ".join(map(str, sorted(set(heads))))
    found = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"{len(rows)} rows, {value!r}"
    raise ShapeError(
        f"{caller}: {letter} must be a number, {count} numbers (one per layer) or a table of {count} layers x"
        f" {sizes} heads, got {found}; layers(model) lists the layers in order"
    )


def to_json(value: Any) -> Any:
    """The same numbers as JSON types."""
    if hasattr(value, "tolist"):  # tensors and NumPy's arrays
        return value.tolist()
    return float(value) if isinstance(value, Real) else [to_json(item) for item in value]


def head_counts(modules: dict[str, nn.Module]) -> list[int]:
    """The number of heads of each attention module."""
    return [_head_count(name, module) for name, module in modules.items()]


def _head_count(name: str, module: nn.Module) -> int:
    if (count := adapter.head_count(module)) is None:
        raise ValueError(f"set_attention: cannot find the number of heads of {name}, a {type(module).__name__}")
    return count


def _per_layer(value: HeadValues, parameter: ParamSpec, count: int, caller: str) -> list[Tensor]:
    """The given values, one tensor per layer; raises unless they are numbers in the parameter's domain."""
    single = isinstance(value, Real) or (isinstance(value, Tensor) and value.dim() == 0)
    try:
        items: list[Any] = [value] * count if single else list(value)  # type: ignore[arg-type]
        rows = [torch.as_tensor(item, dtype=torch.float32, device="cpu").detach() for item in items]
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{caller}: {parameter.name} must consist of numbers, got {value!r}") from None
    for row in filter(Tensor.numel, rows):
        for end in row.aminmax():
            inside_domain(caller, parameter, float(f"{end:.7g}"))  # rounded: show 0.1, not its float32 neighbour
    return rows
