"""The Triton kernels compiled for GPUs that need not be there: they compile, and nothing is spilled."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from rsoftmax.kernels.triton import NAMES

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed; pip install triton"),
]

TOOL = Path(__file__).parents[1] / "tools" / "triton_resources.py"


@pytest.mark.parametrize(
    ("target", "lengths"), [("sm_80", [20]), ("sm_90", [8192, 32768]), ("sm_100", [8192]), ("gfx942", [8192])]
)
def test_no_registers_are_spilled(
    target: str, lengths: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    command = [sys.executable, str(TOOL), "--json", "--target", target, "--length", *map(str, lengths)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {(row["name"], row["direction"], row["n"]) for row in rows} == {
        (name, direction, n) for name in NAMES for direction in ("forward", "backward") for n in lengths
    }
    assert [row for row in rows if row["stack"] or row["spills"]] == []
