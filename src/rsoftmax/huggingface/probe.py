"""Which modules of a model compute attention weights of their own, found by running the model.

What runs is a copy of the modules, in evaluation mode and without hooks, on tensors that have shapes and no values:
nothing is computed, no random number is drawn, and the model itself is not touched. In the copy, every module that asks
for its attention function is given one that computes no weights. Softmax is then called by modules that would stay
dense, and by routers, pooling and the like: who calls it, and for which shape, tells them apart.
"""

import copy
import inspect
import re
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from rsoftmax.huggingface import adapter
from rsoftmax.tensors import without_values

WORDS = 11  # in a text: a number that heads, experts and labels seldom have, so that these are not taken for keys
SAMPLES = 16000  # in a recording
IS_ATTENTION = re.compile("scaled_dot_product|multi_head_attention|transformer_encoder_layer")
MAY_BE_ATTENTION = re.compile("(?<!log_)softmax")


def seen_dense(model: PreTrainedModel) -> set[str]:
    """The classes of modules that were seen to compute attention weights of their own.

    A model is run as a whole, or, if it wants inputs that are not known here, its parts are. What cannot be run, or is
    not reached, is not seen.
    """
    found: set[str] = set()
    with warnings.catch_warnings(), adapter.quiet():
        warnings.simplefilter("ignore")
        try:
            twin = _copy(model)
            adapter.attend_without_weights(twin)
        except Exception:  # another library's module that cannot be copied, or a model that keeps its function
            return found
        if not _ran(twin, found):
            for part in twin.modules():
                if isinstance(part, PreTrainedModel) and part is not twin:
                    _ran(part, found)
    return found


def _copy(model: PreTrainedModel) -> PreTrainedModel:
    """The same modules with the same tensors, in evaluation mode, and nothing around their ``forward``."""
    tensors = (*model.parameters(), *model.buffers())
    twin: PreTrainedModel = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
    for module in twin.modules():
        vars(module).pop("forward", None)
        vars(module).update({name: value for name, value in vars(nn.Module()).items() if name.endswith("hooks")})
        module.training = False
    return twin


def _ran(model: PreTrainedModel, found: set[str]) -> bool:
    """Run a model and add the classes that compute weights; whether it came to an end."""
    try:
        with torch.no_grad(), without_values(), _Watch(model, found):
            model(**_inputs(model))
    except Exception:  # whatever a model raises that wants another input, or the values of this one
        return False
    return True


class _Watch(TorchFunctionMode):
    """Within it, the classes of modules that compute attention weights are added to a set."""

    def __init__(self, model: nn.Module, found: set[str]) -> None:
        super().__init__()
        self.running: list[nn.Module] = []
        self.found = found
        for module in model.modules():
            if not type(module).__module__.startswith("torch.nn."):  # whose caller is looked at instead
                module.register_forward_pre_hook(lambda module, _: self.running.append(module))
                module.register_forward_hook(lambda *_: self._ends(), always_call=True)

    def _ends(self) -> None:
        self.running.pop()

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function, and look at it."""
        result = function(*args, **(kwargs or {}))
        name = getattr(function, "__name__", "")
        if IS_ATTENTION.search(name) or (
            MAY_BE_ATTENTION.search(name) and self._attends(result, *args, **kwargs or {})
        ):
            self.found.add(type(self.running[-1]).__name__)
        return result

    def _attends(self, weights: Tensor, scores: Tensor, dim: int = -1, *_: Any, **__: Any) -> bool:
        """Whether a softmax is that of attention: by the name of the module that calls it, or queries x keys."""
        last = dim in (-1, weights.dim() - 1)
        square = last and weights.dim() > 2 and weights.shape[-1] == weights.shape[-2] >= WORDS
        module = self.running[-1]
        return not adapter.asks(module) and (square or adapter.is_called_attention(module))


def _inputs(model: PreTrainedModel) -> dict[str, Tensor]:
    """What to run a model on: of all that can be made, what it takes."""
    taken = inspect.signature(model.forward).parameters
    return {name: make(model).to(model.device) for name, make in INPUTS.items() if name in taken}


def _text(model: PreTrainedModel) -> Tensor:
    return torch.ones(1, WORDS, dtype=torch.long)


def _picture(model: PreTrainedModel) -> Tensor:
    size = _setting(model, "image_size", default=224)
    sides = (size, size) if isinstance(size, int) else tuple(size)[-2:]
    return torch.zeros(1, _setting(model, "num_channels", default=3), *sides, dtype=model.dtype)


def _sound(model: PreTrainedModel) -> Tensor:
    return torch.zeros(1, SAMPLES, dtype=model.dtype)


def _spectrogram(model: PreTrainedModel) -> Tensor:
    frames = 2 * _setting(model, "max_source_positions", default=50)
    return torch.zeros(1, _setting(model, "num_mel_bins", default=80), frames, dtype=model.dtype)


def _setting(model: PreTrainedModel, name: str, default: Any) -> Any:
    """A setting of the configuration, or of a part of it."""
    found = (getattr(config, name, None) for config in adapter.configurations(model.config))
    return next((setting for setting in found if setting is not None), default)


INPUTS: dict[str, Callable[[PreTrainedModel], Tensor]] = {
    "input_ids": _text,
    "decoder_input_ids": _text,
    "pixel_values": _picture,
    "input_values": _sound,
    "input_features": _spectrogram,
}
