"""A part of ``make fuzz-files``: every reader on undamaged files, and on a few hundred damaged ones."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "fuzz_files.py"


def loaded() -> ModuleType:
    specification = importlib.util.spec_from_file_location("fuzz_files", TOOL)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["fuzz_files"] = module
    specification.loader.exec_module(module)
    return module


fuzz = loaded()


@pytest.mark.parametrize("name", fuzz.TARGETS)
def test_a_damaged_file_ends_in_an_answer_or_a_declared_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz, "KEPT", tmp_path)
    fuzz.check(name)
    cases = 2 if name.startswith("report") else 40
    findings = [text for number in range(cases) if (text := fuzz.finding(name, 0, number))]
    assert not findings, "\n".join(findings)


def test_a_reader_that_raises_something_else_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(folder: Path) -> None:
        raise KeyError("not declared")

    monkeypatch.setattr(fuzz, "KEPT", tmp_path)
    monkeypatch.setitem(fuzz.TARGETS, "broken", fuzz.Target(fuzz.glue_files, "", read))
    assert "KeyError: 'not declared'" in fuzz.finding("broken", 0, 0)
    assert len(list(tmp_path.iterdir())) == 1
