"""Shared parts of fine-tuning with the Trainer of Transformers, which prints only our progress lines."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

Line = Callable[[Any, dict[str, Any]], str | None]


def arguments(folder: str | Path, **settings: Any) -> TrainingArguments:
    """The Trainer's arguments for a run; it writes to the folder and logs nothing itself."""
    pin = torch.cuda.is_available()
    return TrainingArguments(
        output_dir=str(folder), report_to="none", disable_tqdm=True, dataloader_pin_memory=pin, **settings
    )


def show_progress(trainer: Trainer, line: Line) -> None:
    """Print our progress lines to stderr instead of the Trainer's: a sweep's bar moves only when a run ends.

    Args:
        trainer: the Trainer.
        line: maps the Trainer's state and logs to a line; None prints nothing.
    """
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(_Progress(line))


class _Progress(TrainerCallback):
    def __init__(self, line: Line) -> None:
        self.line = line

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **rest: Any) -> None:
        text = self.line(state, logs or {}) if state.is_world_process_zero else None
        if text is not None:
            print(text, file=sys.stderr, flush=True)
