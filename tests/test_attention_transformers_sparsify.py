"""Thresholds within an error that is certified on held-out batches."""

import json
import math
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from encoders import TEXTS
from PIL import Image
from scipy import stats
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers_models import HEADS, LAYERS, LONG, TEXT, WORDS, bert, built, output
from typer.testing import CliRunner

from rsoftmax._transformers import load_pretrained, max_positions
from rsoftmax.attention.transformers import head_parameters, set_attention, sparsify, sparsity
from rsoftmax.attention.transformers.compare import (
    compare,
    critical_value,
    is_certified,
    sampled_gradient,
    text_batches,
)
from rsoftmax.attention.transformers.sparsify import CORRECTIONS, SHARES, certified
from rsoftmax.attention.transformers.thresholds import (
    BINS,
    TOP,
    Histograms,
    equal_distance,
    gradient_covariance,
    total_variation,
)
from rsoftmax.attention.transformers.timing import ROUNDS
from rsoftmax.cli import app


def texts(rows: int = 8, length: int = 24) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    batches = [{"input_ids": torch.randint(5, WORDS, (rows, length), generator=generator)} for _ in range(4)]
    for batch in batches:
        batch["attention_mask"] = torch.ones_like(batch["input_ids"])
        batch["attention_mask"][0, : length // 2] = 0
    return batches


def classifier() -> Any:
    torch.manual_seed(0)
    options: dict[str, Any] = {**TEXT, "num_labels": 5}
    return hf.BertForSequenceClassification(hf.BertConfig(**options)).eval()


def measure(model: Any, batches: list[dict[str, Tensor]]) -> float:
    """KL per token of a language model against softmax, computed in another way than sparsify does."""
    errors = []
    for batch in batches:
        sparse = model(**batch).logits.detach().double()
        before = head_parameters(model).values.clone()
        for module in model.modules():
            if hasattr(module, "rsoftmax"):
                module.rsoftmax.values = torch.full((HEADS,), math.inf)
        dense = model(**batch).logits.detach().double()
        for row, name in enumerate(head_parameters(model).layers):
            model.get_submodule(name).rsoftmax.values = before[row]
        divergence = nn.functional.kl_div(
            sparse.log_softmax(-1), dense.log_softmax(-1), log_target=True, reduction="none"
        )
        errors.append(divergence.sum(-1)[batch["attention_mask"].bool()])
    return float(torch.cat(errors).mean())


@pytest.mark.parametrize("per_head", [False, True])
def test_the_measured_error_of_a_language_model_is_within_the_requested_one(per_head: bool) -> None:
    model, batches = built("llama"), texts()
    found = sparsify(model, batches[:2], max_error=0.01, held_out=batches[2:], per_head=per_head)
    assert found.error < found.max_error == 0.01
    assert found.zeros.mean() > 0
    assert measure(model, batches[2:]) == pytest.approx(found.error, rel=1e-3)
    assert found.max_length == 24
    assert sum(row[-1] for row in found.by_length) == sum(int(batch["attention_mask"].sum()) for batch in batches[2:])
    assert head_parameters(model).values.shape == (LAYERS, HEADS)
    assert model.config._attn_implementation == "t_softmax"
    assert "zeros" in str(found)


def test_a_candidate_behind_a_failure_is_not_certified() -> None:
    """A fixed sequence: the candidates are tested in order, and none can pass after a failure."""
    assert certified([True, True, False, True]) == 2
    assert certified([False, True]) == 0
    assert certified([True, True]) == 2


@cache
def errors_of_a_model() -> Tensor:
    """The mean errors of 600 texts: of most texts small, of a few ten times the mean."""
    model = built("llama")
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.weight.mul_(4)
    generator = torch.Generator().manual_seed(1)
    batch = {"input_ids": torch.randint(5, WORDS, (600, 24), generator=generator)}
    (found,) = compare(model, [batch], [{"mapping": "t_softmax", "t": 4.0, "edge": 0.0}])
    return found.errors.view(600, 24).mean(1)


@pytest.mark.parametrize("texts", [4, 8, 20, 50])
def test_an_error_above_the_limit_is_rarely_certified(texts: int) -> None:
    """At a mean just above the limit, the worst case, at most 5 % of samples pass, whatever the skew of the errors."""
    draws, generator = 1000, torch.Generator().manual_seed(texts)
    normal = torch.randn(draws, texts, generator=generator, dtype=torch.float64)
    pool = errors_of_a_model()
    assert ((pool - pool.mean()) / pool.std()).pow(3).mean() > 3  # the skewness; of an exponential distribution it is 2
    samples = {
        "little skew": 1 + 0.3 * normal,
        "lognormal": (normal - 0.5).exp(),
        "measured": pool[torch.randint(len(pool), normal.shape, generator=generator)] / pool.mean(),
    }
    for name, errors in samples.items():
        passed = sum(is_certified(sample, torch.arange(texts), 0.9999) for sample in errors)
        assert passed / draws <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / draws), name
    statistic = stats.ttest_1samp(samples["lognormal"], 1, axis=1).statistic
    assert (statistic <= stats.t.ppf(0.05, texts - 1)).mean() > 0.1  # with Student's quantile, between 13 and 25 %
    heavier = (1 - (2 * normal - 2).exp()).mean(1) / (2 * normal - 2).exp().std(1) * math.sqrt(texts)
    assert (heavier >= critical_value(texts)).double().mean() > 0.1  # beyond what the docs promise: about 15 %


def test_an_error_far_below_the_limit_is_certified() -> None:
    """With a standard deviation of a third of the mean: .37 of the limit with 4 texts, three quarters with 20."""
    for texts, share in ((4, 0.2), (8, 0.4), (20, 0.65), (50, 0.8)):
        errors = share * (1 + torch.tensor([-1 / 3, 1 / 3]).double().repeat(texts // 2))
        assert is_certified(errors, torch.arange(texts), 1.0)
        tokens = errors.repeat_interleave(5)
        assert is_certified(tokens, torch.arange(texts).repeat_interleave(5), 1.0), "more tokens of the same texts"


def test_without_a_certificate_the_error_says_how_many_texts_are_needed() -> None:
    batches = texts()
    with pytest.raises(ValueError, match=r"on 4 held-out texts; pass about \d+ of them") as raised:
        sparsify(built("llama"), batches[:1], 0.01, held_out=[{name: x[:4] for name, x in batches[1].items()}])
    needed = int(re.findall(r"about (\d+)", str(raised.value))[0])
    assert 4 < needed < 1000


def test_held_out_batches_certify_and_do_not_select() -> None:
    """The candidates come from the other batches alone: other held-out batches choose among the same thresholds."""
    chosen = set()
    for kept in ([1, 2], [3], [2, 3]):
        model, batches = built("llama"), texts(rows=24)
        sparsify(model, batches[:1], max_error=0.05, held_out=[batches[i] for i in kept])
        chosen |= set(head_parameters(model).values.flatten().tolist())
    assert len(chosen) <= len(SHARES)


def test_a_progress_bar_counts_every_forward_pass(capsys: pytest.CaptureFixture[str]) -> None:
    sparsify(built("llama"), texts(), max_error=0.02, verbose=True)
    passes = 2 * (1 + CORRECTIONS * 2) + 2 * (1 + len(SHARES)) + 2 * ROUNDS
    assert f"{passes}/{passes}" in capsys.readouterr().err


def test_heads_at_the_same_distance_have_their_own_thresholds() -> None:
    """A head whose mass decays twice as fast needs half the threshold."""
    gap = (torch.arange(BINS) + 0.5) * (TOP / BINS)
    mass = torch.stack([(-gap).exp(), (-2 * gap).exp()])
    layers = {"layer": Histograms(mass / mass.sum(-1, keepdim=True), torch.ones(2, BINS), queries=1.0)}
    (t,), predicted = equal_distance(layers, edge=0.0)(3 * 0.05**2)
    assert predicted <= 3 * 0.05**2
    assert_close(t, torch.tensor([1.0, 0.5]) * -math.log(0.05), atol=0.1, rtol=0)  # the grid has steps of 0.1


def test_a_sparse_model_is_compared_with_softmax() -> None:
    found = []
    for mapping in ("softmax", "sparsemax"):
        model, batches = built("llama"), texts()
        set_attention(model, mapping)
        found.append(sparsify(model, batches, max_error=0.01))
    assert found[0].t == found[1].t
    assert (found[0].error, found[0].standard_error) == (found[1].error, found[1].standard_error)


def test_encoders_and_classifiers_have_their_own_errors() -> None:
    for model, metric in ((built("bert"), "cosine"), (classifier(), "KL")):
        found = sparsify(model, texts(rows=20), max_error=0.01)
        assert metric in found.metric
        assert found.error < 0.01
        assert found.texts == 40
        assert found.by_length[0][-1] == 40


def test_a_larger_error_has_more_zeros_and_zeros_are_counted() -> None:
    zeros = []
    for error in (1e-4, 1e-2):
        model, batches = built("gpt2"), texts()
        found = sparsify(model, batches[:2], max_error=error, held_out=batches[2:3])
        assert_close(found.zeros.values, sparsity(model, batches[2]).values)
        zeros.append(found.zeros.mean())
    assert zeros[1] > zeros[0] > 0


def test_the_certificate_is_saved_and_warns_beyond_its_length(tmp_path: Path) -> None:
    model, batches = built("llama"), texts()
    found = sparsify(model, batches, max_error=0.01, edge=0.5)
    model.save_pretrained(tmp_path)
    read: Any = hf.AutoModelForCausalLM.from_pretrained(tmp_path)
    certificate = read.config.rsoftmax["certificate"]
    assert certificate == {
        "max_error": 0.01,
        "confidence": 0.95,
        "error": found.error,
        "standard_error": found.standard_error,
        "texts": 16,
        "max_length": 24,
    }
    assert read.config.rsoftmax["edge"] == 0.5
    assert torch.equal(head_parameters(read).values, head_parameters(model).values)
    assert_close(output(read, batches[0]), output(model, batches[0]))
    with pytest.warns(UserWarning, match="25 keys, but sparsify measured at most 24"):
        output(read, {"input_ids": torch.randint(5, WORDS, (1, 25))})
    assert found.edge == 0.5


def run(*words: object) -> Any:
    return CliRunner().invoke(app, ["sparsify", *map(str, words)], env={"COLUMNS": "300"})


def test_the_command_writes_a_folder_that_loads_and_a_figure(text_encoder: Path, tmp_path: Path) -> None:
    lines, out, plot = tmp_path / "texts.txt", tmp_path / "sparse", tmp_path / "zeros.png"
    lines.write_text("\n".join(f"{text} {other}" for text in TEXTS * 2 for other in TEXTS))
    given = ("--model", text_encoder, "--texts", lines, "--out", out, "--max-error", 0.005)
    shown = run(*given, "--plot", plot)
    assert shown.exit_code == 0, shown.output
    assert "at most 0.005 with 95% confidence" in shown.output
    read, tokenizer = hf.AutoModel.from_pretrained(out), hf.AutoTokenizer.from_pretrained(out)
    assert read.config.rsoftmax["certificate"]["error"] < 0.005
    assert sparsity(read, tokenizer(TEXTS, padding=True, return_tensors="pt")).mean() > 0
    with Image.open(plot) as picture:
        assert picture.size[0] > 1000
    for words, message in (
        ((*given,), "exists; choose another folder"),
        ((*given[:-3], tmp_path / "new", "--length", 99), "length must be at most 24"),
        ((*given[:-3], tmp_path / "new", "--plot", "a.gif"), "must end in .png"),
        ((*given[:-3], tmp_path / "new", "--samples", 8), "4 held-out samples of 4 texts are too few"),
    ):
        shown = run(*words)
        assert shown.exit_code == 2, message
        assert message in " ".join(shown.output.split())
        assert not (tmp_path / "new").exists()


def test_a_command_that_cannot_write_everything_writes_nothing(
    text_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    lines = tmp_path / "texts.txt"
    lines.write_text("\n".join(f"{text} {other}" for text in TEXTS * 2 for other in TEXTS))
    monkeypatch.setattr(hf.PreTrainedTokenizerBase, "save_pretrained", fail)
    shown = run("--model", text_encoder, "--texts", lines, "--out", tmp_path / "sparse")
    assert shown.exit_code == 2
    assert "no space left" in shown.output
    assert list(tmp_path.iterdir()) == [lines]


def test_pieces_of_a_text_are_evenly_spaced() -> None:
    class Tokenizer:
        """One token per word, which is a number."""

        bos_token_id: int | None = None

        def __call__(self, text: str, **_: Any) -> dict[str, Tensor]:
            return {"input_ids": torch.tensor([[int(word) for word in text.split()]])}

    text = " ".join(map(str, range(41)))
    pieces = text_batches(Tokenizer(), built("llama"), text, length=4, samples=5)
    assert [batch["input_ids"][0, 0].item() for batch in pieces] == [0, 8, 16, 24, 32]
    Tokenizer.bos_token_id = 0  # a token that the tokenizer puts before a text comes before each piece
    pieces = text_batches(Tokenizer(), built("llama"), text, length=5, samples=5)
    assert pieces[1]["input_ids"].tolist() == [[0, 9, 10, 11, 12]]
    with pytest.raises(ValueError, match="the text has 41 tokens, fewer than the length of 50"):
        text_batches(Tokenizer(), built("llama"), text, length=50)


def test_too_few_held_out_texts_are_refused_before_the_model_runs() -> None:
    def forbid(*_: Any) -> None:
        raise AssertionError("the model ran")

    for model, length in ((built("llama"), 7), (bert(), 24), (classifier(), 24)):
        handle = model.register_forward_pre_hook(forbid)
        batches = [{"input_ids": torch.randint(5, WORDS, (4, length))} for _ in range(2)]
        with pytest.raises(ValueError, match=r"held-out samples of 4 texts are too few .* at least 30 samples"):
            sparsify(model, batches)
        handle.remove()


def test_a_saved_model_that_does_not_name_its_class_is_a_language_model_or_an_error(
    text_encoder: Path, tmp_path: Path
) -> None:
    hf.AutoTokenizer.from_pretrained(text_encoder).save_pretrained(tmp_path)
    for name, found in (("llama", hf.LlamaForCausalLM), ("bert", None)):
        model = built("llama") if name == "llama" else classifier()
        model.save_pretrained(tmp_path)
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": None}))
        if found:
            assert type(load_pretrained(str(tmp_path), task_head=True)[1]) is found
        else:
            with pytest.raises(ValueError, match=r"config.json has architectures = None, .* such as"):
                load_pretrained(str(tmp_path), task_head=True)


def test_bad_input_is_an_error_and_leaves_the_model_as_it_was() -> None:
    model, batches = built("llama"), texts()
    set_attention(model, "r_softmax", r=0.3)
    before = output(model, batches[0])
    short = [{"input_ids": torch.randint(5, WORDS, (1, LONG))} for _ in range(2)]
    few = [{"input_ids": torch.randint(5, WORDS, (1, 40))} for _ in range(6)]
    cases: list[tuple[Any, dict[str, Any], str]] = [
        ([], {}, "no batches"),
        (batches, {"held_out": []}, "no held-out batches"),
        (batches, {"max_error": 0.0}, "max_error must be positive"),
        (batches, {"edge": -1.0}, "edge must be at least 0"),
        (short, {}, "9 held-out samples of 1 texts are too few"),
        (few, {}, "120 held-out samples of 3 texts are too few"),
        (batches, {"max_error": 1e-12, "edge": math.inf}, "no threshold is certified .* or a larger max_error"),
    ]
    for given, options, message in cases:
        with pytest.raises(ValueError, match=message):
            sparsify(model, given, **options)
        assert model.config._attn_implementation == "r_softmax", message
        assert torch.equal(output(model, batches[0]), before), message
    with pytest.raises(TypeError, match="must map the model's argument names"):
        sparsify(model, [torch.ones(1, 2)])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="would stay dense"):
        sparsify(built("mpnet"), texts(16))


def interrupted(model: Any, batches: list[dict[str, Tensor]], line: int) -> int:
    """Run sparsify up to the n-th line of the context managers that change the model; return the number of lines."""
    lines = 0

    def count(_: Any, event: str, __: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        if event == "line" and lines == line:
            raise KeyboardInterrupt
        return count

    def trace(frame: Any, *_: Any) -> Any:
        return count if frame.f_code.co_name in {"restored", "evaluating", "set_attention", "_sparsify"} else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        sparsify(model, batches, max_error=0.5)
    finally:
        sys.settrace(before)
    return lines


def test_an_interrupt_leaves_the_model_as_it_was() -> None:
    def training() -> Any:
        model = built("llama").train()
        model.lm_head.eval()
        return model

    batches = [{"input_ids": torch.randint(5, WORDS, (16, 12))} for _ in range(2)]
    last = interrupted(training(), batches, line=0)
    for line in (*range(3, last, last // 6), *range(last - 9, last)):  # at the last line the model is complete
        model = training()
        modes, tensors = [module.training for module in model.modules()], model.state_dict()
        with pytest.raises(KeyboardInterrupt):
            interrupted(model, batches, line)
        assert [module.training for module in model.modules()] == modes, line
        assert model.config._attn_implementation == "sdpa", line
        assert not hasattr(model.config, "rsoftmax"), line
        assert model.state_dict().keys() == tensors.keys(), line


class Largest(TorchDispatchMode):
    """The size in bytes of the largest tensor that is allocated."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.known, self.size = {x.untyped_storage().data_ptr() for x in model.state_dict().values()}, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, Tensor) and x.untyped_storage().data_ptr() not in self.known:
                self.size = max(self.size, x.untyped_storage().nbytes())
        return result


def test_memory_does_not_grow_with_texts_times_tokens_times_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only so many logits are computed at a time, in all passes, with the same errors as all at once."""
    vocabulary, batches = 6000, texts()
    logits = batches[0]["input_ids"].numel() * vocabulary * 4
    torch.manual_seed(0)
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**{**TEXT, "vocab_size": vocabulary}, num_key_value_heads=2)).eval()
    critical_value(2 * len(batches[0]["input_ids"]))  # draws many numbers, once
    found = []
    for at_a_time, most in ((1 << 14, logits / 8), (1 << 23, math.inf)):
        monkeypatch.setattr("rsoftmax.attention.transformers.compare.LOGITS", at_a_time)
        set_attention(model, "softmax")
        with Largest(model) as largest:
            found.append(sparsify(model, batches, max_error=0.01))
            sparsity(model, batches[0])
            gradient_covariance(model, [*batches])
        assert largest.size < most
    assert largest.size >= logits
    assert found[0].t == found[1].t
    assert found[0].error == pytest.approx(found[1].error, rel=1e-3)


def test_the_gradient_of_a_sampled_loss_goes_through_the_hidden_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the loss were computed at once."""
    model, batch = built("llama"), texts()[0]
    monkeypatch.setattr("rsoftmax.attention.transformers.compare.LOGITS", 1)
    monkeypatch.setattr("rsoftmax.attention.transformers.compare.sampled_loss", lambda _, values: values.square().sum())
    embedding = model.get_input_embeddings().weight
    states, gradient = sampled_gradient(model, batch)
    (found,) = torch.autograd.grad(states, embedding, gradient)
    logits = model(**batch).logits[batch["attention_mask"].bool()]
    assert_close(found, torch.autograd.grad(logits.square().sum(), embedding)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_losses_are_those_of_the_model(name: str) -> None:
    model = built("llama") if name == "llama" else hf.BertForMaskedLM(hf.BertConfig(**TEXT)).eval()
    batch = {"input_ids": texts()[0]["input_ids"]}
    batch["labels"] = batch["input_ids"].masked_fill(batch["input_ids"] > 40, -100)
    (result,) = compare(model, [batch], [{"mapping": "softmax"}])
    assert result.loss == pytest.approx(2 * [model(**batch).loss.item()], rel=1e-5)


def test_smaller_thresholds_have_larger_errors_and_the_model_is_left_as_it_was() -> None:
    model, batches = built("llama"), texts()[:2]
    small, middle, large = compare(model, batches, [{"mapping": "t_softmax", "t": t} for t in (0.2, 0.8, 30.0)])
    assert small.mean()[0] > middle.mean()[0] > large.mean()[0]
    assert all(each.time > 0 for each in (small, middle, large))
    assert model.config._attn_implementation == "sdpa"
    assert not [key for key in model.state_dict() if "rsoftmax" in key]


def test_the_total_variation_distance_of_a_histogram() -> None:
    gap = (torch.arange(BINS) + 0.5) * (TOP / BINS)
    mass = (-gap).exp()[None] / (-gap).exp().sum()
    assert_close(total_variation(mass, 2.0, 0.0), mass[:, gap >= 2].sum(-1))
    assert_close(total_variation(mass, math.inf, 0.0), torch.zeros(1))
    assert total_variation(mass, 2.0, 1.0) > total_variation(mass, 2.0, 0.0)


def test_logits_of_labels_are_read_as_log_odds() -> None:
    torch.manual_seed(0)
    for labels in (1, 3):
        options = {"num_labels": labels, "problem_type": "multi_label_classification"}
        given: dict[str, Any] = {**TEXT, **options, "initializer_range": 0.5}
        model = hf.BertForSequenceClassification(hf.BertConfig(**given)).eval()
        batches = texts()
        (found,) = compare(model, batches, [{"mapping": "t_softmax", "t": 0.05}])
        dense, errors = [model(**batch).logits.detach().double() for batch in batches], []
        set_attention(model, "t_softmax", t=0.05)
        for batch, before in zip(batches, dense, strict=True):
            p, q = before.sigmoid(), model(**batch).logits.detach().double().sigmoid()
            errors.append((p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()).sum(-1))
        assert found.metric == "KL divergence of the labels from the dense model"
        assert found.mean()[0] == pytest.approx(float(torch.cat(errors).mean()), rel=1e-3)
        assert found.mean()[0] > 0
        sparsify(model, texts(16), 1e9, per_head=True)  # gradients of the sampled loss


def test_what_cannot_be_measured_is_refused() -> None:
    ids = {"input_ids": torch.randint(5, WORDS, (2, 8))}
    questions = hf.BertForQuestionAnswering(hf.BertConfig(**TEXT))
    with pytest.raises(ValueError, match="BertForQuestionAnswering returns neither logits nor hidden states"):
        compare(questions, [ids], [{"mapping": "softmax"}])
    for options in ({"num_labels": 1}, {"num_labels": 3, "problem_type": "regression"}):
        number = bert(**options)  # 80 % zeros moved predictions by half of their standard deviation at a KL of .004
        with pytest.raises(ValueError, match="is a regression, for which there is no error; pass its encoder"):
            sparsify(number, texts(16))
    for few in ({"input_ids": ids["input_ids"][:1]}, {}):
        with pytest.raises(ValueError, match="at least two are needed, got"):
            sparsify(classifier(), [few])
    model = classifier()
    set_attention(model, "r_softmax", r=0.5, log_n_scale=True)
    with pytest.raises(ValueError, match="the model has log_n_scale"):
        compare(model, [ids], [{"mapping": "softmax"}])


def test_a_scale_belongs_to_its_mapping() -> None:
    model, batch = classifier(), texts()[0]
    before = model(**batch).logits
    set_attention(model, "r_softmax", r=0.5, log_n_scale=True)
    model.set_attn_implementation("softmax")
    assert_close(model(**batch).logits, before)


def test_positions_before_that_of_padding_are_not_used(tmp_path: Path) -> None:
    given: dict[str, Any] = {**TEXT, "max_position_embeddings": 20, "pad_token_id": 1}
    roberta = hf.RobertaModel(hf.RobertaConfig(**given)).eval()
    most = max_positions(roberta)
    assert most == 18
    roberta(torch.full((1, most), 5))
    with pytest.raises((IndexError, RuntimeError)):
        roberta(torch.full((1, most + 1), 5))
