"""Builds the kernels: the same source once for each instruction set. The rest is declared in pyproject.toml."""

import platform
from copy import copy
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HOME = Path("src/rsoftmax/kernels/cpu")
COMMON = [
    "-std=c++17",
    "-Wall",
    "-Wextra",
    "-O3",
    "-g0",  # Python's own flags ask for debug symbols, which would be four fifths of the wheel
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-fvisibility=hidden",
]
AVX2 = ["-mavx2", "-mfma", "-mbmi", "-mbmi2", "-mpopcnt"]
LEVELS = {"baseline": []}
if platform.machine() in ("x86_64", "AMD64"):
    LEVELS |= {
        "avx2": AVX2,
        "avx512": [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512"],
    }


class AllAtOnce(build_ext):
    """Builds the libraries at the same time, each with a folder for its object files, which have the same names."""

    def initialize_options(self) -> None:
        """As many at once as there are; ``--parallel`` says otherwise."""
        super().initialize_options()
        self.parallel = len(LEVELS)

    def build_extension(self, extension: Extension) -> None:
        """Builds one of them."""
        alone = copy(self)
        alone.build_temp = str(Path(self.build_temp, extension.name))
        build_ext.build_extension(alone, extension)


setup(
    cmdclass={"build_ext": AllAtOnce},
    ext_modules=[
        Extension(
            f"rsoftmax.kernels.cpu._rows_{level}",
            [str(HOME / "rows.cpp"), str(HOME / "attention.cpp")],
            depends=sorted(map(str, HOME.glob("*.h"))),  # which also brings them into the source distribution
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
