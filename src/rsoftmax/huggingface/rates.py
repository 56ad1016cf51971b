"""The mapping that a model's attention uses, and its parameter for each layer and head: set, changed and shown."""

from typing import Any

from torch import nn
from transformers import PreTrainedModel

from rsoftmax.attention import ROW_MAPPINGS
from rsoftmax.huggingface import adapter
from rsoftmax.huggingface.attend import register
from rsoftmax.huggingface.head_parameter import HeadParameter, HeadValues, attach, spread
from rsoftmax.huggingface.head_table import HeadTable
from rsoftmax.huggingface.models import head_counts, head_parameters, pretrained_model, refusal, refuse_dense
from rsoftmax.huggingface.saving import remember


def set_attention(model: nn.Module, mapping: str, *, learn: bool = False, **parameter: HeadValues) -> None:
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
    host, value = pretrained_model(model), _checked_call(mapping, learn, parameter)
    modules = adapter.attention_modules(host)
    if not modules:
        refuse_dense(host)  # and names what is dense
        raise refusal(host, "it has no attention that can be replaced")
    held = _built(mapping, value, learn, head_counts(modules))
    _use(host, mapping, modules)
    for module, each in zip(modules.values(), held, strict=True):
        attach(module, each)
    remember(host.config, value, learn)


def set_rate(model: nn.Module, value: HeadValues) -> None:
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
    host = pretrained_model(model)
    held = list(head_parameters(host).values())
    rows = spread(value, held[0].parameter, [len(each.values) for each in held])
    for each, row in zip(held, rows, strict=True):
        each.values = row
    remember(host.config, value, held[0].learned)


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
    held = head_parameters(pretrained_model(model))
    letter = next(iter(held.values())).parameter.name
    return HeadTable.of(letter, {name: each.values for name, each in held.items()})


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
    return list(adapter.attention_modules(pretrained_model(model)))


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
        >>> import torch
        >>> from transformers import ViTConfig, ViTModel
        >>> model = ViTModel(ViTConfig(num_hidden_layers=2, hidden_size=8, num_attention_heads=2, intermediate_size=8))
        >>> set_attention(model, "r_softmax", r=0.15, learn=True)
        >>> optimizer = torch.optim.AdamW(parameter_groups(model, lr=2e-5))
    """
    learned = {id(held.stored) for held in head_parameters(pretrained_model(model)).values()}
    rest, own = ([p for p in model.parameters() if (id(p) in learned) == wanted] for wanted in (False, True))
    return [{"params": rest, "lr": lr}, {"params": own, "lr": rate_lr, "weight_decay": 0.0}]


def _checked_call(mapping: str, learn: bool, given: dict[str, HeadValues]) -> HeadValues | None:
    if mapping not in ROW_MAPPINGS:
        raise ValueError(f"set_attention: there is no mapping {mapping!r}; use one of {', '.join(ROW_MAPPINGS)}")
    register(mapping)  # it may have been declared since this package was imported
    row = ROW_MAPPINGS[mapping]
    value: HeadValues | None = row.bind("set_attention", given)
    if row.parameter is None and learn:
        raise ValueError(f"set_attention: {mapping} has nothing to learn; r_softmax and t_softmax have")
    return value


def _built(mapping: str, value: HeadValues | None, learn: bool, heads: list[int]) -> list[HeadParameter | None]:
    """The parameter of each attention module, or None for each if the mapping has none."""
    parameter = ROW_MAPPINGS[mapping].parameter
    if parameter is None or value is None:
        return [None] * len(heads)
    return [HeadParameter(mapping, row, learn) for row in spread(value, parameter, heads)]


def _use(host: PreTrainedModel, mapping: str, modules: dict[str, nn.Module]) -> None:
    """Let all these modules use a mapping; if one does not follow, change none and refuse the model."""
    before = adapter.implementations(host.config)
    host.set_attn_implementation(mapping)
    for name, module in modules.items():
        if (used := adapter.implementation(module.config)) != mapping:  # type: ignore[arg-type]
            host.set_attn_implementation(before)  # type: ignore[arg-type]
            raise refusal(host, f"{name} would stay {used!r}")
