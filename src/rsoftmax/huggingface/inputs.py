"""Texts and pictures on their way into an encoder."""

from collections.abc import Iterable, Iterator, Sequence
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

    def checked(self, items: Iterable[Any]) -> list[Any]:
        """The items as a list; what is none of texts, or of pictures, is refused."""
        kind, fits = ("text", _is_text) if self.takes == TEXTS else ("picture", _is_picture)
        if isinstance(items, str | Path):
            raise TypeError(f"one {kind} was given in place of a list of {kind}s; write [{str(items)[:20]!r}]")
        found = list(items)
        for row, item in enumerate(found, 1):
            if not fits(item):
                raise TypeError(f"row {row}: a {kind} is wanted, got {item!r:.80}, a {type(item).__name__}")
            if self.takes == TEXTS and not _is_unicode(item):
                raise ValueError(f"row {row}: {item!r:.80} is no Unicode: it holds a surrogate; save it as UTF-8")
        return found

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


def _is_text(item: Any) -> bool:
    return isinstance(item, str)


def _is_picture(item: Any) -> bool:
    """Whether it is a path, or a picture of Pillow."""
    return isinstance(item, str | Path) or hasattr(item, "getexif")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _picture(one: Any) -> Any:
    """A path opened; a picture of Pillow made what a path to it would have given."""
    from rsoftmax.pictures import open_picture, upright

    return open_picture(Path(one), str(one)) if isinstance(one, str | Path) else upright(one)


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
