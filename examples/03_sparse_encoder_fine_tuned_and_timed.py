"""
Fine-tuning and timing a sparse encoder
=======================================

An encoder of MiniLM's size is trained until 90 % of its attention weights are zero, and is then timed against torch's
attention. Its weights are random, so that nothing is downloaded. To use a real encoder, pass its folder as an argument.
"""

import copy
import statistics
import sys
from collections.abc import Callable
from time import perf_counter

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, BertConfig, logging

from rsoftmax.attention import set_attention, set_head_parameters, sparsity

torch.manual_seed(0)
torch.set_num_threads(1)  # threads would wait for each other on a busy machine
logging.set_verbosity_error()
logging.disable_progress_bar()

MINILM = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
if len(sys.argv) > 1:
    model = AutoModelForSequenceClassification.from_pretrained(sys.argv[1], num_labels=2)
else:
    model = AutoModelForSequenceClassification.from_config(BertConfig(vocab_size=200, num_labels=2, **MINILM))
vocabulary, longest = model.config.vocab_size, model.config.max_position_embeddings

# %%
# The task: random tokens and, at a random position, one of two tokens that determine the class. The classifier reads
# the first token, so the information has to get there through attention.


def batch(rows: int, tokens: int) -> tuple[Tensor, Tensor]:
    ids = torch.randint(vocabulary - 2, (rows, min(tokens, longest)))
    labels = torch.randint(2, (rows,))
    ids[torch.arange(rows), torch.randint(1, ids.shape[1], (rows,))] = vocabulary - 2 + labels
    return ids, labels


# %%
# Training starts with softmax, which is a rate of 0, and ends with 0.9. With the transformers Trainer,
# ``SparsitySchedule`` does what ``set_head_parameters`` does here.
STEPS, RATE = 40, 0.9
set_attention(model, "r_softmax", r=0.0)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
losses = []
for step in range(1, STEPS + 1):
    set_head_parameters(model, RATE * step / STEPS)
    ids, labels = batch(16, 20)
    loss = model(input_ids=ids, labels=labels).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(f"loss {losses[0]:.2f} at the first step, {losses[-1]:.2f} at the last")

# %%
# The measured share of zeros for each layer and head.
model.eval()
print(sparsity(model, {"input_ids": batch(4, 100)[0]}))

# %%
# Timing on 512 tokens against a copy with torch's attention. The two take turns and ratios are formed within a turn, so
# a busy machine slows both alike. Below 1, the zeros save more than finding them costs. A whole model of this size may
# not get there: attention is only a part of it, and its heads are 32 wide. The page on attention has larger benchmarks.
dense = copy.deepcopy(model)
dense.set_attn_implementation("sdpa")
ids, labels = batch(1, 512)


@torch.inference_mode()
def forward(model: nn.Module) -> None:
    model(input_ids=ids)


def forward_and_backward(model: nn.Module) -> None:
    model(input_ids=ids, labels=labels).loss.backward()


def seconds(work: Callable[[nn.Module], None], model: nn.Module) -> float:
    start = perf_counter()
    work(model)
    return perf_counter() - start


def ratio(work: Callable[[nn.Module], None], turn: int) -> float:
    order = [model, dense] if turn % 2 else [dense, model]
    taken = {model: seconds(work, model) for model in order}
    return taken[model] / taken[dense]


ratios = {}
for work in (forward, forward_and_backward):
    work(model), work(dense)  # warm-up
    found = ratios[work.__name__.replace("_", " ")] = sorted(ratio(work, turn) for turn in range(4))
    print(f"{work.__name__}: {statistics.median(found):.2f} of the time with sdpa ({found[0]:.2f} to {found[-1]:.2f})")

# %%
plt.figure(figsize=(6, 2), layout="constrained")
plt.boxplot(list(ratios.values()), orientation="horizontal", tick_labels=list(ratios))
plt.axvline(1, color="0.7", zorder=0)
plt.xlabel("time with r_softmax, r = 0.9, relative to sdpa")
plt.show()
