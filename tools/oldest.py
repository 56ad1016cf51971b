"""Prints the oldest release of each dependency that pyproject.toml allows; `make test-oldest` installs them."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOOLS = {"import-linter", "mypy", "pytest", "pytest-xdist", "ruff"}  # no program of a user depends on them
FIXED = {"torch": "torch==2.13.0"}  # the one build that is installed without a GPU's libraries


def declared(path: Path) -> Iterator[str]:
    project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    yield from project["dependencies"]
    for extra in project["optional-dependencies"].values():
        yield from extra


def oldest() -> Iterator[str]:
    wanted = {line for path in ("pyproject.toml", "lab/pyproject.toml") for line in declared(ROOT / path)}
    for line in sorted(wanted):
        name, bound = re.fullmatch(r"([\w.-]+)(?:\[[\w,-]+\])?(?:[>=]=([\w.]+))?(?:;.*)?", line).groups()  # type: ignore[union-attr]
        if bound and not name.startswith("rsoftmax") and name not in TOOLS:
            yield FIXED.get(name, f"{name}=={bound}")


if __name__ == "__main__":
    print("\n".join(oldest()))
