"""What the attention and the labels of pretrained models have in common: loading, texts, messages and positions."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import transformers
from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as MASKED
from transformers.utils import logging

ENTRY = "rsoftmax"  # our own entry in a model's config.json


def check_unicode(text: str, where: str = "") -> None:
    """Raise ValueError unless tokenizers can read the text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{where}{text!r:.80} is not valid Unicode: it has a lone surrogate") from None


@contextmanager
def quiet() -> Iterator[None]:
    """Context manager and decorator that hides transformers' progress bars, warnings and messages."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def max_positions(model: nn.Module) -> int | None:
    """The number of tokens that a model has positions for; None if it does not say.

    RoBERTa and its relatives never use the positions up to that of padding.
    """
    most = getattr(model.config, "max_position_embeddings", None)
    if not isinstance(most, int) or most < 1:
        return None
    tables = (part for name, part in model.named_modules() if name.endswith("position_embeddings"))
    unused = [table.padding_idx + 1 for table in tables if getattr(table, "padding_idx", None) is not None]
    return most - max(unused, default=0)


def check_source(source: str, cache_dir: str | Path | None = None, revision: str | None = None) -> None:
    """Raise ValueError if a source is no folder, not in the cache, and cannot be looked up on the hub.

    transformers would ask a hub that cannot be reached for half a minute. A name that cannot be a hub id, or is in an
    existing folder, is a mistyped path: it is not looked up.
    """
    path = Path(source)
    is_path = source.count("/") > 1 or source.startswith((".", "/", "~"))
    if path.is_dir():
        return
    if is_path or (path.parent != Path() and path.parent.is_dir()):
        raise ValueError("no such folder")
    try:
        if not isinstance(try_to_load_from_cache(source, "config.json", cache_dir, revision), str):
            get_hf_file_metadata(hf_hub_url(source, "config.json", revision=revision))
    except (HfHubHTTPError, HFValidationError):  # transformers explains these answers
        return
    except Exception as error:  # of the network; their kinds depend on the version of huggingface_hub
        raise ValueError(f"no such folder, not in the cache, and the hub cannot be reached: {error}") from None


@quiet()
def load_pretrained(source: str, task_head: bool = False) -> tuple[Any, Any]:
    """Load a tokenizer and a model, from safetensors only and without remote code.

    Args:
        source: a folder or hub id.
        task_head: whether to load the model with the head that it was saved with.
    """
    try:
        check_source(source)
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
        model_class = _saved_class(config) if task_head else AutoModel
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        return tokenizer, model_class.from_pretrained(source, use_safetensors=True)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{source!r} is not a folder or hub id with a model and its tokenizer: {reason}") from error


def _saved_class(config: Any) -> Any:
    """The class that a model was saved with; a decoder whose configuration does not tell is a language model."""
    name = (config.architectures or [""])[0]
    if name and hasattr(transformers, name):
        return getattr(transformers, name)
    if config.model_type in CAUSAL and config.model_type not in MASKED:
        return AutoModelForCausalLM
    example = MASKED.get(config.model_type, "BertForSequenceClassification")
    raise ValueError(
        f"its config.json has architectures = {config.architectures}, which is no class of transformers; put the one"
        f' that it was saved with there, such as "architectures": ["{example}"]'
    )
