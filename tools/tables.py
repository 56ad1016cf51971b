"""Writes the generated parts of the documents, or with --check says whether they are stale."""

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from typer.testing import CliRunner

from rsoftmax.cli.application import app
from rsoftmax_lab.bench import load, ratios, rows, tables
from rsoftmax_lab.bench.finetuning import LONG

ROOT = Path(__file__).parents[1]


def mappings() -> str:
    return CliRunner().invoke(app, ["list", "--markdown"], catch_exceptions=False).output.strip()


def timed(name: str) -> list[rows.Row]:
    return rows.read(ROOT / "results" / load(name).file)


def verdict(name: str) -> str:
    return tables.verdict(load(name), timed(name))


def machine(name: str) -> str:
    first = timed(name)[0]
    return f"Measured on: {first.machine}, torch {first.torch}."


def steps(model_is_long: bool) -> str:
    found = [row for row in timed("finetuning") if (row["model"] == LONG) == model_is_long]
    return tables.ratio_table(load("finetuning"), found, "{batch} x {tokens} tokens")


def generating(dtype: str) -> str:
    found = [row for row in timed("generate") if row["dtype"] == dtype]
    return tables.ratio_table(load("generate"), found, "{length}, {cache}")


def attention(mode: str) -> str:
    found = [
        row for row in timed("attention") if row["mode"] == mode and row["measure"] == "us" and row["threads"] == 1
    ]
    return tables.ratio_table(load("attention"), found, "({batch}, {heads}, {length}, {width})")


def ratio(benchmark: str, **case: object) -> str:
    """The ratio of the one row that a case describes, on one thread."""
    wanted = {"threads": 1, **case}
    (found,) = [row for row in timed(benchmark) if {name: row.case.get(name) for name in wanted} == wanted]
    return tables.ratio_text(found.spread.ratio)


def selecting() -> str:
    beside = partial(ratio, "mappings", mode="forward", kind="normal", n=512)
    ours, sorting = beside(method="r_softmax", parameter="r=0.5", kernels="native"), beside(method="quantile formula")
    return (
        f"Selection instead of sorting: forward on rows of 512, r-softmax takes {ours} times as long as"
        f" `torch.softmax`,\nwhere sorting takes {sorting} times (`rsoftmax bench`, one thread)."
    )


def zeros_pay() -> str:
    beside = partial(ratio, "attention", method="r_softmax", parameter="r=0.9", measure="us")
    training, forward = beside(mode="forward+backward", length=2048), beside(mode="forward", length=2048)
    return (
        f"Zeros pay: with r = .9 and 2,048 tokens attention takes {training} of the time of torch's own, forward and"
        f" backward,\nand {forward} forward alone; a single query against 16,384 keys takes"
        f" {beside(mode='one query, float32', length=16384)} (`rsoftmax bench attention`, one thread, AVX2)."
    )


PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"selecting": selecting, "zeros-pay": zeros_pay},
    "docs/mappings.md": {"mappings": mappings},
    "docs/performance.md": {
        "ratios": lambda: ratios.headline(timed("mappings")),
        "verdict": partial(verdict, "mappings"),
        "machine": partial(machine, "mappings"),
        "attention-verdict": partial(verdict, "attention"),
        "attention-machine": partial(machine, "attention"),
        "steps-verdict": partial(verdict, "finetuning"),
        "generating-verdict": partial(verdict, "generate"),
        "heads-machine": partial(machine, "heads"),
    },
    "docs/attention.md": {
        "forward": partial(attention, "forward"),
        "backward": partial(attention, "forward+backward"),
        "causal": partial(attention, "forward, causal"),
        "padding": partial(attention, "forward, padding"),
        "one-query-float32": partial(attention, "one query, float32"),
        "one-query-bfloat16": partial(attention, "one query, bfloat16"),
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
        assert found == 1, f"there are {found} parts named {part}"
    return text


if __name__ == "__main__":
    for name, parts in PARTS.items():
        old = (ROOT / name).read_text(encoding="utf-8")
        new = rendered(old, parts)
        if "--check" in sys.argv and new != old:
            sys.exit(f"{name} is stale; run: make tables")
        (ROOT / name).write_text(new, encoding="utf-8")
