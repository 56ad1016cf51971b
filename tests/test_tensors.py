"""Private names of torch may go away: then the reference runs, and nothing fails."""

import pytest
import torch
from cases import run_programs

from rsoftmax import _tensors as tensors

PRIVATE = [
    ("torch._C", "_are_functorch_transforms_active"),
    ("torch._C", "_is_tracing"),
    ("torch._C", "_len_torch_dispatch_stack"),
    ("torch._C._functorch", "is_legacy_batchedtensor"),
    ("torch.autograd.forward_ad", "_current_level"),
    ("torch.Tensor", "_is_zerotensor"),
]

PROGRAM = """
import torch

class Gone:
    def __get__(self, *_):
        raise AttributeError

def hide():
    if NAME in vars(HOME):
        there = vars(HOME)[NAME]
        delattr(HOME, NAME)
        return lambda: setattr(HOME, NAME, there)
    setattr(HOME, NAME, Gone())  # inherited from a type that cannot be changed
    return lambda: delattr(HOME, NAME)

back = hide()
assert not hasattr(HOME, NAME)
import rsoftmax
from rsoftmax import r_softmax, use_kernels
from rsoftmax.attention import sparse_attention
back()  # torch of today calls it

x = torch.tensor([[1.0, 2.0, 3.0, 4.0], [0.5, 0.1, 0.4, 0.2]])
assert not rsoftmax._tensors.is_plain(x)
assert not rsoftmax._tensors.is_eager_cpu(x)
p = r_softmax(x, 0.5)
with use_kernels("reference"):
    assert torch.equal(p, r_softmax(x, 0.5))
leaf = x.clone().requires_grad_()
r_softmax(leaf, 0.5).square().sum().backward()
assert leaf.grad.isfinite().all()
assert sparse_attention(*torch.randn(3, 2, 4, 8), r=0.5).shape == (2, 4, 8)
assert (p == 0).sum(-1).tolist() == [2, 2]
"""


@pytest.mark.process
def test_without_a_private_name_of_torch_the_reference_runs() -> None:
    run_programs(
        "import torch",
        {f"{home}.{name}": PROGRAM.replace("HOME", home).replace("NAME", repr(name)) for home, name in PRIVATE},
    )


def test_with_all_of_them_a_tensor_in_memory_is_one() -> None:
    assert tensors.is_eager_cpu(torch.ones(2))
    assert tensors.is_plain(torch.ones(2, device="meta"))
    assert not tensors.is_eager_cpu(torch.ones(2, device="meta"))
