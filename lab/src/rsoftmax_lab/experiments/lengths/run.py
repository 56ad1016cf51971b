"""One run: train on short sets, test on long ones."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

import rsoftmax
from rsoftmax.attention import MultiheadAttention
from rsoftmax_lab.experiments.lengths.data import MARKED, NAMES, TASKS, TOLERANCE, Batch, draw
from rsoftmax_lab.experiments.lengths.grid import TIMES, Run
from rsoftmax_lab.running.runs import Row

TESTED = 7  # the seed of the test sets, which all runs share
ROUNDS, ITEMS = 4, 16384  # test batches of each length, and items in one of them
OWN = ("mapping.raw_value", "log_scale")  # parameters with a learning rate of their own


class Model(nn.Module):
    """Embeddings, one attention layer from questions to items, and a head."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        task, width = TASKS[run.task], run.width
        parameters: dict[str, dict[str, Any]] = {
            "r_softmax": {"r": 0.5},
            "t_softmax": {"t": torch.tensor([4.0]), "learnable": True},
            "k_softmax": {"k": task.k},
        }
        given = parameters.get(run.mapping, {})
        self.key: nn.Module = nn.Linear(1, width) if run.task == "max" else nn.Embedding(2 * NAMES, width)
        self.value: nn.Module = nn.Embedding(task.classes, width) if task.classes else nn.Linear(1, width)
        self.item, self.question, self.head = (_mlp(width, size) for size in (width, width, task.classes or 1))
        self.attention = MultiheadAttention(
            width, 1, bias=False, batch_first=True, mapping=run.mapping, scale=run.scale, **given
        )

    def forward(self, batch: Batch, need_weights: bool = False) -> tuple[Tensor, Tensor | None]:
        """The predictions, and the weights [sets, questions, items] if needed."""
        question, key = self._embed(batch.questions), self._embed(batch.keys) + self.value(batch.values)
        question, key = question + self.question(question), key + self.item(key)
        output, weights = self.attention(question, key, key, need_weights=need_weights)
        return self.head(output), weights

    def _embed(self, keys: Tensor) -> Tensor:
        embedded: Tensor = self.key(keys)
        return embedded if keys.is_floating_point() else embedded.sum(-2)


def run(run: Run) -> Row:
    """Train and test; returns the row of a run."""
    torch.manual_seed(run.seed)
    model = Model(run)
    train(model, run)
    longest = TASKS[run.task].longest
    tested = {longest * times: measure(model, run.task, longest * times) for times in TIMES if times <= run.times}
    attention = model.attention
    own = {"t": getattr(attention.mapping, "t", None), "s": attention.log_scale}
    return {
        "accuracy": {str(n): round(accuracy, 5) for n, (accuracy, _) in tested.items()},
        "nonzeros": {str(n): round(nonzeros, 3) for n, (_, nonzeros) in tested.items()},
        "learned": {name: round(value.item(), 4) for name, value in own.items() if value is not None},
        "version": rsoftmax.__version__,
        "kernels": rsoftmax.kernels.cpu_kernels(),
    }


def train(model: Model, run: Run) -> None:
    """AdamW with one cycle of the learning rate."""
    task, generator = TASKS[run.task], Generator().manual_seed(run.seed + 1000)
    own = [value for name, value in model.attention.named_parameters() if name in OWN]
    rest = [value for value in model.parameters() if all(value is not one for one in own)]
    groups = [{"params": rest, "weight_decay": run.weight_decay}]
    groups += [{"params": own, "lr": run.parameter_lr, "weight_decay": 0.0}] if own else []
    optimizer, steps = torch.optim.AdamW(groups, run.lr, fused=True), run.steps or task.steps
    rates = [run.lr, run.parameter_lr][: len(groups)]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, steps, pct_start=0.1)
    for _ in range(steps):
        n = int(torch.randint(task.shortest, task.longest + 1, (), generator=generator))
        batch = draw(run.task, task.sets, n, task.questions, generator)
        loss = _loss(model(batch)[0], batch.targets)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


@torch.no_grad()
def measure(model: Model, name: str, n: int) -> tuple[float, float]:
    """The share of correct outputs on sets of n items, and the mean number of non-zero weights."""
    task, generator = TASKS[name], Generator().manual_seed(TESTED)
    sets, questions = (
        (min(128, 16 * ITEMS // n), 1) if name == "max" else (min(64, max(4, ITEMS // n)), 4 * task.questions)
    )
    questions = min(questions, task.longest // MARKED) if name == "mean" else questions  # each may mark eight items
    right, nonzeros = [], []
    for _ in range(ROUNDS):
        batch = draw(name, sets, n, questions, generator)
        output, weights = model(batch, need_weights=True)
        assert weights is not None
        right.append(_right(output, batch.targets).float().mean().item())
        nonzeros.append((weights > 0).float().sum(-1).mean().item())
    return sum(right) / ROUNDS, sum(nonzeros) / ROUNDS


def _loss(output: Tensor, targets: Tensor) -> Tensor:
    if targets.is_floating_point():
        return F.mse_loss(output, targets)
    return F.cross_entropy(output.flatten(0, 1), targets.flatten())


def _right(output: Tensor, targets: Tensor) -> Tensor:
    return (output - targets).abs() < TOLERANCE if targets.is_floating_point() else output.argmax(-1) == targets


def _mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 128), nn.GELU(), nn.Linear(128, outputs))
