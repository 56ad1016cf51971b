"""Random cases for mappings, losses, attention and multi-label heads, until the time is over.

Prints its seed, which repeats the whole run, and for each finding a line that repeats that case alone.
"""

import argparse
import secrets
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count, cycle
from random import Random

import fuzz_attention
import fuzz_losses
import fuzz_mappings
import fuzz_multilabel
from fuzz_draw import Draw

TARGETS: dict[str, Callable[[Draw], None]] = {
    "mappings": fuzz_mappings.check,
    "losses": fuzz_losses.check,
    "attention": fuzz_attention.check,
    "multilabel": fuzz_multilabel.check,
}


def cases(seed: int) -> Iterator[tuple[str, int]]:
    """Targets in turn, each with the number of a case."""
    random = Random(seed)
    for target in cycle(TARGETS):
        yield target, random.randrange(1 << 48)


def finding(target: str, case: int) -> str | None:
    """What is wrong, if anything is."""
    try:
        TARGETS[target](Draw(case))
    except Exception as error:  # whatever a case raises is a finding
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} in {where.name}, {where.line}: {' '.join(str(error).split())[:300]}"
    return None


def run(seed: int, seconds: float, most: int | None) -> int:
    """Cases until the time is over or there were so many; returns the number of findings."""
    done, found, end = Counter[str](), Counter[str](), time.monotonic() + seconds
    for number, (target, case) in zip(count() if most is None else range(most), cases(seed), strict=False):
        if number % 16 == 0 and time.monotonic() > end:
            break
        done[target] += 1
        if wrong := finding(target, case):
            found[target] += 1
            print(f"{target}: {wrong}\n  repeat with: make fuzz-numbers CASE={target}:{case}", flush=True)
    for target in TARGETS:
        print(f"{target:12} {done[target]:8} cases {found[target]:4} findings")
    return found.total()


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--seed", type=int, default=None, help="repeats a run")
    words.add_argument("--seconds", type=float, default=300.0, help="how long to go on")
    words.add_argument("--count", type=int, default=None, help="how many cases at most")
    words.add_argument("--case", default=None, help="TARGET:NUMBER, repeats one case, with its traceback")
    given = words.parse_args()
    if given.case:
        target, _, case = given.case.partition(":")
        TARGETS[target](Draw(int(case)))
        print(f"{given.case}: no finding")
        return 0
    seed = secrets.randbelow(1 << 32) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    return 1 if run(seed, given.seconds, given.count) else 0


if __name__ == "__main__":
    sys.exit(main())
