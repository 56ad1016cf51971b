"""The script of test_distributed.py: trains models with learnable rates on the processes of a launcher."""

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor, distributed, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard
from transformers import BertConfig, BertForSequenceClassification

from rsoftmax import RSoftmax
from rsoftmax._tensors import gather
from rsoftmax.attention import head_parameters, set_attention, set_head_parameters
from rsoftmax.attention.transformers.parameters import HeadParameter

STEPS = 3


def new_model() -> BertForSequenceClassification:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 16}
    without_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = BertConfig(vocab_size=50, initializer_range=0.5)  # of the default range, rates have hardly a gradient
    config.update(sizes | without_dropout)
    model = BertForSequenceClassification(config)
    set_attention(model, "r_softmax", r=[0.3, 0.6], learnable=True, log_n_scale=True)
    return model


def sharded(model: BertForSequenceClassification) -> BertForSequenceClassification:
    for layer in model.bert.encoder.layer:
        fully_shard(layer)
    fully_shard(model)
    return model


def batches() -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(50, (STEPS, 4, 8), generator=generator)
    labels = torch.randint(2, (STEPS, 4), generator=generator)
    return [{"input_ids": i, "labels": y} for i, y in zip(ids, labels, strict=True)]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, part: slice = slice(None)) -> None:
    for batch in batches():
        optimizer.zero_grad()
        model(**{name: tensor[part] for name, tensor in batch.items()}).loss.backward()
        optimizer.step()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.5)


def main(folder: Path) -> None:
    accelerator = Accelerator(cpu=True)
    part = slice(accelerator.process_index, None, accelerator.num_processes)
    options = StateDictOptions(full_state_dict=True)
    results: dict[str, Tensor] = {}

    model = new_model()
    prepared, optimizer = accelerator.prepare(model, sgd(model))
    train(prepared, optimizer, part)
    assert type(prepared).__name__ == "DistributedDataParallel"
    results["ddp"] = head_parameters(prepared).values
    accelerator.unwrap_model(prepared).save_pretrained(folder / "ddp", is_main_process=accelerator.is_main_process)

    model = sharded(new_model())
    for module in model.modules():
        if isinstance(module, HeadParameter):
            module.missing = "values are missing"  # forward looks whether a checkpoint provided them
    train(model, optimizer := sgd(model), part)
    results["fsdp"] = head_parameters(model).values
    states = get_model_state_dict(model, options=options), get_optimizer_state_dict(model, optimizer, options=options)
    if accelerator.is_main_process:
        torch.save(states, folder / "states.pt")
        model.save_pretrained(folder / "fsdp", state_dict=states[0])
    set_head_parameters(model, [0.25, 0.75])
    results["set"] = head_parameters(model).values

    distributed.barrier()
    model = sharded(new_model())
    optimizer = sgd(model)
    saved = torch.load(folder / "states.pt")
    set_model_state_dict(model, saved[0], options=options)
    set_optimizer_state_dict(model, optimizer, saved[1], options=options)
    results["loaded"] = head_parameters(model).values

    layer = RSoftmax(0.5, learnable=True)
    network = nn.Sequential(nn.Linear(4, 4), layer)
    fully_shard(network)
    network(torch.randn(2, 4)).square().sum().backward()
    layer.r = 0.75
    assert isinstance(layer.r, Tensor)
    results["scalar"] = gather(layer.r).detach()
    torch.save(results, folder / f"results{accelerator.process_index}.pt")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
