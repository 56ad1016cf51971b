"""The property tests find what is wrong: each fails if the function it is about is changed."""

from collections.abc import Callable
from typing import Any

import pytest
import test_properties_attention
import test_properties_labels
import test_properties_mappings
from hypothesis import Phase
from strategies import examples

from rsoftmax.kernels.cpu import attention
from rsoftmax.kernels.cpu import rows as cpu_rows
from rsoftmax.labels import decoding, losses


def with_first(function: Callable[..., Any], wrong: Callable[[Any], Any]) -> Callable[..., Any]:
    """The same function with another first result."""

    def changed(*args: Any, **options: Any) -> Any:
        first, *others = function(*args, **options)
        return wrong(first), *others

    return changed


BROKEN: dict[str, tuple[Callable[[], None], Any, str, Callable[..., Any]]] = {
    "mappings": (
        test_properties_mappings.test_a_mapping_is_its_definition,
        cpu_rows, "forward", with_first(cpu_rows.forward, lambda p: p * (1 + 1e-5)),
    ),
    "losses": (
        test_properties_labels.test_a_loss_is_its_sum_pair_by_pair,
        losses, "_margin", lambda y: (1 + 1e-5) / y.sum(-1, keepdim=True).clamp(min=1),
    ),
    "attention": (
        test_properties_attention.test_the_kernel_and_the_blocks_differ_from_the_equations_by_rounding,
        attention, "backward", with_first(attention.backward, lambda dq: dq * (1 + 1e-5)),
    ),
    "labels": (
        test_properties_labels.test_the_best_labels_and_those_above_a_threshold_are_mappings,
        decoding, "rate_of_count", lambda k, z: k.double() * 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    test, owner, function, wrong = BROKEN[name]
    monkeypatch.setattr(owner, function, wrong)
    search = examples(600, phases=[Phase.generate])(test.check)  # type: ignore[attr-defined]
    with pytest.raises(AssertionError):
        search()
