"""
Mappings side by side
=====================

One row of scores, every mapping: which entries become exactly zero, and who decides how many.
"""

import matplotlib.pyplot as plt
import torch

import rsoftmax
from rsoftmax.plots import compare_mappings

x = torch.tensor([2.0, 1.5, 0.3, -1.0])

# %%
# The rate says how many zeros: half of the four entries.
print(rsoftmax.r_softmax(x, 0.5))

# %%
# The threshold says how far below the maximum an entry may lie.
print(rsoftmax.t_softmax(x, 1.0))

# %%
# Sparsemax leaves the number of zeros to the data: the same scores, nearer to each other, have none.
print(rsoftmax.sparsemax(x), rsoftmax.sparsemax(x / 10))

# %%
# All of them in one picture: what is missing is exactly zero.
rows = compare_mappings(x.tolist(), {"r": 0.5})
figure, axes = plt.subplots(len(rows), 1, sharex=True, figsize=(6, 8), layout="constrained")
for ax, (name, p) in zip(axes, rows.items(), strict=True):
    ax.bar([f"{score:g}" for score in x], p, color=["C0" if value > 0 else "none" for value in p])
    ax.set_title(name, fontsize=9, loc="left")
    ax.set_ylim(0, 1)
plt.show()
