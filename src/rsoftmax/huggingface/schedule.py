"""A rate that grows while the Trainer trains."""

from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rsoftmax.huggingface import adapter
from rsoftmax.huggingface.head_parameter import HeadValues
from rsoftmax.huggingface.models import head_parameters, pretrained_model
from rsoftmax.huggingface.rates import rates, set_rate
from rsoftmax.schedules import SHAPES


class SparsitySchedule(TrainerCallback):
    """Lets the rate of ``r_softmax`` attention grow from 0 to its final value while the Trainer trains.

    .. math:: r_s = r \\cdot \\mathrm{shape}((s + 1) / S), \\qquad s = 0, ..., S - 1

    Args:
        r: the final rate: a number, one for each layer, or a table ``[layers, heads]``.
        shape: "linear", as in the paper, "cosine", or "constant"; see :mod:`rsoftmax.schedules`.

    Example:
        >>> schedule = SparsitySchedule(0.15, shape="linear")

    Pass it as ``Trainer(..., callbacks=[schedule])``, after ``set_attention(model, "r_softmax", r=0)``. The last step
    is made at the final rate, and so is everything after it. The rate follows from the Trainer's step alone: a run that
    goes on from a checkpoint has the rates it would have had. Each row of ``trainer.state.log_history`` gets ``rate``,
    the mean over all heads.

    Reference: Bałazy et al., r-softmax (2023), section 4.3.
    """

    def __init__(self, r: HeadValues, shape: str = "linear") -> None:
        if shape not in SHAPES:
            raise ValueError(f"SparsitySchedule: there is no shape {shape!r}; use one of {', '.join(SHAPES)}")
        self.r, self.shape = torch.as_tensor(r, dtype=torch.float64), SHAPES[shape]
        if not ((self.r >= 0) & (self.r <= 1)).all():
            raise ValueError(f"SparsitySchedule: r must be in [0, 1], got {r!r}")

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Look whether the final rate fits the model, before it trains."""
        host = pretrained_model(kwargs["model"])
        if (used := adapter.implementation(host.config)) != "r_softmax":
            remedy = "call set_attention(model, 'r_softmax', r=0) first"
            raise ValueError(f"SparsitySchedule is for r_softmax, and the model uses {used!r}; {remedy}")
        if any(held.stored.requires_grad for held in head_parameters(host).values()):
            raise ValueError("SparsitySchedule: the model learns its rates; use either, set_attention(learn=False)")
        set_rate(host, self.r)
        self.on_step_begin(args, state, control, **kwargs)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Set the rate of this step."""
        done = min((state.global_step + 1) / max(state.max_steps, 1), 1.0)
        set_rate(kwargs["model"], self.r * self.shape(done))

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Write the rate beside the loss: into the row of the history, which is there already, and into the log."""
        kwargs["logs"]["rate"] = state.log_history[-1]["rate"] = rates(kwargs["model"]).mean()
