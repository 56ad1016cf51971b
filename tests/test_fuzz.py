"""``make fuzz-numbers`` finds what is wrong, and says how to see it again; a small part of it runs here."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PATHS = f"import sys; sys.path[:0] = [{str(ROOT / 'tools')!r}, {str(ROOT / 'tests')!r}]"

BREAK = {
    "mappings": """
        import rsoftmax.kernels.cpu as kernels
        forward = kernels.forward
        kernels.forward = lambda *a, **k: (lambda p, state: (p * 1.01, state))(*forward(*a, **k))
    """,
    "losses": """
        import rsoftmax.losses as losses
        losses._margin = lambda y: 0.9 / y.sum(-1, keepdim=True).clamp(min=1)
    """,
    "attention": """
        import rsoftmax.kernels.cpu.attention as kernel
        backward = kernel.backward
        kernel.backward = lambda *a, **k: (lambda dq, *others: (dq * 1.01, *others))(*backward(*a, **k))
    """,
    "multilabel": """
        import rsoftmax.multilabel.decoding as decoding
        decoding.rate_of_count = lambda k, z: (z.shape[-1] - k).double() / (z.shape[-1] + 1)
    """,
}


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", f"{PATHS}\n{textwrap.dedent(program)}"], capture_output=True, text=True, check=False
    )


def test_some_cases_of_each_target_hold() -> None:
    done = run("import fuzz; sys.exit(fuzz.run(seed=0, seconds=600, most=200))")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"(\w+) +50 cases +0 findings", done.stdout) == list(BREAK)


@pytest.mark.parametrize("target", BREAK)
def test_what_is_wrong_is_found_and_found_again(target: str) -> None:
    broken = textwrap.dedent(BREAK[target])
    done = run(f"{broken}\nimport fuzz; sys.exit(fuzz.run(seed=0, seconds=600, most=80))")
    assert done.returncode > 0, done.stdout + done.stderr
    case = re.search(rf"make fuzz-numbers CASE=({target}:\d+)", done.stdout)
    assert case, done.stdout
    again = run(f"{broken}\nimport fuzz; sys.argv = ['fuzz', '--case', {case[1]!r}]; sys.exit(fuzz.main())")
    assert again.returncode == 1
    assert "Error" in again.stderr
    assert run(f"import fuzz; sys.argv = ['fuzz', '--case', {case[1]!r}]; sys.exit(fuzz.main())").returncode == 0


def test_a_seed_repeats_a_run() -> None:
    program = "import fuzz, itertools; print(list(itertools.islice(fuzz.cases({}), 8)))"
    assert run(program.format(1)).stdout == run(program.format(1)).stdout != run(program.format(2)).stdout
