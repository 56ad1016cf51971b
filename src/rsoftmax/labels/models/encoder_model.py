"""Labels for texts and images: an encoder from transformers with a multi-label head."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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

from rsoftmax._transformers import ENTRY, max_positions, quiet
from rsoftmax.labels.decoding import Average
from rsoftmax.labels.head import resolve_rule
from rsoftmax.labels.models import finetuning as training
from rsoftmax.labels.models.base import (
    BaseLabelModel,
    LabelNetwork,
    Labels,
    check_lengths,
    check_names,
    hold_out,
    indicator,
)
from rsoftmax.labels.models.card import count_of, model_card
from rsoftmax.labels.models.folders import CARD, LABELS, SETTINGS, WEIGHTS, read, read_settings, write
from rsoftmax.labels.models.inputs import (
    POOLINGS,
    TEXT,
    Inputs,
    cannot_load,
    check_pooling,
    example_items,
    in_order,
    is_hub_id,
    load_encoder,
    load_processor,
)
from rsoftmax.labels.rules import Output

__all__ = ["LabelModel", "LabelModelConfig", "LabelOutput"]

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
MAX_TOKENS = 256  # the default, unless the encoder takes fewer
MIN_TOKENS = 4  # two words between the special tokens
BATCH_SIZE = 32
USAGE = """from rsoftmax.labels import LabelModel

model = LabelModel.from_pretrained("path/to/this/folder")
model.predict(["{item}"])"""


def check_tokens(max_tokens: int | None) -> None:
    """Raise unless texts can be truncated to this number of tokens."""
    if max_tokens is not None and not (isinstance(max_tokens, int) and max_tokens >= MIN_TOKENS):
        raise ValueError(f"LabelModel: max_tokens must be an integer of at least {MIN_TOKENS}, got {max_tokens!r}")


class LabelModelConfig(PreTrainedConfig):
    """The settings of a :class:`LabelModel`, as ``config.json`` holds them.

    Args:
        encoder: the encoder's configuration.
        pooling: how the encoder's output becomes one row of features: "mean", "cls", "max" or "pooled".
        normalize: scale features to length 1.
        features: the number of features.
        hidden: the number of hidden units between features and head; 0: no hidden layer.
        head: the arguments of :class:`rsoftmax.labels.MultiLabelHead`.
        max_tokens: the number of tokens to which texts are truncated; None for images.
        columns: the columns of the training table by role: text or image, labels, separator.
        evaluation: :meth:`rsoftmax.labels.Evaluation.as_dict` on held-out rows.
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
        columns: dict[str, str] | None = None,
        evaluation: dict[str, Any] | None = None,
        **rest: Any,
    ) -> None:
        check_pooling(pooling)
        check_tokens(max_tokens)
        self.encoder = AutoConfig.for_model(**encoder) if isinstance(encoder, dict) else encoder
        self.pooling, self.normalize, self.features, self.hidden = pooling, normalize, features, hidden
        self.head, self.max_tokens = dict(head or {}), max_tokens
        self.columns, self.evaluation = dict(columns or {}), evaluation
        entry = vars(self.encoder).pop(ENTRY, None) if self.encoder is not None else None
        if entry is not None:  # the mapping of the attention, with its parameters, belongs to the whole model
            rest = {ENTRY: entry, "attn_implementation": entry.get("mapping"), **rest}
        super().__init__(**{"problem_type": "multi_label_classification", **rest})

    @property
    def names(self) -> list[str]:
        """The labels in the order of the columns."""
        return [self.id2label[index] for index in range(len(self.id2label))]  # type: ignore[index, arg-type]


@dataclass
class LabelOutput(ModelOutput):
    """The output of a :class:`LabelModel` for a batch.

    Attributes:
        loss: the loss of the head, if labels were given.
        logits: the logits of the labels, minus their threshold, [items, K].
        marginals: the probability of each label, [items, K]; not in training mode.
        p: a distribution over the predicted labels, [items, K], exactly zero elsewhere; not in training mode.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    marginals: Tensor | None = None
    p: Tensor | None = None


class LabelModel(BaseLabelModel, PreTrainedModel):
    """An encoder of texts or images with a :class:`rsoftmax.labels.MultiLabelHead`.

    Created by :meth:`from_encoder` or :meth:`from_pretrained`, and saved by :meth:`save_pretrained` as one folder with
    its tokenizer or image processor and a model card. It can be trained by the Trainer of transformers, made sparse by
    ``set_attention``, and loaded by ``AutoModel`` once ``rsoftmax.attention.transformers`` is imported.

    Args:
        config: its settings.

    Attributes:
        encoder: the network that reads texts or images.
        network: an optional hidden layer and the head, with calibration and thresholds.
        processor: the tokenizer or image processor.

    Batch normalisation keeps its pre-trained statistics in training, as batches are small. No code from a folder is
    run, and no pickle is read.
    """

    config: LabelModelConfig
    config_class = LabelModelConfig
    base_model_prefix = "label_model"
    accepts_loss_kwargs = False
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True
    _keep_in_fp32_modules_strict = ["network"]  # noqa: RUF012 - transformers' name

    def __init__(self, config: LabelModelConfig) -> None:
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
            max_tokens: the number of tokens to which texts are truncated. Default: 256, or the
                encoder's maximum if that is lower.
            head: further arguments of the head: rule, loss, beta, min_labels, max_labels.
        """
        names = check_names(labels)
        check_tokens(max_tokens)
        network, processor, missing, layout = load_encoder(str(source))
        is_text = network.main_input_name == TEXT
        pooling = pooling or layout.pooling or ("mean" if is_text else "pooled")
        check_pooling(pooling)
        lacking = sorted(name for name in missing if pooling == "pooled" or not name.startswith("pooler."))
        if lacking:
            raise ValueError(f"{source}: its weights lack {lacking[0]}, which would be initialized at random")
        if is_text:
            most = min(getattr(processor, "model_max_length", MAX_TOKENS), max_positions(network) or MAX_TOKENS)
            max_tokens = min(max_tokens or layout.max_tokens or MAX_TOKENS, most)
        rule = resolve_rule(**{name: head[name] for name in ("mapping", "loss", "rule") if name in head})
        if rule.name == "expected_f1":
            head = {"average": average, **head}
        config = LabelModelConfig(
            encoder=network.config.to_dict(),
            pooling=pooling,
            normalize=layout.normalize if normalize is None else normalize,
            features=_count_features(network, processor, pooling, max_tokens),
            head=head,
            max_tokens=max_tokens,
            id2label=dict(enumerate(names)),
            label2id={name: index for index, name in enumerate(names)},
        )
        model = cls(config)
        model.encoder.load_state_dict(network.state_dict())
        model.processor = processor
        model.train(False)
        return model

    @classmethod
    def from_pretrained(cls, source: str | Path, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        """Load a saved model from a folder or the hub, ready to predict.

        While another process saves to the folder, either the old or the new version is loaded, never a mixture.

        Raises:
            FileNotFoundError: if there is no model in the folder.
            ValueError: if it is damaged, of another kind, or of a newer version.
        """
        if not Path(source).is_dir() and is_hub_id(str(source)):
            try:
                return cls._load(source, *args, **options)
            except Exception as error:  # for repositories of other kinds, and without a network, many kinds
                raise cannot_load(str(source), error) from error
        with read(Path(source)) as place:
            settings = read_settings(Path(source), LABELS)
            try:
                with quiet():
                    config = LabelModelConfig.from_dict(settings)
                    check_names(config.names)
                    _check_shapes(lambda: cls(config), place)
                loaded = cls._load(place, *args, **options)
            except Exception as error:  # for settings edited by hand torch and transformers raise many kinds
                raise ValueError(f"{source} is damaged: {error}") from error
        model: Self = loaded[0] if isinstance(loaded, tuple) else loaded
        model.config._name_or_path = model.name_or_path = str(source)
        return loaded

    @classmethod
    def _load(cls, source: str | Path, *args: Any, **options: Any) -> Any:
        """Load from a folder or the hub, and refuse weights that are not exactly the model's."""
        with_report = options.pop("output_loading_info", False)
        safe = {"use_safetensors": True, "trust_remote_code": False, "output_loading_info": True}
        with quiet():
            loaded: Any = super().from_pretrained(source, *args, **{**options, **safe})
            model, report = loaded
            _check_report(report)
            model.processor = load_processor(source, model.main_input_name)
        return (model, report) if with_report else model

    def save_pretrained(self, save_directory: str | Path, **options: Any) -> None:  # type: ignore[override]
        """Save weights, settings, processor and model card as one folder, in a single step: see ``rsoftmax.files``.

        Other files in the folder are kept, and so is an edited model card.

        Raises:
            FileExistsError: if a file would be replaced that is not part of a saved model of this kind.
            OSError: if the files cannot be written; an existing model stays intact.
        """
        push = options.pop("push_to_hub", False)
        one_file = {"max_shard_size": "1000TB"}
        with write(Path(save_directory)) as folder, quiet():
            try:
                super().save_pretrained(folder, **{**options, **one_file})
            except SafetensorError as error:
                raise OSError(f"cannot write to {save_directory}: {error}") from None
            if self.processor is not None:
                self.processor.save_pretrained(folder)
            (folder / CARD).write_text(self._card(), encoding="utf-8")
        if push:
            push_to_hub: Any = self.push_to_hub
            push_to_hub(options.get("repo_id") or Path(save_directory).name)

    @property
    def names(self) -> list[str]:
        """The labels in the order of the columns."""
        return self.config.names

    @property
    def columns(self) -> dict[str, str]:
        """The columns of the training table by role: text or image, labels, separator."""
        return self.config.columns

    @property
    def reads(self) -> Literal["text", "image"]:
        """What the encoder reads."""
        return "text" if self.main_input_name == TEXT else "image"

    @property
    def evaluation(self) -> dict[str, Any]:
        """The evaluation on held-out rows: :meth:`rsoftmax.labels.Evaluation.as_dict`; empty before ``fit``."""
        return self.config.evaluation or {}

    @property
    def inputs(self) -> Inputs:
        """Prepares texts or images for the encoder."""
        if self.processor is None:
            raise ValueError("LabelModel: no tokenizer or image processor; set model.processor")
        return Inputs(self.processor, self.main_input_name, self.config.max_tokens)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        pixel_values: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> LabelOutput:
        """Predict labels from tokens or pixels, and compute the loss if ``labels``, a matrix of 0 and 1, is given.

        Takes what the tokenizer or image processor returns: ``model(**tokenizer(texts, return_tensors="pt"))``.
        """
        x = self.features(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids, pixel_values=pixel_values
        )
        scores = self.network.scores(x)
        loss = None if labels is None else self.network.head.loss(scores, labels)
        if self.training:
            return LabelOutput(loss, scores.margins)
        output = self.network.head.decode(scores)
        return LabelOutput(loss, scores.margins, output.marginals, output.probs)

    def features(self, **tensors: Tensor | None) -> Tensor:
        """The pooled output of the encoder for a batch, [items, features], float32."""
        given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        x = POOLINGS[self.config.pooling](self.encoder(**given), given.get("attention_mask")).float()
        return nn.functional.normalize(x, dim=-1) if self.config.normalize else x

    @torch.inference_mode()
    def embed(self, items: Sequence[Any], *, batch_size: int = BATCH_SIZE, progress: bool = False) -> Tensor:
        """The features of texts or images, [items, features], on the CPU."""
        inputs = self.inputs
        items = inputs.check(items)
        self.train(False)
        with tqdm(total=len(items), unit="items", desc="embedding", disable=not progress) as bar:

            def rows() -> Any:
                for indices in inputs.batches(items, batch_size):
                    tensors = inputs.batch([items[index] for index in indices])
                    on_device = {name: value.to(self.device) for name, value in tensors.items()}
                    yield indices, self.features(**on_device).cpu()
                    bar.update(len(indices))

            return in_order(rows()) if items else torch.zeros(0, self.config.features)

    def example(self) -> dict[str, Tensor]:
        """The tensors of two items."""
        return self.inputs.batch(example_items(self.main_input_name))

    def answer(self, **tensors: Tensor) -> Output:
        """Predict from tokens or pixels."""
        output: Output = self.network(self.features(**tensors))
        return output

    def about(self) -> dict[str, Any]:
        """The number of tokens to which texts are truncated."""
        return {} if self.config.max_tokens is None else {"max_tokens": self.config.max_tokens}

    def truncated(self, items: Sequence[Any]) -> list[int]:
        """The indices of texts with more than ``max_tokens`` tokens."""
        return self.inputs.truncated(items)

    @torch.inference_mode()
    def outputs(self, items: Sequence[Any], *, progress: bool = False) -> Output:
        """Predict from texts or images."""
        x = self.embed(items, progress=progress).to(self.device)
        return Output(*(None if part is None else part.cpu() for part in self.network(x)))  # type: ignore[arg-type]

    def fit(
        self,
        items: Sequence[Any],
        labels: Labels,
        *,
        validation: tuple[Sequence[Any], Labels] | None = None,
        finetune: bool = False,
        guarantee: dict[str, Any] | None = None,
        progress: bool = True,
        seed: int = 0,
        **settings: Any,
    ) -> Self:
        """Train on texts or images; :attr:`evaluation` then holds the evaluation on held-out rows.

        Args:
            items: texts, or images as paths or Pillow images.
            labels: the names for each item, or a matrix of 0 and 1.
            validation: held-out items and labels. None: cross-validation, or a tenth of the items with ``finetune``.
            finetune: train the encoder too, with the Trainer. Otherwise every item is embedded once and only the head
                is trained, which takes seconds to minutes.
            guarantee: hold out a fifth of the items and call :meth:`guarantee` with them: ``{"recall": 0.9}``.
            progress: show progress bars.
            seed: the random seed.
            settings: with ``finetune`` those of :func:`rsoftmax.labels.models.finetuning.finetune` (epochs, lr,
                batch_size, patience, checkpoints), otherwise those of :class:`rsoftmax.labels.SparseLabelClassifier`.

        Needs ``pip install 'rsoftmax[sklearn]'`` unless ``finetune``.
        """
        (items, truth), aside = hold_out(*self._pair(items, labels), guarantee or {}, seed)
        held_out = None if validation is None else self._pair(*validation)
        train = training.finetune if finetune else training.fit_head
        found = train(self, items, truth, held_out, progress=progress, seed=seed, **settings)
        self.config.evaluation = found.as_dict()
        return self if aside is None else self.guarantee(*aside, progress=progress, **(guarantee or {}))

    def record(self, head: dict[str, Any], evaluation: dict[str, Any]) -> None:
        """Change the saved settings: arguments of the head, and the evaluation."""
        self.config.head, self.config.evaluation = self.config.head | head, evaluation

    def _pair(self, items: Sequence[Any], labels: Labels) -> tuple[list[Any], Tensor]:
        """Items and their labels [items, K], checked."""
        found, truth = self.inputs.check(items), indicator(labels, self.names)
        check_lengths(found, truth)
        return found, truth

    def _card(self) -> str:
        title = f"Multi-label classifier for {self.reads}s"
        what = f"A multi-label classifier for {self.reads}s: a {self.encoder.config.model_type} encoder with an"
        what = f"{what} rsoftmax head for {count_of(len(self.names), 'label')}."
        usage = USAGE.format(item="a text" if self.reads == "text" else "image.jpg")
        return model_card("transformers", title, what, usage, self.config.evaluation)

    def train(self, mode: bool = True) -> Self:
        """Set the training mode; batch normalisation keeps its pre-trained statistics."""
        super().train(mode)
        for module in self.encoder.modules():
            if isinstance(module, BATCH_NORMS):
                module.eval()
        return self


@torch.inference_mode()
def _count_features(network: PreTrainedModel, processor: Any, pooling: str, max_tokens: int | None) -> int:
    """The number of features of an encoder, found by running it."""
    tensors = Inputs(processor, network.main_input_name, max_tokens).batch(example_items(network.main_input_name))
    output = network(**tensors)
    if pooling == "pooled" and getattr(output, "pooler_output", None) is None:
        raise ValueError(f"{type(network).__name__} has no pooler output; pass pooling='mean' or 'cls'")
    if pooling != "pooled" and getattr(output, "last_hidden_state", None) is None:
        raise ValueError(f"{type(network).__name__} is not an encoder: it has no hidden states; choose one like BERT")
    return POOLINGS[pooling](output, tensors.get("attention_mask")).shape[-1]


def _check_shapes(build: Callable[[], nn.Module], folder: Path) -> None:
    """Raise unless the weights have the shapes, and about the number, of those of the model that ``build`` returns.

    transformers may rename tensors in the file; names that occur only there are left to :func:`_check_report`.
    """
    with safe_open(folder / WEIGHTS, "pt") as file:
        found = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    with torch.device("meta"), _max_modules(1000 + 20 * len(found)):
        model = build()
    expected = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    if different := min((name for name in expected.keys() & found if expected[name] != found[name]), default=None):
        raise ValueError(f"{different} is {found[different]} in {WEIGHTS} but {expected[different]} in {SETTINGS}")
    have, need = (sum(map(math.prod, shapes.values())) for shapes in (found, expected))
    if need > 2 * have:
        raise ValueError(f"{WEIGHTS} holds {have} weights but {SETTINGS} describes {need}")


def _check_report(report: dict[str, Any]) -> None:
    """Raise unless the file held exactly the tensors of the model."""
    for kind, what in (("missing_keys", "lacks"), ("unexpected_keys", "has"), ("mismatched_keys", "has another")):
        if names := sorted(map(str, report[kind])):
            raise ValueError(f"{WEIGHTS} {what} {names[0]}, unlike the model that {SETTINGS} describes")


@contextmanager
def _max_modules(number: int) -> Iterator[None]:
    """Stop building a network at this number of modules: a damaged number of layers may be huge."""
    numbers = count()

    def hook(*_: Any) -> None:
        if next(numbers) > number:
            raise ValueError(f"{SETTINGS} describes more layers than {WEIGHTS} has tensors for")

    handle = nn.modules.module.register_module_module_registration_hook(hook)
    try:
        yield
    finally:
        handle.remove()


AutoConfig.register(LabelModelConfig.model_type, LabelModelConfig, exist_ok=True)
AutoModel.register(LabelModelConfig, LabelModel, exist_ok=True)
