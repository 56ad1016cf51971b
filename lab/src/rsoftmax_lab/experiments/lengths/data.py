"""Sets of items, and questions about them."""

from typing import NamedTuple

import torch
from torch import Generator, Tensor

NAMES = 256  # of the first and of the second part of a key
MARKED = 8  # items that a question may mark, at most
TOLERANCE = 0.1  # within which a mean is right


class Task(NamedTuple):
    """A task, and how it is trained.

    Attributes:
        title: its name in tables and figures.
        classes: the number of classes of an item; 0: items have a real value.
        shortest, longest: the number of items in training.
        sets: the number of sets in a batch.
        questions: about each set.
        steps: of training.
        k: the number of items that k-softmax keeps.
    """

    title: str
    classes: int
    shortest: int
    longest: int
    sets: int
    questions: int
    steps: int
    k: int


TASKS = {
    "max": Task("max retrieval", 10, 5, 16, 128, 1, 2000, 3),
    "recall": Task("associative recall", 32, 8, 32, 32, 16, 1000, 3),
    "mean": Task("mean of marked items", 0, 32, 64, 64, 4, 700, MARKED),
}


class Batch(NamedTuple):
    """Sets of n items with questions.

    Attributes:
        keys: what the items are found by, [sets, n, parts].
        values: what is asked for: classes [sets, n], or numbers [sets, n, 1].
        questions: what to look for, [sets, questions, parts].
        targets: classes [sets, questions], or numbers [sets, questions, 1].
    """

    keys: Tensor
    values: Tensor
    questions: Tensor
    targets: Tensor


def draw(task: str, sets: int, n: int, questions: int, generator: Generator) -> Batch:
    """Draw sets of n items."""
    return DRAWS[task](sets, n, questions, generator)


def max_retrieval(sets: int, n: int, questions: int, generator: Generator) -> Batch:
    """The class of the item with the highest priority; the question holds no information."""
    priorities = torch.rand(sets, n, 1, generator=generator)
    classes = torch.randint(TASKS["max"].classes, (sets, n), generator=generator)
    question = torch.rand(sets, questions, 1, generator=generator)
    return Batch(priorities, classes, question, classes.gather(1, priorities.argmax(1).expand(-1, questions)))


def recall(sets: int, n: int, questions: int, generator: Generator) -> Batch:
    """The class of the item with a key of two parts; many items share one of the parts."""
    starts = torch.randint(NAMES**2, (sets, 1), generator=generator)
    pairs = torch.randperm(NAMES**2, generator=generator)[(starts + torch.arange(n)) % NAMES**2]
    keys = torch.stack([pairs // NAMES, NAMES + pairs % NAMES], -1)
    classes = torch.randint(TASKS["recall"].classes, (sets, n), generator=generator)
    asked = torch.randint(n, (sets, questions), generator=generator)
    return Batch(keys, classes, keys.gather(1, asked[..., None].expand(-1, -1, 2)), classes.gather(1, asked))


def marked_mean(sets: int, n: int, questions: int, generator: Generator) -> Batch:
    """The mean value of the items with the key in question, one to eight of them."""
    names = 2 * NAMES
    first = torch.randint(names, (sets, 1), generator=generator)
    count = torch.randint(1, MARKED + 1, (sets, questions, 1), generator=generator)
    question = (first + torch.arange(questions)) % names
    keys = (first + torch.randint(questions, names, (sets, n), generator=generator)) % names
    marked = torch.arange(MARKED) < count
    places = MARKED * questions  # the first items: attention without positions does not see their order
    keys[:, :places] = torch.where(marked.flatten(1), question.repeat_interleave(MARKED, -1), keys[:, :places])
    values = 2 * torch.rand(sets, n, 1, generator=generator) - 1
    mean = (values[:, :places].view(sets, questions, MARKED) * marked).sum(-1, keepdim=True) / count
    return Batch(keys[..., None], values, question[..., None], mean)


DRAWS = {"max": max_retrieval, "recall": recall, "mean": marked_mean}
