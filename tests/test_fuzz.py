"""``make fuzz-numbers`` finds what is wrong, and says how to see it again; a small part of it runs here."""

import re
import sys
from collections.abc import Callable
from itertools import islice
from typing import Any

import fuzz
import pytest
import torch

from rsoftmax.kernels.cpu import attention
from rsoftmax.kernels.cpu import rows as cpu_rows
from rsoftmax.labels import decoding, losses


def with_first(function: Callable[..., Any], wrong: Callable[[Any], Any]) -> Callable[..., Any]:
    """The same function, whose first answer is another."""

    def changed(*given: Any, **named: Any) -> Any:
        first, *others = function(*given, **named)
        return wrong(first), *others

    return changed


BROKEN: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "mappings": (cpu_rows, "forward", with_first(cpu_rows.forward, lambda p: p * 1.01)),
    "losses": (losses, "_margin", lambda y: 0.9 / y.sum(-1, keepdim=True).clamp(min=1)),
    "attention": (attention, "backward", with_first(attention.backward, lambda dq: dq * 1.01)),
    "multilabel": (decoding, "rate_of_count", lambda k, z: torch.zeros_like(k).double()),
}
"""What is put in whose place, so that a target must find something."""


def test_some_cases_of_each_target_hold(capsys: pytest.CaptureFixture[str]) -> None:
    found = fuzz.run(seed=0, seconds=6000, most=10 * len(fuzz.GROUPS["numbers"]))
    printed = capsys.readouterr().out
    assert found == 0, printed
    assert re.findall(r"(\w+) +10 cases +0 findings", printed) == list(fuzz.GROUPS["numbers"])


@pytest.mark.train
@pytest.mark.parametrize("target", BROKEN)
def test_what_is_wrong_is_found_and_found_again(
    target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(*BROKEN[target])
        assert fuzz.run(seed=0, seconds=6000, most=20, targets=[target])
        case = re.search(rf"make fuzz-numbers CASE=({target}:\d+)", capsys.readouterr().out)
        assert case
        broken.setattr(sys, "argv", ["fuzz", "--case", case[1]])
        with pytest.raises(AssertionError):
            fuzz.main()
    monkeypatch.setattr(sys, "argv", ["fuzz", "--case", case[1]])
    assert fuzz.main() == 0


def test_a_seed_repeats_a_run() -> None:
    first, again, other = (list(islice(fuzz.cases(seed), 8)) for seed in (1, 1, 2))
    assert first == again != other
