"""Draw the pictures of the README from the rows of the repository."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from rsoftmax_lab.bench import load
from rsoftmax_lab.bench.benchmark import read
from rsoftmax_lab.bench.generation import DECODE, PREFILL
from rsoftmax_lab.demo import draw_some_mappings
from rsoftmax_lab.report import save_figure, tidy

ROOT = Path(__file__).parents[1]
MODEL = "SmolLM2-135M"
PHASES = {PREFILL: ("reading the prompt", "#1d4e89"), DECODE: ("each new token", "#c1121f")}


def times(phase: str) -> dict[int, dict[str, Any]]:
    """The records of the whole model at t = 6 on the first of the machines, by length."""
    case = {"model": MODEL, "phase": phase, "attention": "t_softmax", "parameter": "t=6, edge=0", "threads": 1}
    records = read(ROOT / "results" / load("generate").with_model.file)  # type: ignore[union-attr]
    found = [record for record in records if record.items() >= case.items()]
    return {record["length"]: record for record in found if record["machine"] == found[0]["machine"]}


def draw_attention(path: Path) -> None:
    """Time and error of SmolLM2 by length."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    left.axhline(1, color="#555555", linestyle="--")
    for phase, (name, colour) in PHASES.items():
        records = times(phase)
        left.plot(list(records), [record["ratio"] for record in records.values()], "o-", color=colour, label=name)
    left.set(title="time of the whole model, torch's attention = 1", ylim=(0, 1.15))
    left.legend(loc="lower left", frameon=False)
    errors = {length: record["kl"] for length, record in times(DECODE).items()}
    right.plot(list(errors), list(errors.values()), "o-", color="#555555")
    right.set(title="KL divergence from the dense model, nats per token", ylim=(0, 1.3 * max(errors.values())))
    for axis in (left, right):
        axis.set_xscale("log", base=2)
        axis.set(xticks=list(errors), xticklabels=[f"{n:,}" for n in errors], xlabel="tokens")
        axis.minorticks_off()
        axis.title.set_fontsize(10)
        tidy(axis)
    save_figure(figure, path)


if __name__ == "__main__":
    draw_some_mappings(ROOT / "docs" / "mappings.png")
    draw_attention(ROOT / "docs" / "attention.png")
