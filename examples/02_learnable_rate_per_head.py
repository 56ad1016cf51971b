"""
A learnable rate per head
=========================

An attention layer in which every head learns its own rate of zeros together with the weights. The task needs two kinds
of heads: the targets are the token that carries a mark, and the mean of all tokens.
"""

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

from rsoftmax import RSoftmax
from rsoftmax.attention import sparse_attention

torch.manual_seed(0)
TOKENS, WIDTH, HEADS = 16, 32, 4

# %%
# The rates are a parameter of the module, one per head. ``RSoftmax`` keeps them between 0 and 1.


class SparseLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.split, self.join = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.attend = RSoftmax(r=torch.full((HEADS, 1, 1), 0.5), learnable=True)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        return self.join(sparse_attention(q, k, v, r=self.attend.r).transpose(1, 2).flatten(-2))


def batch(rows: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(rows, TOKENS, WIDTH)
    marked = torch.randint(TOKENS, (rows,))
    x[:, :, 0] = 0.0
    x[torch.arange(rows), marked, 0] = 3.0
    return x, torch.stack([x[torch.arange(rows), marked, 1], x[:, :, 2].mean(1)], dim=-1)


model = nn.Sequential(SparseLayer(), nn.Linear(WIDTH, 2))
attend = model[0].attend
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
history = []
for _ in range(600):
    x, y = batch(128)
    loss = (model(x).mean(1) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(attend.r.detach().flatten().tolist())
print(f"squared error {loss.item():.3f} (without attention to the mark: about 0.5)")

# %%
# The heads specialise: some attend to few tokens, others to all.
plt.figure(figsize=(6, 3), layout="constrained")
plt.plot(history)
plt.xlabel("step")
plt.ylabel("rate of zeros")
plt.legend([f"head {head}" for head in range(HEADS)])
plt.show()
