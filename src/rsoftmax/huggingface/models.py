"""Models of transformers: the one that a module wraps, whether its attention can be replaced, and its parameters."""

from collections.abc import Iterator

from torch import nn
from transformers import PreTrainedModel

from rsoftmax.huggingface import adapter
from rsoftmax.huggingface.head_parameter import HeadParameter, held_by
from rsoftmax.huggingface.probe import seen_dense

SUPPORTED = (
    "BERT, RoBERTa, DistilBERT, ALBERT, ELECTRA, ModernBERT, ViT, GPT-2, Llama, Mistral, Qwen, BART, T5 and all others"
    " whose attention asks transformers' AttentionInterface"
)


def pretrained_model(module: nn.Module) -> PreTrainedModel:
    """The model of transformers that a module is, or wraps."""
    models = dict(_outermost(module, ""))
    if len(models) == 1:
        return next(iter(models.values()))
    kind = type(module).__name__
    if not models:
        raise TypeError(f"set_attention: {kind} is not a model of transformers, and wraps none")
    raise ValueError(f"set_attention: {kind} wraps several models; call it for each: {', '.join(models)}")


def _outermost(module: nn.Module, name: str) -> Iterator[tuple[str, PreTrainedModel]]:
    if isinstance(module, PreTrainedModel):
        yield name, module
    else:
        for part, child in module.named_children():
            yield from _outermost(child, f"{name}.{part}" if name else part)


def refuse_dense(model: PreTrainedModel) -> None:
    """Refuse a model of which a part computes attention weights of its own."""
    if dense := adapter.dense_attention(model) or seen_dense(model):
        raise refusal(model, f"{', '.join(sorted(dense))} would stay dense")


def refusal(model: PreTrainedModel, why: str) -> ValueError:
    """The error that says why a model's attention cannot be replaced, and in which models it can."""
    return ValueError(f"sparse attention: {type(model).__name__} is refused: {why}. What works: {SUPPORTED}")


def head_counts(modules: dict[str, nn.Module]) -> list[int]:
    """How many heads each of these attention modules has."""
    return [_head_count(name, module) for name, module in modules.items()]


def _head_count(name: str, module: nn.Module) -> int:
    if (count := adapter.head_count(module)) is None:
        raise ValueError(f"set_attention: {name}, a {type(module).__name__}, does not say how many heads it has")
    return count


def head_parameters(model: PreTrainedModel) -> dict[str, HeadParameter]:
    """The parameter of each attention module; at least one has one."""
    modules = adapter.attention_modules(model)
    found = {name: held for name, module in modules.items() if (held := held_by(module)) is not None}
    if not found:
        used = adapter.implementation(model.config)
        raise ValueError(
            f"{type(model).__name__} uses {used!r} attention, which has no parameter;"
            " call set_attention(model, 'r_softmax', r=...) first"
        )
    return found
