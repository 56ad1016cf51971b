"""Learnable rates with DistributedDataParallel and fully_shard, on two processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from distributed_training import new_model, sgd, train
from torch import Tensor
from torch.testing import assert_close
from transformers import BertForSequenceClassification

from rsoftmax.attention import head_parameters

SCRIPT = Path(__file__).with_name("distributed_training.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes save."""
    folder = tmp_path_factory.mktemp("distributed")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [*launcher, "--rdzv-endpoint=localhost:0", str(SCRIPT), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def results(folder: Path) -> dict[str, Tensor]:
    """The rates, which every process sees alike."""
    first, second = (torch.load(folder / f"results{rank}.pt") for rank in range(2))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    return first  # type: ignore[no-any-return]


@pytest.mark.process
def test_two_processes_learn_the_rates_of_one(folder: Path, results: dict[str, Tensor]) -> None:
    model = new_model()
    start = head_parameters(model).values
    train(model, sgd(model))
    learned = head_parameters(model).values
    assert ((learned - start).abs() > 1e-3).any(-1).all()
    for name in ("ddp", "fsdp"):
        assert_close(results[name], learned)  # the sums of gradients differ in their order
        saved = BertForSequenceClassification.from_pretrained(folder / name)
        assert torch.equal(head_parameters(saved).values, results[name])


@pytest.mark.process
def test_a_sharded_model_can_be_set_and_loaded(results: dict[str, Tensor]) -> None:
    assert_close(results["set"], torch.tensor([[0.25], [0.75]]).expand(2, 4))
    assert torch.equal(results["loaded"], results["fsdp"])
    assert_close(results["scalar"], torch.tensor([0.75]))
