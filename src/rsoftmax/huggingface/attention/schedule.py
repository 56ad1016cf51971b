"""A sparsity rate that grows during training with the Trainer."""

from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rsoftmax.huggingface.attention import adapter
from rsoftmax.huggingface.attention.api import head_parameters, parameters, pretrained_model, set_parameter
from rsoftmax.huggingface.attention.parameters import HeadValues
from rsoftmax.schedules import SHAPES


class SparsitySchedule(TrainerCallback):
    """Increase the rate of ``r_softmax`` attention from 0 to its final value during training.

    .. math:: r_s = r \\cdot \\mathrm{shape}((s + 1) / S), \\qquad s = 0, ..., S - 1

    Args:
        r: the final rate: a number, one per layer, or a table ``[layers, heads]``.
        shape: "linear", as in the paper, "cosine", or "constant"; see :mod:`rsoftmax.schedules`.

    Example:
        >>> schedule = SparsitySchedule(0.15, shape="linear")

    Pass it as ``Trainer(..., callbacks=[schedule])`` after ``set_attention(model, "r_softmax", r=0)``. The last step
    uses the final rate. The rate depends only on the Trainer's step, so a resumed run has the same rates as an
    uninterrupted one. Each row of ``trainer.state.log_history`` gets ``rate``, the mean over all heads.

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
        """Check the final rate against the model before training."""
        host = pretrained_model(kwargs["model"])
        if (used := adapter.implementation(host.config)) != "r_softmax":
            remedy = "call set_attention(model, 'r_softmax', r=0) first"
            raise ValueError(f"SparsitySchedule is for r_softmax, but the model uses {used!r}; {remedy}")
        if any(held.stored.requires_grad for held in head_parameters(host).values()):
            raise ValueError("SparsitySchedule: the model learns its rates; call set_attention with learnable=False")
        set_parameter(host, self.r)
        self.on_step_begin(args, state, control, **kwargs)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Set the rate of this step."""
        done = min((state.global_step + 1) / max(state.max_steps, 1), 1.0)
        set_parameter(kwargs["model"], self.r * self.shape(done))

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Add the rate to the log and to the latest row of the history."""
        kwargs["logs"]["rate"] = state.log_history[-1]["rate"] = parameters(kwargs["model"]).mean()
