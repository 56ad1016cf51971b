"""Labels for texts and pictures: any encoder of transformers with a head, as one model."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm
from transformers import AutoConfig, AutoModel, PreTrainedModel

from rsoftmax.folders import CARD, check_hashes, hashes, settings_of, written
from rsoftmax.huggingface import encoder as encoders
from rsoftmax.huggingface.adapter import ModelOutput, quiet
from rsoftmax.huggingface.inputs import Inputs, blank, stacked
from rsoftmax.huggingface.label_config import LabelModelConfig, check_tokens
from rsoftmax.huggingface.pooling import POOLINGS, check_pooling
from rsoftmax.huggingface.weights_file import check_report, check_shapes
from rsoftmax.model_card import model_card
from rsoftmax.multilabel import Average, Evaluation, Labeller, LabelNetwork, Output, indicator
from rsoftmax.multilabel.labeller import Labels, check_lengths
from rsoftmax.printable import counted

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
LONGEST = 256  # tokens that are read of a text, if the encoder reads as many and nothing else is said
BATCH = 32
USE = """from rsoftmax.huggingface import LabelModel
model = LabelModel.from_pretrained("this folder")
model.predict(["{item}"])"""


@dataclass
class LabelOutput(ModelOutput):
    """What a :class:`LabelModel` says of a batch.

    Attributes:
        loss: the head's, if labels were given.
        logits: the scores of the labels, less their threshold, [items, K].
        marginals: the probability of each label for itself, [items, K]; not in training.
        p: a distribution over the labels that are answered, [items, K]: the others are exactly zero; not in training.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    marginals: Tensor | None = None
    p: Tensor | None = None


class LabelModel(Labeller, PreTrainedModel):
    """An encoder of texts or pictures with a :class:`rsoftmax.multilabel.MultiLabelHead`: labels by name.

    Made by :meth:`from_encoder` or ``from_pretrained``; saved by ``save_pretrained``, with tokenizer or image
    processor and a model card, as one folder. The Trainer of transformers can train it, ``set_attention`` makes its
    attention sparse, and ``AutoModel`` knows it when ``rsoftmax.huggingface`` is imported.

    Args:
        config: its settings.

    Attributes:
        encoder: the network that reads texts or pictures.
        network: a hidden layer, if there is one, and the head, with calibration and cuts.
        processor: the tokenizer, or image processor.

    Batch normalisation keeps the statistics of its pre-training, in training too: batches are small, and what was
    folded into the statistics stays right. No code from a folder is run, and no pickle is read.
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
        max_tokens: int | None = None,
        **head: Any,
    ) -> Self:
        """A new model, whose head knows nothing yet.

        Args:
            source: a folder, or a hub id, with an encoder of transformers and its tokenizer or image processor.
            labels: their names.
            average: the F1 that counts; see :class:`rsoftmax.multilabel.MultiLabelHead`.
            pooling: "mean" over tokens, which None means for texts; "cls", the first token; "pooled", what the encoder
                itself has pooled, which None means for pictures.
            max_tokens: tokens after which a text is cut; None: as many as the encoder reads, 256 at most.
            head: further settings of the head: rate, loss, beta, at_least, at_most.
        """
        names = _checked_names(labels)
        check_tokens(max_tokens)
        network, processor, missing = encoders.load(str(source))
        takes = network.main_input_name
        pooling = pooling or ("mean" if takes == encoders.TEXTS else "pooled")
        check_pooling(pooling)
        lacking = sorted(name for name in missing if pooling == "pooled" or not name.startswith("pooler."))
        if lacking:
            raise ValueError(f"{source}: its file lacks {lacking[0]}, which would be drawn at random")
        if takes == encoders.TEXTS:
            most = min(getattr(processor, "model_max_length", LONGEST), _positions(network))
            max_tokens = min(max_tokens or LONGEST, most)
        if choose_rate(head) == "expected_f1":
            head = {"average": average, **head}
        config = LabelModelConfig(
            encoder=network.config.to_dict(),
            pooling=pooling,
            features=_size(network, processor, pooling, max_tokens),
            head=head,
            max_tokens=max_tokens,
            id2label=dict(enumerate(names)),
            label2id={name: place for place, name in enumerate(names)},
        )
        model = cls(config)
        model.encoder.load_state_dict(network.state_dict())
        model.processor = processor
        model.train(False)
        return model

    @classmethod
    def from_pretrained(cls, source: str | Path, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        """Load what ``save_pretrained`` wrote, from a folder or the hub, ready to predict.

        A folder that is damaged, or that of another model, is refused.
        """
        folder = Path(source)
        if folder.is_dir():
            _check(cls, folder)
        wants_report = options.pop("output_loading_info", False)
        safe = {"use_safetensors": True, "trust_remote_code": False, "output_loading_info": True}
        try:
            with quiet():
                found: Any = super().from_pretrained(source, *args, **{**options, **safe})
                model, report = found
                check_report(report)
                model.processor = encoders.processor_of(source, model.main_input_name)
        except Exception as error:  # whatever a file that was changed by hand makes torch and transformers raise
            raise ValueError(f"{source} is damaged: {error}") from error
        return (model, report) if wants_report else model

    def save_pretrained(self, save_directory: str | Path, **options: Any) -> None:  # type: ignore[override]
        """Write weights, settings, processor and model card as one folder, at one stroke; nothing is half-written.

        What else is in the folder stays, a model card that is there too, unless this is another model's.
        """
        push = options.pop("push_to_hub", False)
        with written(Path(save_directory)) as folder, quiet():
            super().save_pretrained(folder, **options)
            if self.processor is not None:
                self.processor.save_pretrained(folder)
            self.config.files = hashes(folder)
            self.config.save_pretrained(folder)
            (folder / CARD).write_text(self._card(), encoding="utf-8")
        if push:
            push_to_hub: Any = self.push_to_hub
            push_to_hub(options.get("repo_id") or Path(save_directory).name)

    @property
    def names(self) -> list[str]:
        """The labels, in the order of the columns."""
        return self.config.names

    @property
    def columns(self) -> dict[str, str]:
        """Names of columns by role: text or image, labels, separator."""
        return self.config.columns

    @property
    def scores(self) -> dict[str, Any]:
        """What rows held out say about the model, as :class:`rsoftmax.multilabel.Evaluation` has it."""
        return self.config.scores or {}

    @property
    def inputs(self) -> Inputs:
        """What prepares texts or pictures for the encoder."""
        if self.processor is None:
            raise ValueError("LabelModel: it has no tokenizer or image processor; set model.processor")
        return Inputs(self.processor, self.main_input_name, self.config.max_tokens)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        pixel_values: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> LabelOutput:
        """From tokens or pixels to labels; the loss too, given a matrix of 0 and 1."""
        x = self.features(input_ids=input_ids, attention_mask=attention_mask, pixel_values=pixel_values)
        scores = self.network.scores(x)
        loss = None if labels is None else self.network.head.loss(scores, labels)
        if self.training:
            return LabelOutput(loss, scores.u)
        output = self.network.head.decode(scores)
        return LabelOutput(loss, scores.u, output.marginals, output.p)

    def features(self, **tensors: Tensor | None) -> Tensor:
        """What the encoder says of a batch, pooled, [items, features], float32."""
        given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        return POOLINGS[self.config.pooling](self.encoder(**given), given.get("attention_mask")).float()

    @torch.inference_mode()
    def embed(self, items: Sequence[Any], *, batch_size: int = BATCH, progress: bool = False) -> Tensor:
        """The features of texts or pictures, [items, features], on the CPU."""
        inputs = self.inputs
        items = inputs.checked(items)
        self.train(False)
        with tqdm(total=len(items), unit="items", desc="reading", disable=not progress) as bar:

            def rows() -> Any:
                for places in inputs.places(items, batch_size):
                    tensors = inputs.batch([items[place] for place in places])
                    yield (
                        places,
                        self.features(**{name: value.to(self.device) for name, value in tensors.items()}).cpu(),
                    )
                    bar.update(len(places))

            return stacked(rows(), len(items)) if len(items) else torch.zeros(0, self.config.features)

    def example(self) -> dict[str, Tensor]:
        """Tokens or pixels of two items."""
        return self.inputs.batch(blank(self.main_input_name))

    def answer(self, **tensors: Tensor) -> Output:
        """What the model says of tokens or pixels, decoded."""
        output: Output = self.network(self.features(**tensors))
        return output

    def about(self) -> dict[str, Any]:
        """Where texts are cut."""
        return {} if self.config.max_tokens is None else {"max_tokens": self.config.max_tokens}

    def cut(self, items: Sequence[Any]) -> list[int]:
        """The places of texts that are longer than what the encoder reads."""
        return self.inputs.cut(items)

    @torch.inference_mode()
    def outputs(self, items: Sequence[Any], *, progress: bool = False) -> Output:
        """What the model says of texts or pictures, decoded."""
        x = self.embed(items, progress=progress).to(self.device)
        return Output(*(None if part is None else part.cpu() for part in self.network(x)))  # type: ignore[arg-type]

    def fit(
        self,
        items: Sequence[Any],
        labels: Labels,
        *,
        validation: tuple[Sequence[Any], Labels] | None = None,
        finetune: bool = False,
        progress: bool = True,
        seed: int = 0,
        **settings: Any,
    ) -> Self:
        """Learn from texts or pictures; what rows held out say about the result is in ``config.scores``.

        Args:
            items: texts, or pictures: paths or images of Pillow.
            labels: names for each of them, or a matrix of 0 and 1.
            validation: items and labels to hold out. None: folds of the items, or with ``finetune`` a tenth of them.
            finetune: train the encoder too, by the Trainer; otherwise the encoder reads every item once, and the head
                is trained on what it says, which takes seconds to minutes.
            progress: show bars.
            seed: of everything that is drawn.
            settings: with ``finetune`` those of :func:`rsoftmax.huggingface.finetuning.finetune` (epochs, lr,
                batch_size, patience, checkpoints), otherwise those of
                :class:`rsoftmax.sklearn.SparseLabelClassifier`.

        Needs ``pip install 'rsoftmax[sklearn]'`` unless ``finetune``.
        """
        items, truth = self._pairs(items, labels)
        held = None if validation is None else self._pairs(*validation)
        if finetune:
            from rsoftmax.huggingface.finetuning import finetune as train
        else:
            from rsoftmax.huggingface.frozen import fit_head as train
        self.learned(train(self, items, truth, held, progress=progress, seed=seed, **settings))
        return self

    def _pairs(self, items: Sequence[Any], labels: Labels) -> tuple[list[Any], Tensor]:
        """Items and their labels [items, K], checked."""
        found, truth = self.inputs.checked(items), indicator(labels, self.names)
        check_lengths(found, truth)
        return found, truth

    def _card(self) -> str:
        texts, config = self.config.max_tokens is not None, self.config
        what = (
            f"A {self.encoder.config.model_type} encoder with a head of rsoftmax {config.rsoftmax_version} that gives"
        )
        what = f"{what} each item some of {counted(len(self.names), 'label')}, with their probabilities."
        use = USE.format(item="a text" if texts else "picture.jpg")
        return model_card("transformers", "texts" if texts else "pictures", what, use, config.scores)

    def learned(self, scores: Evaluation) -> None:
        """Keep what rows held out say about the model."""
        self.config.scores = scores.as_dict()

    def train(self, mode: bool = True) -> Self:
        """As ever, but for batch normalisation."""
        super().train(mode)
        for module in self.encoder.modules():
            if isinstance(module, BATCH_NORMS):
                module.eval()
        return self


def choose_rate(head: dict[str, Any]) -> str | None:
    """The name of the rule that the settings of a head ask for."""
    from rsoftmax.multilabel.choices import choose

    return choose(head.get("mapping", "auto"), head.get("loss", "auto"), head.get("rate", "auto"), head.get("r")).name


def _checked_names(labels: Sequence[str]) -> list[str]:
    names = list(labels)
    wrong = [name for name in names if not isinstance(name, str) or not name]
    if isinstance(labels, str) or wrong or not names or len(set(names)) < len(names):
        raise ValueError(f"LabelModel: labels must be names, each once, say ['anger', 'joy']; got {labels!r}")
    return names


def _positions(network: PreTrainedModel) -> int:
    """How many tokens an encoder can read; RoBERTa's first two positions are never used."""
    config = network.config
    most = getattr(config, "max_position_embeddings", None)
    if not isinstance(most, int) or most < 1:
        return LONGEST
    offset = (config.pad_token_id or 0) + 1 if "roberta" in config.model_type else 0
    return most - offset


@torch.inference_mode()
def _size(network: PreTrainedModel, processor: Any, pooling: str, max_tokens: int | None) -> int:
    """How many features an encoder gives."""
    tensors = Inputs(processor, network.main_input_name, max_tokens).batch(blank(network.main_input_name))
    answer = network(**tensors)
    if pooling == "pooled" and getattr(answer, "pooler_output", None) is None:
        raise ValueError(f"{type(network).__name__} pools no features; pooling='mean' or 'cls' will do")
    if pooling != "pooled" and getattr(answer, "last_hidden_state", None) is None:
        raise ValueError(f"{type(network).__name__} is no encoder: it has no states of tokens; take one like BERT")
    return POOLINGS[pooling](answer, tensors.get("attention_mask")).shape[-1]


def _check(kind: type[LabelModel], folder: Path) -> None:
    """Refuse a folder that is damaged, or that of another model, before memory is taken for it."""
    settings = settings_of(folder)
    if settings["model_type"] != LabelModelConfig.model_type:
        raise ValueError(f"{folder} holds a {settings['model_type']}; rsoftmax.sklearn.TableModel.load reads it")
    try:
        check_hashes(folder, settings.get("files") or {})
        with quiet():
            config = LabelModelConfig.from_dict(settings)
            _checked_names(config.names)
            check_shapes(lambda: kind(config), folder)
    except Exception as error:  # whatever settings that were changed by hand make torch and transformers raise
        raise ValueError(f"{folder} is damaged: {error}") from None


AutoConfig.register(LabelModelConfig.model_type, LabelModelConfig, exist_ok=True)
AutoModel.register(LabelModelConfig, LabelModel, exist_ok=True)
