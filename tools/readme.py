"""Writes the generated parts of README.md, or with --check says whether they are stale."""

import re
import sys
from pathlib import Path

from typer.testing import CliRunner

from rsoftmax.cli import app

README = Path(__file__).parents[1] / "README.md"
PARTS = {"mappings": ["list", "--markdown"]}


def rendered(text: str) -> str:
    for part, command in PARTS.items():
        table = CliRunner().invoke(app, command, catch_exceptions=False).output.strip()
        block = rf"(<!-- {part}: .*? -->\n).*?(\n<!-- end -->)"
        text, found = re.subn(block, rf"\g<1>{table}\g<2>", text, flags=re.DOTALL)
        assert found == 1, f"README.md has {found} parts named {part}"
    return text


if __name__ == "__main__":
    old = README.read_text(encoding="utf-8")
    new = rendered(old)
    if "--check" in sys.argv:
        sys.exit(new != old and "README.md is stale; run: make readme")
    README.write_text(new, encoding="utf-8")
