"""Random cases until the time is over: numbers against slow oracles, and whole models.

Prints its seed, which repeats the whole run, and for each finding a line that repeats that case alone.
"""

import argparse
import secrets
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from itertools import cycle, islice
from random import Random

from fuzz_draw import Draw

GROUPS = {
    "numbers": {
        "mappings": "fuzz_mappings:check",
        "losses": "fuzz_losses:check",
        "attention": "fuzz_attention:check",
        "masked": "fuzz_masked:check",
        "multilabel": "fuzz_multilabel:check",
    },
    "models": {
        "scaling": "fuzz_calibration:check_scaling",
        "estimators": "fuzz_calibration:check_estimator",
        "composites": "fuzz_composites:check",
        "saves": "fuzz_saves:check",
    },
}
"""The targets, as MODULE:FUNCTION: a function checks one case, which a :class:`Draw` determines."""
TARGETS = {target: place for group in GROUPS.values() for target, place in group.items()}


def load(target: str) -> Callable[[Draw], None]:
    """The function of a target; its module is imported when it is needed."""
    module, _, name = TARGETS[target].partition(":")
    function: Callable[[Draw], None] = getattr(import_module(module), name)
    return function


def cases(seed: int, targets: Iterable[str] = GROUPS["numbers"]) -> Iterator[tuple[str, int]]:
    """Targets in turn, each with the number of a case."""
    random = Random(seed)
    for target in cycle(targets):
        yield target, random.randrange(1 << 48)


def finding(target: str, case: int) -> str | None:
    """What is wrong, if anything is."""
    try:
        load(target)(Draw(case))
    except Exception as error:  # whatever a case raises is a finding
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} in {where.name}, {where.line}: {' '.join(str(error).split())[:300]}"
    return None


def run(seed: int, seconds: float, most: int | None, targets: Iterable[str] = GROUPS["numbers"]) -> int:
    """Run cases until the time is over or ``most`` are done; returns the number of findings."""
    done, found, end = Counter[str](), Counter[str](), time.monotonic() + seconds
    for target, case in islice(cases(seed, targets), most):
        if time.monotonic() > end:
            break
        done[target] += 1
        if wrong := finding(target, case):
            found[target] += 1
            print(f"{target}: {wrong}\n  repeat with: make fuzz-numbers CASE={target}:{case}", flush=True)
    for target in targets:
        print(f"{target:12} {done[target]:8} cases {found[target]:4} findings")
    return found.total()


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--seed", type=int, default=None, help="repeats a run")
    words.add_argument("--seconds", type=float, default=300.0, help="how long to go on")
    words.add_argument("--count", type=int, default=None, help="how many cases at most")
    words.add_argument("--case", default=None, help="TARGET:NUMBER, repeats one case, with its traceback")
    words.add_argument("group", nargs="?", choices=GROUPS, default="numbers")
    given = words.parse_args()
    if given.case:
        target, _, case = given.case.partition(":")
        load(target)(Draw(int(case)))
        print(f"{given.case}: no finding")
        return 0
    seed = secrets.randbelow(1 << 32) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    return 1 if run(seed, given.seconds, given.count, GROUPS[given.group]) else 0


if __name__ == "__main__":
    sys.exit(main())
