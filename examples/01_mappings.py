"""
Comparing the mappings
======================

One row of logits through every mapping: which entries become exactly zero, and what sets their number.
"""

import matplotlib.pyplot as plt
import torch

import rsoftmax
from rsoftmax.plots import compare_mappings

x = torch.tensor([2.0, 1.5, 0.3, -1.0])

# %%
# The rate r sets the share of zeros: half of the four entries.
print(rsoftmax.r_softmax(x, 0.5))

# %%
# The threshold t sets how far below the maximum an entry may be.
print(rsoftmax.t_softmax(x, 1.0))

# %%
# In sparsemax the number of zeros depends on the data: the same logits, closer together, give none.
print(rsoftmax.sparsemax(x), rsoftmax.sparsemax(x / 10))

# %%
# All mappings in one figure. Missing bars are exactly zero.
rows = compare_mappings(x.tolist(), {"r": 0.5})
figure, axes = plt.subplots(len(rows), 1, sharex=True, figsize=(6, 8), layout="constrained")
for ax, (name, p) in zip(axes, rows.items(), strict=True):
    ax.bar([f"{score:g}" for score in x], p, color=["C0" if value > 0 else "none" for value in p])
    ax.set_title(name, fontsize=9, loc="left")
    ax.set_ylim(0, 1)
plt.show()
