"""The head of a :class:`rsoftmax.huggingface.LabelModel` trained on what its encoder says, which stays as it is."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from rsoftmax.multilabel import Evaluation

if TYPE_CHECKING:
    from rsoftmax.huggingface.label_model import LabelModel


def fit_head(
    model: "LabelModel",
    items: Sequence[Any],
    truth: Tensor,
    held: tuple[Sequence[Any], Tensor] | None,
    *,
    progress: bool,
    seed: int,
    **settings: Any,
) -> Evaluation:
    """Read every item once, then train by the recipe of :class:`rsoftmax.sklearn.SparseLabelClassifier`.

    Its networks, calibration and cuts become the model's: one network that says what their mean says.
    """
    try:
        from rsoftmax.sklearn.encoded import fit_features
    except ImportError as missing:
        raise ImportError(f"LabelModel.fit: {missing}; finetune=True does without") from None
    x = model.embed(items, progress=progress)
    aside = None if held is None else (model.embed(held[0], progress=progress), held[1])
    head = model.config.head
    network, scores = fit_features(x, truth, aside, model.names, head, progress=progress, random_state=seed, **settings)
    model.network = network.to(model.device)
    model.config.hidden = network.width
    return scores
