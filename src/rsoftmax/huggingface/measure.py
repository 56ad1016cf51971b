"""What a model's attention really does: its zeros, counted, and its weights."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from rsoftmax.huggingface import adapter
from rsoftmax.huggingface.attend import Observer, observing
from rsoftmax.huggingface.head_table import HeadTable
from rsoftmax.huggingface.models import pretrained_model


def sparsity(model: nn.Module, batch: Mapping[str, Any]) -> HeadTable:
    """The share of attention weights that are exactly zero, for each layer and head.

    Args:
        model: after :func:`set_attention`. It is run in evaluation mode and without gradients.
        batch: what the model is called with: ``model(**batch)``.

    Returns:
        A table ``[layers, heads]``; see :class:`HeadTable`. Only pairs of real tokens that the mask lets see each other
        count: no padding, neither as key nor as query, and nothing that lies in the future.

    Example:
        >>> from transformers import ViTConfig, ViTModel
        >>> from rsoftmax.huggingface import set_attention
        >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=8, image_size=32)
        >>> model = ViTModel(ViTConfig(num_hidden_layers=2, **sizes))
        >>> set_attention(model, "r_softmax", r=[0.2, 0.4])
        >>> print(sparsity(model, {"pixel_values": torch.randn(1, 3, 32, 32)}))
        zeros                mean      0      1
        layers.0.attention  0.200  0.200  0.200
        layers.1.attention  0.400  0.400  0.400

    A module that several layers share counts them together; one that the batch does not go through is left out.
    """
    zeros: dict[nn.Module, Tensor] = {}
    kept: dict[nn.Module, Tensor] = {}
    host = pretrained_model(model)
    decoder = set(host.get_decoder().modules() if host.config.is_encoder_decoder else ())

    def count(module: nn.Module, weights: Tensor, mask: Tensor | None) -> None:
        keep = torch.ones_like(weights, dtype=torch.bool) if mask is None else mask.expand_as(weights)
        queries = batch.get("decoder_attention_mask" if module in decoder else "attention_mask")
        if queries is not None and queries.shape == weights.shape[::2]:  # one for each query of each text
            keep = keep & queries.bool().to(weights.device)[:, None, :, None]
        zeros[module] = zeros.get(module, 0) + ((weights == 0) & keep).sum((0, 2, 3))
        kept[module] = kept.get(module, 0) + keep.sum((0, 2, 3))

    called = _run(model, batch, count)
    return HeadTable.of("zeros", {name: zeros[module] / kept[module] for name, module in called.items()})


def attention_weights(model: nn.Module, batch: Mapping[str, Any], *, removed: float = 0.0) -> dict[str, Tensor]:
    """The attention weights of each layer.

    Args:
        model: after :func:`set_attention`. It is run in evaluation mode and without gradients.
        batch: what the model is called with: ``model(**batch)``.
        removed: what to write where the mask lets a query see nothing; NaN tells it from the zeros of the mapping.

    Returns:
        ``[batch, heads, queries, keys]`` for each name in :func:`layers`; of a module that several layers share, the
        weights of its last call.

    Example:
        >>> from transformers import ViTConfig, ViTModel
        >>> from rsoftmax.huggingface import set_attention
        >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=8, image_size=32)
        >>> model = ViTModel(ViTConfig(num_hidden_layers=2, **sizes))
        >>> set_attention(model, "r_softmax", r=0.4)
        >>> weights = attention_weights(model, {"pixel_values": torch.randn(1, 3, 32, 32)})["layers.1.attention"]
        >>> weights.shape, (weights == 0).sum(-1).unique()
        (torch.Size([1, 2, 5, 5]), tensor([2]))
    """
    found: dict[nn.Module, Tensor] = {}

    def keep(module: nn.Module, weights: Tensor, mask: Tensor | None) -> None:
        found[module] = weights if mask is None else weights.masked_fill(~mask, removed)

    return {name: found[module] for name, module in _run(model, batch, keep).items()}


def _run(model: nn.Module, batch: Mapping[str, Any], observe: Observer) -> dict[str, nn.Module]:
    """The attention modules that the batch went through, each call of which was observed."""
    called = set()

    def see(module: nn.Module, weights: Tensor, mask: Tensor | None) -> None:
        called.add(module)
        observe(module, weights, mask)

    with torch.no_grad(), _evaluating(model), _UNCOMPILED, observing(see):
        model(**batch)
    host = pretrained_model(model)
    if not called:
        used = adapter.implementation(host.config)
        raise ValueError(f"the model uses {used!r} attention, which cannot be looked into; call set_attention first")
    return {name: module for name, module in adapter.attention_modules(host).items() if module in called}


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards each module is in the mode that it was in."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


class _Uncompiled:
    """Within it, compiled models run as they are written, for compiled code calls no observer.

    torch has one such setting for all threads: the first that enters changes it, the last that leaves changes it back.
    """

    def __init__(self) -> None:
        self.lock, self.inside = Lock(), 0

    def __enter__(self) -> None:
        with self.lock:
            if self.inside == 0:
                self.stance = torch.compiler.set_stance("force_eager")
            self.inside += 1

    def __exit__(self, *error: object) -> None:
        with self.lock:
            self.inside -= 1
            if self.inside == 0:
                self.stance.__exit__(*error)


_UNCOMPILED = _Uncompiled()
