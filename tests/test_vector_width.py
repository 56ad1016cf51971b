"""The library with the vectors of AVX-512 in the registers of AVX2 (``make test-wide``) against the AVX-512 library.

The order of all sums and the sizes of all tiles are the same, so every bit is. The exception is entmax with an alpha of
its own, where a compiler contracts products and sums of the logarithm in another way.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import pytest
import torch
from cases import case
from test_attention_kernel import EXAMPLES, NATIVE, SIZES, masks, qkv, results
from test_kernels import DTYPES, mapped
from torch import Tensor
from torch.testing import assert_close

from rsoftmax.kernels import cpu

WIDE, NATIVE_WIDTH = "rsoftmax.kernels.cpu._rows_wide", "rsoftmax.kernels.cpu._rows_avx512"


def has_both() -> bool:
    """The library for tests was built, and this processor runs the other."""
    try:
        importlib.import_module(WIDE)
        return torch.backends.cpu.get_cpu_capability() == "AVX512" and bool(importlib.import_module(NATIVE_WIDTH))
    except ImportError:
        return False


pytestmark = pytest.mark.skipif(not has_both(), reason="make test-wide builds the library; the processor needs AVX-512")
every_mapping = pytest.mark.parametrize("mapping", [name for name in NATIVE if name != "entmax"])


@contextmanager
def library(name: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "library", importlib.import_module(name))
        yield


def assert_same_bits(found: list[Tensor], expected: list[Tensor]) -> None:
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@every_mapping
def test_rows_have_the_bits_of_avx512(mapping: str) -> None:
    value = next(iter(EXAMPLES.get(mapping, {}).values()), None)
    for (rows, n), dtype, masked in product(((40, 5), (33, 20), (17, 80), (9, 300), (3, 5000)), DTYPES, (False, True)):
        generator = torch.Generator().manual_seed(n)
        x, g = torch.randn(2, rows, n, generator=generator).to(dtype)
        mask = torch.rand(rows, n, generator=generator) < 0.7 if masked else None
        with case(rows, n, dtype, masked):
            found = []
            for name in (WIDE, NATIVE_WIDTH):
                with library(name):
                    found.append(mapped(mapping, "native", x, mask, value, g))
            assert_same_bits(*found)


@every_mapping
def test_attention_has_the_bits_of_avx512(mapping: str) -> None:
    long = (1, 2, 1, 100, 700, 64, 48)
    for i, size in enumerate((*SIZES, long)):
        leaves = qkv(size, (torch.float32, torch.float16, torch.bfloat16)[i % 3])
        for masking, options in masks(size).items():
            given: dict[str, Any] = {"mapping": mapping, **options, **EXAMPLES.get(mapping, {})}
            with case(size, masking):
                found = []
                for name in (WIDE, NATIVE_WIDTH):
                    with library(name):
                        found.append(results(leaves, *leaves, **given))
                assert_same_bits(*found)
