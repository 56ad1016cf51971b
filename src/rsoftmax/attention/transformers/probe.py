"""Refuse models in which some attention would stay dense.

The code of the modules is inspected, and the model is run. What runs is a copy of the modules, in evaluation mode and
without hooks, on fake tensors: nothing is computed, no random number is drawn, and the model is not modified. In the
copy, every module that looks up its attention function gets one that returns zeros. Any attention that still runs
belongs to a module that would stay dense.
"""

import copy
import inspect
import json
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from rsoftmax._tensors import without_values
from rsoftmax._transformers import quiet
from rsoftmax.attention.transformers import adapter

SUPPORTED = (
    "BERT, RoBERTa, DistilBERT, ALBERT, ELECTRA, ModernBERT, ViT, GPT-2, Llama, Mistral, Qwen, BART, T5 and all others"
    " whose attention uses transformers' AttentionInterface"
)
TOKENS = 11  # in the probe's text: unlikely as a number of heads, experts or labels
SAMPLES = 16000  # in the probe's audio
FUSED = re.compile("scaled_dot_product|multi_head_attention|transformer_encoder_layer")
PRODUCT = re.compile("matmul|^bmm$|^baddbmm$|einsum")
MIXES = re.compile("linear|conv|norm|embedding")  # outputs are new features, no longer scores or weights


def refuse_dense(module: nn.Module) -> None:
    """Raise if a part of a model, or of a module that contains one, computes its own attention weights."""
    if dense := adapter.dense_attention(module) or dense_at_run_time(module):
        raise refusal(module, f"{', '.join(sorted(dense))} would stay dense")


def refusal(module: nn.Module, why: str) -> ValueError:
    """The error for a model whose attention cannot be replaced."""
    return ValueError(f"sparse attention: {type(module).__name__} is not supported: {why}. Supported: {SUPPORTED}")


def dense_at_run_time(module: nn.Module) -> set[str]:
    """The classes of modules that compute their own attention weights when the module runs.

    The whole module is run; if its inputs cannot be guessed, the models it contains are. Modules that cannot be run, or
    are not reached, are not detected. Models that consist of classes of torch and transformers are run once for each
    configuration.
    """
    key = _signature(module)
    if key is None:
        return _dense_at_run_time(module)
    if key not in _known:
        _known[key] = frozenset(_dense_at_run_time(module))
    return set(_known[key])


_known: dict[tuple[Any, ...], frozenset[str]] = {}


def _signature(module: nn.Module) -> tuple[Any, ...] | None:
    """What determines the result for a model: its classes and configuration; None if other code may do so."""
    kinds = [type(part) for part in module.modules() if not type(part).__module__.startswith("rsoftmax.")]
    if not isinstance(module, PreTrainedModel):
        return None
    if not all(kind.__module__.startswith(("torch.", "transformers.")) for kind in kinds):
        return None
    return (*kinds, json.dumps(adapter.architecture(module.config), sort_keys=True, default=str))


def _dense_at_run_time(module: nn.Module) -> set[str]:
    dense: set[str] = set()
    with warnings.catch_warnings(), quiet():
        warnings.simplefilter("ignore")
        try:
            twin = _copy(module)
            models = [part for part in twin.modules() if isinstance(part, PreTrainedModel)]
            adapter.attend_without_weights(models[0])
        except Exception:  # a module that cannot be copied, or a model that keeps its attention function
            return dense
        if not _run(twin, dense):
            for model in models:
                _run(model, dense)
    return dense


def _copy(module: nn.Module) -> nn.Module:
    """The same modules sharing the same tensors, in evaluation mode, without hooks or replaced ``forward`` methods."""
    tensors = (*module.parameters(), *module.buffers())
    twin = copy.deepcopy(module, {id(tensor): tensor for tensor in tensors})
    for part in twin.modules():
        vars(part).pop("forward", None)
        vars(part).update({name: value for name, value in vars(nn.Module()).items() if name.endswith("hooks")})
        part.training = False
    return twin


def _run(module: nn.Module, dense: set[str]) -> bool:
    """Run a module and collect the classes that compute weights; whether it ran to the end."""
    with torch.no_grad(), without_values():
        for args, kwargs in _calls(module):
            try:
                with _Watch(module, dense):
                    module(*args, **kwargs)
            except Exception:  # whatever a model raises that expects other inputs, or their values
                continue
            return True
    return False


class _Watch(TorchFunctionMode):
    """Collects the classes of modules that compute attention weights.

    These are calls of torch's fused attention, of softmax in a module that is named attention, of softmax over a square
    of queries and keys, and products of products: ``softmax(q @ k.mT) @ v``.
    """

    def __init__(self, root: nn.Module, dense: set[str]) -> None:
        super().__init__()
        self.dense = dense
        self.running: list[nn.Module] = []
        self.scores: dict[int, Tensor] = {}  # products, and what was computed from them entry by entry
        self.weights: dict[int, tuple[Tensor, nn.Module]] = {}  # softmax of these, with the module that computed it
        for module in root.modules():
            if not type(module).__module__.startswith("torch.nn."):  # whose caller is recorded instead
                module.register_forward_pre_hook(lambda module, _: self.running.append(module))
                module.register_forward_hook(lambda *_: self._leave(), always_call=True)

    def _leave(self) -> None:
        self.running.pop()

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function and inspect the call."""
        result = function(*args, **(kwargs or {}))
        name = getattr(function, "__name__", "")
        if self.running and isinstance(result, Tensor):
            self._inspect(name, result, args, kwargs or {})
        elif self.running and FUSED.search(name):
            self._report(self.running[-1])
        return result

    def _inspect(self, name: str, result: Tensor, args: Any, kwargs: dict[str, Any]) -> None:
        module, inputs = self.running[-1], list(_tensors((args, kwargs)))
        if FUSED.search(name):
            self._report(module)
        elif "softmax" in name:  # the exponential of log_softmax gives weights, too
            if "log_softmax" not in name and self._is_attention(result, *args, **kwargs):
                self._report(module)
            if any(id(tensor) in self.scores for tensor in inputs):
                self.weights[id(result)] = result, module
        elif PRODUCT.search(name):
            for tensor in inputs:
                if id(tensor) in self.weights:
                    self._report(self.weights[id(tensor)][1])
            self.scores[id(result)] = result
        elif not MIXES.search(name):
            self._follow(result, inputs)

    def _follow(self, result: Tensor, inputs: list[Tensor]) -> None:
        """Scores that are scaled, masked or reshaped stay scores; weights after dropout stay weights."""
        for tensor in inputs:
            if result.numel() == tensor.numel() or result.shape[-1:] == tensor.shape[-1:]:
                if id(tensor) in self.scores:
                    self.scores[id(result)] = result
                if id(tensor) in self.weights:
                    self.weights[id(result)] = result, self.weights[id(tensor)][1]

    def _report(self, module: nn.Module) -> None:
        if not adapter.uses_interface(module):
            self.dense.add(type(module).__name__)

    def _is_attention(self, weights: Tensor, scores: Tensor, dim: int = -1, *_: Any, **__: Any) -> bool:
        last = dim in (-1, weights.dim() - 1)
        square = last and weights.dim() > 2 and weights.shape[-1] == weights.shape[-2] >= TOKENS
        return square or adapter.is_named_attention(self.running[-1])


def _tensors(found: Any) -> Iterator[Tensor]:
    """The tensors in nested arguments."""
    if isinstance(found, Tensor):
        yield found
    elif isinstance(found, (tuple, list)):
        for item in found:
            yield from _tensors(item)
    elif isinstance(found, dict):
        yield from _tensors(list(found.values()))


def _calls(module: nn.Module) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Arguments to try: a model's inputs by name; for a module around the model, also in other usual forms."""
    model = next(part for part in module.modules() if isinstance(part, PreTrainedModel))
    batch = _inputs(model, model.forward)
    if module is model:
        yield (), batch
        return
    first, mask = next(iter(batch.values()), None), torch.ones(1, TOKENS, dtype=torch.long)
    named = {**_inputs(model, module.forward), "attention_mask": mask}
    taken = inspect.signature(module.forward).parameters
    yield (), {name: tensor for name, tensor in named.items() if name in taken}
    yield from [((), batch), ((batch,), {}), ((first,), {}), ((first, mask), {})]


def _inputs(model: PreTrainedModel, forward: Callable[..., Any]) -> dict[str, Tensor]:
    """Of all inputs that can be made for a model, those that ``forward`` takes."""
    taken = inspect.signature(forward).parameters
    return {name: make(model).to(model.device) for name, make in INPUTS.items() if name in taken}


def _text(model: PreTrainedModel) -> Tensor:
    return torch.ones(1, TOKENS, dtype=torch.long)


def _image(model: PreTrainedModel) -> Tensor:
    size = _setting(model, "image_size", default=224)
    sides = (size, size) if isinstance(size, int) else tuple(size)[-2:]
    return torch.zeros(1, _setting(model, "num_channels", default=3), *sides, dtype=model.dtype)


def _audio(model: PreTrainedModel) -> Tensor:
    return torch.zeros(1, SAMPLES, dtype=model.dtype)


def _spectrogram(model: PreTrainedModel) -> Tensor:
    frames = 2 * _setting(model, "max_source_positions", default=50)
    return torch.zeros(1, _setting(model, "num_mel_bins", default=80), frames, dtype=model.dtype)


def _setting(model: PreTrainedModel, name: str, default: Any) -> Any:
    """A setting of the configuration or of one of its parts."""
    found = (getattr(config, name, None) for config in adapter.configurations(model.config))
    return next((setting for setting in found if setting is not None), default)


INPUTS: dict[str, Callable[[PreTrainedModel], Tensor]] = {
    "input_ids": _text,
    "decoder_input_ids": _text,
    "pixel_values": _image,
    "input_values": _audio,
    "input_features": _spectrogram,
}
