"""
Experts per token
=================

A frozen network is adapted by a mixture of LoRA experts. Easy tokens need one correction, hard ones need three. A
router that predicts the parameter of sparsegen for each token learns how many experts a token needs, within a budget
for the mean; top-k gives two to every token.
"""

from typing import Any

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

from rsoftmax import Router

torch.manual_seed(0)
WIDTH, EXPERTS, RANK, STEPS = 32, 8, 4, 300

# %%
# The data: a token contains one topic or three, and each topic changes what the base network should answer.
base = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH)).requires_grad_(False)
topics = nn.functional.normalize(torch.randn(EXPERTS, WIDTH), dim=-1)
down, up = torch.randn(EXPERTS, WIDTH, 2) / WIDTH**0.5, torch.randn(EXPERTS, 2, WIDTH)


def batch(tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    count = torch.where(torch.rand(tokens) < 0.5, 1, 3)
    present = (torch.rand(tokens, EXPERTS).argsort(-1) < count[:, None]).float()
    x = 3 * present @ topics + torch.randn(tokens, WIDTH) / 2
    corrections = torch.einsum("te,tw,ewr,erv->tv", present / count[:, None], x, down, up)
    return x, base(x) + corrections, count


# %%
# The model computes the experts with a weight and no others.


class Adapted(nn.Module):
    def __init__(self, mapping: str, **parameter: Any) -> None:
        super().__init__()
        self.router = Router(WIDTH, EXPERTS, mapping, **parameter)
        self.down = nn.Parameter(torch.randn(EXPERTS, WIDTH, RANK) / WIDTH**0.5)
        self.up = nn.Parameter(torch.zeros(EXPERTS, RANK, WIDTH))

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        routing, y = self.router(x), base(x)
        for weights, down, up in zip(routing.weights.T, self.down, self.up, strict=True):
            used = weights.nonzero().squeeze(-1)
            y = y.index_add(0, used, weights[used, None] * (x[used] @ down @ up))
        return y, routing


def train(budget: float, mapping: str, **parameter: Any) -> tuple[float, list[float]]:
    """The error on new tokens, and the mean number of experts of all, of easy and of hard tokens."""
    torch.manual_seed(1)
    model = Adapted(mapping, **parameter)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, STEPS)
    for _ in range(STEPS):
        x, y, _ = batch(256)
        answer, routing = model(x)
        loss = (answer - y).square().mean() + 0.01 * routing.balance_loss() + 0.3 * routing.budget_loss(budget)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        x, y, count = batch(4096)
        answer, routing = model(x)
        n = routing.n_experts
        return (answer - y).square().mean().item(), [part.mean().item() for part in (n, n[count == 1], n[count == 3])]


# %%
# The same training with three budgets, and with two experts for every token.
print("                          error   experts: all   easy   hard")
found = {}
for budget in (1.5, 2.0, 3.0):
    error, found[budget] = train(budget, "sparsegen_lin", lam=0.0, per_token=True)
    print(f"sparsegen, budget {budget}:    {error:.3f}" + "".join(f"{n:11.2f}" for n in found[budget]))
error, numbers = train(2.0, "k_softmax", k=2, edge=0)
print(f"top-2:                    {error:.3f}" + "".join(f"{n:11.2f}" for n in numbers))

# %%
# Hard tokens get the experts, and the mean follows the budget.
plt.figure(figsize=(5, 3), layout="constrained")
for line, name in zip(zip(*found.values(), strict=True), ("all tokens", "one topic", "three topics"), strict=True):
    plt.plot(list(found), line, marker="o", label=name)
plt.axline((2, 2), slope=1, color="grey", linestyle=":", label="budget")
plt.xlabel("budget")
plt.ylabel("experts per token")
plt.legend()
plt.show()
