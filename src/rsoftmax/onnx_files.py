"""Models of labels as ONNX files, with named outputs and the labels' names. Needs ``pip install 'rsoftmax[onnx]'``."""

import json
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import torch
from torch import Tensor, nn

from rsoftmax.multilabel import Labeller

try:
    import onnx
    import onnxruntime
    import onnxscript  # noqa: F401
except ImportError as missing:
    raise ImportError(f"rsoftmax.onnx_files needs {missing.name}: pip install 'rsoftmax[onnx]'") from missing

__all__ = ["export"]

OPSET = 20
VARYING = {"input_ids": (0, 1), "attention_mask": (0, 1)}  # dimensions; of other inputs the first one
CLOSE = 1e-3  # between marginals of torch and of ONNX Runtime


class _Answers(nn.Module):
    """Marginals and labels, as a file has them, from tensors in the order of ``names``."""

    def __init__(self, model: Labeller, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, list(names)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        output = self.model.answer(**dict(zip(self.names, tensors, strict=True)))
        return output.marginals, output.p > 0


def export(model: Labeller, path: Path) -> None:
    """Write a file, at one stroke, that ONNX Runtime answers from as torch does; which is checked.

    Args:
        model: a :class:`rsoftmax.huggingface.LabelModel` or :class:`rsoftmax.sklearn.TableModel`.
        path: the file.

    The inputs are those of the model, for any number of items, and of tokens; the outputs ``marginals`` [items, K],
    float, and ``labels`` [items, K], bool. The names of the labels are in the metadata, entry ``labels``, as JSON.
    """
    inputs = model.example()
    answers = _Answers(model, list(inputs)).eval()
    shapes = tuple(dict.fromkeys(VARYING.get(name, (0,)), torch.export.Dim.AUTO) for name in inputs)
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
    made = program.model_proto  # type: ignore[union-attr]
    onnx.helper.set_model_props(made, _metadata(model))
    unfinished = path.with_name(f".{path.name}.unfinished-{uuid4().hex}")
    try:
        onnx.save_model(made, unfinished)
        _check(answers, inputs, unfinished)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _metadata(model: Labeller) -> dict[str, str]:
    entries = {"labels": model.names, **model.about()}
    return {name: json.dumps(value, ensure_ascii=False) for name, value in entries.items()}


@contextmanager
def _silent() -> Iterator[None]:
    """Within it, torch's exporter does not tell of packages that are not needed."""
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
    """Compare the answers of the file with those of torch, for the example and for one item of it."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for items in (slice(None), slice(1)):
        given = {name: tensor[items] for name, tensor in inputs.items()}
        marginals, _ = session.run(["marginals", "labels"], {name: tensor.numpy() for name, tensor in given.items()})
        wanted = answers(*given.values())[0]
        distance = float((torch.from_numpy(marginals) - wanted).abs().max())
        if not distance <= CLOSE:
            raise ValueError(f"ONNX Runtime answers otherwise than torch: marginals differ by {distance:.2g}")
