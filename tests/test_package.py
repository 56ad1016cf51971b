"""The package as a whole: what importing it costs, and whether the README tells the truth."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_importing_it_loads_torch_and_nothing_else() -> None:
    program = """
import sys
import torch
with_torch = set(sys.modules)
import rsoftmax
print(*sorted({name.split(".")[0] for name in set(sys.modules) - with_torch}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["rsoftmax"]


def test_the_readme_is_not_stale() -> None:
    done = subprocess.run([sys.executable, ROOT / "tools" / "readme.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
