"""Export of label models to ONNX, with named outputs and labels. Needs ``pip install 'rsoftmax[onnx]'``."""

import json
import logging
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor, nn

from rsoftmax.labels.models.base import BaseLabelModel, NetworkModel
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


class _Predictions(nn.Module):
    """Marginals and labels from the model's tensors, in their order."""

    def __init__(self, model: NetworkModel, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, list(names)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        output = self.model.predict_tensors(**dict(zip(self.names, tensors, strict=True)))
        return output.marginals, output.probs > 0


def export(model: BaseLabelModel, path: Path) -> None:
    """Export a label model, and check that ONNX Runtime predicts what torch predicts before the file appears.

    Args:
        model: a :class:`rsoftmax.labels.EncoderModel` or :class:`rsoftmax.labels.TableModel`.
        path: the file to write.

    The inputs are those of the model, for any batch size and number of tokens. The outputs are ``marginals``, float
    [items, K], and ``labels``, bool [items, K]. The names of the labels are in the metadata, entry ``labels``, as JSON.
    """
    if not path.resolve().parent.is_dir() or path.is_dir():
        raise FileNotFoundError(f"cannot write {path}: name a file in an existing folder")
    if not isinstance(model, NetworkModel):
        raise ValueError("ONNX has no operator for the words of a text; train with --encoder (LabelModel.from_encoder)")
    inputs = model.example()
    network = _Predictions(model, list(inputs)).eval()
    shapes = tuple(dict.fromkeys(DYNAMIC.get(name, (0,)), torch.export.Dim.AUTO) for name in inputs)
    with torch.no_grad(), ExitStack() as stack, warnings.catch_warnings(action="ignore"):
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.WARNING)  # notices about packages that are not needed
        program = torch.onnx.export(
            network,
            tuple(inputs.values()),
            input_names=list(inputs),
            output_names=["marginals", "labels"],
            dynamic_shapes={"tensors": shapes},
            dynamo=True,
            opset_version=OPSET,
            verbose=False,
        )
    proto = program.model_proto  # type: ignore[union-attr]
    metadata = {"labels": model.names, **model.metadata()}
    onnx.helper.set_model_props(
        proto, {name: json.dumps(value, ensure_ascii=False) for name, value in metadata.items()}
    )
    with replacing(path) as unfinished:
        onnx.save_model(proto, unfinished)
        _check(network, inputs, unfinished)


@torch.no_grad()
def _check(network: nn.Module, inputs: dict[str, Tensor], path: Path) -> None:
    """Compare the file with torch, on the example batch and on a batch of one."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for size in (2, 1):
        tensors = {name: tensor[:size] for name, tensor in inputs.items()}
        marginals, _ = session.run(["marginals", "labels"], {name: tensor.numpy() for name, tensor in tensors.items()})
        distance = float((torch.from_numpy(marginals) - network(*tensors.values())[0]).abs().max())
        if not distance <= TOLERANCE:
            raise ValueError(f"ONNX export: the marginals of ONNX Runtime differ from torch's by {distance:.2g}")
