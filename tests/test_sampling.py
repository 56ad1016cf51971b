"""Warpers for generate: softmax of what they return is the mapping."""

import math
from typing import Any

import pytest
import torch
from torch.testing import assert_close
from transformers import GPT2Config, GPT2LMHeadModel, MinPLogitsWarper, TopKLogitsWarper

from rsoftmax import k_softmax, r_softmax, t_softmax
from rsoftmax.sampling import KSoftmaxLogitsWarper, RSoftmaxLogitsWarper, TSoftmaxLogitsWarper

WARPERS = [
    TSoftmaxLogitsWarper(1.5),
    TSoftmaxLogitsWarper(1.0, edge=0, in_sigmas=True),
    KSoftmaxLogitsWarper(7),
    KSoftmaxLogitsWarper(7, edge=0),
    RSoftmaxLogitsWarper(0.9),
]
NONE: Any = torch.zeros(1, 1, dtype=torch.long)


def scores(rows: int = 5, tokens: int = 300) -> Any:
    return 3 * torch.randn(rows, tokens)


def test_the_answer_is_the_logarithm_of_the_mapping_in_every_row_and_batch() -> None:
    x = scores()
    assert_close(TSoftmaxLogitsWarper(1.5)(NONE, x).exp(), t_softmax(x, 1.5))
    assert_close(RSoftmaxLogitsWarper(0.9)(NONE, x).exp(), r_softmax(x, 0.9))
    assert_close(KSoftmaxLogitsWarper(30)(NONE, x).exp(), k_softmax(x, 30))
    few = torch.full_like(x, -torch.inf).index_fill(-1, torch.tensor([3]), 1.0)
    for warper in WARPERS:  # what beams are compared by does not depend on the rows beside
        assert_close(warper(NONE, torch.cat([x, few]))[:5], warper(NONE, x))


@pytest.mark.parametrize("t", [1e-30, 1e-7, 200.0, math.inf])
def test_any_t_keeps_the_best_token_and_infinity_is_softmax(t: float) -> None:
    x = scores() + 1000
    assert_close(TSoftmaxLogitsWarper(t)(NONE, x).exp(), t_softmax(x, t))


def test_softmax_of_the_answer_is_the_mapping() -> None:
    x = scores()
    assert_close(TSoftmaxLogitsWarper(1.5)(NONE, x).softmax(-1), t_softmax(x, 1.5))
    assert_close(RSoftmaxLogitsWarper(0.9)(NONE, x).softmax(-1), r_softmax(x, 0.9))
    assert_close(KSoftmaxLogitsWarper(30)(NONE, x).softmax(-1), k_softmax(x, 30))


def test_the_tokens_kept_are_those_of_min_p_and_of_top_k() -> None:
    x = scores()
    assert_close(TSoftmaxLogitsWarper(2.0)(NONE, x).isfinite(), MinPLogitsWarper(math.exp(-2.0))(NONE, x).isfinite())
    for k in (1, 7, 300):
        assert_close(KSoftmaxLogitsWarper(k)(NONE, x).isfinite(), TopKLogitsWarper(k)(NONE, x).isfinite())
    assert_close(KSoftmaxLogitsWarper(1000)(NONE, x).isfinite(), torch.ones_like(x).bool())


def test_without_an_edge_they_are_min_p_and_top_k() -> None:
    x: Any = torch.cat([scores(), scores().index_fill(-1, torch.arange(5, 290), -torch.inf)])
    assert_close(
        TSoftmaxLogitsWarper(2.0, edge=0)(NONE, x).softmax(-1), MinPLogitsWarper(math.exp(-2.0))(NONE, x).softmax(-1)
    )
    for k in (1, 7, 40, 300):
        assert_close(KSoftmaxLogitsWarper(k, edge=0)(NONE, x).softmax(-1), TopKLogitsWarper(k)(NONE, x).softmax(-1))


@pytest.mark.parametrize("n", [1e-30, 0.5, 1.0, 2.0, math.inf])
def test_in_sigmas_without_an_edge_it_is_top_n_sigma(n: float) -> None:
    same, one = torch.full((1, 300), 2.0), torch.full((1, 300), -torch.inf).index_fill(-1, torch.tensor([3]), 1.0)
    x = torch.cat([scores(), 1e-3 * scores().index_fill(-1, torch.arange(5, 290), -torch.inf), same, one])
    expected = torch.zeros_like(x)
    for row, of_row in zip(x, expected, strict=True):
        finite = row[row.isfinite()]
        kept = (row >= row.max() - n * finite.std(correction=0)) if n < math.inf else row.isfinite()
        of_row[kept] = row[kept].softmax(-1)
    assert_close(TSoftmaxLogitsWarper(n, edge=0, in_sigmas=True)(NONE, x).exp(), expected)


def test_ties_are_those_of_the_mapping() -> None:
    x = torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0], [3.0, 3.0, 3.0, 3.0, 0.0], [4.0, 1.0, 1.0, 0.0, 0.0]])
    for k, edge in ((1, 0.0), (2, 0.0), (2, math.inf), (3, 0.5), (4, 0.0)):
        assert_close(KSoftmaxLogitsWarper(k, edge=edge)(NONE, x).exp(), k_softmax(x, k, edge=edge))


@pytest.mark.parametrize("warper", WARPERS, ids=lambda warper: type(warper).__name__)
def test_what_others_have_removed_stays_removed_and_the_best_token_the_best(warper: TSoftmaxLogitsWarper) -> None:
    x = scores()
    x[:, 10:] = -torch.inf
    x[4] = -torch.inf
    found = warper(NONE, x)
    assert not found.isnan().any()
    assert (found[:, 10:] == -torch.inf).all()
    assert (found[4] == -torch.inf).all()
    assert_close(found[:4].argmax(-1), x[:4].argmax(-1))
    assert_close(warper(NONE, x[:, :10])[:4], found[:4, :10])
    assert_close(warper(NONE, x.half()).softmax(-1)[:4].sum(-1), torch.ones(4))


@pytest.mark.parametrize("warper", WARPERS, ids=lambda warper: type(warper).__name__)
def test_scores_that_are_nan_stay_so_and_no_rows_give_none(warper: TSoftmaxLogitsWarper) -> None:
    x = scores()
    x[2, 7] = torch.nan
    found = warper(NONE, x)
    assert found[2].isnan().all()  # and not -inf, of which greedy search would take a token
    whole = torch.tensor([0, 1, 3, 4])
    assert_close(found[whole], warper(NONE, x[whole]))
    assert warper(NONE, x[:0]).shape == (0, 300)


@pytest.mark.parametrize("settings", [{"do_sample": True}, {"num_beams": 3}, {"do_sample": True, "num_beams": 2}])
@pytest.mark.parametrize("warper", WARPERS, ids=lambda warper: type(warper).__name__)
def test_generate_takes_them_for_samples_beams_and_batches(
    warper: TSoftmaxLogitsWarper, settings: dict[str, int]
) -> None:
    model: Any = GPT2LMHeadModel(
        GPT2Config(vocab_size=60, n_layer=1, n_embd=8, n_head=2, bos_token_id=0, eos_token_id=0)
    )
    prompt = torch.arange(6).reshape(2, 3) + 1
    told = {"max_new_tokens": 4, "pad_token_id": 0, **settings}
    found = model.generate(prompt, attention_mask=torch.ones_like(prompt), logits_processor=[warper], **told)
    assert found.shape[0] == 2
    assert_close(found[:, :3], prompt)


def test_wrong_settings_are_refused() -> None:
    for t in (0, -1.0, math.nan, "1"):
        with pytest.raises((TypeError, ValueError), match=r"TSoftmaxLogitsWarper: t must be (> 0|a number)"):
            TSoftmaxLogitsWarper(t)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="k must be a positive integer, got 0"):
        KSoftmaxLogitsWarper(0)
    with pytest.raises(ValueError, match="r must be in"):
        RSoftmaxLogitsWarper(1.5)
    for warper in (TSoftmaxLogitsWarper, KSoftmaxLogitsWarper):
        with pytest.raises(ValueError, match="edge must be >= 0, got -1"):
            warper(1, edge=-1)
