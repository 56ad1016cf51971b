"""Builds the kernels: the same sources once for each instruction set. The rest is declared in pyproject.toml."""

import os
import platform
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCES = Path("src/rsoftmax/kernels/cpu/csrc")
COMMON = [
    "-std=c++17",
    "-Wall",
    "-Wextra",
    "-O2",  # and -O3 for the row functions: elsewhere it compiles longer and runs no faster
    "-g0",  # Python's own flags ask for debug symbols, which would be four fifths of the wheel
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-fvisibility=hidden",
]
ROW_FUNCTIONS = ("float32", "float64")
AVX2 = ["-mavx2", "-mfma", "-mf16c", "-mbmi", "-mbmi2", "-mpopcnt"]
LEVELS = {"baseline": []}
if platform.machine() in ("x86_64", "AMD64"):
    LEVELS |= {
        "avx2": AVX2,
        "avx512": [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512"],
    }
if os.environ.get("RSOFTMAX_WIDE"):  # the vectors of AVX-512 in narrower registers, for `make test-wide`
    LEVELS["wide"] = [*LEVELS.get("avx2", []), "-DWIDE_VECTORS", "-Wno-psabi"]


class BuildKernels(build_ext):
    """Compiles all source files of all libraries side by side, through ccache if it is installed."""

    def build_extensions(self) -> None:
        """Compile, then link."""
        for name in ("compiler_so", "compiler_so_cxx"):
            command = getattr(self.compiler, name, None)
            if command and "ccache" not in command[0] and shutil.which("ccache"):
                setattr(self.compiler, name, ["ccache", *command])
        self.pool = ThreadPoolExecutor(self.parallel if isinstance(self.parallel, int) else os.cpu_count() or 1)
        self.parallel = len(self.extensions) or None  # one thread for each library, which waits for the pool
        super().build_extensions()

    def build_extension(self, extension: Extension) -> None:
        """Build one library, with a folder of its own for the object files, which have the same names."""
        sys.stderr.write(f"compiling the {extension.name.rsplit('_')[-1]} kernels\n")
        alone: Any = copy(self)
        alone.build_temp = str(Path(self.build_temp, extension.name))
        alone.compiler = copy(self.compiler)
        compile_one = self.compiler.compile

        def compile_file(source: str, extra_postargs: list[str], **options: Any) -> list[str]:
            faster = ["-O3"] if Path(source).stem in ROW_FUNCTIONS else []
            return compile_one([source], extra_postargs=[*extra_postargs, *faster], **options)  # type: ignore[no-any-return]

        def compile_all(sources: list[str], **options: Any) -> list[str]:
            jobs = [self.pool.submit(compile_file, source, **options) for source in sources]
            return [file for job in jobs for file in job.result()]

        alone.compiler.compile = compile_all
        build_ext.build_extension(alone, extension)


setup(
    cmdclass={"build_ext": BuildKernels},
    ext_modules=[
        Extension(
            f"rsoftmax.kernels.cpu._rows_{level}",
            sorted(map(str, SOURCES.rglob("*.cpp"))),
            depends=sorted(map(str, SOURCES.rglob("*.h"))),  # which also brings them into the source distribution
            define_macros=[("LEVEL", level)],
            extra_compile_args=[*COMMON, *flags],
            py_limited_api=True,
            optional=True,  # without a compiler the package installs all the same, and runs on plain torch
        )
        for level, flags in LEVELS.items()
        if platform.system() != "Windows"  # its compiler has no vector types: there plain torch runs
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
