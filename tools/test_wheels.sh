#!/usr/bin/env bash
# test_wheels.sh FOLDER: installs the wheels in FOLDER into an empty environment that has no compiler, and runs the tests
# and the examples of the documentation against them in a folder without the sources; then installs the library's source
# archive with a compiler, for its kernels.
set -euo pipefail
dist=$(realpath "$1")
home=$(realpath "$(dirname "$0")/..")
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

new_environment() { # NAME, then what pip is to install
    "${PYTHON:-python3}" -m venv "$place/$1"
    "$place/$1/bin/python" -m pip install -qq --disable-pip-version-check --constraint "$home/constraints.txt" "${@:2}"
}

cd "$place"
mkdir lab
cp -r "$home"/lab/tests lab
cp -r "$home"/{docs,examples,tests,tools,results,conftest.py,pyproject.toml,README.md} .
library=("$dist"/rsoftmax-[0-9]*.whl) lab=("$dist"/rsoftmax_lab-*.whl) archive=("$dist"/rsoftmax-[0-9]*.tar.gz)

CC=false CXX=false new_environment wheel "${library[0]}[dev]" "${lab[0]}[dask,images,ray]"
wheel/bin/python -c "import rsoftmax; print('wheel:', rsoftmax.kernels.cpu_kernels()); assert 'native' in rsoftmax.kernels.cpu_kernels()"
wheel/bin/python -m pytest --numprocesses auto tests lab/tests docs README.md

new_environment archive "${archive[0]}"
archive/bin/python -c "import rsoftmax; print('archive:', rsoftmax.kernels.cpu_kernels()); assert 'native' in rsoftmax.kernels.cpu_kernels()"
