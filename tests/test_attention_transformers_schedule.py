"""Rates that grow or are learned during training with the Trainer."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.testing
import transformers as hf
from torch.testing import assert_close
from torch.utils.data import Dataset
from transformers_models import HEADS, LAYERS, bert

from rsoftmax.attention.transformers import SparsitySchedule, head_parameters, parameter_groups, set_attention


class Sentences(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": (torch.arange(7) * (index + 3)) % 50 + 5, "labels": index % 2}


def trained(
    folder: Path,
    model: Any,
    callbacks: list[hf.TrainerCallback],
    resume: bool = False,
    parameter_lr: float | None = None,
    **options: Any,
) -> hf.Trainer:
    arguments = hf.TrainingArguments(
        str(folder),
        **{
            "max_steps": 6,
            "per_device_train_batch_size": 2,
            "logging_steps": 1,
            "save_steps": 3,
            "report_to": [],
            "use_cpu": True,
            "disable_tqdm": True,
            "dataloader_pin_memory": False,
            **options,
        },
    )
    optimizer = None if parameter_lr is None else torch.optim.AdamW(parameter_groups(model, 1e-5, parameter_lr))
    trainer = hf.Trainer(
        model,
        arguments,
        train_dataset=Sentences(),
        eval_dataset=Sentences(),
        callbacks=callbacks,
        optimizers=(optimizer, None),
    )
    trainer.train(resume_from_checkpoint=str(folder / "checkpoint-3") if resume else None)
    return trainer


def history(trainer: hf.Trainer) -> list[float]:
    return [row["rate"] for row in trainer.state.log_history if "loss" in row]


@pytest.mark.parametrize(
    ("shape", "shares"),
    [
        ("linear", [1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1]),
        ("constant", [1] * 6),
        ("cosine", [0.06699, 0.25, 0.5, 0.75, 0.93301, 1]),
    ],
)
def test_a_schedule_reaches_its_rate_and_is_logged(shape: str, shares: list[float], tmp_path: Path) -> None:
    model = bert()
    set_attention(model, "r_softmax", r=0.0)
    trainer = trained(
        tmp_path, model, [SparsitySchedule([0.2, 0.4], shape)], gradient_accumulation_steps=2, save_strategy="no"
    )
    assert history(trainer) == pytest.approx([0.3 * share for share in shares], abs=1e-5)
    assert_close(head_parameters(model).values, torch.tensor([[0.2] * HEADS, [0.4] * HEADS]))


@pytest.mark.train
def test_a_resumed_run_has_the_rates_of_an_uninterrupted_one(tmp_path: Path) -> None:
    table = torch.rand(LAYERS, HEADS, generator=torch.Generator().manual_seed(2))
    models = [bert(), bert()]
    for model in models:
        set_attention(model, "r_softmax", r=0.0)
    whole = trained(tmp_path, models[0], [SparsitySchedule(table)])
    resumed = trained(tmp_path, models[1], [SparsitySchedule(table)], resume=True)
    assert history(resumed) == history(whole)
    assert_close(head_parameters(models[1]).values, table)
    assert_close(models[1].state_dict(), models[0].state_dict())
    read = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "checkpoint-3")
    assert_close(head_parameters(read).values, table / 2)


class FirstIsBest(hf.TrainerCallback):
    def on_evaluate(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        rest["metrics"]["eval_loss"] = float(state.global_step)


@pytest.mark.train
def test_the_best_checkpoint_comes_back_with_its_rate(tmp_path: Path) -> None:
    model = bert()
    set_attention(model, "r_softmax", r=0.0)
    trainer = trained(
        tmp_path,
        model,
        [SparsitySchedule(0.6), FirstIsBest()],
        eval_strategy="steps",
        eval_steps=2,
        save_steps=2,
        load_best_model_at_end=True,
    )
    best = trainer.state.best_global_step
    assert best == 2
    assert_close(head_parameters(model).values, torch.full((LAYERS, HEADS), 0.6 * best / 6))
    assert [row["rate"] for row in trainer.state.log_history if "eval_loss" in row] == pytest.approx([0.2, 0.4, 0.6])


@pytest.mark.train
def test_learned_rates_learn_at_their_own_pace_and_resume(tmp_path: Path) -> None:
    models = [bert(), bert()]
    for model in models:
        set_attention(model, "r_softmax", r=0.15, learnable=True)
    assert sum(len(group["params"]) for group in parameter_groups(models[0], 1e-5)) == len([*models[0].parameters()])
    trained(tmp_path, models[0], [], parameter_lr=0.1)
    learned = head_parameters(models[0]).values
    assert ((learned > 0) & (learned < 1)).all()
    assert (learned - 0.15).abs().min() > 1e-3
    assert len(learned.unique()) > LAYERS
    trained(tmp_path, models[1], [], parameter_lr=0.1, resume=True)
    assert_close(head_parameters(models[1]).values, learned)


def test_schedules_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no shape 'square'; use one of linear, cosine, constant"):
        SparsitySchedule(0.1, shape="square")
    model = bert()
    with pytest.raises(ValueError, match="the model uses 'sdpa'; call set_attention"):
        trained(tmp_path, model, [SparsitySchedule(0.1)])
    with pytest.raises(ValueError, match=re.escape("r must be in [0, 1], got 1.5")):
        SparsitySchedule(1.5)
    set_attention(model, "r_softmax", r=0.2, learnable=True)
    with pytest.raises(ValueError, match="the model's rates are learnable"):
        trained(tmp_path, model, [SparsitySchedule(0.1)])
    set_attention(model, "r_softmax", r=0.0)
    with pytest.raises(ValueError, match="2 layers x 4 heads"):
        trained(tmp_path, model, [SparsitySchedule([0.1, 0.2, 0.3])])
    set_attention(model, "t_softmax", t=2.0)
    with pytest.raises(ValueError, match=re.escape("SparsitySchedule is for r_softmax")):
        trained(tmp_path, model, [SparsitySchedule(0.1)])
    assert (head_parameters(model).values == 2.0).all()
