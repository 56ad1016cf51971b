"""Export of label models and estimators to ONNX, with named outputs. Needs ``pip install 'rsoftmax[onnx]'``."""

import json
import logging
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.frozen import FrozenEstimator
from sklearn.multioutput import MultiOutputClassifier
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from rsoftmax.labels.estimators.classifier import SparseLabelClassifier
from rsoftmax.labels.estimators.expected_f1 import ExpectedF1Classifier
from rsoftmax.labels.estimators.meta import LabelMetaClassifier, last_step
from rsoftmax.labels.estimators.risk_control import RiskControlledClassifier
from rsoftmax.labels.models.base import ROUNDING, BaseLabelModel, NetworkModel
from rsoftmax.labels.models.folders import replacing
from rsoftmax.labels.models.forest import ForestModel

try:
    import onnx
    import onnxruntime
    import onnxscript  # noqa: F401
    import skl2onnx
    from skl2onnx.helpers.onnx_helper import select_model_inputs_outputs
except ImportError as missing:
    raise ImportError(f"rsoftmax.labels.models.onnx needs {missing.name}: pip install 'rsoftmax[onnx]'") from missing

__all__ = ["export"]

OPSET = 20
OUTPUTS = ["marginals", "labels"]
DYNAMIC = {"input_ids": (0, 1), "attention_mask": (0, 1), "token_type_ids": (0, 1)}  # other inputs: dimension 0
TOLERANCE = 1e-3  # between the marginals of the model and of ONNX Runtime
ROWS = 64  # random ones, on which both are compared

Arrays = dict[str, np.ndarray[Any, Any]]


def export(model: BaseLabelModel | LabelMetaClassifier, path: str | Path) -> None:
    """Export a model, and check that ONNX Runtime predicts the same before the file appears.

    Args:
        model: a :class:`rsoftmax.labels.EncoderModel`, :class:`rsoftmax.labels.TableModel` or
            :class:`rsoftmax.labels.ForestModel`; or an :class:`rsoftmax.labels.ExpectedF1Classifier` or
            :class:`rsoftmax.labels.RiskControlledClassifier` of numeric features whose estimators skl2onnx can convert.
        path: the file to write.

    Raises:
        ValueError: the model, or an estimator inside it, cannot be converted; the message says why.

    The inputs are those of the model, for any batch size and number of tokens; ``features``, float32 [items, d], for
    rows. The outputs are ``marginals``, float32 [items, K], and ``labels``, bool [items, K]. The names of the labels
    are in the metadata, entry ``labels``, as JSON.
    """
    path = Path(path)
    if not path.resolve().parent.is_dir() or path.is_dir():
        raise FileNotFoundError(f"cannot write {path}: name a file in an existing folder")
    if isinstance(model, LabelMetaClassifier | ForestModel):
        estimator = model.classifier if isinstance(model, ForestModel) else model
        proto, inputs, metadata = _of_estimator(estimator)
        if isinstance(model, ForestModel):
            metadata["features"] = model.config.encoded
        predict = _estimator_marginals(estimator)
    elif isinstance(model, NetworkModel):
        proto, inputs, metadata = _of_network(model)
        predict = _network_marginals(model)
    elif isinstance(model, SparseLabelClassifier):
        raise ValueError(
            "export a SparseLabelClassifier as a model: TableModel.from_classifier(model, features, labels)"
        )
    else:
        raise ValueError("ONNX has no operator for the words of a text; train with --encoder (LabelModel.from_encoder)")
    onnx.helper.set_model_props(
        proto, {name: json.dumps(value, ensure_ascii=False, default=str) for name, value in metadata.items()}
    )
    with replacing(path) as unfinished:
        onnx.save_model(proto, unfinished)
        _check(predict, inputs, unfinished)


def _check(predict: Callable[[Arrays], Any], inputs: Arrays, path: Path) -> None:
    """Compare the marginals of the file with those of the model, on the example batch and on a batch of one."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for size in (len(next(iter(inputs.values()))), 1):
        batch = {name: array[:size] for name, array in inputs.items()}
        distance = float(np.abs(session.run(OUTPUTS[:1], batch)[0] - predict(batch)).max())
        if not distance <= TOLERANCE:
            raise ValueError(f"ONNX export: the marginals of ONNX Runtime differ from the model's by {distance:.2g}")


def _program(network: nn.Module, inputs: dict[str, Tensor], shapes: Sequence[Any]) -> Any:
    """The ONNX model of a network whose outputs are marginals and labels."""
    with torch.no_grad(), ExitStack() as stack, warnings.catch_warnings(action="ignore"):
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.WARNING)  # notices about packages that are not needed
        program = torch.onnx.export(
            network.eval(),
            tuple(inputs.values()),
            input_names=list(inputs),
            output_names=OUTPUTS,
            dynamic_shapes={"tensors": tuple(shapes)},
            dynamo=True,
            opset_version=OPSET,
            verbose=False,
        )
    return program.model_proto  # type: ignore[union-attr]


# ---------------------------------------------------------------------------------------------- networks


class _Predictions(nn.Module):
    """Marginals and labels from the model's tensors, in their order."""

    def __init__(self, model: NetworkModel, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, list(names)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        output = self.model.predict_tensors(**dict(zip(self.names, tensors, strict=True)))
        return output.marginals, output.probs > 0


def _of_network(model: NetworkModel) -> tuple[Any, Arrays, dict[str, Any]]:
    """The ONNX model, example inputs and metadata."""
    _refuse_rules(model.decoder)
    inputs = model.example()
    shapes = [dict.fromkeys(DYNAMIC.get(name, (0,)), torch.export.Dim.AUTO) for name in inputs]
    arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
    return (
        _program(_Predictions(model, list(inputs)), inputs, shapes),
        arrays,
        {"labels": model.names, **model.metadata()},
    )


def _network_marginals(model: NetworkModel) -> Callable[[Arrays], Any]:
    @torch.no_grad()
    def marginals(batch: Arrays) -> Any:
        tensors = {name: torch.from_numpy(array) for name, array in batch.items()}
        return model.predict_tensors(**tensors).marginals.numpy()

    return marginals


def _estimator_marginals(model: LabelMetaClassifier) -> Callable[[Arrays], Any]:
    return lambda batch: model.predict_proba(batch["features"])


def _refuse_rules(decoder: Any) -> None:
    if decoder.constraints:
        raise ValueError("ONNX cannot search for the best labels under rules; train without implies and exclusive")


# ---------------------------------------------------------------------------------------------- estimators


class _Decisions(nn.Module):
    """Marginals and labels of a meta-estimator from the outputs of its fitted estimators, in their order."""

    def __init__(self, model: LabelMetaClassifier) -> None:
        super().__init__()
        self.model = model

    def forward(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        outputs = iter(tensors)
        u = _combine(self.model, lambda estimator, labels: _scores(next(outputs), estimator, labels))
        if self.model._targets.one_class:
            labels = torch.arange(u.shape[1]) == u.argmax(1, keepdim=True)
        else:  # guaranteed thresholds are reached by some scores exactly, which rounding must not lose
            labels = self.model._decide(u.float() + ROUNDING * isinstance(self.model, RiskControlledClassifier))
        return self.model._marginals(u).float(), labels


def _of_estimator(model: LabelMetaClassifier) -> tuple[Any, Arrays, dict[str, Any]]:
    """The ONNX model, example inputs and metadata: converted estimators, then the decisions in torch."""
    check_is_fitted(model, "models_")
    if not hasattr(model, "n_features_in_"):
        raise ValueError("the estimators do not take a matrix of numbers; fit them on what the vectorizer returns")
    rows = np.random.default_rng(0).normal(size=(ROWS, model.n_features_in_)).astype(np.float32)
    parts: list[Any] = []
    outputs: dict[str, Tensor] = {}

    def convert(estimator: Any, labels: int) -> Tensor:
        name = f"estimator{len(parts)}"
        proto = onnx.compose.add_prefix(_converted(estimator, model.n_features_in_), f"{name}/")
        output = proto.graph.output[0].name
        outputs[output] = torch.from_numpy(_run(proto, {f"{name}/features": rows})[0])
        parts.append(proto)
        return _scores(outputs[output], estimator, labels)

    _combine(model, convert)
    items = [1 if output.ndim == 3 else 0 for output in outputs.values()]
    proto = _program(_Decisions(model), outputs, [{dim: torch.export.Dim.AUTO} for dim in items])
    metadata = {"labels": model.classes_.tolist()}
    if hasattr(model, "feature_names_in_"):
        metadata["features"] = model.feature_names_in_.tolist()
    return _joined(parts, proto), {"features": rows}, metadata


def _combine(model: LabelMetaClassifier, scores: Callable[[Any, int], Tensor]) -> Tensor:
    """The log-odds [items, K] of a meta-estimator, from a function that returns those of one estimator."""

    def of(estimator: Any, labels: int) -> Tensor:
        if isinstance(estimator, FrozenEstimator):
            return of(estimator.estimator, labels)
        if isinstance(estimator, MultiOutputClassifier):
            return torch.cat([of(one, 1) for one in estimator.estimators_], 1)
        if isinstance(estimator, LabelMetaClassifier):
            return _scores(estimator._marginals(_combine(estimator, scores)), estimator, labels)
        return scores(estimator, labels)

    if isinstance(model, ExpectedF1Classifier):
        _refuse_rules(model.decoder_)
    folds = [[[of(one, fold.labels_each) for one in fold.models_] for fold in folds] for folds in model.models_]
    return model._log_odds(
        [
            [fold.in_order(scores) for fold, scores in zip(*pair, strict=True)]
            for pair in zip(model.models_, folds, strict=True)
        ]
    )


def _scores(output: Tensor, estimator: Any, labels: int) -> Tensor:
    """The log-odds [items, labels] from probabilities or scores, as :class:`FoldModel` computes them."""
    output = output.double()
    if output.ndim == 3:  # of forests: [labels, items, classes]
        output = output[..., 1].T
    elif labels == 1:
        output = output[:, -1:]
    return output.log() - torch.log1p(-output) if hasattr(estimator, "predict_proba") else output


def _converted(estimator: Any, features: int) -> Any:
    """The ONNX model of a fitted estimator, with probabilities, or scores if it has none, as its only output."""
    inputs = [("features", skl2onnx.common.data_types.FloatTensorType([None, features]))]
    raw = {} if hasattr(estimator, "predict_proba") else {"raw_scores": True}
    for options in ({"zipmap": False} | raw, raw):  # not all converters know zipmap
        try:
            proto = skl2onnx.to_onnx(
                estimator, initial_types=inputs, target_opset=OPSET, options={id(last_step(estimator)): options}
            )
        except NameError as unknown_option:
            error: Exception = unknown_option
        except Exception as unsupported:  # of many kinds
            error = unsupported
            break
        else:
            return select_model_inputs_outputs(proto, outputs=[proto.graph.output[1].name])
    raise ValueError(f"skl2onnx cannot convert {estimator!r}: {str(error).splitlines()[0]}")


def _run(proto: Any, inputs: Arrays) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # skl2onnx declares other shapes than it returns
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    outputs: list[Any] = session.run(None, inputs)
    return outputs


def _joined(parts: Sequence[Any], program: Any) -> Any:
    """One ONNX model: the parts read the same features, and the program reads the output of each part."""
    graph, features = program.graph, onnx.ValueInfoProto()
    features.CopyFrom(parts[0].graph.input[0])
    features.name = "features"
    nodes = [node for part in parts for node in part.graph.node]
    inputs = [onnx.helper.make_node("Identity", ["features"], [part.graph.input[0].name]) for part in parts]
    own = list(graph.node)
    del graph.node[:], graph.input[:]
    graph.input.append(features)
    graph.node.extend([*inputs, *nodes, *own])
    used = _names_read(graph)
    graph.initializer.extend(array for part in parts for array in part.graph.initializer if array.name in used)
    versions = {opset.domain: opset.version for one in (*parts, program) for opset in one.opset_import}
    del program.opset_import[:]
    program.opset_import.extend(onnx.helper.make_opsetid(*version) for version in versions.items())
    onnx.checker.check_model(program)
    return program


def _names_read(graph: Any) -> set[str]:
    """The names that the nodes of a graph read, and those of the graphs inside them."""
    inner = (attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g"))
    return {name for node in graph.node for name in node.input}.union(*map(_names_read, inner))
