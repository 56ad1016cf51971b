"""Batches of texts, as mappings from a model's argument names to tensors."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rsoftmax._transformers import max_positions, quiet

Batch = Mapping[str, Any]
OBSERVED = 128  # queries per text whose weights are observed


def check_batches(batches: Iterable[Batch]) -> list[Batch]:
    """The batches as a list; raises if there are none, or if they are not mappings."""
    checked = [batches] if isinstance(batches, Mapping) else list(batches)
    for batch in checked:
        if not isinstance(batch, Mapping):
            raise TypeError(f"a batch must map the model's argument names to tensors, got {type(batch).__name__}")
    if not checked:
        raise ValueError("no batches; pass tokenized texts, e.g. [tokenizer(text, return_tensors='pt')]")
    return checked


def split_batches(batches: Iterable[Batch], held_out: Iterable[Batch] | None) -> tuple[list[Batch], list[Batch]]:
    """Batches to select thresholds on and to certify one with; a single batch is split by its texts."""
    first = check_batches(batches)
    if held_out is not None:
        return first, [held_out] if isinstance(held_out, Mapping) else list(held_out)
    if len(first) > 1:
        return first[: len(first) // 2], first[len(first) // 2 :]
    texts = next((len(value) for value in first[0].values() if isinstance(value, Tensor)), 0)
    if texts < 2:
        raise ValueError(f"sparsify: half of the texts are held out, so at least two are needed, got {texts}")
    parts = (slice(texts // 2), slice(texts // 2, None))
    half, rest = ({name: x[part] if isinstance(x, Tensor) else x for name, x in first[0].items()} for part in parts)
    return [half], [rest]


def real_tokens(batch: Batch, texts: int, length: int | None = None, decoder: bool = False) -> Tensor:
    """The padding mask ``[texts, tokens]`` of a batch; ones if it has none of this size."""
    names = ("decoder_attention_mask", "attention_mask") if decoder else ("attention_mask",)
    for name in names:
        mask = batch.get(name)
        if isinstance(mask, Tensor) and mask.dim() == 2 and (length is None or mask.shape[1] == length):
            return mask
    return torch.ones(texts, length or length_of(batch), dtype=torch.long)


def length_of(batch: Batch) -> int:
    """The number of tokens per text, with padding."""
    return max((x.shape[1] for x in batch.values() if isinstance(x, Tensor) and x.dim() == 2), default=1)


def step_of(batches: list[Batch]) -> int:
    """The step between the queries whose weights are observed."""
    return max(1, *(length_of(batch) // OBSERVED for batch in batches))


@quiet()
def text_batches(
    tokenizer: Any, model: Any, text: str, length: int | None = None, samples: int | None = None
) -> list[Batch]:
    """Batches of evenly spaced parts of a text: ``length`` tokens for language models, otherwise truncated lines.

    The length is 512 by default, or the model's number of positions if that is lower; the number of samples is 16
    pieces, or 200 lines.
    """
    positions = max_positions(model) or length or 512
    length = length or min(512, positions)
    if length > positions:
        raise ValueError(f"length must be at most {positions}, the model's number of positions, got {length}")
    if model.get_output_embeddings() is None:
        lines = _spaced([line for line in text.splitlines() if line.strip()], samples or 200)
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        options = {"return_tensors": "pt", "padding": True, "truncation": True, "max_length": length}
        return [dict(tokenizer(lines[i : i + 8], **options)) for i in range(0, len(lines), 8)]
    ids = tokenizer(text, return_tensors="pt")["input_ids"][0]
    if len(ids) < length:
        raise ValueError(f"the text has {len(ids)} tokens, fewer than the length of {length}; pass a longer text")
    pieces = ids[: len(ids) // length * length].split(length)
    return [{"input_ids": piece[None]} for piece in _spaced(pieces, samples or 16)]


def _spaced(items: Sequence[Any], count: int) -> list[Any]:
    """At most ``count`` items, evenly spaced."""
    return [items[i * len(items) // count] for i in range(count)] if len(items) > count else list(items)
