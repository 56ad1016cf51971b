"""Write the generated parts of the documentation, or with --check report whether they are out of date."""

import re
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from typer.testing import CliRunner

from rsoftmax.cli import app
from rsoftmax_lab.bench import generate, load, ratios, rows, tables
from rsoftmax_lab.bench.finetuning import LONG

ROOT = Path(__file__).parents[1]


def mappings() -> str:
    return CliRunner().invoke(app, ["list", "--markdown"], catch_exceptions=False).output.strip()


def timed(name: str) -> list[rows.Row]:
    return rows.read(ROOT / "results" / load(name).file)


def verdict(name: str) -> str:
    return tables.verdict(load(name), timed(name))


def machine(name: str) -> str:
    found = dict.fromkeys(f"{row.machine}, torch {row.torch}" for row in timed(name))
    return f"Measured on {'; '.join(found)}."


def steps(model_is_long: bool) -> str:
    found = [row for row in timed("finetuning") if (row["model"] == LONG) == model_is_long]
    return tables.ratio_table(load("finetuning"), found, "{batch} x {tokens} tokens")


def generating(dtype: str) -> str:
    found = [row for row in timed("generate") if row["dtype"] == dtype]
    return tables.ratio_table(load("generate"), found, "{length}, {cache}")


def whole_model() -> str:
    benchmark = generate.WITH_MODEL
    found = rows.read(ROOT / "results" / benchmark.file)
    return tables.ratio_table(benchmark, found, "{phase}, {length} tokens")


def attention(mode: str) -> str:
    found = [
        row for row in timed("attention") if row["mode"] == mode and row["measure"] == "us" and row["threads"] == 1
    ]
    return tables.ratio_table(load("attention"), found, "({batch}, {heads}, {length}, {width})")


def matching(benchmark: str, **case: object) -> list[rows.Row]:
    """The rows of a benchmark that describe a case, on one thread."""
    wanted = {"threads": 1, **case}
    return [row for row in timed(benchmark) if {name: row.case.get(name) for name in wanted} == wanted]


def median(found: Sequence[rows.Row]) -> str:
    """The median ratio of some rows."""
    return tables.ratio_text(statistics.median(row.spread.ratio for row in found))


def mapping_median(method: str, mode: str, parameter: str = "", kernels: str = "native") -> str:
    """The median over all shapes, for normally distributed rows."""
    return median(matching("mappings", method=method, mode=mode, parameter=parameter, kernels=kernels, kind="normal"))


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


def medians() -> str:
    lines = [
        [f"`{name}`", *(mapping_median(method, mode, parameter, kernels) for mode in ("forward", "forward+backward"))]
        for name, (method, parameter, kernels) in MAPPINGS.items()
    ]
    return tables.markdown(["median over shapes", "forward", "forward and backward"], lines)


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
    found = {(row["method"], row["rows"], row["labels"]): row for row in matching("heads", mode="training step")}
    shapes = list(dict.fromkeys(key[1:] for key in found))
    lines = [[name, *(_head_cell(found[method, *shape]) for shape in shapes)] for method, name in HEADS.items()]
    return tables.markdown(["", *(f"{rows} rows, {labels:,} labels" for rows, labels in shapes)], lines)


def _head_cell(row: rows.Row) -> str:
    memory = tables.bytes_text(row.extra_bytes or 0)
    return f"{tables.ratio_text(row.spread.ratio)} ({tables.time_text(row.spread.median)}, {memory})"


def warpers() -> str:
    return tables.ratio_table(load("warpers"), matching("warpers"), "{rows} x {tokens}")


def speed() -> str:
    """The README's figures for mappings."""
    sparsemax, t, r, formula = (
        mapping_median(MAPPINGS[name][0], "forward", *MAPPINGS[name][1:])
        for name in ("sparsemax", "t_softmax", "r_softmax", "quantile formula")
    )
    return (
        f"- **Fast mappings.** Time relative to `torch.softmax`: sparsemax {sparsemax}, t-softmax {t}, r-softmax"
        f" {float(r):.1f}, each the median over seven shapes\n  (forward, one thread,"
        f" {timed('mappings')[0].machine}; `rsoftmax bench`). The paper's formula with `torch.quantile`:"
        f" {float(formula):.0f}."
    )


def attention_speed() -> str:
    """The README's figures for attention."""
    beside = partial(matching, "attention", method="r_softmax", parameter="r=0.9", measure="us")
    forward, both, causal, single = (
        median(beside(mode=mode)) for mode in ("forward", "forward+backward", "forward, causal", "one query, float32")
    )
    return (
        "- **Zeros save time in attention.** With 90 % zeros, time relative to torch's"
        f" `scaled_dot_product_attention`: forward {forward},\n  with backward {both}, causal {causal}, a single query"
        f" against a long cache {single}, each the median over three lengths\n  (one thread,"
        f" {timed('attention')[0].machine}; `rsoftmax bench attention`)."
    )


PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"speed": speed, "attention-speed": attention_speed},
    "docs/mappings.md": {"mappings": mappings},
    "docs/performance.md": {
        "medians": medians,
        "ratios": lambda: ratios.headline(timed("mappings")),
        "verdict": partial(verdict, "mappings"),
        "machine": partial(machine, "mappings"),
        "attention-verdict": partial(verdict, "attention"),
        "attention-machine": partial(machine, "attention"),
        "steps-verdict": partial(verdict, "finetuning"),
        "generating-verdict": partial(verdict, "generate"),
        "steps-machine": partial(machine, "finetuning"),
        "generating-machine": partial(machine, "generate"),
        "compiled-verdict": partial(verdict, "compiled"),
        "compiled-machine": partial(machine, "compiled"),
        "heads": heads,
        "heads-machine": partial(machine, "heads"),
        "warpers": warpers,
        "warpers-machine": partial(machine, "warpers"),
    },
    "docs/attention.md": {
        "forward": partial(attention, "forward"),
        "backward": partial(attention, "forward+backward"),
        "causal": partial(attention, "forward, causal"),
        "padding": partial(attention, "forward, padding"),
        "one-query-float32": partial(attention, "one query, float32"),
        "one-query-bfloat16": partial(attention, "one query, bfloat16"),
        "attention-machine": partial(machine, "attention"),
        "whole-model": whole_model,
        "steps": partial(steps, False),
        "long-steps": partial(steps, True),
        "generating-float32": partial(generating, "float32"),
        "generating-bfloat16": partial(generating, "bfloat16"),
        "machine": partial(machine, "finetuning"),
    },
}


def rendered(text: str, parts: dict[str, Callable[[], str]]) -> str:
    for part, write in parts.items():
        block = rf"(<!-- {part}: .*? -->\n).*?(\n<!-- end -->)"
        text, found = re.subn(block, rf"\g<1>{write()}\g<2>", text, flags=re.DOTALL)
        assert found == 1, f"{found} blocks are named {part}; expected one"
    return text


if __name__ == "__main__":
    for name, parts in PARTS.items():
        old = (ROOT / name).read_text(encoding="utf-8")
        new = rendered(old, parts)
        if "--check" in sys.argv and new != old:
            sys.exit(f"{name} is out of date; run: make tables")
        (ROOT / name).write_text(new, encoding="utf-8")
