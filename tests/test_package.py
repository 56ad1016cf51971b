"""The package as a whole: what importing it costs, and whether the README tells the truth."""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cases import run_programs

import rsoftmax
from rsoftmax import MAPPINGS, MODULES

ROOT = Path(__file__).parents[1]
PUBLIC: list[str] = rsoftmax.__all__  # type: ignore[attr-defined]  # made when it is asked for


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_it_loads_nothing() -> None:
    program = """
import sys
before = set(sys.modules)
import rsoftmax
print(rsoftmax.__version__)
print(*sorted({name.split(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)))
"""
    version, *loaded = run(program).split()
    assert version == rsoftmax.__version__
    assert loaded == ["rsoftmax"]


def test_using_it_loads_torch_and_nothing_else() -> None:
    program = """
import sys
import torch
with_torch = set(sys.modules)
from rsoftmax import *
print(*sorted({name.split(".")[0] for name in set(sys.modules) - with_torch}))
"""
    assert run(program) == "rsoftmax"


@pytest.mark.process
def test_a_mapping_is_imported_without_modules_and_attention() -> None:
    program = (
        "import sys; from rsoftmax import r_softmax; print(*(n for n in sys.modules if n.startswith('rsoftmax.')))"
    )
    loaded = run(program).split()
    assert "rsoftmax.mappings" in loaded
    assert not {"rsoftmax.nn", "rsoftmax.attention", "rsoftmax.labels.losses"} & set(loaded)


def test_the_public_names() -> None:
    mapped = {*MAPPINGS, *MODULES, "weighted_softmax"}
    modules = {"attention", "kernels", "labels", "losses", "nn", "registry"}
    others = {
        "MAPPINGS",
        "MODULES",
        "MappingModule",
        "MappingSpec",
        "Pooled",
        "Router",
        "Routing",
        "SparsePooling",
        "use_kernels",
    }
    assert set(PUBLIC) == mapped | modules | others
    assert set(PUBLIC) <= set(dir(rsoftmax))
    given: dict[str, object] = {}
    exec("from rsoftmax import *", given)
    assert set(PUBLIC) <= set(given)
    assert all(given[name] is getattr(rsoftmax, name) for name in PUBLIC)


@pytest.mark.process
def test_a_type_checker_sees_the_public_names(tmp_path: Path) -> None:
    names = ", ".join(PUBLIC)
    program = tmp_path / "program.py"
    program.write_text(
        f"from rsoftmax import {names}\nimport rsoftmax\nreveal_type(rsoftmax.RSoftmax(r=0.5))\nrsoftmax.softmin\n"
    )
    # With the settings of our own code, so that what mypy remembers of torch serves again.
    command = [sys.executable, "-m", "mypy", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert 'Revealed type is "rsoftmax.nn.RSoftmax"' in done.stdout
    assert 'Module has no attribute "softmin"' in done.stdout
    assert "Found 1 error" in done.stdout, done.stdout


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    for name in ("softmin", "_private", "__wrapped__"):
        with pytest.raises(AttributeError, match=f"module 'rsoftmax' has no attribute '{name}'"):
            getattr(rsoftmax, name)
    with pytest.raises(ImportError, match="cannot import name 'softmin'"):
        exec("from rsoftmax import softmin")


def test_functions_and_modules_survive_pickle() -> None:
    for name in MAPPINGS:
        function = getattr(rsoftmax, name)
        assert pickle.loads(pickle.dumps(function)) is function
    made: Any
    for made in MODULES.values():
        assert type(pickle.loads(pickle.dumps(made()))) is made


@pytest.mark.process
def test_the_generated_tables_are_not_stale() -> None:
    done = subprocess.run([sys.executable, ROOT / "tools" / "tables.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.process
def test_a_module_that_is_imported_alone_knows_the_mappings() -> None:
    modules = ("attention.functional", "labels.head", "losses", "mappings", "nn", "sampling")
    check = "from rsoftmax.registry import MAPPINGS; assert 'r_softmax' in MAPPINGS"
    programs = {module: f"import rsoftmax.{module}; {check}" for module in modules}
    read = "from rsoftmax.cli.arguments import parameters; from types import SimpleNamespace"
    programs["cli"] = f"{read}; assert parameters(SimpleNamespace(args=['--t', '6'])) == {{'t': 6.0}}"
    run_programs("import torch", programs)


def test_the_lazy_packages_list_their_public_names() -> None:
    for package in (rsoftmax, rsoftmax.attention, rsoftmax.labels):
        assert set(package.__all__) <= set(dir(package))
