"""Builds the kernels with clang's AddressSanitizer and UBSan into a folder of its own and runs their tests there.

Every instruction set that this CPU has is tested, by the names that torch gives them.
"""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
COMPILER = {"CC": "clang", "CXX": "clang++"}  # gcc compiles the same for many times as long
CHECKS = "-fsanitize=address,undefined -fno-sanitize-recover=all -shared-libasan"


def runtime() -> str:
    """The library that the checks call, which must be loaded before Python."""
    ask = ["clang", f"-print-file-name=libclang_rt.asan-{platform.machine()}.so"]
    return subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()


def levels() -> list[str]:
    """The values of ATEN_CPU_CAPABILITY that this CPU can run, the simplest first."""
    every = ["default", "avx2", "avx512"]
    best = torch.backends.cpu.get_cpu_capability().lower()
    return every[: every.index(best) + 1] if best in every else every[:1]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "rsoftmax"
        ignored = shutil.ignore_patterns(".git", ".venv*", "build", "*.so", "results")
        shutil.copytree(ROOT, copy, ignore=ignored)
        build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        flags = dict.fromkeys(("CFLAGS", "CXXFLAGS", "LDFLAGS"), CHECKS)
        subprocess.run(build, cwd=copy, check=True, env={**os.environ, **COMPILER, **flags})
        libraries = list((copy / "src/rsoftmax/kernels/cpu").glob("*.so"))
        assert libraries, "the kernels did not compile"
        assert all(b"__asan_init" in library.read_bytes() for library in libraries), (
            "the kernels were built without checks"
        )
        environment = {
            **os.environ,
            "PYTHONPATH": str(copy / "src"),
            "LD_PRELOAD": runtime(),
            "ASAN_OPTIONS": "detect_leaks=0",  # Python itself keeps memory until the end
        }
        options = ["-p", "no:cacheprovider", "--override-ini=addopts=-q", "--capture=no"]  # a finding ends the process
        rows = "native_equals or adversarial or side or fuzz or misleads or strided or threads_change or broadcast"
        for tests in (["tests/test_kernels.py", "-k", rows], ["tests/test_attention_kernel.py"]):
            for level in levels():
                print(f"{tests[0]}, ATEN_CPU_CAPABILITY={level}", flush=True)
                command = [sys.executable, "-m", "pytest", *tests, *options]
                done = subprocess.run(command, cwd=copy, env={**environment, "ATEN_CPU_CAPABILITY": level})
                if done.returncode:
                    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
