"""Draw the pictures of the README from the rows of the repository."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from rsoftmax_lab.bench import load
from rsoftmax_lab.bench.benchmark import read
from rsoftmax_lab.bench.generation import DECODE, PREFILL
from rsoftmax_lab.demo import draw_some_mappings
from rsoftmax_lab.experiments import pretrained
from rsoftmax_lab.records import read_trials
from rsoftmax_lab.report import save_figure, tidy

ROOT = Path(__file__).parents[1]
MODEL, TEXTS, SETTING = "SmolLM2-135M", "wikitext-2-test", "t_softmax t=6 edge=0"
PHASES = {PREFILL: ("reading the prompt", "#1d4e89"), DECODE: ("each new token", "#c1121f")}


def times(phase: str) -> dict[int, dict[str, Any]]:
    """The records of the whole model at t = 6 on the first of the machines, by length."""
    case = {"model": MODEL, "phase": phase, "attention": "t_softmax", "parameter": "t=6, edge=0", "threads": 1}
    records = read(ROOT / "results" / load("generate").with_model.file)  # type: ignore[union-attr]
    found = [record for record in records if record.items() >= case.items()]
    return {record["length"]: record for record in found if record["machine"] == found[0]["machine"]}


def perplexities() -> dict[int, float]:
    """The growth of perplexity at t = 6 in per cent, by length."""
    trials = read_trials(ROOT / "results" / "pretrained.jsonl", pretrained.Run, print)
    return {
        run.length: record["settings"][SETTING]["perplexity"]
        for run, record in sorted(trials, key=lambda trial: trial.run.length)
        if run.model.startswith(MODEL) and run.texts.startswith(TEXTS) and SETTING in record["settings"]
    }


def draw_attention(path: Path) -> None:
    """Time and error of SmolLM2 by length."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    left.axhline(1, color="#555555", linestyle="--")
    for phase, (name, colour) in PHASES.items():
        records = times(phase)
        ratios = [record["ratio"] for record in records.values()]
        left.plot(list(records), ratios, "o-", color=colour, label=name)
        left.fill_between(
            list(records),
            [record["ratio_low"] for record in records.values()],
            [record["ratio_high"] for record in records.values()],
            color=colour,
            alpha=0.15,
        )
    left.set(title="time of the whole model, torch's attention = 1", ylim=(0, 1.15))
    left.legend(loc="lower left", frameon=False)
    growth = perplexities()
    right.plot(list(growth), list(growth.values()), "o-", color="#555555")
    right.set(title="perplexity, growth in %", ylim=(0, max(1.0, 1.3 * max(growth.values()))))
    for axis in (left, right):
        axis.set_xscale("log", base=2)
        lengths = sorted({*times(PREFILL), *growth})
        axis.set(xticks=lengths, xticklabels=[f"{n:,}" for n in lengths], xlabel="tokens")
        axis.minorticks_off()
        tidy(axis)
    save_figure(figure, path)


if __name__ == "__main__":
    draw_some_mappings(ROOT / "docs" / "mappings.png")
    draw_attention(ROOT / "docs" / "attention.png")
