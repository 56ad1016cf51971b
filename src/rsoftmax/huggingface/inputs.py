"""Texts and pictures on their way into an encoder."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rsoftmax.huggingface.encoder import PICTURES, TEXTS

LONGEST = 100  # characters that a token stands for at most, in texts that are cut before they are read


class Inputs:
    """Prepares items for an encoder.

    Args:
        processor: a tokenizer or an image processor.
        takes: what the encoder's main input is called.
        max_tokens: tokens after which a text is cut.
    """

    def __init__(self, processor: Any, takes: str, max_tokens: int | None) -> None:
        self.processor, self.takes, self.max_tokens = processor, takes, max_tokens

    def check(self, items: Sequence[Any]) -> None:
        """Refuse what is no list of texts, or of pictures."""
        if self.takes == PICTURES:
            return
        if isinstance(items, str):
            raise TypeError(f"one text was given in place of a list of texts; write [{items[:20]!r}]")
        for row, item in enumerate(items):
            if not isinstance(item, str):
                raise TypeError(f"row {row + 1}: a text is wanted, got {item!r}, a {type(item).__name__}")

    def batch(self, items: Sequence[Any]) -> dict[str, Tensor]:
        """The tensors of a few items."""
        if self.takes == TEXTS:
            texts = [text[: LONGEST * (self.max_tokens or 0)] for text in items]
            encoded = self.processor(
                texts, truncation=True, max_length=self.max_tokens, padding=True, return_tensors="pt"
            )
            return {name: encoded[name] for name in ("input_ids", "attention_mask")}
        return {"pixel_values": self.processor(images=[_picture(one) for one in items], return_tensors="pt")[PICTURES]}

    def places(self, items: Sequence[Any], size: int) -> Iterator[list[int]]:
        """The places of the items of each batch: texts of about one length go together, long ones first."""
        order = list(range(len(items)))
        if self.takes == TEXTS:
            order.sort(key=lambda place: -len(items[place]))
        return (order[start : start + size] for start in range(0, len(order), size))

    def cut(self, texts: Sequence[str]) -> list[int]:
        """The places of texts that are longer than the encoder reads."""
        if self.takes != TEXTS or self.max_tokens is None:
            return []
        long = [place for place, text in enumerate(texts) if len(text) > self.max_tokens]
        tokens = (self.processor(texts[place][: LONGEST * self.max_tokens])["input_ids"] for place in long)
        return [place for place, ids in zip(long, tokens, strict=True) if len(ids) > self.max_tokens]


def _picture(one: Any) -> Any:
    """A picture of Pillow as it is; a path opened."""
    if not isinstance(one, str | Path):
        return one.convert("RGB")
    from rsoftmax.pictures import open_picture

    return open_picture(Path(one), str(one))


def blank(takes: str) -> list[Any]:
    """Two items of different size, of which nothing is asked but the number of features."""
    if takes == TEXTS:
        return ["a", "a longer text"]
    from PIL import Image

    return [Image.new("RGB", shape) for shape in ((224, 224), (64, 96))]


def stacked(rows: Iterator[tuple[list[int], Tensor]], count: int) -> Tensor:
    """The rows of all batches, each in the place of its item."""
    found = list(rows)
    order = torch.tensor([place for places, _ in found for place in places])
    together = torch.cat([part for _, part in found])
    return torch.empty_like(together).index_copy_(0, order, together) if count else together
