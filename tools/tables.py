"""Writes the generated parts of the documents, or with --check says whether they are stale."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

from typer.testing import CliRunner

from rsoftmax.cli.application import app
from rsoftmax_lab.bench import ratios, rows, tables
from rsoftmax_lab.bench.mappings import BENCHMARK

ROOT = Path(__file__).parents[1]


def mappings() -> str:
    return CliRunner().invoke(app, ["list", "--markdown"], catch_exceptions=False).output.strip()


def timed() -> list[rows.Row]:
    return rows.read(ROOT / "results" / BENCHMARK.file)


def machine() -> str:
    first = timed()[0]
    return f"Measured on: {first.machine}, torch {first.torch}."


PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "docs/mappings.md": {"mappings": mappings},
    "docs/performance.md": {
        "ratios": lambda: ratios.headline(timed()),
        "verdict": lambda: tables.verdict(BENCHMARK, timed()),
        "machine": machine,
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
