"""An encoder of texts or pictures, loaded with what prepares its input."""

from pathlib import Path
from typing import Any, NamedTuple

from transformers import AutoImageProcessor, AutoModel, AutoTokenizer, PreTrainedModel

from rsoftmax.huggingface.adapter import quiet

TEXTS, PICTURES = "input_ids", "pixel_values"
"""What the main input of an encoder is called."""


class Encoder(NamedTuple):
    """An encoder, what prepares its input, and the weights that its file lacked."""

    network: PreTrainedModel
    processor: Any
    missing: set[str]


def is_hub_id(text: str) -> bool:
    """Whether it looks like ``owner/name``, and not like a path."""
    owner, _, name = text.partition("/")
    return bool(owner.strip(".") and name) and "/" not in name


def load(source: str) -> Encoder:
    """From a folder, or a hub id ``owner/name``; weights in safetensors only, and no code from there is run."""
    if not Path(source).is_dir() and not is_hub_id(source):
        raise ValueError(f"no model can be loaded from {source!r}: it is no folder, and a hub id is OWNER/NAME")
    with quiet():
        try:
            network, report = AutoModel.from_pretrained(
                source, use_safetensors=True, trust_remote_code=False, output_loading_info=True
            )
            if network.config.is_encoder_decoder:
                raise ValueError(f"{type(network).__name__} has a decoder; take an encoder like BERT")
            processor = processor_of(source, network.main_input_name)
        except Exception as error:  # whatever a damaged folder, or one of another kind, makes transformers raise
            raise unloadable(source, error) from None
    return Encoder(network.eval(), processor, set(report["missing_keys"]))


def processor_of(source: str | Path, takes: str) -> Any:
    """The tokenizer, or the image processor, that was saved in a folder or is on the hub."""
    if takes == TEXTS:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        return tokenizer
    if takes == PICTURES:
        return AutoImageProcessor.from_pretrained(source, backend="pil", trust_remote_code=False)
    raise ValueError(f"its input is {takes}; an encoder of texts ({TEXTS}) or pictures ({PICTURES}) is wanted")


def unloadable(source: str, error: Exception) -> ValueError:
    """The error that says, in one line, why nothing can be loaded."""
    first = (str(error).strip().splitlines() or [repr(error)])[0]
    return ValueError(f"no model can be loaded from {source!r}: {first}")
