"""Settings and fixtures shared by all tests.

Environment variables vary what no verdict may depend on. ``make test-fragile`` sets ``RSOFTMAX_TEST_SEED`` (default 0)
and ``RSOFTMAX_TEST_THREADS`` (default 1); ``make test-wide`` sets ``RSOFTMAX_TEST_LIBRARY``: the library of kernels, by
default the one that the library itself chooses.
"""

import importlib
import os
import signal
from collections.abc import Iterator
from importlib.util import find_spec

# Threads of torch, NumPy and scikit-learn. One by default: the processes of pytest-xdist share the cores.
os.environ["OMP_NUM_THREADS"] = os.environ.get("RSOFTMAX_TEST_THREADS", "1")

import pytest
import torch
from hypothesis import settings

from rsoftmax.kernels import KERNELS, cpu, use_kernels

# Doctests are collected by import, which needs these packages.
NEEDS = {"triton": "src/rsoftmax/kernels/triton/[!_]*.py", "gradio": "src/rsoftmax/app.py"}
collect_ignore_glob = [files for package, files in NEEDS.items() if not find_spec(package)]
pytest_plugins = ["encoders", "mulan_sets"]
SLOW = {"compile", "interpreter", "process", "train", "browser", "cluster"}
settings.register_profile("fuzz", max_examples=1000)  # make fuzz; tests/strategies.py
SEED = int(os.environ.get("RSOFTMAX_TEST_SEED", "0"))
if level := os.environ.get("RSOFTMAX_TEST_LIBRARY"):  # in this process, not in those that tests start
    cpu.LEVEL, cpu.library = level, importlib.import_module(f"rsoftmax.kernels.cpu._rows_{level}")


# A shell starts background jobs with SIGINT ignored, which the commands under test would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--short", action="store_true", help=f"leave out tests marked {', '.join(sorted(SLOW))}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--short"):
        slow = {item: bool(SLOW & {mark.name for mark in item.iter_markers()}) for item in items}
        config.hook.pytest_deselected(items=[item for item in items if slow[item]])
        items[:] = [item for item in items if not slow[item]]


@pytest.fixture(scope="module", params=KERNELS)
def both_kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run every test of a module twice: on the native kernels and on the reference."""
    with use_kernels(request.param):
        yield request.param


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(SEED)


@pytest.fixture
def in_float64() -> Iterator[None]:
    """Compute in float64, where equal results are equal to nearly all digits, however a processor multiplies."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
