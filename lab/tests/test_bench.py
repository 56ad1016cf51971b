"""The benchmarks, run as a user runs them, on small cases; and what they are made of, on a toy."""

import io
import os
import platform
import signal
import subprocess
import sys
import time
from functools import partial
from itertools import product
from pathlib import Path

import pytest
import torch
from commands import rsoftmax
from encoders import WORDS, save_text_encoder
from PIL import Image
from rich.console import Console
from transformers import LlamaConfig, LlamaForCausalLM

from rsoftmax import MAPPINGS
from rsoftmax_lab.bench import BENCHMARKS, generate, heads, load
from rsoftmax_lab.bench.attention import EAGER, SDPA
from rsoftmax_lab.bench.benchmark import Benchmark, Goal, Group, Settings
from rsoftmax_lab.bench.rows import Row, Spread, append, read
from rsoftmax_lab.bench.run import measure, run
from rsoftmax_lab.bench.tables import group_table, ratio_table, verdict
from rsoftmax_lab.bench.timing import spread, take_turns
from rsoftmax_lab.comparison import METHODS

RESULTS = Path(__file__).parents[2] / "results"


def refusal(*words: str) -> str:
    return rsoftmax(*words, code=2)


def in_order(rows: list[Row]) -> bool:
    return all(row.spread.ratio_low <= row.spread.ratio <= row.spread.ratio_high for row in rows)


# ---------------------------------------------------------------------------- the four of today


@pytest.mark.train
def test_bench_measures_every_mapping_prints_and_draws(tmp_path: Path) -> None:
    shown = rsoftmax("bench", "--quick", "--threads", "1", "--out", str(tmp_path))
    assert "r_softmax forward, n 80 to 256" in shown
    assert "group 12 of 12" in shown
    rows = read(tmp_path / "bench.jsonl")
    assert {row["method"] for row in rows} >= {*MAPPINGS, "torch.softmax", "quantile formula"}
    assert {row["method"] for row in rows if row["kernels"] == "reference"} == {*MAPPINGS}
    assert in_order(rows)
    assert all(row.extra_bytes is not None and row.extra_bytes >= row["output_bytes"] for row in rows)
    with Image.open(tmp_path / "bench.png") as image:
        assert image.size[0] > 1000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bench.jsonl", "bench.png"]


def test_bench_attention_measures_time_and_memory(tmp_path: Path) -> None:
    shown = rsoftmax("bench", "attention", "--quick", "--threads", "1", "--out", str(tmp_path))
    assert "memory, forward+backward " in shown  # a goal
    rows = read(tmp_path / "bench_attention.jsonl")
    assert {row["method"] for row in rows} == {SDPA, EAGER, "softmax", "r_softmax", "sparsemax", "t_softmax"}
    assert in_order(rows)
    special = {"forward, causal", "forward, padding", "one query, float32", "one query, bfloat16"}
    assert special < {row["mode"] for row in rows}
    held = {(row["method"], row["mode"]): row.spread.median for row in rows if row["measure"] == "bytes"}
    assert held["r_softmax", "forward"] < held[EAGER, "forward"] / 4
    assert (EAGER, "forward+backward") not in held


def test_bench_heads_measures_every_method_of_the_comparison_on_one_thread(tmp_path: Path) -> None:
    shown = rsoftmax("bench", "heads", "--quick", "--out", str(tmp_path))
    assert "a training step with the expected-F1 rule" in shown
    rows = read(tmp_path / "bench_heads.jsonl")
    assert {(row["method"], row["mode"]) for row in rows} == set(product(METHODS, heads.MODES))
    assert in_order(rows)
    assert all(row.spread.median > 0 and row.extra_bytes for row in rows)
    assert {row["threads"] for row in rows} == {1}


@pytest.mark.train
def test_bench_generate_measures_both_caches_in_both_number_formats(tmp_path: Path) -> None:
    rsoftmax("bench", "generate", "--quick", "--threads", "1", "--out", str(tmp_path))
    rows = read(tmp_path / "bench_generate.jsonl")
    assert [(row["dtype"], row["cache"], row["attention"], row["parameter"]) for row in rows] == [
        (dtype, cache, *attention)
        for dtype, cache, attention in product(generate.DTYPES, generate.CACHES, generate.ATTENTIONS)
    ]
    assert in_order(rows)


def test_bench_generate_leaves_the_rows_alone_if_the_model_is_too_short(tmp_path: Path) -> None:
    config = LlamaConfig(**generate.CONFIG | generate.SMALLER | {"max_position_embeddings": 64})
    LlamaForCausalLM(config).save_pretrained(tmp_path / "short")
    (tmp_path / "bench_generate_model.jsonl").write_text("rows")
    words = ["bench", "generate", "--quick", "--model", str(tmp_path / "short"), "--out", str(tmp_path)]
    assert "must have positions for 72 tokens" in rsoftmax(*words, code=2)
    assert (tmp_path / "bench_generate_model.jsonl").read_text() == "rows"


@pytest.mark.parametrize("kind", generate.CACHES)
def test_a_cache_is_rewound_to_the_prompt_after_each_call(kind: str) -> None:
    config = LlamaConfig(**generate.CONFIG | generate.SMALLER)
    network = LlamaForCausalLM(config).eval()
    cache = generate._filled(config, kind, 20, torch.float32)
    words = torch.randint(config.vocab_size, (1, 21))
    texts = []
    for _ in range(2):
        texts.append(network.generate(words, past_key_values=cache, max_new_tokens=generate.NEW, do_sample=False))
        generate._rewind(cache)
        assert int(cache.get_seq_length()) == 20
    assert texts[0].shape == (1, 21 + generate.NEW)
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


def test_bench_generate_measures_a_given_model_on_a_text(language_model: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(" ".join(WORDS * 10))
    words = ("bench", "generate", "--quick", "--threads", "1", "--model", str(language_model), "--out", str(tmp_path))
    for text, options in {"text.txt": ["--texts", str(tmp_path / "text.txt")], generate.RANDOM: []}.items():
        rsoftmax(*words, *options)
        rows = read(tmp_path / "bench_generate_model.jsonl")
        assert [(row["phase"], row["attention"], row["parameter"]) for row in rows] == [
            (phase, *attention) for phase, attention in product(generate.PHASES, generate.MODEL_ATTENTIONS)
        ]
        assert {(row["model"], row["text"]) for row in rows} == {("llama", text)}
    (tmp_path / "text.txt").write_text("so happy")
    assert "has 4 tokens; 65 are needed" in refusal(*words, "--texts", str(tmp_path / "text.txt"))
    assert "the text 'absent.txt'" in refusal(*words, "--texts", "absent.txt")


# ---------------------------------------------------------------------------- the command


@pytest.mark.parametrize(
    "words",
    [
        "--quick --threads 1 --out {out} attention",
        "--threads 1 attention --quick --out {out}",
        "--quick --out {out} attention --quick --threads 1",
    ],
)
def test_options_count_before_and_after_the_name_of_a_benchmark(words: str, tmp_path: Path) -> None:
    rsoftmax("bench", *words.format(out=tmp_path / "new" / "folder").split())
    rows = read(tmp_path / "new" / "folder" / "bench_attention.jsonl")
    assert {row["threads"] for row in rows} == {1}
    assert max(row["length"] for row in rows) == 1024


def test_an_option_with_two_values_is_refused() -> None:
    shown = refusal("bench", "--threads", "1", "attention", "--threads", "2")
    assert "Invalid value for --threads: 1 before the command contradicts 2 after it; pass it once" in shown
    assert "--quick: True before the command contradicts False after it" in refusal(
        "bench", "--quick", "attention", "--no-quick"
    )


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
    assert "reads them only with --model" in refusal("bench", "generate", "--texts", "some")
    assert "reads no texts" in refusal("bench", "attention", "--texts", "some")


def test_a_benchmark_whose_packages_are_missing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "rsoftmax_lab.bench.finetuning", raising=False)
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert "`rsoftmax bench finetuning` needs transformers; install it" in refusal("bench", "finetuning")


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "--out" in refusal("bench", "heads", "--quick", "--out", str(tmp_path / "file"))


def test_the_command_line_lists_the_benchmarks_without_torch() -> None:
    code = "import sys, rsoftmax_lab.commands.bench; print(sorted({'torch', 'matplotlib', 'rich'} & {*sys.modules}))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"
    shown = rsoftmax("bench", "--help")
    assert all(name in shown for name in BENCHMARKS)
    assert "results/quick with" in shown


# ---------------------------------------------------------------------------- stopped and kept


@pytest.mark.process
@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_stopped_keeps_its_finished_groups_and_the_file_of_the_last_run(
    blow: signal.Signals, tmp_path: Path
) -> None:
    finished, part = tmp_path / "bench.jsonl", tmp_path / "bench.part"
    finished.write_text("the last run\n")
    part.write_text("a run before that was stopped\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "rsoftmax", "bench", "--quick", "--threads", "1", "--out", str(tmp_path)],
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
    notices: list[str] = []
    rows = read(part, notices.append)
    assert not notices
    assert {row["method"] for row in rows if row["mode"] == "forward"} == {*MAPPINGS, "torch.softmax"}
    assert finished.read_text() == "the last run\n"
    assert process.returncode == (130 if blow == signal.SIGINT else -blow)
    if blow == signal.SIGINT:
        assert f"stopped; {len(rows)} rows are in {part}; the next run starts from the beginning" in shown
        assert "Traceback" not in shown


# ---------------------------------------------------------------------------- rows and results


@pytest.mark.parametrize("name", BENCHMARKS)
def test_the_rows_of_the_repository_are_read_and_have_a_verdict_on_every_goal(name: str, tmp_path: Path) -> None:
    benchmark = load(name)
    path = RESULTS / benchmark.file
    rows = read(path)
    assert len(rows) == len(path.read_text().splitlines())
    assert in_order(rows)
    lines = verdict(benchmark, rows).splitlines()[2:]
    assert [line.split(" | ")[0] for line in lines] == [f"| {goal.title}" for goal in benchmark.goals]
    group_table(benchmark, rows[:10], "")
    for row in rows[:10]:
        append(tmp_path / "rows.jsonl", row)
    assert read(tmp_path / "rows.jsonl") == rows[:10]


def test_a_row_that_is_not_of_a_benchmark_is_refused_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"method": "softmax", "median": 1.0}\n')
    with pytest.raises(ValueError, match=r"rows.jsonl: not a benchmark row, 'ratio' is missing"):
        read(path)


# ---------------------------------------------------------------------------- measuring


def test_a_ratio_is_formed_within_its_round() -> None:
    busy = [1.0, 7.0, 2.0, 30.0]  # what the baseline took while the machine was more and less busy
    found = spread([2 * seconds for seconds in busy], busy)
    assert (found.ratio_low, found.ratio, found.ratio_high) == (2.0, 2.0, 2.0)
    assert found.median == pytest.approx(9e6)
    assert found.rounds == 4


def test_calls_take_turns_in_a_new_order_each_round() -> None:
    turns: list[int] = []

    def call(number: int) -> None:
        turns.append(number)
        time.sleep(0.051)  # one loop is enough for the clock

    spreads = take_turns([partial(call, number) for number in range(3)], base=1, seconds=0, rounds=4)
    warm, *rounds = [turns[start : start + 3] for start in range(0, len(turns), 3)]
    assert warm == [0, 1, 2]
    assert [sorted(one) for one in rounds] == 4 * [[0, 1, 2]]
    assert len({tuple(one) for one in rounds}) > 1
    assert [one.rounds for one in spreads] == [4, 4, 4]
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


def toy_group(measure: str, threads: int = 1) -> Group:
    sizes = {"double": 2, "single": 1}
    calls = [({"method": name}, partial(torch.ones, n, 1000)) for name, n in sizes.items()]
    return Group({"threads": threads, "measure": measure}, lambda: calls, rounds=2)


TOY = Benchmark(
    file="toy.jsonl",
    groups=lambda settings: [toy_group("us"), toy_group("bytes")],
    baseline={"method": "single"},
    label="[{method}]",
    title="toys",
    place="[{method}], threads: {threads}",
    goals=(
        Goal(
            "half of twice is once", 0.5, {"measure": ("bytes",), "method": ("single",)}, against={"method": "double"}
        ),
        Goal("twice is once", 1.0, {"measure": ("bytes",), "method": ("double",)}),
        Goal("what was not measured", 1.0, {"method": ("triple",)}),
    ),
)


def test_a_declared_benchmark_becomes_rows_tables_and_a_verdict(tmp_path: Path) -> None:
    console = Console(file=(shown := io.StringIO()), width=120)
    rows = run(TOY, TOY.groups(Settings(threads=(1,))), tmp_path / TOY.file, console)
    assert read(tmp_path / TOY.file) == rows
    assert [(row["measure"], row["method"]) for row in rows] == [
        *product(["us"], ["double", "single"]),
        *product(["bytes"], ["double", "single"]),
    ]
    assert [row.extra_bytes for row in rows] == [8000, 4000, 8000, 4000]
    assert [row.spread.ratio for row in rows[1:]] == [1.0, 2.0, 1.0]
    for words in ("ratio to single", "time, toys", "extra memory, toys", "[double]", "7.8 KiB", "group 2 of 2"):
        assert words in shown.getvalue()
    assert verdict(TOY, rows).splitlines()[2:] == [
        "| half of twice is once | 0.5 | 0.50 | 0.50 ([single], threads: 1) | 1 of 1 |",
        "| twice is once | 1.0 | 2.00 | 2.00 ([double], threads: 1) | 0 of 1 |",
    ]


def test_ratios_are_shown_with_quartiles_a_line_for_each_label_and_a_column_for_each_group() -> None:
    def row(method: str, n: int, ratio: float) -> Row:
        return Row({"method": method, "n": n}, Spread(1.0, ratio, ratio / 2, 2 * ratio, 5), "a machine", "2.13")

    rows = [row("single", 1, 1.0), row("double", 1, 1.6), row("single", 2, 1.0), row("half", 2, 0.5)]
    assert ratio_table(TOY, rows, "{n} rows").splitlines() == [
        "| ratio to [single] | 1 rows | 2 rows |",
        "| --- | --- | --- |",
        "| `[double]` | 1.60 (0.80 - 3.20) |  |",
        "| `[half]` |  | 0.50 (0.25 - 1.00) |",
    ]


def test_a_group_is_measured_with_its_threads_and_leaves_torch_with_those_it_had() -> None:
    seen: list[int] = []
    group = Group({"threads": 2, "measure": "bytes"}, lambda: [({"method": "single"}, look)])

    def look() -> torch.Tensor:
        seen.append(torch.get_num_threads())
        return torch.ones(1)

    before = torch.get_num_threads()
    measure(group, TOY.baseline)
    assert seen == [2]
    assert torch.get_num_threads() == before == 1
