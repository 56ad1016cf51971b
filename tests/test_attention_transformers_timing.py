"""The time of a model with a mapping relative to torch's attention."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers_models import WORDS, batch_for, built, output

from rsoftmax.attention.transformers import expected_time, head_parameters, set_attention
from rsoftmax.attention.transformers.timing import NEW, ROUNDS, Ratio, _take_turns, longest_text


def test_the_ratio_is_formed_within_a_round_and_the_models_change_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    now, order = [0.0], list[int]()
    busy = [1.0, 7.0, 2.0, 30.0, 4.0]  # what a call of the dense model takes while the machine is more and less busy

    def call(kind: int) -> None:
        now[0] += busy[len(order) // 2] * (1.0, 0.5)[kind]
        order.append(kind)

    for clock in ("process_time", "perf_counter"):
        monkeypatch.setattr(f"rsoftmax.attention.transformers.timing.time.{clock}", lambda: now[0])

    class Host:
        def set_attn_implementation(self, name: str) -> None:
            self.name = name

    assert _take_turns(Host(), ("sdpa", "sparsemax"), call) == pytest.approx((0.5, 0.5, 0.5))
    assert order == [0, 1, 1, 0, 0, 1, 1, 0, 0, 1]
    assert str(Ratio(0.876, 0.85, 0.9)) == "0.88 (0.85-0.90)"


def test_a_decoder_reads_the_text_and_generates_with_a_cache_and_is_left_as_it_was() -> None:
    model, ids = built("llama").train(), torch.randint(5, WORDS, (2, 20))
    before, lengths = model.state_dict(), list[int]()
    model.get_input_embeddings().register_forward_hook(lambda _, inputs, __: lengths.append(inputs[0].shape[1]))
    found = expected_time(model, {"input_ids": ids, "labels": ids}, "t_softmax", t=2.0, edge=0.0)
    assert lengths == 2 * ROUNDS * [20] + 2 * ROUNDS * NEW * [1]
    assert found.tokens == 20
    assert found.next_token is not None
    assert all(0 < ratio.low <= ratio.median <= ratio.high for ratio in (found.text, found.next_token))
    assert str(found).endswith("for each token generated after them")
    assert model.training
    assert model.config._attn_implementation == "sdpa"
    assert model.state_dict().keys() == before.keys()


def test_an_encoder_has_no_next_token() -> None:
    found = expected_time(built("bert"), batch_for("bert"), "sparsemax")
    assert found.next_token is None
    assert str(found).endswith(f"for {found.tokens} tokens")


def test_a_sparse_model_is_compared_with_torchs_attention_and_a_dense_one_needs_a_mapping() -> None:
    model, batch = built("llama"), batch_for("llama")
    with pytest.raises(ValueError, match=r"the model has 'sdpa' attention; name a mapping"):
        expected_time(model, batch)
    set_attention(model, "r_softmax", r=0.3)
    before = output(model, batch)
    used: list[Any] = []
    change = model.set_attn_implementation

    def note(name: Any) -> None:
        used.append(name)
        change(name)

    model.set_attn_implementation = note
    expected_time(model, batch)
    assert used[: 2 * ROUNDS] == ["sdpa", "r_softmax", "r_softmax", "sdpa"] * 2 + ["sdpa", "r_softmax"]
    assert torch.equal(output(model, batch), before)
    assert head_parameters(model).mean() == pytest.approx(0.3)


def test_the_longest_text_is_a_batch_of_one() -> None:
    short: dict[str, Any] = {"input_ids": torch.ones(3, 4)}
    long: dict[str, Any] = {"input_ids": torch.arange(12).view(2, 6), "attention_mask": torch.ones(2, 6), "flag": True}
    long["attention_mask"][0, 3:] = 0
    found = longest_text([short, long])
    assert found["input_ids"].tolist() == [[6, 7, 8, 9, 10, 11]]
    assert isinstance(found["attention_mask"], Tensor)
    assert found["flag"] is True
