#!/usr/bin/env bash
# test_wheels.sh FOLDER: installs the wheels in FOLDER into an empty environment that has no compiler, and runs the tests
# against them in an empty folder; then does the same with the library's source archive and a compiler, for its kernels.
set -euo pipefail
dist=$(realpath "$1")
home=$(realpath "$(dirname "$0")/..")
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

new_environment() { # NAME, then what pip is to install
    python3 -m venv "$place/$1"
    "$place/$1/bin/python" -m pip install -qq --disable-pip-version-check --constraint "$home/constraints.txt" "${@:2}"
}

cd "$place"
cp -r "$home"/{docs,examples,tests,tools,results,conftest.py,pyproject.toml,README.md} .
library=("$dist"/rsoftmax-[0-9]*.whl) lab=("$dist"/rsoftmax_lab-*.whl) archive=("$dist"/rsoftmax-[0-9]*.tar.gz)

CC=false CXX=false new_environment wheel "${library[0]}[dev]" "${lab[0]}"
wheel/bin/python -c "import rsoftmax; print('wheel:', rsoftmax.kernels.in_use()); assert 'native' in rsoftmax.kernels.in_use()"
wheel/bin/python -m pytest --numprocesses auto tests

new_environment archive "${archive[0]}"
archive/bin/python -c "import rsoftmax; print('archive:', rsoftmax.kernels.in_use()); assert 'native' in rsoftmax.kernels.in_use()"
