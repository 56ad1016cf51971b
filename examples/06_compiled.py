"""
With torch.compile
==================

Compiled graphs call the native kernels through the operator ``rsoftmax::rows``. A rate given as a tensor can change
from call to call without recompilation.
"""

import torch
from torch import Tensor, nn

from rsoftmax import r_softmax


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(64, 128)

    def forward(self, x: Tensor, r: Tensor) -> Tensor:
        return r_softmax(self.scores(x), r)


torch.manual_seed(0)
model = Gate()
compiled = torch.compile(model, fullgraph=True)
x = torch.randn(32, 64)

# %%
# The same values as in eager mode, zeros included.
for rate in (0.25, 0.5, 0.9):
    r = torch.tensor(rate)
    p = compiled(x, r)
    torch.testing.assert_close(p, model(x, r))
    print(f"r = {rate}: {int((p == 0).sum(-1)[0])} of {p.shape[-1]} are exactly zero")

# %%
# And the same gradients.
compiled(x, torch.tensor(0.5)).square().sum().backward()
print(model.scores.weight.grad.norm())
