"""The benchmarks, run as a user runs them, on small cases."""

import json
from itertools import product
from pathlib import Path

from PIL import Image
from typer.testing import CliRunner

from rsoftmax import MAPPINGS
from rsoftmax.cli.application import app
from rsoftmax_lab.bench import attention as bench_attention
from rsoftmax_lab.bench import heads as bench_heads
from rsoftmax_lab.bench import mappings as bench
from rsoftmax_lab.contest.methods import METHODS


def rsoftmax(*words: str) -> str:
    result = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.output


def refusal(*words: str) -> str:
    result = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert result.exit_code == 2, result.output
    return " ".join(result.output.split())


def test_bench_heads_measures_every_method_of_the_contest(tmp_path: Path) -> None:
    shown = rsoftmax("bench", "heads", "--quick", "--out", str(tmp_path))
    assert "goal, a training step with the expected-F1 rate" in shown
    rows = [json.loads(line) for line in (tmp_path / "bench_heads.jsonl").read_text().splitlines()]
    assert {(row["method"], row["mode"]) for row in rows} == set(product(METHODS, bench_heads.MODES))
    assert all(row["median_us"] > 0 and row["ratio_low"] <= row["ratio"] <= row["ratio_high"] for row in rows)
    assert all(row["extra_bytes"] > 0 for row in rows)


def test_bench_measures_prints_and_draws(tmp_path: Path) -> None:
    shown = rsoftmax("bench", "--quick", "--threads", "1", "--out", str(tmp_path))
    assert "r_softmax forward, n 16 to 511" in shown
    timings = bench.read(tmp_path / "bench.jsonl")
    assert {t.method for t in timings} >= {*MAPPINGS, "torch.softmax", "quantile formula"}
    assert all(t.ratio_low <= t.ratio <= t.ratio_high for t in timings)
    assert all(t.extra_bytes >= t.output_bytes for t in timings)
    with Image.open(tmp_path / "bench.png") as picture:
        assert picture.size[0] > 1000
    assert "'two' is not a list of thread counts" in refusal("bench", "--threads", "two")


def test_bench_attention_measures_time_and_memory(tmp_path: Path) -> None:
    shown = rsoftmax("bench", "attention", "--quick", "--threads", "1", "--out", str(tmp_path))
    assert "extra memory, forward, beside eager softmax" in shown
    rows = bench_attention.read(tmp_path / "bench_attention.jsonl")
    assert {row.method for row in rows} == {
        bench_attention.SDPA,
        "eager softmax",
        "r_softmax",
        "sparsemax",
        "t_softmax",
    }
    assert all(row.ratio_low <= row.ratio <= row.ratio_high for row in rows)
    held = {(row.method, row.mode): row.median for row in rows if row.measure == "bytes"}
    assert held["r_softmax", "forward"] < held["eager softmax", "forward"] / 4
    assert "'0' is not a list of thread counts" in refusal("bench", "attention", "--threads", "0")
