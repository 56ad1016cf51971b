"""The benchmarks, run as a user runs them, on small cases; and what they are made of, on a toy."""

import io
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import rsoftmax
from encoders import WORDS, save_text_encoder
from PIL import Image
from rich.console import Console
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

from rsoftmax import MAPPINGS
from rsoftmax_lab.bench import BENCHMARKS, attention, generation, heads, load, mappings, models, timing
from rsoftmax_lab.bench.attention import EAGER, SDPA
from rsoftmax_lab.bench.benchmark import Benchmark, Goal, Group, Record, Settings, case_of, read
from rsoftmax_lab.bench.run import measure, run
from rsoftmax_lab.bench.tables import group_table, ratio_table, verdict
from rsoftmax_lab.bench.timing import Spread, spread, take_turns
from rsoftmax_lab.comparison import METHODS

RESULTS = Path(__file__).parents[2] / "results"


def refusal(*words: str) -> str:
    return rsoftmax(*words, code=2)


def in_order(records: list[Record]) -> bool:
    return all(record["ratio_low"] <= record["ratio"] <= record["ratio_high"] for record in records)


# ---------------------------------------------------------------------------- the benchmarks


@pytest.mark.train
def test_bench_measures_every_mapping_prints_and_draws(tmp_path: Path) -> None:
    shown = rsoftmax("bench", "--quick", "--out", str(tmp_path))
    assert shown.startswith("Not the full benchmark: a few of its cases")
    assert "group 12 of 12" in shown
    records = read(tmp_path / "bench.jsonl")
    assert {record["method"] for record in records} >= {*MAPPINGS, "torch.softmax", "quantile formula"}
    assert {record["method"] for record in records if record["kernels"] == "reference"} == {*MAPPINGS}
    assert in_order(records)
    assert all(record["extra_bytes"] >= 4 * record["rows"] * record["n"] for record in records)
    with Image.open(tmp_path / "bench.png") as image:
        assert image.size[0] > 1000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bench.jsonl", "bench.png"]


@pytest.mark.train
def test_bench_attention_measures_time_and_memory(tmp_path: Path) -> None:
    shown = rsoftmax("bench", "attention", "--quick", "--out", str(tmp_path))
    assert "memory, forward+backward " in shown  # a goal
    assert "r=0.9, forward, 512 keys or more" in shown
    records = read(tmp_path / "bench_attention.jsonl")
    assert {record["method"] for record in records} == {SDPA, EAGER, "softmax", "r_softmax", "sparsemax", "t_softmax"}
    assert in_order(records)
    modes = {record["mode"] for record in records}
    assert modes > {"forward, causal", "forward, padding", "one query, float32", "one query, bfloat16"}
    sizes = {(record["method"], record["mode"]): record["median"] for record in records if record["measure"] == "bytes"}
    assert sizes["r_softmax", "forward"] < sizes[EAGER, "forward"] / 4
    assert (EAGER, "forward+backward") not in sizes


@pytest.mark.parametrize("mode", ["forward", attention.CAUSAL, attention.PADDING, "one query, float32"])
def test_the_calls_of_a_group_compute_the_same_function(mode: str) -> None:
    softmax = [(SDPA, ""), ("softmax", "")]
    expected, found = (call() for _, call in attention.calls(mode, (2, 3, 16, 8), softmax))
    torch.testing.assert_close(found, expected)


def test_bench_heads_measures_every_method_of_the_comparison_on_one_thread(tmp_path: Path) -> None:
    shown = rsoftmax("bench", "heads", "--quick", "--out", str(tmp_path))
    assert "a training step with the expected-F1 rule" in shown
    records = read(tmp_path / "bench_heads.jsonl")
    assert {(record["method"], record["mode"]) for record in records} == set(product(METHODS, heads.MODES))
    assert in_order(records)
    assert all(record["median"] > 0 and record["extra_bytes"] for record in records)
    assert {record["threads"] for record in records} == {1}


@pytest.mark.train
def test_a_quick_form_measures_some_of_the_cases_of_the_full_form(tmp_path: Path) -> None:
    rsoftmax("bench", "warpers", "--quick", "--out", str(tmp_path))
    records, full = (read(folder / "bench_warpers.jsonl") for folder in (tmp_path, RESULTS))
    assert in_order(records)
    cases = [case_of(record) for record in full]
    assert all(case_of(record) in cases for record in records)


@pytest.mark.parametrize("name", sorted({*BENCHMARKS} - {"finetuning"}))
def test_the_quick_groups_are_among_the_full_ones(name: str) -> None:
    quick, full = ([group.case for group in load(name).groups(Settings(quick=quick))] for quick in (True, False))
    assert 0 < len(quick) < len(full)
    assert all(case in full for case in quick)


@pytest.mark.parametrize("name", sorted({*BENCHMARKS} - {"finetuning"}))
def test_a_quick_form_has_cases_with_a_target(name: str) -> None:
    benchmark = load(name)
    quick = [group.case for group in benchmark.groups(Settings(quick=True))]
    records = [one for one in read(RESULTS / benchmark.file) if any(one.items() >= case.items() for case in quick)]
    assert any(goal.ratios(records) for goal in benchmark.goals)


def test_the_quick_shapes_have_the_verdict_of_all_shapes() -> None:
    found = read(RESULTS / "bench.jsonl")
    for name in ("softmax", "t_softmax", "sparsemax", "entmax15", "r_softmax"):
        case = {"method": name, "mode": "forward", "kind": "normal", "kernels": "native", "threads": 1}
        if name == "r_softmax":
            case["parameter"] = "r=0.5"
        ratios = {(record["rows"], record["n"]): record["ratio"] for record in found if record.items() >= case.items()}
        every, quick = (
            statistics.median(ratios[shape] for shape in some) for some in (mappings.SHAPES, mappings.QUICK)
        )
        assert (quick < 1) == (every < 1), name


def save_encoder(folder: Path, **sizes: Any) -> None:
    config = BertConfig(vocab_size=45, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, **sizes)
    BertModel(config).save_pretrained(folder)


@pytest.mark.train
def test_bench_finetuning_times_a_step_with_each_attention(tmp_path: Path) -> None:
    save_encoder(tmp_path / "encoder", max_position_embeddings=32)
    shown = rsoftmax("bench", "finetuning", "--quick", "--model", tmp_path / "encoder", "--out", tmp_path)
    assert "a step with r_softmax" in shown
    records = read(tmp_path / "bench_finetuning.jsonl")
    assert [(record["model"], record["attention"], record["parameter"]) for record in records] == [
        ("encoder", *attention) for attention in models.FINETUNED
    ]


def test_bench_finetuning_leaves_out_texts_for_which_the_model_has_no_positions(tmp_path: Path) -> None:
    save_encoder(tmp_path, max_position_embeddings=128)
    groups = load("finetuning").groups(Settings(model=str(tmp_path)))
    assert [(group.case["model"], group.case["tokens"]) for group in groups] == [
        (tmp_path.name, 32),
        (tmp_path.name, 128),
        (models.LONG, 512),
        (models.LONG, 2048),
    ]


@pytest.mark.train
def test_bench_generate_measures_both_caches_in_both_number_formats(tmp_path: Path) -> None:
    rsoftmax("bench", "generate", "--quick", "--out", str(tmp_path))
    records = read(tmp_path / "bench_generate.jsonl")
    names = ("dtype", "cache", "attention", "parameter")
    assert [tuple(record[name] for name in names) for record in records] == [
        (dtype, cache, *attention)
        for dtype, cache, attention in product(generation.DTYPES, generation.CACHES, generation.GENERATED)
    ]
    assert in_order(records)


SMALL = generation.CONFIG | {"num_hidden_layers": 1, "vocab_size": 100}


def test_bench_generate_leaves_the_records_alone_if_the_model_is_too_short(tmp_path: Path) -> None:
    LlamaForCausalLM(LlamaConfig(**SMALL | {"max_position_embeddings": 32})).save_pretrained(tmp_path / "short")
    (tmp_path / "bench_generate_model.jsonl").write_text("records")
    words = ["bench", "generate", "--quick", "--model", str(tmp_path / "short"), "--out", str(tmp_path)]
    assert "must have positions for 640 tokens" in refusal(*words)
    assert (tmp_path / "bench_generate_model.jsonl").read_text() == "records"


@pytest.mark.parametrize("kind", generation.CACHES)
def test_a_cache_is_rewound_to_the_prompt_after_each_call(kind: str) -> None:
    config = LlamaConfig(**SMALL)
    network = LlamaForCausalLM(config).eval()
    cache = generation.filled_cache(config, kind, 20, torch.float32)
    words = torch.randint(config.vocab_size, (1, 21))
    texts = []
    for _ in range(2):
        texts.append(network.generate(words, past_key_values=cache, max_new_tokens=generation.NEW, do_sample=False))
        generation.rewind(cache)
        assert int(cache.get_seq_length()) == 20
    assert texts[0].shape == (1, 21 + generation.NEW)
    assert torch.equal(*texts)


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama with a tokenizer of a few words."""
    folder = save_text_encoder(tmp_path_factory.mktemp("models") / "llama")
    config = LlamaConfig(
        vocab_size=len(WORDS) + 5, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def test_bench_generate_measures_given_models_on_texts_and_keeps_what_it_has(
    language_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_text(" ".join(WORDS * 600))
    words = ("bench", "generate", "--quick", "--model", str(language_model), "--out", str(tmp_path))
    expected = [(generation.PREFILL, *call) for call in generation.READERS]
    expected += [(generation.DECODE, *call) for call in generation.DECODERS]
    path = tmp_path / "bench_generate_model.jsonl"
    for runs, options in enumerate(([], ["--texts", str(tmp_path / "text.txt")]), start=1):
        shown = rsoftmax(*words, *options)
        records = read(path)
        names = ("phase", "attention", "parameter", "cache")
        assert [tuple(record[name] for name in names) for record in records] == runs * expected
        assert "group 2 of 2" in shown
        assert in_order(records)
    assert [record["text"] for record in records] == [generation.RANDOM] * 5 + ["text.txt"] * 5
    assert all(record["kl"] > -1e-6 for record in records if record["phase"] == generation.DECODE)  # rounded
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-3]))  # as if stopped before the last group
    assert "group 1 of 1" in rsoftmax(*words, *options)
    assert [case_of(record) for record in read(path)] == [case_of(record) for record in records]
    assert "group" not in rsoftmax(*words, *options)
    with Image.open(path.with_suffix(".png")) as image:
        assert image.size[0] > 500
    (tmp_path / "text.txt").write_text("so happy")
    assert "has 4 tokens; 4608 are needed" in refusal(*words, "--texts", str(tmp_path / "text.txt"))
    assert "the text 'absent.txt'" in refusal(*words, "--texts", "absent.txt")


def test_a_text_goes_on_from_the_same_tokens_with_either_cache(language_model: Path) -> None:
    network = LlamaForCausalLM.from_pretrained(language_model).eval()
    tokens = torch.randint(network.config.vocab_size, (1, 2 * generation.STEPS))
    text = generation.Continuation({models.SDPA: network, generation.SPARSE[0]: network}, tokens, 40)
    (case, dynamic), *others = text.decode()
    calls: list[Any] = [dynamic, others[0][1]]
    with torch.no_grad():
        expected = network(tokens[:, :42]).logits[0, 40:]
    assert case == {"attention": "sdpa", "parameter": "", "cache": generation.DYNAMIC, "kl": 0.0}
    for call in calls:
        for step in range(2):
            assert torch.allclose(call(), expected[step], atol=1e-5)


# ---------------------------------------------------------------------------- the command


@pytest.mark.parametrize(
    "words", ["--quick --threads 2,1 --out {out} heads", "--threads 1,2 heads --quick --out {out}"]
)
def test_options_come_before_or_after_the_name_of_a_benchmark(words: str, tmp_path: Path) -> None:
    rsoftmax("bench", *words.format(out=tmp_path / "new" / "folder").split())
    records = read(tmp_path / "new" / "folder" / "bench_heads.jsonl")
    assert [record["threads"] for record in records] == sorted(record["threads"] for record in records)
    assert {record["threads"] for record in records} == {1, 2}


def test_an_unknown_benchmark_is_refused_with_the_known_ones() -> None:
    shown = refusal("bench", "speed")
    assert "'speed'" in shown
    assert all(name in shown for name in BENCHMARKS)


def test_an_invalid_list_of_thread_counts_is_rejected() -> None:
    for threads in ("two", "0", "0,1", "1.5", "inf", "nan", "", "1 2"):
        for name in ([], ["attention"]):
            shown = refusal("bench", *name, "--threads", threads)
            assert f"{threads!r} is not a list of thread counts; write 1,2" in shown, (threads, name)


def test_a_model_is_asked_for_where_it_is_needed_and_refused_elsewhere(tmp_path: Path) -> None:
    assert "`rsoftmax bench finetuning` needs a folder" in refusal("bench", "finetuning")
    assert "`rsoftmax bench attention` takes no model" in refusal("bench", "--model", "some", "attention")
    for name in ("finetuning", "generate"):
        assert f"the model '{tmp_path}'" in refusal("bench", name, "--model", str(tmp_path))
    assert "takes no texts without --model" in refusal("bench", "generate", "--texts", "some")
    assert "takes no texts" in refusal("bench", "attention", "--texts", "some")
    assert "takes no device" in refusal("bench", "attention", "--device", "cuda")


def test_a_benchmark_whose_packages_are_missing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "rsoftmax_lab.bench.models", raising=False)
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert "`rsoftmax bench finetuning` needs transformers; install it" in refusal("bench", "finetuning")


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "--out" in refusal("bench", "heads", "--quick", "--out", str(tmp_path / "file"))


def test_the_command_line_lists_the_benchmarks_without_torch() -> None:
    code = "import sys, rsoftmax_lab.bench.command; print(sorted({'torch', 'matplotlib', 'rich'} & {*sys.modules}))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"
    shown = rsoftmax("bench", "--help")
    assert all(name in shown for name in BENCHMARKS)
    assert "results/quick with" in shown


# ---------------------------------------------------------------------------- stopped runs


@pytest.mark.process
@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_stopped_keeps_its_finished_groups_and_the_file_of_the_last_run(
    blow: signal.Signals, tmp_path: Path
) -> None:
    finished, part = tmp_path / "bench.jsonl", tmp_path / "bench.part"
    finished.write_text("the last run\n")
    part.write_text("a run before that was stopped\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "rsoftmax", "bench", "--quick", "--out", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    while "forward+backward" not in part.read_text():  # the second group
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)
    os.killpg(process.pid, blow)
    shown = process.communicate()[0]
    records = read(part)
    assert {record["method"] for record in records if record["mode"] == "forward"} == {*MAPPINGS, "torch.softmax"}
    assert finished.read_text() == "the last run\n"
    assert process.returncode == (130 if blow == signal.SIGINT else -blow)
    if blow == signal.SIGINT:
        assert f"stopped; {len(records)} records are in {part}; the next run starts from the beginning" in shown
        assert "Traceback" not in shown


# ---------------------------------------------------------------------------- records and results


@pytest.mark.parametrize("benchmark", [*map(load, BENCHMARKS), generation.GENERATE_MODEL], ids=lambda each: each.file)
def test_the_records_of_the_repository_are_read_and_have_a_verdict_on_every_goal(benchmark: Benchmark) -> None:
    path = RESULTS / benchmark.file
    records = read(path)
    assert len(records) == len(path.read_text().splitlines())
    assert in_order(records)
    lines = verdict(benchmark, records).splitlines()[2:]
    assert [line.split(" | ")[0] for line in lines] == [f"| {goal.title}" for goal in benchmark.goals]
    group_table(benchmark, records[:10], "")


def test_a_record_that_is_not_of_a_benchmark_is_refused_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(
        '{"method": "softmax", "median": 1.0, "rounds": 3, "measure": "us", "threads": 1, "ratio_low": 1}\n'
    )
    with pytest.raises(ValueError, match=r"records.jsonl, line 1: .* it lacks ratio, ratio_high"):
        read(path)


# ---------------------------------------------------------------------------- measuring


def test_a_ratio_is_formed_within_its_round() -> None:
    busy = [1.0, 7.0, 2.0, 30.0]  # what the baseline took while the machine was more and less busy
    summary = spread([2 * seconds for seconds in busy], busy)
    assert (summary.ratio_low, summary.ratio, summary.ratio_high) == (2.0, 2.0, 2.0)
    assert summary.median == pytest.approx(9e6)
    assert summary.rounds == 4


def work(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_one_round_of_calls_that_take_seconds_has_no_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "LONG", 0.001)
    turns: list[int] = []

    def call(number: int) -> None:
        turns.append(number)
        work(0.06)

    calls = [partial(call, number) for number in range(2)]
    first, second = take_turns(calls, base=0, seconds=0.1, rounds=1)
    assert turns == [0, 1]
    assert (first.ratio, first.rounds, second.rounds) == (1.0, 1, 1)
    assert second.ratio_low == second.ratio == second.ratio_high


def test_a_goal_compares_with_the_same_machine() -> None:
    goal = Goal("", 1.0, {"method": ("ours",)}, {"method": "theirs"})
    records = [
        {"method": method, "median": median, "machine": machine}
        for machine, *medians in (("a", 1.0, 2.0), ("b", 3.0, 4.0))
        for method, median in zip(("ours", "theirs"), medians, strict=True)
    ]
    assert [ratio for ratio, _ in goal.ratios(records)] == [0.75, 0.5]


def test_calls_take_turns_in_a_new_order_each_round() -> None:
    turns: list[int] = []

    def call(number: int) -> None:
        turns.append(number)
        work(0.051)  # one loop is enough for the clock

    spreads = take_turns([partial(call, number) for number in range(3)], base=1, seconds=0, rounds=4)
    warm, *rounds = [turns[start : start + 3] for start in range(0, len(turns), 3)]
    assert warm == [0, 1, 2]
    assert [sorted(order) for order in rounds] == 4 * [[0, 1, 2]]
    assert len({tuple(order) for order in rounds}) > 1
    assert [each.rounds for each in spreads] == [4, 4, 4]
    assert spreads[1].ratio == 1


FAULTS = """
import resource, torch
from rsoftmax_lab.bench.timing import keep_freed_memory
{change}
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    results = [torch.ones(2**21) for _ in range(3)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(*(faults() for _ in range(6)))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is not that of glibc")
def test_a_benchmark_does_not_pay_for_the_same_memory_again() -> None:
    def faults(change: str) -> int:
        script = [sys.executable, "-c", FAULTS.format(change=change)]
        returns_all = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
        return int(subprocess.check_output(script, text=True, env=os.environ | returns_all).split()[-1])

    assert faults("keep_freed_memory()") < faults("")


def toy_group(measure: str) -> Group:
    sizes = {"double": 2, "single": 1}
    calls = [({"method": name}, partial(torch.ones, n, 1000)) for name, n in sizes.items()]
    return Group({}, lambda: calls, rounds=2, measure=measure)


TOY = Benchmark(
    file="toy.jsonl",
    groups=lambda settings: [toy_group("us"), toy_group("bytes")],
    baseline={"method": "single"},
    label="[{method}]",
    title="toys",
    slowest="[{method}], threads: {threads}",
    goals=(
        Goal(
            "half of twice is once", 0.5, {"measure": ("bytes",), "method": ("single",)}, against={"method": "double"}
        ),
        Goal("twice is once", 1.0, {"measure": ("bytes",), "method": ("double",)}),
        Goal("what was not measured", 1.0, {"method": ("triple",)}),
    ),
)


def test_a_declared_benchmark_becomes_records_tables_and_a_verdict(tmp_path: Path) -> None:
    console, settings = Console(file=(shown := io.StringIO()), width=120), Settings()
    records = run(TOY, list(TOY.groups(settings)), settings, tmp_path / TOY.file, console)
    assert read(tmp_path / TOY.file) == records
    assert [(record["measure"], record["method"]) for record in records] == [
        *product(["us"], ["double", "single"]),
        *product(["bytes"], ["double", "single"]),
    ]
    assert [record["extra_bytes"] for record in records] == [8000, 4000, 8000, 4000]
    assert [record["ratio"] for record in records[1:]] == [1.0, 2.0, 1.0]
    for words in ("ratio to single", "time, toys", "extra memory, toys", "[double]", "7.8 KiB", "group 2 of 2"):
        assert words in shown.getvalue()
    assert verdict(TOY, records).splitlines()[2:] == [
        "| half of twice is once | 0.5 | 0.50 | 0.50 ([single], threads: 1) | 1 of 1 |",
        "| twice is once | 1.0 | 2.00 | 2.00 ([double], threads: 1) | 0 of 1 |",
    ]


def test_ratios_are_shown_with_quartiles_a_line_for_each_label_and_a_column_for_each_group() -> None:
    def record(method: str, n: int, ratio: float) -> Record:
        return {"method": method, "n": n, **Spread(1.0, ratio, ratio / 2, 2 * ratio, 5)._asdict()}

    records = [record("single", 1, 1.0), record("double", 1, 1.6), record("single", 2, 1.0), record("half", 2, 0.5)]
    assert ratio_table(TOY, records, "{n} rows").splitlines() == [
        "| ratio to [single] | 1 rows | 2 rows |",
        "| --- | --- | --- |",
        "| `[double]` | 1.60 (0.80-3.20) |  |",
        "| `[half]` |  | 0.50 (0.25-1.00) |",
    ]


def test_a_group_is_measured_with_its_threads_and_leaves_torch_with_those_it_had() -> None:
    seen: list[int] = []
    group = Group({}, lambda: [({"method": "single"}, look)], measure="bytes")

    def look() -> torch.Tensor:
        seen.append(torch.get_num_threads())
        return torch.ones(1)

    before = torch.get_num_threads()
    measure(group, TOY.baseline, count=2)
    assert seen == [2]
    assert torch.get_num_threads() == before == 1


def test_the_attention_of_a_network_leaves_that_of_others_alone() -> None:
    dense = models._long_encoder()
    models.with_attention(models._long_encoder(), "sparsemax", "")
    assert dense.config._attn_implementation == models.SDPA
