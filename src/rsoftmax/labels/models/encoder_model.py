"""Labels for texts and images: an encoder from transformers with a multi-label head."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.utils.generic import ModelOutput

from rsoftmax._transformers import ENTRY, check_source, max_positions, quiet
from rsoftmax.labels.constraints import options_by_index
from rsoftmax.labels.decoding import Average
from rsoftmax.labels.evaluation import Evaluation
from rsoftmax.labels.head import resolve_rule
from rsoftmax.labels.models import finetuning
from rsoftmax.labels.models.base import LabelNetwork, Labels, NetworkModel, Part, check_names
from rsoftmax.labels.models.explanation import Explanation, Passage
from rsoftmax.labels.models.folders import LABELS, SETTINGS, WEIGHTS, read_settings, write
from rsoftmax.labels.models.inputs import (
    POOLINGS,
    TEXT,
    Inputs,
    cannot_load,
    example_items,
    is_hub_id,
    load_encoder,
    load_processor,
    pool,
)
from rsoftmax.labels.rules import Output
from rsoftmax.labels.windows import Windows
from rsoftmax.nn import SparsePooling

__all__ = ["EncoderModel", "EncoderModelConfig", "EncoderModelOutput"]

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
MAX_TOKENS = 256  # of a window: the default, unless the encoder takes fewer
OVERLAP = 0.25  # of two windows
POOLING: dict[str, Any] = {"mapping": "sparsemax"}  # of their scores
MIN_TOKENS = 4  # two words between the special tokens
BATCH_SIZE = 32


class EncoderModelConfig(PreTrainedConfig):
    """The settings of a :class:`EncoderModel`, as ``config.json`` holds them.

    Args:
        encoder: the encoder's configuration.
        pooling: how the encoder's output becomes one feature vector: "mean", "cls", "max" or "pooled".
        normalize: scale features to length 1.
        features: the number of features.
        hidden: the number of hidden units between features and head; 0: no hidden layer.
        head: the arguments of :class:`rsoftmax.labels.MultiLabelHead`.
        max_tokens: the number of tokens to which texts are truncated; None: they are not.
        windows: how long texts are read: the number of tokens of a window, the overlap of two windows, and the mapping
            that pools their scores with its parameter. None: for images, and if texts are truncated to one window.
        columns: the columns of the training table by role: text or image, labels, separator.
        evaluation: :meth:`rsoftmax.labels.Evaluation.as_dict` on held-out items.
        review: levels and thresholds of :meth:`rsoftmax.labels.BaseLabelModel.review`.
        rest: the arguments of every configuration; ``id2label`` names the labels.
    """

    model_type = LABELS
    sub_configs: ClassVar[dict[str, Any]] = {"encoder": AutoConfig}
    has_no_defaults_at_init = True

    def __init__(
        self,
        encoder: PreTrainedConfig | dict[str, Any] | None = None,
        pooling: str = "mean",
        normalize: bool = False,
        features: int = 1,
        hidden: int = 0,
        head: dict[str, Any] | None = None,
        max_tokens: int | None = None,
        windows: dict[str, Any] | None = None,
        columns: dict[str, str] | None = None,
        evaluation: dict[str, Any] | None = None,
        review: dict[str, Any] | None = None,
        **rest: Any,
    ) -> None:
        if pooling not in POOLINGS:
            listed = ", ".join(map(repr, POOLINGS))
            raise ValueError(f"EncoderModel: unknown pooling {pooling!r}; choose one of {listed}")
        if max_tokens is not None and not (isinstance(max_tokens, int) and max_tokens >= MIN_TOKENS):
            raise ValueError(
                f"EncoderModel: max_tokens must be an integer of at least {MIN_TOKENS}, got {max_tokens!r}"
            )
        if windows is not None and not MIN_TOKENS <= windows["overlap"] + MIN_TOKENS <= windows["tokens"]:
            raise ValueError(f"EncoderModel: windows need {MIN_TOKENS} tokens more than their overlap, got {windows}")
        self.encoder = AutoConfig.for_model(**encoder) if isinstance(encoder, dict) else encoder
        self.pooling, self.normalize, self.features, self.hidden = pooling, normalize, features, hidden
        self.head, self.max_tokens = dict(head or {}), max_tokens
        self.windows: Any = windows
        self.columns, self.evaluation, self.review = dict(columns or {}), evaluation, review
        entry = vars(self.encoder).pop(ENTRY, None) if self.encoder is not None else None
        if entry is not None:  # the mapping of the attention, with its parameters, belongs to the whole model
            rest = {ENTRY: entry, "attn_implementation": entry.get("mapping"), **rest}
        super().__init__(**{"problem_type": "multi_label_classification", **rest})

    @property
    def names(self) -> list[str]:
        """The labels in the order of the columns."""
        return [self.id2label[index] for index in range(len(self.id2label))]  # type: ignore[index, arg-type]


@dataclass
class EncoderModelOutput(ModelOutput):
    """The output of a :class:`EncoderModel` for a batch.

    Attributes:
        loss: the loss of the head, if labels were given.
        logits: the logits of the labels, minus their threshold, [items, K].
        marginals: the probability of each label, [items, K]; not in training mode.
        probs: a distribution over the predicted labels, [items, K], exactly zero elsewhere; not in training mode.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    marginals: Tensor | None = None
    probs: Tensor | None = None


class EncoderModel(NetworkModel, PreTrainedModel):
    """An encoder of texts or images with a :class:`rsoftmax.labels.MultiLabelHead`.

    Created by :meth:`from_encoder` or :meth:`from_pretrained`, and saved by :meth:`save_pretrained` as one folder with
    its tokenizer or image processor and a model card. It can be trained by the Trainer of transformers, made sparse by
    ``set_attention``, and loaded by ``AutoModel`` once this class is imported.

    Args:
        config: its settings.

    Attributes:
        encoder: the network that reads texts or images.
        network: an optional hidden layer and the head, with calibration and thresholds.
        processor: the tokenizer or image processor.

    Batch normalisation keeps its pre-trained statistics in training, as batches are small. No code from a folder is
    run, and no pickle is read.
    """

    config: EncoderModelConfig
    config_class = EncoderModelConfig
    base_model_prefix = "label_model"
    accepts_loss_kwargs = False
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True
    _keep_in_fp32_modules_strict = ["network"]  # noqa: RUF012 - transformers' name

    def __init__(self, config: EncoderModelConfig) -> None:
        super().__init__(config)
        self.encoder = AutoModel.from_config(config.encoder, trust_remote_code=False)
        self.main_input_name = self.encoder.main_input_name
        self.network = LabelNetwork(config.features, len(config.names), config.hidden, **config.head)
        self.processor: Any = None
        self.post_init()  # type: ignore[no-untyped-call]

    @classmethod
    def from_encoder(
        cls,
        source: str | Path,
        labels: Sequence[str],
        average: Average = "micro",
        *,
        pooling: str | None = None,
        normalize: bool | None = None,
        max_tokens: int | None = None,
        window: int | None = None,
        **head: Any,
    ) -> Self:
        """Put a new, untrained head on a pre-trained encoder.

        Args:
            source: a folder or hub id of a transformers encoder with its tokenizer or image processor, or of a
                SentenceTransformer, whose pooling, normalisation and number of tokens are then the defaults.
            labels: the names of the labels.
            average: the F1 to maximise; see :class:`rsoftmax.labels.MultiLabelHead`.
            pooling: "mean" over tokens, the default for texts; "cls", the first token; "max" over tokens; "pooled", the
                encoder's own pooler output, the default for images.
            normalize: scale features to length 1. Default: False.
            max_tokens: truncate texts to this number of tokens. Default: texts of any length are read as a whole.
            window: the number of tokens that the encoder reads at once. Longer texts are read in windows of this size,
                each sharing a quarter with the next one. Default: 256, or the encoder's maximum if that is lower.
            head: further arguments of the head: rule, loss, beta, min_labels, max_labels; implies and exclusive by
                name, as in :class:`rsoftmax.labels.ExpectedF1Classifier`.
        """
        names = check_names(labels)
        if head.keys() & {"implies", "exclusive"}:
            head = options_by_index(names, head)
        network, processor, missing, layout = load_encoder(str(source))
        is_text = network.main_input_name == TEXT
        pooling = pooling or layout.pooling or ("mean" if is_text else "pooled")
        if absent := sorted(name for name in missing if pooling == "pooled" or not name.startswith("pooler.")):
            raise ValueError(f"{source}: its weights lack {absent[0]}, which would be initialized at random")
        rule = resolve_rule(**{name: head[name] for name in ("mapping", "loss", "rule") if name in head})
        if is_text:
            most = min(getattr(processor, "model_max_length", MAX_TOKENS), max_positions(network) or MAX_TOKENS)
            tokens = min(window or max_tokens or layout.max_tokens or MAX_TOKENS, most)
            max_tokens = tokens if max_tokens is None and rule.name != "expected_f1" else max_tokens
        config = EncoderModelConfig(
            encoder=network.config.to_dict(),
            pooling=pooling,
            normalize=layout.normalize if normalize is None else normalize,
            head={"average": average, **head} if rule.name == "expected_f1" else head,
            max_tokens=max_tokens if is_text else None,
            windows=_windows(tokens) if is_text and (max_tokens is None or max_tokens > tokens) else None,
            id2label=dict(enumerate(names)),
            label2id={name: index for index, name in enumerate(names)},
        )
        config.features = _count_features(network, processor, config)
        model = cls(config)
        model.encoder.load_state_dict(network.state_dict())
        model.processor = processor
        model.train(False)
        return model

    @classmethod
    def from_pretrained(cls, source: str | Path, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        """Load a saved model from a folder or the hub, ready to predict.

        Raises:
            FileNotFoundError: if there is no model in the folder.
            ValueError: if it is damaged, of another kind, or of a newer version.
        """
        with_report = options.pop("output_loading_info", False)
        options |= {"use_safetensors": True, "trust_remote_code": False, "output_loading_info": True}
        is_local = Path(source).is_dir() or not is_hub_id(str(source))
        settings = read_settings(Path(source), LABELS) if is_local else {}
        try:
            with quiet():
                if is_local:
                    config = EncoderModelConfig.from_dict(settings)
                    check_names(config.names)
                    _check_shapes(cls, config, Path(source))
                else:
                    check_source(str(source), options.get("cache_dir"), options.get("revision"))
                loaded: Any = super().from_pretrained(source, *args, **options)
                model, report = loaded
                for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
                    if names := sorted(map(str, report[kind])):
                        raise ValueError(f"{WEIGHTS} does not fit {SETTINGS}: {kind.replace('_', ' ')}: {names[0]}")
                model.processor = load_processor(source, model.main_input_name)
        except Exception as error:  # for settings edited by hand, and from the hub, transformers raises many kinds
            if "attn_implementation" in str(error):
                remedy = "call rsoftmax.attention.register_attention() before loading it"
                raise ValueError(f"the attention of {source} has a mapping of its own; {remedy}") from error
            raise ValueError(f"{source} is damaged: {error}") if is_local else cannot_load(source, error) from error
        return (model, report) if with_report else model

    def save_pretrained(self, save_directory: str | Path, **options: Any) -> None:  # type: ignore[override]
        """Save weights, settings, processor and model card as one folder, in a single step.

        Other files in the folder stay untouched, and so does an edited model card.

        Raises:
            FileExistsError: if a file would be replaced that is not part of a saved model of this kind.
            OSError: if the files cannot be written; an existing model stays intact.
        """
        push = options.pop("push_to_hub", False)
        options["max_shard_size"] = "1000TB"  # one file
        with write(Path(save_directory)) as folder, quiet():
            try:
                super().save_pretrained(folder, **options)
            except SafetensorError as error:
                raise OSError(f"cannot write to {save_directory}: {error}") from None
            if self.processor is not None:
                self.processor.save_pretrained(folder)
        if push:
            push_to_hub: Any = self.push_to_hub
            push_to_hub(options.get("repo_id") or Path(save_directory).name)

    def save(self, folder: str | Path) -> None:
        """Save as :meth:`save_pretrained` does."""
        self.save_pretrained(folder)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Load as :meth:`from_pretrained` does, from a folder or the hub."""
        model: Self = cls.from_pretrained(folder)
        return model

    @property
    def modality(self) -> Literal["text", "image"]:
        """What the encoder reads."""
        return "text" if self.main_input_name == TEXT else "image"

    @property
    def inputs(self) -> Inputs:
        """Prepares texts or images for the encoder."""
        if self.processor is None:
            raise ValueError("EncoderModel: no tokenizer or image processor; set model.processor")
        return _inputs(self.processor, self.main_input_name, self.config)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        pixel_values: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> EncoderModelOutput:
        """Predict labels from tokens or pixels, and compute the loss if ``labels``, a matrix of 0 and 1, is given.

        Takes what the tokenizer or image processor returns: ``model(**tokenizer(texts, return_tensors="pt"))``.
        """
        x = self.features(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids, pixel_values=pixel_values
        )
        scores = self.network.scores(x)
        loss = None if labels is None else self.network.head.loss(scores, labels)
        if self.training:
            return EncoderModelOutput(loss, scores.margins)
        output = self.network.head.decode(scores)
        return EncoderModelOutput(loss, scores.margins, output.marginals, output.probs)

    def features(self, **tensors: Tensor | None) -> Tensor:
        """The pooled output of the encoder for a batch, [items, features], float32."""
        inputs = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        x = pool(self.config.pooling, self.encoder(**inputs), inputs.get("attention_mask")).float()
        return nn.functional.normalize(x, dim=-1) if self.config.normalize else x

    def embed(self, items: Sequence[Any], *, batch_size: int = BATCH_SIZE, verbose: bool = False) -> Tensor:
        """The features of texts or images, [items, features], on the CPU; of a long text, the mean of its windows."""
        x = self.encode(items, batch_size=batch_size, verbose=verbose)
        return x.mean() if isinstance(x, Windows) else x

    @torch.inference_mode()
    def encode(self, items: Sequence[Any], *, batch_size: int = BATCH_SIZE, verbose: bool = False) -> Tensor | Windows:
        """The features of texts or images, on the CPU; those of all windows, if a text has several.

        Warns of texts that are truncated.
        """
        inputs = self.inputs
        items = inputs.check(items)
        warn_truncated(inputs, items)
        spans = [inputs.spans(text) for text in items] if self.config.windows else []
        if all(len(windows) == 1 for windows in spans):
            return self._embed(items, batch_size, verbose)
        passages = [text[start:end] for text, windows in zip(items, spans, strict=True) for start, end in windows]
        counts = torch.tensor([len(windows) for windows in spans])
        return Windows(self._embed(passages, batch_size, verbose), counts, self.window_pooling())

    def _embed(self, items: Sequence[Any], batch_size: int, verbose: bool) -> Tensor:
        """The features of images, or of texts that the encoder reads at once."""
        inputs = self.inputs
        self.train(False)
        x = torch.zeros(len(items), self.config.features)
        with tqdm(total=len(items), unit="items", desc="embedding", disable=not verbose) as bar:
            for indices in inputs.batches(items, batch_size):
                tensors = inputs.batch([items[index] for index in indices])
                x[indices] = self.features(**{name: value.to(self.device) for name, value in tensors.items()}).cpu()
                bar.update(len(indices))
        return x

    def window_pooling(self) -> SparsePooling:
        """Pools the scores of the windows of a text."""
        settings = self.config.windows or {}
        options = {name: value for name, value in settings.items() if name not in ("tokens", "overlap")}
        return SparsePooling(nn.Identity(), **options)

    @torch.inference_mode()
    def explain(
        self, items: Sequence[Any], *, every_label: bool = False, verbose: bool = False
    ) -> list[dict[str, Explanation]]:
        """Predict as :meth:`predict`, with the windows of each text that decide about each label, and their weights.

        Args:
            items: texts.
            every_label: explain all labels, not only the predicted ones.
            verbose: show a progress bar.

        Raises:
            ValueError: the model reads images.

        What a text that fits in one window owes to its words is not known: its passage is the text, with weight 1.
        """
        if self.modality == "image":
            return super().explain(items)
        texts = self.check(items)
        x = self.encode(texts, verbose=verbose)
        predicted = self.name_labels(self._decode(x), every_label=every_label)
        one = torch.ones(len(self.names), 1)
        device = next(self.network.parameters()).device
        weights = self.network.window_weights(x.to(device)) if isinstance(x, Windows) else [one] * len(texts)
        explained = []
        for text, labels, shares in zip(texts, predicted, weights, strict=True):
            spans, share_of = self.inputs.spans(text), dict(zip(self.names, shares.tolist(), strict=True))
            windows = {
                name: [Passage(*span, share) for span, share in zip(spans, share_of[name], strict=True) if share]
                for name in labels
            }
            explained.append({name: Explanation(p, windows[name], [], {}, None) for name, p in labels.items()})
        return explained

    def example(self) -> dict[str, Tensor]:
        """The tensors of two items."""
        return self.inputs.batch(example_items(self.main_input_name))

    def predict_tensors(self, **tensors: Tensor) -> Output:
        """Predict from tokens or pixels."""
        output: Output = self.network(self.features(**tensors))
        return output

    def metadata(self) -> dict[str, Any]:
        """The number of tokens that the encoder reads at once."""
        tokens = self.config.windows["tokens"] if self.config.windows else self.config.max_tokens
        return {} if tokens is None else {"max_tokens": tokens}

    def truncated(self, items: Sequence[Any]) -> list[int]:
        """The indices of texts with more than ``max_tokens`` tokens, if there is such a number."""
        return self.inputs.truncated(items)

    def fit(self, items: Sequence[Any], y: Labels, *, finetune: bool = False, **settings: Any) -> Self:
        """Train on texts or images, as in :meth:`NetworkModel.fit`.

        Args:
            items: texts, or images as paths or Pillow images.
            y: the names for each item, or a matrix of 0 and 1.
            finetune: train the encoder too, with the Trainer. Otherwise every item is embedded once and only the head
                is trained, which takes seconds to minutes, and needs ``pip install 'rsoftmax[labels]'``.
            settings: validation, guarantee, random_state, verbose; with ``finetune`` also those of
                :func:`rsoftmax.labels.models.finetuning.finetune` (epochs, lr, batch_size, patience, checkpoints), and
                validation is a tenth of the items by default; otherwise those of :class:`SparseLabelClassifier`.
        """
        return super().fit(items, y, finetune=finetune, **settings)

    def check(self, items: Sequence[Any]) -> list[Any]:
        """The items as a list; raises unless all are texts, or images."""
        return self.inputs.check(items)

    def train_on(
        self,
        items: Sequence[Any],
        y: Tensor,
        validation: Part | None,
        *,
        random_state: int,
        verbose: bool,
        finetune: bool = False,
        **settings: Any,
    ) -> Evaluation:
        """Train the head, or all of the model, and evaluate on held-out items.

        The networks of a classifier, merged into one, its calibration and its thresholds become those of the model.
        """
        settings |= {"random_state": random_state, "verbose": verbose}
        if finetune:
            warn_truncated(self.inputs, items)
            return finetuning.finetune(self, items, y, validation, **settings)
        try:
            from rsoftmax.labels.estimators.ensemble import fit_features
        except ImportError as missing:
            raise ImportError(f"EncoderModel.fit: {missing}; or pass finetune=True") from None
        x = self.encode(items, verbose=verbose)
        held_out = None if validation is None else (self.encode(validation[0], verbose=verbose), validation[1])
        network, scores = fit_features(x, y, held_out, self.names, self.config.head, **settings)
        self.network = network.to(self.device)
        self.config.hidden = network.width
        return scores

    def train(self, mode: bool = True) -> Self:
        """Set the training mode; batch normalisation keeps its pre-trained statistics."""
        super().train(mode)
        for module in self.encoder.modules():
            if isinstance(module, BATCH_NORMS):
                module.eval()
        return self


def warn_truncated(inputs: Inputs, items: Sequence[Any]) -> None:
    """Warn of texts that are truncated."""
    if long := inputs.truncated(items):
        warnings.warn(
            f"{len(long)} of {len(items)} texts are longer than {inputs.max_tokens} tokens and are truncated, the first"
            f" is item {long[0] + 1}",
            stacklevel=3,
        )


def _windows(tokens: int) -> dict[str, Any]:
    """The settings of windows of this many tokens."""
    return {"tokens": tokens, "overlap": round(OVERLAP * tokens), **POOLING}


def _inputs(processor: Any, main_input: str, config: EncoderModelConfig) -> Inputs:
    windows = (config.windows["tokens"], config.windows["overlap"]) if config.windows else None
    return Inputs(processor, main_input, config.max_tokens, windows)


@torch.inference_mode()
def _count_features(network: PreTrainedModel, processor: Any, config: EncoderModelConfig) -> int:
    """The number of features of an encoder, from a run with example items."""
    kind, pooling = type(network).__name__, config.pooling
    tensors = _inputs(processor, network.main_input_name, config).batch(example_items(network.main_input_name))
    output = network(**tensors)
    if pooling == "pooled" and getattr(output, "pooler_output", None) is None:
        raise ValueError(f"{kind} has no pooler output; pass pooling='mean' or 'cls'")
    if pooling != "pooled" and getattr(output, "last_hidden_state", None) is None:
        raise ValueError(f"{kind} is not an encoder: it has no hidden states; choose one like BERT")
    return pool(pooling, output, tensors.get("attention_mask")).shape[-1]


def _check_shapes(model: type[EncoderModel], config: EncoderModelConfig, folder: Path) -> None:
    """Raise unless the weights have the shapes, and about the number, of those of the model with these settings.

    transformers may rename tensors in the file; names that occur only there are left to its own report. A damaged
    number of layers may be huge: building stops at far more modules than the file has tensors.
    """
    with safe_open(folder / WEIGHTS, "pt") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    numbers, most = count(), 1000 + 20 * len(shapes)

    def hook(*_: Any) -> None:
        if next(numbers) > most:
            raise ValueError(f"{SETTINGS} describes more layers than {WEIGHTS} has tensors for")

    handle = nn.modules.module.register_module_module_registration_hook(hook)
    try:
        with torch.device("meta"):
            expected = {name: list(tensor.shape) for name, tensor in model(config).state_dict().items()}
    finally:
        handle.remove()
    if different := min((name for name in expected.keys() & shapes if expected[name] != shapes[name]), default=None):
        raise ValueError(f"{different} is {shapes[different]} in {WEIGHTS} but {expected[different]} in {SETTINGS}")
    have, need = (sum(map(math.prod, part.values())) for part in (shapes, expected))
    if need > 2 * have:
        raise ValueError(f"{WEIGHTS} holds {have} weights but {SETTINGS} describes {need}")


AutoConfig.register(EncoderModelConfig.model_type, EncoderModelConfig, exist_ok=True)
AutoModel.register(EncoderModelConfig, EncoderModel, exist_ok=True)
