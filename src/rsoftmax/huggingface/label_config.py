"""The settings of a :class:`rsoftmax.huggingface.LabelModel`, as ``config.json`` holds them."""

from typing import Any, ClassVar

from transformers import AutoConfig, PreTrainedConfig

from rsoftmax import __version__
from rsoftmax.huggingface.pooling import check_pooling
from rsoftmax.huggingface.saving import ENTRY

FEWEST = 4  # tokens of a text: two words between the marks of its beginning and end


def check_tokens(max_tokens: int | None) -> None:
    """Raise unless a text can be cut after so many tokens."""
    if max_tokens is not None and not (isinstance(max_tokens, int) and max_tokens >= FEWEST):
        raise ValueError(f"LabelModel: max_tokens must be a whole number from {FEWEST} on, got {max_tokens!r}")


class LabelModelConfig(PreTrainedConfig):
    """An encoder with a head for labels.

    Args:
        encoder: the encoder's own configuration.
        pooling: how the encoder's answer becomes one row of features: "mean", "cls" or "pooled".
        features: how many features there are.
        hidden: the number of hidden units between features and head; 0: none.
        head: what :class:`rsoftmax.multilabel.MultiLabelHead` is told.
        max_tokens: tokens after which a text is cut; None for pictures.
        columns: names of the columns of the table that was trained on, by role: text or image, labels, separator.
        scores: those of the answers to rows held out, as :class:`rsoftmax.multilabel.Evaluation` has them.
        files: a hash of each other file of the folder.
        rest: what every configuration has; ``id2label`` names the labels.
    """

    model_type = "rsoftmax-labels"
    sub_configs: ClassVar[dict[str, Any]] = {"encoder": AutoConfig}
    has_no_defaults_at_init = True

    def __init__(
        self,
        encoder: PreTrainedConfig | dict[str, Any] | None = None,
        pooling: str = "mean",
        features: int = 1,
        hidden: int = 0,
        head: dict[str, Any] | None = None,
        max_tokens: int | None = None,
        columns: dict[str, str] | None = None,
        scores: dict[str, Any] | None = None,
        files: dict[str, str] | None = None,
        **rest: Any,
    ) -> None:
        check_pooling(pooling)
        check_tokens(max_tokens)
        self.encoder = AutoConfig.for_model(**encoder) if isinstance(encoder, dict) else encoder
        self.pooling, self.features, self.hidden = pooling, features, hidden
        self.head, self.max_tokens = dict(head or {}), max_tokens
        self.columns, self.scores, self.files = dict(columns or {}), scores, files
        entry = vars(self.encoder).pop(ENTRY, None) if self.encoder is not None else None
        if entry is not None:  # the whole model says which mapping its attention uses, and with which parameters
            rest = {ENTRY: entry, "attn_implementation": entry.get("mapping"), **rest}
        self.rsoftmax_version = rest.pop("rsoftmax_version", __version__)
        super().__init__(**{"problem_type": "multi_label_classification", **rest})

    @property
    def names(self) -> list[str]:
        """The labels, in the order of the columns."""
        return [self.id2label[place] for place in range(len(self.id2label))]  # type: ignore[index, arg-type]
