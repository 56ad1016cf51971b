"""A rate that grows while the Trainer trains."""

from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rsoftmax.huggingface.rates import Rates, rates, set_rate
from rsoftmax.schedules import SHAPES


class SparsitySchedule(TrainerCallback):  # type: ignore[misc]
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

    def __init__(self, r: Rates, shape: str = "linear") -> None:
        if shape not in SHAPES:
            raise ValueError(f"SparsitySchedule: there is no shape {shape!r}; use one of {', '.join(SHAPES)}")
        self.r, self.shape = torch.as_tensor(r, dtype=torch.float64), SHAPES[shape]

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: nn.Module, **_: Any
    ) -> None:
        """Look whether the model has such rates, before it trains."""
        set_rate(model, self.r)
        self._set(model, state)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: nn.Module, **_: Any
    ) -> None:
        """Set the rate of this step."""
        self._set(model, state)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module,
        logs: dict[str, float],
        **_: Any,
    ) -> None:
        """Write the rate beside the loss: into the row of the history, made before, and for whoever logs after."""
        logs["rate"] = state.log_history[-1]["rate"] = rates(model).mean()

    def _set(self, model: nn.Module, state: TrainerState) -> None:
        done = min(state.global_step + 1, state.max_steps) / state.max_steps
        set_rate(model, self.r * self.shape(done))
