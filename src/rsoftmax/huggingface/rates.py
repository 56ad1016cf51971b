"""Which attention modules a model has, and the mapping and rate that each of them uses."""

import inspect
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from rsoftmax.attention import ROW_MAPPINGS
from rsoftmax.huggingface.heads import HeadTable
from rsoftmax.huggingface.interface import HOLDER, register
from rsoftmax.huggingface.rate import PARAMETRIC, Rate, Rates, plain, spread
from rsoftmax.modules import ParametricModule, module_of
from rsoftmax.rows import Parameter

WORKS = (
    "BERT, RoBERTa, DistilBERT, ALBERT, ELECTRA, ModernBERT, ViT, GPT-2, Llama, Mistral, Qwen, BART, T5 and all others"
    " whose attention asks transformers' AttentionInterface"
)


def set_attention(model: nn.Module, mapping: str, *, learn: bool = False, **parameter: Rates) -> None:
    """Let every attention module of a Hugging Face model use a mapping in place of softmax.

    Args:
        model: a model of transformers, or a module that wraps one. It is changed in place.
        mapping: a name in ``rsoftmax.MAPPINGS`` other than ``weighted_softmax``.
        learn: train the parameter with the model, one for each head, from the value given; it cannot leave its domain.
        parameter: the mapping's parameter under its own letter, ``r=0.15``: a number, one for each layer, or a table
            ``[layers, heads]``, as lists, tensors or arrays. :func:`layers` names the layers in their order.

    Example:
        >>> from transformers import ViTConfig, ViTModel
        >>> model = ViTModel(ViTConfig(num_hidden_layers=2, hidden_size=8, num_attention_heads=2, intermediate_size=8))
        >>> set_attention(model, "r_softmax", r=[[0.1, 0.2], [0.3, 0.4]])
        >>> set_attention(model, "sparsemax")
        >>> set_attention(model, "r_softmax", r=0.15, learn=True)

    ``r = 0`` and ``"softmax"`` compute what the model computed before. A model of which a part would go on with its own
    dense attention is refused, and left as it was.

    Reference: Bałazy et al., r-softmax (2023), section 4.3.
    """
    host = host_of(model)
    value = _checked_call(mapping, learn, parameter)
    modules = attention_modules(host)
    refuse_dense(host)
    if not modules:
        raise ValueError(_refused(host, "it has no attention that can be replaced"))
    rates: list[Rate | None] = [None] * len(modules)
    if (letter := ROW_MAPPINGS[mapping].parameter) and value is not None:
        rates = [Rate(mapping, row, learn) for row in spread(value, letter, _heads(modules))]
    before = host.config._attn_implementation
    host.set_attn_implementation(mapping)
    for name, module in modules.items():
        if module.config._attn_implementation != mapping:  # type: ignore[union-attr]
            host.set_attn_implementation(before)
            raise ValueError(_refused(host, f"{name} would stay {before!r}"))
    for module, rate in zip(modules.values(), rates, strict=True):
        _attach(module, rate)
    _remember(host, value, learn)


def set_rate(model: nn.Module, value: Rates) -> None:
    """Change the parameter of a model's attention: the rate of ``r_softmax``, the threshold of ``t_softmax``, ...

    Args:
        model: as in :func:`set_attention`, which must have been called before.
        value: a number, one for each layer, or a table ``[layers, heads]``. A learned one goes on from here.

    Example:
        >>> from transformers import ViTConfig, ViTModel
        >>> model = ViTModel(ViTConfig(num_hidden_layers=2, hidden_size=8, num_attention_heads=2, intermediate_size=8))
        >>> set_attention(model, "r_softmax", r=0.1)
        >>> set_rate(model, [0.2, 0.5])
        >>> rates(model).values
        tensor([[0.2000, 0.2000],
                [0.5000, 0.5000]])

    Tensors are written in place: nothing is compiled anew.
    """
    host = host_of(model)
    held = rates_of(host)
    rows = spread(value, _parameter(held), [len(rate.value) for rate in held.values()])
    for rate, row in zip(held.values(), rows, strict=True):
        rate.mapping.value = row
    _remember(host, value, getattr(host.config, HOLDER)["learn"])


def rates(model: nn.Module) -> HeadTable:
    """The parameter that each head uses now.

    Args:
        model: as in :func:`set_attention`, which must have been called before.

    Returns:
        A table ``[layers, heads]``; see :class:`HeadTable`.

    Example:
        >>> from transformers import ViTConfig, ViTModel
        >>> model = ViTModel(ViTConfig(num_hidden_layers=2, hidden_size=8, num_attention_heads=2, intermediate_size=8))
        >>> set_attention(model, "r_softmax", r=[[0.1, 0.2], [0.3, 0.4]])
        >>> print(rates(model))
        r                    mean      0      1
        layers.0.attention  0.150  0.100  0.200
        layers.1.attention  0.350  0.300  0.400
    """
    held = rates_of(host_of(model))
    return HeadTable.of(_parameter(held).name, {name: rate.value for name, rate in held.items()})


def layers(model: nn.Module) -> list[str]:
    """The names of a model's attention modules, in the order in which rates are given.

    Args:
        model: as in :func:`set_attention`.

    Returns:
        Names as in ``model.get_submodule``. Encoders come before decoders, attention to itself before attention to the
        encoder. A module that several layers share, as in ALBERT, is there once.

    Example:
        >>> from transformers import ViTConfig, ViTModel
        >>> layers(ViTModel(ViTConfig(num_hidden_layers=2, hidden_size=8, num_attention_heads=2, intermediate_size=8)))
        ['layers.0.attention', 'layers.1.attention']
    """
    return list(attention_modules(host_of(model)))


def parameter_groups(model: nn.Module, lr: float, rate_lr: float = 0.01) -> list[dict[str, Any]]:
    """A model's parameters as an optimizer takes them, learned rates with a learning rate of their own.

    Args:
        model: after :func:`set_attention` with ``learn=True``.
        lr: the learning rate of the model.
        rate_lr: the learning rate of the rates, on the scale of ``logit(r)``. At a model's usual 2e-5, Adam would move
            them by no more than 0.02 in a thousand steps.

    Returns:
        Two groups; weight decay is off for rates, which it would pull towards 0.5.

    Example:
        >>> from transformers import ViTConfig, ViTModel
        >>> model = ViTModel(ViTConfig(num_hidden_layers=2, hidden_size=8, num_attention_heads=2, intermediate_size=8))
        >>> set_attention(model, "r_softmax", r=0.15, learn=True)
        >>> optimizer = torch.optim.AdamW(parameter_groups(model, lr=2e-5))
    """
    learned = {id(rate.stored) for rate in rates_of(host_of(model)).values()}
    rest, own = ([p for p in model.parameters() if (id(p) in learned) == wanted] for wanted in (False, True))
    return [{"params": rest, "lr": lr}, {"params": own, "lr": rate_lr, "weight_decay": 0.0}]


def host_of(model: nn.Module) -> PreTrainedModel:
    """The model of transformers in a module: itself, or the one that it wraps."""
    hosts = dict(_outermost(model, ""))
    if len(hosts) == 1:
        return next(iter(hosts.values()))
    kind = type(model).__name__
    if not hosts:
        raise TypeError(f"set_attention: {kind} is not a model of transformers, and wraps none")
    raise ValueError(f"set_attention: {kind} wraps several models; call it for each: {', '.join(hosts)}")


def _outermost(module: nn.Module, name: str) -> Iterator[tuple[str, PreTrainedModel]]:
    if isinstance(module, PreTrainedModel):
        yield name, module
    else:
        for part, child in module.named_children():
            yield from _outermost(child, f"{name}.{part}" if name else part)


def attention_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that ask transformers' AttentionInterface what to do."""
    return {name: module for name, module in model.named_modules() if "get_interface" in _names(module.__class__)}


def rates_of(host: PreTrainedModel) -> dict[str, Rate]:
    """The rate of each attention module."""
    held = {name: getattr(module, HOLDER, None) for name, module in attention_modules(host).items()}
    found = {name: rate for name, rate in held.items() if rate is not None}
    if not found:
        raise ValueError(
            f"{type(host).__name__} uses {host.config._attn_implementation!r} attention, which has no rate;"
            " call set_attention(model, 'r_softmax', r=...) first"
        )
    return found


def build_rates(host: PreTrainedModel) -> None:
    """Give a model under construction the rates that its configuration names."""
    setting, mapping = getattr(host.config, HOLDER, None), host.config._attn_implementation
    if mapping not in ROW_MAPPINGS:
        return
    refuse_dense(host)
    parameter = ROW_MAPPINGS[mapping].parameter
    if not setting or parameter is None or parameter.name not in setting:
        return
    modules = attention_modules(host)
    try:
        rows = spread(setting[parameter.name], parameter, _heads(modules))
        known = True
    except ValueError:  # only a part of the model that they are meant for, whose own turn comes next
        rows = spread(parameter.example, parameter, _heads(modules))
        known = False
    for module, row in zip(modules.values(), rows, strict=True):
        rate = Rate(mapping, row, setting["learn"])
        if not known:
            rate.start.fill_(torch.nan)
        _attach(module, rate)


def _remember(host: PreTrainedModel, value: Rates | None, learn: bool) -> None:
    """Write into the configuration what was asked for; where the heads stand by now is among the weights."""
    vars(host.config).pop(HOLDER, None)
    parameter = ROW_MAPPINGS[host.config._attn_implementation].parameter
    if parameter is not None:
        setattr(host.config, HOLDER, {parameter.name: plain(value), "learn": learn})


def _checked_call(mapping: str, learn: bool, given: dict[str, Rates]) -> Rates | None:
    if mapping not in ROW_MAPPINGS:
        raise ValueError(f"set_attention: there is no mapping {mapping!r}; use one of {', '.join(ROW_MAPPINGS)}")
    row = ROW_MAPPINGS[mapping]
    register()  # mappings may have been declared since this package was imported
    if issubclass(kind := module_of(row), ParametricModule):
        PARAMETRIC[mapping] = kind
    value: Rates | None = row.bind("set_attention", given)
    if row.parameter is None and learn:
        raise ValueError(f"set_attention: {mapping} has nothing to learn; r_softmax and t_softmax have")
    return value


def refuse_dense(host: PreTrainedModel) -> None:
    """Refuse a model of which a part computes weights of its own."""
    dense = sorted({type(module).__name__ for module in host.modules() if _own_attention(type(module))})
    if dense:
        raise ValueError(_refused(host, f"{', '.join(dense)} would stay dense"))


def _refused(host: PreTrainedModel, why: str) -> str:
    return f"sparse attention: {type(host).__name__} is refused: {why}. What works: {WORKS}"


OWN = {"softmax", "scaled_dot_product_attention", "eager_attention_forward", "ALL_ATTENTION_FUNCTIONS"}


def _own_attention(kind: type) -> bool:
    """Whether modules of this class compute weights of their own, or ask for them in a way that we cannot answer."""
    names = _names(kind)
    computes = "get_interface" not in names and names & OWN
    return issubclass(kind, nn.MultiheadAttention) or bool(computes and re.search("Attention|Attn", kind.__name__))


@cache
def _names(kind: type) -> frozenset[str]:
    """The names in the code of a class: what it calls."""
    functions = [
        inspect.unwrap(member)
        for base in kind.__mro__
        if base not in (nn.Module, object)
        for member in vars(base).values()
        if inspect.isfunction(member)
    ]
    return frozenset(name for function in functions for name in function.__code__.co_names)


def _heads(modules: dict[str, nn.Module]) -> list[int]:
    return [_count_heads(name, module) for name, module in modules.items()]


def _count_heads(name: str, module: nn.Module) -> int:
    for place in (module, getattr(module, "config", None)):
        for word in ("num_heads", "num_attention_heads", "n_heads"):
            if isinstance(heads := getattr(place, word, None), int):
                return heads
    raise ValueError(f"set_attention: {name}, a {type(module).__name__}, does not say how many heads it has")


def _attach(module: nn.Module, rate: Rate | None) -> None:
    if rate is not None:
        setattr(module, HOLDER, rate.to(next(module.parameters()).device))
    elif hasattr(module, HOLDER):
        delattr(module, HOLDER)


def _parameter(held: dict[str, Rate]) -> Parameter:
    parameter = next(iter(held.values())).mapping.mapping.parameter
    assert parameter is not None
    return parameter
