"""
Export to ONNX
==============

A multi-label network with its head as an ONNX file: named inputs and outputs, any number of rows, exact zeros. The
program that runs it needs no Python.
"""

import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn

from rsoftmax.labels import MultiLabelHead

torch.manual_seed(0)


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(20, 64), nn.ReLU())
        self.head = MultiLabelHead(in_features=64, num_labels=10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        output = self.head(self.body(x))
        return output.marginals, output.labels


model, x = Tagger().eval(), torch.randn(8, 20)

# %%
# Export with a dynamic number of rows.
path = Path(tempfile.mkdtemp()) / "tagger.onnx"
rows = torch.export.Dim("rows")
torch.onnx.export(
    model, (x,), path, dynamo=True, dynamic_shapes=({0: rows},), input_names=["x"], output_names=["marginals", "labels"]
)

# %%
# Run it with ONNX Runtime.
session = onnxruntime.InferenceSession(path)
more = torch.randn(3, 20)
marginals, labels = session.run(["marginals", "labels"], {"x": more.numpy()})
print(np.round(marginals, 2)[0], labels[0].nonzero()[0])

# %%
# The outputs equal those of torch.
expected = model(more)
assert np.allclose(marginals, expected[0].detach(), atol=1e-6)
assert (labels == expected[1].numpy()).all()
