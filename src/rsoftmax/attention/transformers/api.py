"""Set, change and show the mapping of a model's attention and its parameter."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, TrainerCallback, TrainerState

from rsoftmax._tensors import gather
from rsoftmax.attention.transformers import adapter
from rsoftmax.attention.transformers.attend import register
from rsoftmax.attention.transformers.parameters import (
    HeadParameter,
    HeadValues,
    Setting,
    attach,
    build,
    head_counts,
    parameter_of,
    per_head,
)
from rsoftmax.attention.transformers.saving import refusal, refuse_dense, register_attention, remember
from rsoftmax.registry import MAPPINGS


def set_attention(
    model: nn.Module,
    mapping: str,
    *,
    learnable: bool = False,
    edge: float | None = None,
    log_n_scale: bool = False,
    **parameter: HeadValues,
) -> None:
    """Replace softmax by another mapping in every attention module of a Transformers model.

    Args:
        model: a Transformers model, or a module that contains exactly one. It is modified in place.
        mapping: a name in ``rsoftmax.MAPPINGS``.
        learnable: train the parameter with the model, one value per head, starting from the given one. It stays in its
            domain.
        edge: the width of the edge in nats, for mappings that have one: 0 cuts softmax off, ``math.inf`` is the paper's
            weight, which falls linearly. Default: the mapping's own.
        log_n_scale: multiply the scores of a query that may see n keys by s log(n), with a learned s per head (SSMax);
            see :class:`rsoftmax.attention.MultiheadAttention`.
        parameter: the mapping's parameter by its name, as in ``r=0.15``: a number, one per layer, or a table
            ``[layers, heads]``, as lists, tensors or arrays. :func:`attention_layers` lists the layers in order.

    Raises:
        ValueError: part of the model would keep its own dense attention. The model is left unchanged.

    Example:
        >>> from transformers import ViTConfig, ViTModel
        >>> model = ViTModel(ViTConfig(num_hidden_layers=2, hidden_size=8, num_attention_heads=2, intermediate_size=8))
        >>> set_attention(model, "r_softmax", r=[[0.1, 0.2], [0.3, 0.4]])
        >>> set_attention(model, "sparsemax")
        >>> set_attention(model, "r_softmax", r=0.15, learnable=True)

    ``"softmax"`` and ``r = 0`` reproduce the original model. The first call registers the mappings with transformers,
    as :func:`register_attention` does.

    Reference: Bałazy et al., r-softmax (2023), section 4.3.
    """
    register_attention()
    if mapping not in MAPPINGS:
        raise ValueError(f"set_attention: there is no mapping {mapping!r}; use one of {', '.join(MAPPINGS)}")
    register(mapping)  # raises if transformers reserves its name
    spec = MAPPINGS[mapping]
    if ignored := [option.name for option in spec.options if option.name in parameter]:
        raise ValueError(f"set_attention: of the options of mappings only edge is supported, got {', '.join(ignored)}")
    value: HeadValues | None = spec.bind("set_attention", {**parameter, "edge": edge})
    spec.bind_options("set_attention", {} if edge is None else {"edge": edge})
    if spec.parameter is None and learnable:
        raise ValueError(f"set_attention: {mapping} has no parameter to learn; use one that does, such as r_softmax")
    setting = Setting(value, learnable, edge, log_n_scale)
    host = pretrained_model(model)
    modules = adapter.attention_modules(host)
    if model is not host or not modules:
        refuse_dense(model)  # of the host alone, set_attn_implementation does it
    if not modules:
        raise refusal(host, "it has no attention that can be replaced")
    new = build(mapping, setting, head_counts(modules), "set_attention")
    before = adapter.implementations(host.config)
    host.set_attn_implementation(mapping)
    for name, module in modules.items():
        if (implementation := adapter.implementation(module.config)) != mapping:  # type: ignore[arg-type]
            host.set_attn_implementation(before)  # type: ignore[arg-type]
            raise refusal(host, f"{name} would keep {implementation!r} attention")
    for module, head_parameter in zip_longest(modules.values(), new):
        attach(module, head_parameter)
    remember(host.config, setting)


def set_head_parameters(model: nn.Module, value: HeadValues) -> None:
    """Change the parameter of a model's attention: the rate of ``r_softmax``, the threshold of ``t_softmax``, ...

    Args:
        model: as in :func:`set_attention`, which must have been called before.
        value: a number, one per layer, or a table ``[layers, heads]``. Learnable parameters are trained further from
            this value.

    Example:
        >>> from transformers import ViTConfig, ViTModel
        >>> model = ViTModel(ViTConfig(num_hidden_layers=2, hidden_size=8, num_attention_heads=2, intermediate_size=8))
        >>> set_attention(model, "r_softmax", r=0.1)
        >>> set_head_parameters(model, [0.2, 0.5])
        >>> head_parameters(model).values
        tensor([[0.2000, 0.2000],
                [0.5000, 0.5000]])

    Tensors are changed in place, so a compiled model is not recompiled.
    """
    host = pretrained_model(model)
    parameters = list(parameters_by_layer(host).values())
    heads = [len(head_parameter.values) for head_parameter in parameters]
    layers = per_head(value, parameters[0].parameter, heads, "set_head_parameters")  # type: ignore[arg-type]
    before = [head_parameter.stored.detach().clone() for head_parameter in parameters]
    try:
        for head_parameter, values in zip(parameters, layers, strict=True):
            head_parameter.values = values
    except ValueError:  # a learnable parameter cannot lie at the end of its domain
        for head_parameter, stored in zip(parameters, before, strict=True):
            head_parameter.stored.data.copy_(stored)
        raise
    for head_parameter in parameters:
        head_parameter.max_length = None
    first = parameters[0]
    remember(host.config, Setting(value, first.learnable, first.options.get("edge"), first.log_scale is not None))


def head_parameters(model: nn.Module) -> "HeadTable":
    """The current parameter of every head.

    Args:
        model: as in :func:`set_attention`, which must have been called before.

    Returns:
        A table ``[layers, heads]``; see :class:`HeadTable`.

    Example:
        >>> from transformers import ViTConfig, ViTModel
        >>> model = ViTModel(ViTConfig(num_hidden_layers=2, hidden_size=8, num_attention_heads=2, intermediate_size=8))
        >>> set_attention(model, "r_softmax", r=[[0.1, 0.2], [0.3, 0.4]])
        >>> print(head_parameters(model))
        r                    mean      0      1
        layers.0.attention  0.150  0.100  0.200
        layers.1.attention  0.350  0.300  0.400
    """
    parameters = parameters_by_layer(pretrained_model(model))
    title = next(iter(parameters.values())).parameter.name  # type: ignore[union-attr]
    return HeadTable.of(title, {layer: head_parameter.values for layer, head_parameter in parameters.items()})


def attention_layers(model: nn.Module) -> list[str]:
    """The names of a model's attention modules, in the order of a parameter table.

    Args:
        model: as in :func:`set_attention`.

    Returns:
        Names for ``model.get_submodule``. Encoders come before decoders, self-attention before cross-attention. A
        module shared by several layers, as in ALBERT, is listed once.

    Example:
        >>> from transformers import ViTConfig, ViTModel
        >>> model = ViTModel(ViTConfig(num_hidden_layers=2, hidden_size=8, num_attention_heads=2, intermediate_size=8))
        >>> attention_layers(model)
        ['layers.0.attention', 'layers.1.attention']
    """
    return list(adapter.attention_modules(pretrained_model(model)))


def parameter_groups(model: nn.Module, lr: float, parameter_lr: float = 0.01) -> list[dict[str, Any]]:
    """Optimizer parameter groups that give what a mapping learns its own learning rate.

    Args:
        model: after :func:`set_attention` with ``learnable=True`` or ``log_n_scale=True``.
        lr: the learning rate of the model's weights.
        parameter_lr: the learning rate of the mapping's parameter, on the unconstrained scale: ``logit(r)`` for a
            rate. At a typical 2e-5, Adam would move it by at most 0.02 in a thousand steps.

    Returns:
        Two groups. Weight decay is off for the mapping's parameter, because it would pull rates towards 0.5.

    Example:
        >>> from transformers import ViTConfig, ViTModel
        >>> model = ViTModel(ViTConfig(num_hidden_layers=2, hidden_size=8, num_attention_heads=2, intermediate_size=8))
        >>> set_attention(model, "r_softmax", r=0.15, learnable=True)
        >>> optimizer = torch.optim.AdamW(parameter_groups(model, lr=2e-5))
    """
    learned = {id(p) for module in model.modules() if isinstance(module, HeadParameter) for p in module.parameters()}
    if not learned:
        raise ValueError("parameter_groups: no mapping of the model learns anything; use set_attention(learnable=True)")
    weights = [p for p in model.parameters() if id(p) not in learned]
    learnable = [p for p in model.parameters() if id(p) in learned]
    return [{"params": weights, "lr": lr}, {"params": learnable, "lr": parameter_lr, "weight_decay": 0.0}]


@dataclass(frozen=True)
class HeadTable:
    """A number per layer and head; ``print(table)`` shows it, with each layer's mean first.

    Attributes:
        title: what the numbers are.
        layers: the layers' names, in the order of ``values``.
        values: ``[layers, heads]``, padded with NaN where layers have fewer heads.
    """

    title: str
    layers: tuple[str, ...]
    values: Tensor

    @classmethod
    def of(cls, title: str, layers: dict[str, Tensor]) -> Self:
        """A table of values ``[heads]`` by layer name."""
        values = [gather(layer.detach()).float().cpu() for layer in layers.values()]
        return cls(title, tuple(layers), pad_sequence(values, batch_first=True, padding_value=torch.nan))

    def mean(self) -> float:
        """The mean over all heads of all layers."""
        return float(self.values.nanmean())

    def __str__(self) -> str:
        width = max(map(len, (self.title, *self.layers)))
        lines = [[self.title, "mean", *map(str, range(self.values.shape[1]))]]
        for name, heads in zip(self.layers, self.values, strict=True):
            numbers = [heads.nanmean().item(), *heads[~heads.isnan()].tolist()]
            lines.append([name, *(f"{number:.3f}" for number in numbers)])
        return "\n".join(" ".join([f"{name:{width}}", *(f"{cell:>6}" for cell in cells)]) for name, *cells in lines)


SHAPES: dict[str, Callable[[float], float]] = {
    "linear": lambda done: done,  # as in the paper
    "cosine": lambda done: (1 - math.cos(math.pi * done)) / 2,  # slow at both ends
    "constant": lambda done: 1.0,  # the final rate from the first step
}
"""How the rate of :class:`SparsitySchedule` grows: from the share of training that is done to a share of the rate."""


class SparsitySchedule(TrainerCallback):
    """Increase the rate of ``r_softmax`` attention from 0 to its final value during training.

    .. math:: r_s = r \\cdot \\mathrm{shape}((s + 1) / S), \\qquad s = 0, ..., S - 1

    Args:
        r: the final rate: a number, one per layer, or a table ``[layers, heads]``.
        shape: "linear", as in the paper, "cosine", slow at both ends, or "constant".

    Example:
        >>> schedule = SparsitySchedule(0.15, shape="linear")

    Pass it as ``Trainer(..., callbacks=[schedule])`` after ``set_attention(model, "r_softmax", r=0)``. The last step
    uses the final rate. The rate depends only on the Trainer's step, so a resumed run has the same rates as an
    uninterrupted run. Each record of ``trainer.state.log_history`` gets ``rate``, the mean over all heads.

    Reference: Bałazy et al., r-softmax (2023), section 4.3.
    """

    def __init__(self, r: HeadValues, shape: str = "linear") -> None:
        if shape not in SHAPES:
            raise ValueError(f"SparsitySchedule: there is no shape {shape!r}; use one of {', '.join(SHAPES)}")
        self.r, self.shape = torch.as_tensor(r, dtype=torch.float64), SHAPES[shape]
        if not ((self.r >= 0) & (self.r <= 1)).all():
            raise ValueError(f"SparsitySchedule: r must be in [0, 1], got {r!r}")

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Check the final rate against the model before training."""
        host = pretrained_model(kwargs["model"])
        if (implementation := adapter.implementation(host.config)) != "r_softmax":
            remedy = "call set_attention(model, 'r_softmax', r=0) first"
            raise ValueError(f"SparsitySchedule is for r_softmax, but the model uses {implementation!r}; {remedy}")
        if any(head_parameter.learnable for head_parameter in parameters_by_layer(host).values()):
            raise ValueError("SparsitySchedule: the model's rates are learnable; call set_attention(learnable=False)")
        set_head_parameters(host, self.r)
        self.on_step_begin(args, state, control, **kwargs)

    def on_step_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Set the rate of this step."""
        done = min((state.global_step + 1) / max(state.max_steps, 1), 1.0)
        set_head_parameters(kwargs["model"], self.r * self.shape(done))

    def on_log(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Add the rate to the log and to the latest record of the history."""
        kwargs["logs"]["rate"] = state.log_history[-1]["rate"] = head_parameters(kwargs["model"]).mean()


def pretrained_model(module: nn.Module) -> PreTrainedModel:
    """The Transformers model that a module is, or contains."""
    models: dict[str, PreTrainedModel] = {}
    for name, part in module.named_modules():
        if isinstance(part, PreTrainedModel) and not any(not other or name.startswith(f"{other}.") for other in models):
            models[name] = part
    if len(models) == 1:
        return next(iter(models.values()))
    kind = type(module).__name__
    if not models:
        raise TypeError(
            f"{kind} neither is nor contains a Transformers model; for nn.MultiheadAttention use"
            " replace_attention, for calls of F.scaled_dot_product_attention sparse_sdpa, both of rsoftmax.attention"
        )
    raise ValueError(f"{kind} contains several models; call it on each: {', '.join(models)}")


def parameters_by_layer(model: PreTrainedModel) -> dict[str, HeadParameter]:
    """What a mapping with a parameter added to a model's attention modules, by name; raises if there is nothing."""
    parameters: dict[str, HeadParameter] = {}
    for name, module in adapter.attention_modules(model).items():
        if (head_parameter := parameter_of(module)) is not None and head_parameter.parameter is not None:
            parameters[name] = head_parameter
    if not parameters:
        implementation = adapter.implementation(model.config)
        raise ValueError(
            f"{type(model).__name__} uses {implementation!r} attention, which has no parameter;"
            " call set_attention(model, 'r_softmax', r=...) first"
        )
    return parameters
