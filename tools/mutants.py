"""Faults made by hand, one at a time, and whether the short suite finds them (those in graphs: the whole suite).

Each fault is a textual change to a scratch copy of the package. The tests of its area run until one fails. Faults in
C++ are compiled together, for AVX2 alone, and switched on one by one with an environment variable.

    python tools/mutants.py                  # all areas
    python tools/mutants.py rows attention   # some of them
    python tools/mutants.py --all-tests      # also the tests with a mark
    python tools/mutants.py --check          # only whether every fault still applies
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import NamedTuple

from mutant_table import AREAS, Area, Fault

ROOT = Path(__file__).parents[1]
LEFT_OUT = shutil.ignore_patterns(".*", "build", "dist", "demo", "results", "__pycache__")
FOLDERS = ("src", "lab/src", "tests", "lab/tests", "tools")
SWITCH = "RSOFTMAX_FAULT"
HEADER = f"""#include <cstdlib>
static const int fault_number = std::getenv("{SWITCH}") ? std::atoi(std::getenv("{SWITCH}")) : 0;
"""


class Outcome(NamedTuple):
    passed: bool
    failed: str  # the test that failed, or how pytest ended


def place_of(fault: Fault, home: Path, suffixes: tuple[str, ...]) -> Path:
    """The one file of the package that holds the text to change."""
    found = [path for path in home.rglob("*") if path.suffix in suffixes and fault.old in path.read_text()]
    if len(found) != 1 or found[0].read_text().count(fault.old) != 1:
        places = ", ".join(str(path.relative_to(home)) for path in found) or "no file"
        raise LookupError(f"{fault.name}: {fault.old!r} must occur once in the package, found in {places}")
    return found[0]


def stale(names: list[str]) -> list[str]:
    """The faults whose text is gone, or occurs in several places."""
    messages = []
    for name in names:
        suffixes = (".h", ".cpp") if AREAS[name].compiled else (".py",)
        for fault in AREAS[name].faults:
            try:
                place_of(fault, ROOT / "src" / "rsoftmax", suffixes)
            except LookupError as error:
                messages.append(f"{name}: {error.args[0]}")
    return messages


def run_tests(scratch: Path, area: Area, all_tests: bool, fault_number: int = 0) -> Outcome:
    """Run the tests of an area until one fails, in a forked process, which need not import torch again."""
    log = scratch / "pytest.log"
    process = os.fork()
    if process == 0:
        status = 70
        try:
            short = [] if all_tests or area.marked else ["--short"]
            built = ["-k", "not baseline"] if area.compiled else []
            status = _run_pytest(scratch, log, [*area.tests, *short, *built], fault_number)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    printed = log.read_text()
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", printed, re.MULTILINE)
    if status > 2:  # below 0 is a signal: a crash of the kernels is a verdict
        raise SystemExit(f"pytest ended with {status}: {printed[-300:]}")
    return Outcome(status == 0, failed[1] if failed else f"pytest ended with {status}" if status else "")


def _run_pytest(scratch: Path, log: Path, arguments: list[str], fault_number: int) -> int:
    import pytest

    os.chdir(scratch)
    os.environ[SWITCH] = str(fault_number)
    sys.path[:0] = [str(scratch / folder) for folder in FOLDERS]
    sys.dont_write_bytecode = True  # a file that changes within a second would be taken for the old one
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        status = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", *arguments])
        sys.stdout.flush()
    return status


def python_outcome(fault: Fault, area: Area, scratch: Path, all_tests: bool) -> Outcome:
    path = place_of(fault, scratch / "src", (".py",))
    before = path.read_text()
    path.write_text(before.replace(fault.old, fault.new))
    try:
        return run_tests(scratch, area, all_tests)
    finally:
        path.write_text(before)


def build_faulty_kernels(area: Area, scratch: Path) -> None:
    """Compile all faults of an area at once, each behind its number."""
    home = scratch / "src" / "rsoftmax" / "kernels" / "cpu"
    for library in home.glob("*.so"):
        library.unlink()
    for number, fault in enumerate(area.faults, 1):
        path = place_of(fault, home, (".h", ".cpp"))
        path.write_text(path.read_text().replace(fault.old, fault.new.replace("FAULT", f"(fault_number == {number})")))
    header = scratch / "fault.h"
    header.write_text(HEADER)
    setup = scratch / "setup.py"
    setup.write_text(setup.read_text().replace("in LEVELS.items()", 'in [("avx2", AVX2)]'))
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    flags = dict.fromkeys(
        ("CFLAGS", "CXXFLAGS"), f"-include {header}"
    )  # releases of setuptools differ in which they read
    subprocess.run(command, cwd=scratch, env=os.environ | flags, check=True)
    if not list(home.glob("*.so")):
        raise SystemExit("the kernels with faults were not built")


def run(name: str, scratch: Path, all_tests: bool) -> list[bool]:
    """Whether each fault of an area is found; the tests must pass without a fault."""
    area = AREAS[name]
    if area.compiled:
        build_faulty_kernels(area, scratch)
    without = run_tests(scratch, area, all_tests)
    if not without.passed:
        raise SystemExit(f"{name}: the tests fail without a fault: {without.failed}")
    found = []
    for number, fault in enumerate(area.faults, 1):
        if area.compiled:
            outcome = run_tests(scratch, area, all_tests, number)
        else:
            outcome = python_outcome(fault, area, scratch, all_tests)
        print(f"{name}\t{fault.name}\t{'SURVIVED' if outcome.passed else 'found'}\t{outcome.failed}", flush=True)
        found.append(not outcome.passed)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("areas", nargs="*", metavar="AREA", help=f"of {', '.join(AREAS)}; default: all")
    parser.add_argument("--all-tests", action="store_true", help="also run the tests with a mark")
    parser.add_argument("--check", action="store_true", help="only check that every fault still applies")
    given = parser.parse_args()
    names = given.areas or list(AREAS)
    if messages := stale(names):
        sys.exit("\n".join(messages))
    if given.check:
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    import scipy.stats  # noqa: F401  imported once, before the forks
    import torch  # noqa: F401

    found: list[bool] = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            scratch = Path(folder) / "rsoftmax"
            shutil.copytree(ROOT, scratch, ignore=LEFT_OUT)
            found += run(name, scratch, given.all_tests)
    print(f"{sum(found)} of {len(found)} faults found")
    sys.exit(0 if all(found) else 1)


if __name__ == "__main__":
    main()
