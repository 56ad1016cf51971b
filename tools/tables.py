"""Write the generated parts of the documentation, or with --check report whether they are out of date."""

import re
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import pictures
import torch
from typer.testing import CliRunner

from rsoftmax import MAPPINGS as REGISTERED
from rsoftmax import MappingSpec
from rsoftmax.cli import app
from rsoftmax.kernels import kernel_for
from rsoftmax.kernels.cpu import OPERATIONS
from rsoftmax.labels import AVERAGES
from rsoftmax_lab.bench import load
from rsoftmax_lab.bench.benchmark import Benchmark, Record, read
from rsoftmax_lab.bench.generation import DECODE, DECODERS, GENERATE_MODEL, PHASES, PREFILL
from rsoftmax_lab.bench.mappings import headline
from rsoftmax_lab.bench.models import LONG
from rsoftmax_lab.bench.tables import bytes_text, markdown, ratio_table, ratio_text, time_text
from rsoftmax_lab.comparison import Comparison, Predictor
from rsoftmax_lab.experiments import eurlex, users
from rsoftmax_lab.records import read_trials

ROOT = Path(__file__).parents[1]


def records(benchmark: Benchmark, folder: str = "", **case: Any) -> list[Record]:
    """The records of the repository that describe a case, in results or a folder there."""
    every = read(ROOT / "results" / folder / benchmark.file)
    return [record for record in every if {name: record.get(name) for name in case} == case]


def ratios(name: str, column: str, folder: str = "", **case: Any) -> Callable[[], str]:
    return lambda: ratio_table(load(name), records(load(name), folder, **case), column)


def machine(name: str) -> Callable[[], str]:
    def text() -> str:
        machines = dict.fromkeys(f"{record['machine']}, torch {record['torch']}" for record in records(load(name)))
        return f"Measured on {'; '.join(machines)}."

    return text


def median(several: Sequence[Record]) -> str:
    return ratio_text(statistics.median(record["ratio"] for record in several))


MAPPINGS = {
    "sparsemax": ("sparsemax", "", "native"),
    "t_softmax": ("t_softmax", "t=2", "native"),
    "r_softmax": ("r_softmax", "r=0.5", "native"),
    "entmax15": ("entmax15", "", "native"),
    "softmax": ("softmax", "", "native"),
    "quantile formula": ("quantile formula", "r=0.5", "torch"),
    "entmax.sparsemax": ("entmax.sparsemax", "", "entmax"),
    "entmax.entmax15": ("entmax.entmax15", "", "entmax"),
}


def mapping_median(name: str, mode: str) -> str:
    """The median over all shapes, for normally distributed rows, on one thread."""
    case = dict(zip(("method", "parameter", "kernels"), MAPPINGS[name], strict=True))
    return median(records(load("mappings"), mode=mode, kind="normal", threads=1, **case))


def mapping_medians() -> str:
    lines = [
        [f"`{name}`", *(mapping_median(name, mode) for mode in ("forward", "forward+backward"))] for name in MAPPINGS
    ]
    return markdown(["median over shapes", "forward", "forward and backward"], lines)


HEADS = {
    "bce": "binary cross-entropy",
    "r_softmax_expected_f1": "`expected_f1` (default)",
    "t_softmax_threshold": "`threshold`",
    "r_softmax_count": "`count`",
    "sparsemax_huber": "sparsemax + huber",
    "sparsemax_hinge": "sparsemax + hinge",
    "zlpr": "ZLPR",
}


def heads() -> str:
    steps = records(load("heads"), mode="training step", threads=1)
    by_case = {(record["method"], record["rows"], record["labels"]): record for record in steps}
    shapes = list(dict.fromkeys(key[1:] for key in by_case))

    def cell(record: Record) -> str:
        return f"{ratio_text(record['ratio'])} ({time_text(record['median'])}, {bytes_text(record['extra_bytes'])})"

    lines = [[name, *(cell(by_case[method, *shape]) for shape in shapes)] for method, name in HEADS.items()]
    return markdown(["", *(f"{rows} rows, {labels:,} labels" for rows, labels in shapes)], lines)


def speed() -> str:
    """The README's figures for mappings."""

    def ratios(**names: str) -> str:
        medians = {title: float(mapping_median(name, "forward")) for title, name in names.items()}
        return ", ".join(
            f"`{title}` {ratio:.0f}" if ratio > 10 else f"`{title}` {ratio:.1f}" for title, ratio in medians.items()
        )

    ours = ratios(sparsemax="sparsemax", entmax15="entmax15", t_softmax="t_softmax", r_softmax="r_softmax")
    theirs = ratios(sparsemax="entmax.sparsemax", entmax15="entmax.entmax15")
    return (
        f"- **Fast mappings.** Time relative to `torch.softmax`: {ours}. Of the entmax package:\n  {theirs}. (Forward,"
        f" median of seven shapes, one thread, {records(load('mappings'))[0]['machine']};\n  `rsoftmax bench`)"
    )


def whole_model() -> str:
    """The README's figures for attention: a whole model at its calibrated setting, by length."""
    prompts, tokens = (pictures.times(phase) for phase in PHASES)

    def at(length: int) -> str:
        times = " and ".join(ratio_text(phase[length]["ratio"]) for phase in (prompts, tokens))
        return f"{times} with {length:,} tokens (KL divergence {tokens[length]['kl']:.3f})"

    return (
        "- **Attention that skips zeros.** SmolLM2-135M with t-softmax, t = 6: time of the whole model, for the prompt"
        "\n  and for each token after it, relative to torch's attention and transformers' cache:"
        f"\n  {'; '.join(map(at, [1024, max(prompts)]))}."
        f"\n  (One thread, {next(iter(prompts.values()))['machine']}; `rsoftmax bench generate --model`)"
    )


def users_rows() -> Comparison:
    """The comparison of three ways to decide."""
    return Comparison.of(read_trials(ROOT / "results" / "users.jsonl", users.Run, print).alike(print))


def labels() -> str:
    """The README's figures for labels: three ways to decide from the same fitted models."""
    comparison = users_rows()

    def leads(rival: str, average: str) -> list[float]:
        every = [
            comparison.lead(Predictor(model, users.DERIVED), [Predictor(model, rival)], [point], "test", average)
            for model, point in product(users.MODELS, comparison.points())
        ]
        return [lead.value for lead in every if lead is not None]

    tuned, half = ({average: leads(rival, average) for average in AVERAGES} for rival in (users.TUNED, users.HALF))
    text, other = (
        ", ".join(f"{statistics.median(values):+.1f} {average}" for average, values in some.items())
        for some in (tuned, half)
    )
    every = [lead for values in tuned.values() for lead in values]
    return (
        "- **Labels without tuning.** F1 with thresholds derived from probabilities, against tuned ones of the same"
        f"\n  models: {text} (ahead in {sum(lead > 0 for lead in every)} of {len(every)} cases); against .5: {other}."
        f"\n  (Points, medians over {len(users.MODELS)} models and {len(comparison.points())} datasets; `rsoftmax"
        " reproduce users`)"
    )


def many_labels() -> str:
    """The README's figures for thousands of labels."""
    (record,) = [trial.record for trial in read_trials(ROOT / "results" / "eurlex.jsonl", eurlex.Run, print)]
    rules = ("ours, micro", "ours, macro", "ours, macro, test texts together", "tuned")
    micro, macro, adapted, tuned = (record["rules"][rule] for rule in rules)
    (name, (published, _)), *_ = eurlex.PUBLISHED.items()
    return (
        "- **Thousands of labels, from words.** EURLEX57K, on one CPU without a pretrained model: micro-F1"
        f" {micro['micro']:.1f}\n  or macro-F1 {macro['macro']:.1f}, by `average`, and {adapted['macro']:.1f} with"
        f" `--adapt`; with one threshold tuned for micro-F1\n  {tuned['micro']:.1f} and {tuned['macro']:.1f};"
        f" published for {name}: micro-F1 {published}."
        " (`rsoftmax reproduce eurlex`)"
    )


def decisions() -> str:
    """Micro, macro and samples F1 of every model and way to decide, by dataset."""
    comparison = users_rows()

    def cell(predictor: Predictor, point: Any) -> str:
        means = [comparison.mean(predictor, [point], "test", average) for average in AVERAGES]
        return ", ".join(f"{mean.value:.1f}" for mean in means if mean)

    lines = [[users.title(one), *(cell(one, point) for point in comparison.points())] for one in users.PREDICTORS]
    seeds = [f"{point} ({len(comparison.records[point])})" for point in comparison.points()]
    return markdown(["dataset (seeds)", *seeds], [line for line in lines if any(line[1:])])


def list_mappings() -> str:
    """The table of the command, with two more columns: what computes the rows, and how long it takes."""
    head, rule, *lines = CliRunner().invoke(app, ["list", "--markdown"], catch_exceptions=False).output.splitlines()
    cells = [
        f"{line} {row_kernel(spec)} | {time(spec)} |" for line, spec in zip(lines, REGISTERED.values(), strict=True)
    ]
    return "\n".join([f"{head} rows | time |", f"{rule} --- | --- |", *cells])


def row_kernel(spec: MappingSpec) -> str:
    """Whether a mapping has native rows, and of which operation if it has another name."""
    with mock.patch("rsoftmax.kernels.dispatch.kernel_for", wraps=kernel_for) as asked:
        spec.function(torch.zeros(2), *([spec.parameter.example] if spec.parameter else []))
    operation = asked.call_args.args[0]
    if operation not in OPERATIONS:
        return "reference"
    return "native" if operation == spec.name else f"native ({operation})"


def time(spec: MappingSpec) -> str:
    """The time of forward relative to torch.softmax, the median over all shapes; empty before the benchmark has run."""
    parameter = f"{spec.parameter.name}={spec.parameter.example:g}" if spec.parameter else ""
    case = {"method": spec.name, "parameter": parameter, "kernels": "native", "mode": "forward", "kind": "normal"}
    some = records(load("mappings"), threads=1, **case)
    return median(some) if some else ""


def finetuning(long: bool) -> str:
    steps = [record for record in records(load("finetuning")) if (record["model"] == LONG) == long]
    return ratio_table(load("finetuning"), steps, "{batch} x {tokens} tokens")


def long_texts() -> str:
    """Reading a text, and the time of each token after it, by processor and model."""
    every = {
        (r["machine"], r["model"], r["length"], r["phase"], r["attention"], r["cache"]): r
        for r in records(GENERATE_MODEL, threads=1)
    }
    dynamic, growing, sparse = ((DECODE, attention, cache) for attention, _, cache in DECODERS)
    lines = []
    for group in dict.fromkeys(key[:3] for key in every):
        dense, other, ours = (every[*group, *decoder] for decoder in (dynamic, growing, sparse))
        ratios = [every[*group, PREFILL, *sparse[1:]]["ratio"], ours["ratio"], ours["median"] / other["median"]]
        times = [f"{record['median'] / 1000:.1f}" for record in (dense, other, ours)]
        machine, model, length = group
        where = machine.rpartition("(")[2].strip(")")
        lines.append([model, where, f"{length:,}", *times, *map(ratio_text, ratios), f"{ours['kl']:.4f}"])
    header = ["model", "kernels", "tokens", "sdpa, DynamicCache", "sdpa, GrowingCache", "t = 6, GrowingCache"]
    return markdown([*header, "ratio, prompt", "ratio to DynamicCache", "to GrowingCache", "KL"], lines)


def attention(mode: str, folder: str = "") -> Callable[[], str]:
    return ratios("attention", "({batch}, {heads}, {length}, {width})", folder, mode=mode, measure="us", threads=1)


PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"speed": speed, "attention": whole_model, "labels": labels, "many-labels": many_labels},
    "docs/reproduction/users.md": {"decisions": decisions},
    "docs/mappings.md": {"mappings": list_mappings},
    "docs/performance.md": {
        "medians": mapping_medians,
        "ratios": lambda: headline(records(load("mappings"))),
        "machine": machine("mappings"),
        "heads": heads,
        "heads-machine": machine("heads"),
    },
    "docs/attention_measurements.md": {
        "forward": attention("forward"),
        "forward-avx2": attention("forward", "avx2"),
        "backward": attention("forward+backward"),
        "causal": attention("forward, causal"),
        "one-query-float32": attention("one query, float32"),
        "one-query-bfloat16": attention("one query, bfloat16"),
        "attention-machine": machine("attention"),
        "whole-model": long_texts,
        "steps": partial(finetuning, False),
        "long-steps": partial(finetuning, True),
        "generating-float32": ratios("generate", "{length}, {cache}", dtype="float32"),
        "machine": machine("finetuning"),
    },
}


def rendered(text: str, parts: dict[str, Callable[[], str]]) -> str:
    for part, write in parts.items():
        block = rf"(<!-- {part}: .*? -->\n).*?(\n<!-- end -->)"
        text, count = re.subn(block, rf"\g<1>{write()}\g<2>", text, flags=re.DOTALL)
        assert count == 1, f"{count} blocks are named {part}; expected one"
    return text


if __name__ == "__main__":
    for name, parts in PARTS.items():
        old = (ROOT / name).read_text(encoding="utf-8")
        new = rendered(old, parts)
        if "--check" in sys.argv and new != old:
            sys.exit(f"{name} is out of date; run: make tables")
        (ROOT / name).write_text(new, encoding="utf-8")
