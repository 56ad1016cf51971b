"""What all tests share.

Tests of a mapping run twice, on the native kernels and on the reference; all start from one seed.
"""

import os
from collections.abc import Iterator
from importlib.util import find_spec

os.environ["OMP_NUM_THREADS"] = "1"  # of torch, NumPy and scikit-learn: the processes of pytest-xdist share the cores

import pytest
import torch

from rsoftmax.kernels import KERNELS, use_kernels

# What cannot be imported without triton or gradio cannot be searched for examples.
NEEDS = {"triton": "src/rsoftmax/kernels/triton/[!_]*.py", "gradio": "src/rsoftmax/app/*.py"}
collect_ignore_glob = [files for package, files in NEEDS.items() if not find_spec(package)]
pytest_plugins = ["encoders", "mulan_sets"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__ in ("test_mappings", "test_gradients"):
        metafunc.fixturenames.append("kernels")
        metafunc.parametrize("kernels", KERNELS, indirect=True, scope="session")


@pytest.fixture(scope="session")
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    with use_kernels(request.param):
        yield request.param


@pytest.fixture(autouse=True)
def one_seed() -> None:
    torch.manual_seed(0)
