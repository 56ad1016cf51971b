"""Export of label models to ONNX, with named outputs and labels. Needs ``pip install 'rsoftmax[onnx]'``."""

import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from rsoftmax.labels.models.base import BaseLabelModel
from rsoftmax.labels.models.folders import replacing

try:
    import onnx
    import onnxruntime
    import onnxscript  # noqa: F401
except ImportError as missing:
    raise ImportError(f"rsoftmax.labels.models.onnx needs {missing.name}: pip install 'rsoftmax[onnx]'") from missing

__all__ = ["export"]

OPSET = 20
DYNAMIC = {"input_ids": (0, 1), "attention_mask": (0, 1), "token_type_ids": (0, 1)}  # other inputs: dimension 0
TOLERANCE = 1e-3  # between the marginals of torch and of ONNX Runtime


class _Answers(nn.Module):
    """Marginals and labels from tensors in the order of ``names``."""

    def __init__(self, model: BaseLabelModel, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, list(names)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        output = self.model.answer(**dict(zip(self.names, tensors, strict=True)))
        return output.marginals, output.probs > 0


def export(model: BaseLabelModel, path: Path) -> None:
    """Export a label model, and check that ONNX Runtime predicts what torch predicts before the file appears.

    Args:
        model: a :class:`rsoftmax.labels.LabelModel` or :class:`rsoftmax.labels.TableModel`.
        path: the file to write.

    The inputs are those of the model, for any batch size and number of tokens. The outputs are ``marginals``, float
    [items, K], and ``labels``, bool [items, K]. The names of the labels are in the metadata, entry ``labels``, as JSON.
    """
    inputs = model.example()
    answers = _Answers(model, list(inputs)).eval()
    shapes = tuple(dict.fromkeys(DYNAMIC.get(name, (0,)), torch.export.Dim.AUTO) for name in inputs)
    with torch.no_grad(), _silent():
        program = torch.onnx.export(
            answers,
            tuple(inputs.values()),
            input_names=list(inputs),
            output_names=["marginals", "labels"],
            dynamic_shapes={"tensors": shapes},
            dynamo=True,
            opset_version=OPSET,
            verbose=False,
        )
    proto = program.model_proto  # type: ignore[union-attr]
    onnx.helper.set_model_props(proto, _metadata(model))
    with replacing(path) as unfinished:
        onnx.save_model(proto, unfinished)
        _check(answers, inputs, unfinished)


def _metadata(model: BaseLabelModel) -> dict[str, str]:
    entries = {"labels": model.names, **model.about()}
    return {name: json.dumps(value, ensure_ascii=False) for name, value in entries.items()}


@contextmanager
def _silent() -> Iterator[None]:
    """Silence the exporter's notices about packages that are not needed."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@torch.no_grad()
def _check(answers: nn.Module, inputs: dict[str, Tensor], path: Path) -> None:
    """Compare the file with torch, on the example batch and on a batch of one."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for items in (slice(None), slice(1)):
        given = {name: tensor[items] for name, tensor in inputs.items()}
        marginals, _ = session.run(["marginals", "labels"], {name: tensor.numpy() for name, tensor in given.items()})
        expected = answers(*given.values())[0]
        distance = float((torch.from_numpy(marginals) - expected).abs().max())
        if not distance <= TOLERANCE:
            raise ValueError(f"ONNX export: the marginals of ONNX Runtime differ from torch's by {distance:.2g}")
