"""A smooth path from softmax to r-softmax, compared with the paper's schedule of the rate."""

from typing import Any

from transformers import TrainerCallback

from rsoftmax.attention.transformers import set_attention

SCALE = 4.0  # the edge at half of the training, in nats


class EdgeSchedule(TrainerCallback):
    """Grow the edge of ``r_softmax`` from 0 to infinity during training, at the final rate from the first step on.

    .. math:: e_s = 4 d / (1 - d), \\qquad d = (s + 1) / S, \\qquad s = 0, ..., S - 1

    At edge 0 the remaining weights are softmax's; at infinity, in the last step, they are the paper's.
    """

    def __init__(self, r: float) -> None:
        self.r = r

    def on_step_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Set the edge of this step."""
        done = (state.global_step + 1) / state.max_steps
        set_attention(rest["model"], "r_softmax", r=self.r, edge=SCALE * done / (1 - done) if done < 1 else None)
