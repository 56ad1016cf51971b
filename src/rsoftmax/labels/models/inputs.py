"""From texts and images to the tensors of an encoder, and from its output to one feature vector per item."""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AutoImageProcessor, AutoModel, AutoTokenizer, PreTrainedModel
from transformers.utils.hub import cached_file

from rsoftmax._transformers import check_source, check_unicode, quiet

TEXT, IMAGE = "input_ids", "pixel_values"
"""The main input of an encoder, as transformers names it."""
POOLINGS = ("mean", "cls", "max", "pooled")
Span = tuple[int, int]
"""The first character of a passage, and the one behind its last."""
MAX_CHARACTERS = 100  # per token, of texts that are shortened before the tokenizer sees them


class Layout(NamedTuple):
    """How a SentenceTransformer computes its features.

    Attributes:
        folder: where its encoder is, below the source.
        pooling: its name; None: not stated.
        normalize: whether features are scaled to length 1.
        max_tokens: the number of tokens to which texts are truncated; None: not stated.
    """

    folder: str = ""
    pooling: str | None = None
    normalize: bool = False
    max_tokens: int | None = None


class Encoder(NamedTuple):
    """An encoder, its tokenizer or image processor, the weights that its file lacks, and how features are computed."""

    network: PreTrainedModel
    processor: Any
    missing: set[str]
    layout: Layout


def is_hub_id(text: str) -> bool:
    """Whether a text looks like ``owner/name`` rather than like a path."""
    owner, _, name = text.partition("/")
    return bool(owner.strip(".") and name) and "/" not in name


def load_encoder(source: str) -> Encoder:
    """Load an encoder from a folder or a hub id ``owner/name``: safetensors only, and no code from there is run."""
    if not Path(source).is_dir() and not is_hub_id(source):
        raise ValueError(f"cannot load a model from {source!r}: no such folder, and not a hub id OWNER/NAME")
    layout = read_layout(source) if Path(source).is_dir() else None
    folder = str(Path(source, layout.folder)) if layout else source
    with quiet():
        try:
            check_source(folder)
            network, report = AutoModel.from_pretrained(
                folder, use_safetensors=True, trust_remote_code=False, output_loading_info=True
            )
            if network.config.is_encoder_decoder:
                raise ValueError(f"{type(network).__name__} has a decoder; choose an encoder like BERT")
            processor = load_processor(folder, network.main_input_name)
        except Exception as error:  # for damaged folders, and those of other kinds, transformers raises many kinds
            raise cannot_load(source, error) from None
    return Encoder(network.eval(), processor, set(report["missing_keys"]), layout or read_layout(source))


def read_layout(source: str) -> Layout:
    """Read the modules of a SentenceTransformer; the default layout for other encoders.

    Raises:
        ValueError: if it has a module that label models do not support.
    """
    modules = _read_json(source, "modules.json") or []
    paths = {str(module["type"]).rpartition(".")[2]: str(module.get("path") or "") for module in modules}
    if not paths:
        return Layout()
    if unknown := sorted(paths.keys() - {"Transformer", "Pooling", "Normalize"}):
        raise ValueError(f"{source}: label models do not support {unknown[0]}, a module of this SentenceTransformer")
    folder, pooling = paths.get("Transformer", ""), None
    settings = _read_json(source, f"{folder}/sentence_bert_config.json".lstrip("/")) or {}
    if "Pooling" in paths and (pools := _read_json(source, f"{paths['Pooling']}/config.json")):
        old = [name for name, is_used in pools.items() if name.startswith("pooling_mode_") and is_used is True]
        names = [name.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token") for name in old]
        pooling = str(pools.get("pooling_mode") or "+".join(names))
    return Layout(folder, pooling, "Normalize" in paths, settings.get("max_seq_length"))


def _read_json(source: str, name: str) -> Any:
    """A JSON file from a folder or the hub; None if there is none."""
    try:
        path = cached_file(source, name)
    except OSError:  # there is none, or the hub cannot be reached
        return None
    return json.loads(Path(path).read_bytes()) if path else None


def load_processor(source: str | Path, main_input: str) -> Any:
    """Load the tokenizer or image processor from a folder or the hub."""
    if main_input == TEXT:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        return tokenizer
    if main_input == IMAGE:
        return AutoImageProcessor.from_pretrained(source, backend="pil", trust_remote_code=False)
    raise ValueError(f"its main input is {main_input}; expected an encoder of texts ({TEXT}) or images ({IMAGE})")


def cannot_load(source: str | Path, error: Exception) -> ValueError:
    """The error that says in one line why the model cannot be loaded."""
    first = (str(error).strip().splitlines() or [repr(error)])[0]
    return ValueError(f"cannot load a model from {str(source)!r}: {first}")


class Inputs:
    """Prepares items for an encoder.

    Args:
        processor: a tokenizer or an image processor.
        main_input: the encoder's main input, ``"input_ids"`` or ``"pixel_values"``.
        max_tokens: the number of tokens to which texts are truncated; None: they are not.
        windows: the number of tokens that the encoder reads at once, and of those that two windows share.
    """

    def __init__(self, processor: Any, main_input: str, max_tokens: int | None, windows: Span | None = None) -> None:
        self.processor, self.main_input, self.max_tokens, self.windows = processor, main_input, max_tokens, windows

    def check(self, items: Iterable[Any]) -> list[Any]:
        """The items as a list; raises unless all are texts, or images."""
        kind, article = ("text", "a") if self.main_input == TEXT else ("image", "an")
        if isinstance(items, str | Path):
            raise TypeError(f"expected a list of {kind}s, got one {kind}; write [{str(items)[:20]!r}]")
        checked = list(items)
        for number, item in enumerate(checked, 1):
            if not (
                isinstance(item, str) or (kind == "image" and (isinstance(item, Path) or hasattr(item, "getexif")))
            ):
                raise TypeError(f"item {number}: expected {article} {kind}, got {item!r:.80}, a {type(item).__name__}")
            if kind == "text":
                check_unicode(item, f"item {number}: ")
        return checked

    def batch(self, items: Sequence[Any]) -> dict[str, Tensor]:
        """The tensors of a few items."""
        if self.main_input == TEXT:
            most = self.windows[0] if self.windows else self.max_tokens
            options = {"truncation": True, "max_length": most, "padding": True, "return_tensors": "pt"}
            encoded = self.processor([self._cut(text, most) for text in items], **options)
            return {name: encoded[name] for name in (TEXT, "attention_mask")}
        from rsoftmax.labels.models.images import open_image, upright

        paths = (str, Path)
        images = [open_image(Path(item), str(item)) if isinstance(item, paths) else upright(item) for item in items]
        return {IMAGE: self.processor(images=images, return_tensors="pt")[IMAGE]}

    def batches(self, items: Sequence[Any], size: int) -> Iterator[list[int]]:
        """The indices of the items of each batch: texts of similar length together, long ones first."""
        order = list(range(len(items)))
        if self.main_input == TEXT:
            order.sort(key=lambda index: -len(items[index]))
        return (order[start : start + size] for start in range(0, len(order), size))

    def truncated(self, texts: Sequence[str]) -> list[int]:
        """The indices of texts with more than ``max_tokens`` tokens."""
        if self.main_input != TEXT or self.max_tokens is None:
            return []
        tokens = (self.processor(self._cut(text, self.max_tokens), verbose=False)[TEXT] for text in self.check(texts))
        return [index for index, ids in enumerate(tokens) if len(ids) > self.max_tokens]

    def spans(self, text: str) -> list[Span]:
        """The windows of a text, as characters: all of it, or what is left by truncation, if that fits in one.

        Their distances are equal. They begin and end between words, unless a word is longer than their overlap.
        """
        whole = [(0, len(text))]
        windows = (self.max_tokens, 0) if self.windows is None and self.max_tokens else self.windows
        special = self.processor.num_special_tokens_to_add()
        if windows is None or len(text.encode()) <= windows[0] - special:  # a token has a byte or more
            return whole
        size, overlap = windows[0] - special, windows[1]
        if not self.processor.is_fast:
            raise ValueError(
                f"{type(self.processor).__name__} cannot tell where a token begins, so that there are no windows; pass"
                f" max_tokens={windows[0]} to truncate"
            )
        options = {"add_special_tokens": False, "return_offsets_mapping": True, "verbose": False}
        encoded = self.processor(self._cut(text, self.max_tokens), **options)
        words, offsets = encoded.word_ids(), encoded["offset_mapping"]
        tokens = len(words) if self.max_tokens is None else min(len(words), self.max_tokens - special)
        if tokens <= size:
            return whole if tokens == len(words) else [(0, offsets[tokens - 1][1])]

        def boundary(token: int, step: int) -> int:
            """The nearest boundary of words in one direction."""
            near = range(token, token + step * (overlap // 2 + 1), step)
            return next((at for at in near if at in (0, tokens) or words[at] != words[at - 1]), token)

        count = math.ceil((tokens - overlap) / (size - overlap))
        starts = [round(i * (tokens - size) / (count - 1)) for i in range(count)]
        return [(offsets[boundary(i, 1)][0], offsets[boundary(i + size, -1) - 1][1]) for i in starts]

    def _cut(self, text: str, tokens: int | None) -> str:
        """The part of a text that the tokenizer gets: more characters than so many tokens have."""
        return text if tokens is None else text[: MAX_CHARACTERS * tokens]


def example_items(main_input: str) -> list[Any]:
    """Two items of different size, to try an encoder on."""
    if main_input == TEXT:
        return ["a", "a longer text"]
    from PIL import Image

    return [Image.new("RGB", shape) for shape in ((224, 224), (64, 96))]


def pool(pooling: str, output: Any, mask: Tensor | None) -> Tensor:
    """One feature vector per item.

    Args:
        pooling: "mean" or "max" over the tokens that are not padding; "cls", the first token; "pooled", the encoder's
            own ``pooler_output``.
        output: of the encoder.
        mask: 0 for padding, [items, tokens]; None: there is none.
    """
    if pooling == "pooled":
        return output.pooler_output.flatten(1)  # type: ignore[no-any-return]
    states: Tensor = output.last_hidden_state
    if pooling == "cls":
        return states[:, 0]
    if mask is None:
        return states.mean(1) if pooling == "mean" else states.amax(1)
    weights = mask.unsqueeze(-1).to(states.dtype)
    if pooling == "max":
        return states.masked_fill(weights == 0, -torch.inf).amax(1)
    return (states * weights).sum(1) / weights.sum(1).clamp(min=1)
