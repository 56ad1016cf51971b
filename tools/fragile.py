"""Find tests whose verdict depends on the processor, the number of threads or the seed.

Runs the suite once in each of several environments and lists the tests that fail in some of them. Arguments go to
pytest; the default is the short suite.

    python tools/fragile.py
    python tools/fragile.py -m train
"""

import os
import re
import subprocess
import sys
from collections import defaultdict

INSTRUCTIONS = {
    "sse4": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "any": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "COMPATIBLE"},  # products as MKL computes them on any processor
    "all": {},  # whatever the processor has, AVX-512 perhaps
}
# Pairs, not the product: each instruction set, each number of threads and each seed occurs with others.
VARIANTS = [("all", 1, 0), ("sse4", 1, 1), ("avx2", 1, 2), ("all", 2, 1), ("sse4", 2, 2), ("avx2", 2, 0), ("any", 1, 1)]


def failures(instructions: str, threads: int, seed: int, arguments: list[str]) -> set[str]:
    """The tests that fail in one environment."""
    environment = {"RSOFTMAX_TEST_THREADS": str(threads), "RSOFTMAX_TEST_SEED": str(seed), **INSTRUCTIONS[instructions]}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--numprocesses", "auto", "--dist", "worksteal", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    if done.returncode not in (0, 1):
        sys.exit(done.stdout[-3000:] + done.stderr[-3000:])
    print(f"{instructions}, threads {threads}, seed {seed}: {done.stdout.splitlines()[-1]}", flush=True)
    return set(re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE))


def main() -> None:
    where = defaultdict(list)
    for variant in VARIANTS:
        for test in failures(*variant, sys.argv[1:] or ["--short"]):
            where[test].append(variant)
    for test, variants in sorted(where.items()):
        kind = "broken" if len(variants) == len(VARIANTS) else "fragile"
        places = "; ".join(f"{name}, threads {threads}, seed {seed}" for name, threads, seed in variants)
        print(f"{kind}: {test} ({places})")
    sys.exit(1 if where else 0)


if __name__ == "__main__":
    main()
