"""
t-softmax gates in GANDALF
==========================

GANDALF (Joseph and Raj, 2022), a network for tabular data, selects features with masks: each stage has a t-softmax over
all features with a learnable threshold. With an exact t-softmax, a feature that is not selected has weight 0, not 1e-8.
"""

from importlib.util import find_spec

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import rsoftmax

torch.manual_seed(0)
FEATURES, STAGES = 16, 3

# %%
# A gated feature unit in a few lines. ``TSoftmax`` has one threshold per stage and keeps it positive. Stages see only
# masked features and the state starts at zero, so a feature that no mask selects has no influence.


class GatedFeatures(nn.Module):
    def __init__(self, features: int, stages: int) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(stages, features))
        self.mask = rsoftmax.TSoftmax(t=torch.ones(stages, 1), learnable=True)
        self.gates = nn.ModuleList(nn.Linear(2 * features, 2 * features) for _ in range(stages))
        self.states = nn.ModuleList(nn.Linear(2 * features, features) for _ in range(stages))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros_like(x)
        for weights, gates, state in zip(self.mask(self.scores), self.gates, self.states, strict=True):
            seen = weights * x
            update, reset = gates(torch.cat([seen, h], -1)).sigmoid().chunk(2, -1)
            h = h.lerp(state(torch.cat([seen, reset * h], -1)).tanh(), update)
        return h


# %%
# The target depends on the first four of sixteen features. A penalty on the thresholds makes the stages selective.
def batch(rows: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(rows, FEATURES)
    return x, 2 * x[:, 0] - x[:, 1] + x[:, 2] * x[:, 3]


unit = GatedFeatures(FEATURES, STAGES)
model = nn.Sequential(unit, nn.Linear(FEATURES, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(900):
    x, y = batch(256)
    error = (model(x).squeeze(-1) - y).square().mean()
    optimizer.zero_grad()
    (error + 0.5 * unit.mask.t.mean()).backward()
    optimizer.step()
masks = unit.mask(unit.scores).detach()
read = (masks > 0).any(0)
print(f"squared error {error.item():.3f}; the variance of y is {y.var().item():.1f}")
print(f"selected features: {read.nonzero().flatten().tolist()}")

# %%
# Features that are not selected have no influence on the output.
assert torch.equal(model(x), model(x.where(read, 1000.0)))

plt.figure(figsize=(6, 2), layout="constrained")
plt.imshow(masks.where(masks > 0, torch.nan), aspect="auto")
plt.colorbar(label="weight")
plt.xlabel("feature (empty: exactly zero)")
plt.yticks(range(STAGES), [f"stage {stage}" for stage in range(STAGES)])
plt.show()

# %%
# In PyTorch Tabular's GANDALF the mask function can be replaced. The unit recognises by the name ``t_softmax`` that
# there is a threshold, computes feature importances without one, and lets it fall to zero, which is not a valid t.
# This was run with PyTorch Tabular 1.2.0 (which needs pandas below 3) and torch 2.13.0. After the same replacement
# GANDALF trained with its ``TabularModel``. If the package is not installed, this part is skipped.


def t_softmax(scores: Tensor, t: Tensor | None = None) -> Tensor:
    return rsoftmax.t_softmax(scores, 0.5 if t is None else t.clamp(min=1e-6))


if find_spec("pytorch_tabular"):
    from pytorch_tabular.models.gandalf.gandalf import GANDALFBackbone

    backbone = GANDALFBackbone(cat_embedding_dims=[], n_continuous_features=FEATURES, gflu_stages=STAGES)
    before = backbone(x)
    for name, function in {"its own": backbone.gflus.feature_mask_function, "rsoftmax": t_softmax}.items():
        backbone.gflus.feature_mask_function = function
        weights = function(backbone.gflus.feature_masks, backbone.gflus.t)
        print(f"{name}: {int((weights == 0).sum())} of {weights.numel()} weights are exactly zero")
    torch.testing.assert_close(backbone(x), before)
