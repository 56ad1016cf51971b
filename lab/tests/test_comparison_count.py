"""The rule "count" of the comparison: its layer, decoding and loss."""

import torch
from torch import Tensor, nn
from torch.testing import assert_close

from rsoftmax import softmax
from rsoftmax.labels import MultiLabelHead, Scores, losses
from rsoftmax_lab.comparison import Count


def head_of() -> MultiLabelHead:
    torch.manual_seed(0)
    return MultiLabelHead(5, 6, "r_softmax", rule=Count.name).double()


def targets() -> Tensor:
    y = (torch.rand(4, 6, generator=torch.Generator().manual_seed(0)) < 0.4).double()
    y[0], y[1] = 0, 1
    return y


def test_the_layer_and_the_choices() -> None:
    head = head_of()
    assert (head.rule.name, head.mapping, head.criterion) == ("count", "r_softmax", "multilabel_r_softmax_loss")
    shapes = {name: tuple(weights.shape) for name, weights in head.named_parameters()}
    assert shapes == {"logits.weight": (6, 5), "logits.bias": (6,), "count.weight": (7, 5), "count.bias": (7,)}


def test_the_head_selects_its_most_probable_number_of_labels() -> None:
    head, logits = head_of(), torch.randn(7, 6).double()
    counts = nn.functional.one_hot(torch.arange(7), 7).double()
    output = head.decode(Scores(logits, aux_logits=counts))
    assert output.labels.sum(-1).tolist() == list(range(7))
    assert output.rate is not None
    assert_close(output.rate.flatten(), 1 - torch.arange(7) / 6, check_dtype=False)
    assert_close(output.probs[6], softmax(logits[6]))


def test_the_loss_takes_the_true_rate_and_adds_the_count() -> None:
    head, y = head_of(), targets()
    scores = head.scores(torch.randn(4, 5).double())
    assert scores.aux_logits is not None
    ranking = losses.multilabel_r_softmax_loss(scores.logits, y, 1 - y.sum(-1, keepdim=True) / 6)
    assert_close(head.loss(scores, y), ranking + losses.label_count_loss(scores.aux_logits, y))
    head.loss(scores, y).backward()
    assert all(w.grad is not None and w.grad.isfinite().all() for w in head.parameters())
    weight = torch.rand(4, 1).double()
    each = head.loss(scores, y, reduction="none")
    assert_close(head.loss(scores, y, weight=weight), (each * weight[:, 0]).mean())


def test_the_head_learns_which_labels_and_how_many() -> None:
    """All 16 sets of four labels, the empty one included, with their own bits as features."""
    y = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 4).double()
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(4, 32), nn.ReLU()).double()
    head = MultiLabelHead(32, 4, "r_softmax", rule=Count.name).double()
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=0.02)
    for _ in range(300):
        optimizer.zero_grad()
        head.loss(head.scores(body(2 * y - 1)), y).backward()
        optimizer.step()
    assert torch.equal(head(body(2 * y - 1)).labels, y == 1)
