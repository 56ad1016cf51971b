# make demo, make test: everything on a fresh machine with Python 3.11 or newer, git, make and a compiler.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt
DECLARED := pyproject.toml lab/pyproject.toml constraints.txt setup.py $(wildcard src/rsoftmax/kernels/cpu/*.cpp src/rsoftmax/kernels/cpu/*.h)

.PHONY: demo test browser test-gpu test-oldest sanitize compilers fuzz fuzz-numbers fuzz-files tables docs dist dist-check clean

demo: .venv/installed-demo
	@mkdir -p demo
	@$(BIN)/rsoftmax plot --logits 2 1.5 .3 -1 --r 0.5 --out demo/mappings.png
	@$(BIN)/rsoftmax reproduce synthetic --quick --out demo

test: .venv/installed-dev
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { echo "run: $(BIN)/ruff format ."; exit 1; }
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-logo > .venv/lint-imports.log || { cat .venv/lint-imports.log; exit 1; }
	@$(BIN)/pytest --numprocesses auto

# What the tests in a browser need, of `rsoftmax app` and of the site: a chromium and two Python packages. What cannot be
# installed is named, and is no error: the tests skip.
browser: .venv/installed-dev
	@$(INSTALL) 'rsoftmax[browser]' || echo "make browser: gradio and playwright could not be installed; tests in a browser will skip"
	@command -v chromium > /dev/null || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes chromium; } \
		|| echo "make browser: no chromium, and apt-get cannot install one here; tests in a browser will skip"

# The tests that use a GPU, on one: CUDA or ROCm, with a build of torch for it.
test-gpu: .venv/installed-dev
	@$(BIN)/python -c 'import sys, torch; sys.exit(None if torch.cuda.is_available() else f"make test-gpu: torch {torch.__version__} finds no CUDA or ROCm GPU; run it where there is one, with a build of torch for it")'
	@$(BIN)/pytest -m gpu

# The tests with the oldest release of every dependency that pyproject.toml allows; torch stays the pinned one.
test-oldest: .venv.oldest/installed
	@.venv.oldest/bin/pytest --numprocesses auto --override-ini filterwarnings=default  # old releases warn of their own end

# The kernels under AddressSanitizer and UBSan: built apart, and tested at every instruction set.
sanitize: .venv/installed-dev
	@$(BIN)/python tools/sanitize.py

# The kernels by gcc and by clang, built apart; a warning is an error.
compilers: .venv/installed-dev
	@for pair in "gcc g++" "clang clang++"; do \
		set -- $$pair; rm -rf build/$$1; \
		said=$$(CC=$$1 CXX=$$2 $(BIN)/python setup.py -q build_ext --build-temp build/$$1 --build-lib build/$$1 2>&1) || { echo "$$said"; exit 1; }; \
		case "$$said" in *warning:*|*error:*|*failed*) echo "$$said"; exit 1;; esac; \
		echo "$$1: $$(find build/$$1 -name '_rows_*.so' | wc -l) libraries, no warnings"; \
	done

# Random cases for mappings, losses, attention and heads, against slow oracles, and damaged files, each for five minutes
# or SECONDS=...; SEED=... repeats a run.
fuzz: fuzz-numbers fuzz-files

# The first half alone; CASE=... repeats the finding that named it.
fuzz-numbers: .venv/installed-dev
	@PYTHONPATH=tests $(BIN)/python tools/fuzz.py \
		$(if $(SEED),--seed $(SEED)) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(CASE),--case $(CASE))

# Damaged files of every kind that is read; SECONDS=... says for how long, SEED=... repeats a run.
fuzz-files: .venv/installed-dev
	@$(BIN)/python tools/fuzz_files.py --seconds $(or $(SECONDS),300) --seed $(or $(SEED),$(shell date +%s))

# Writes the generated tables of the documentation anew.
tables: .venv/installed-dev
	@$(BIN)/python tools/tables.py

# The site, in build/docs/index.html; a warning is an error, and so is a link that leads nowhere.
docs: .venv/installed-docs
	@$(BIN)/sphinx-build --builder html --fail-on-warning --keep-going --quiet docs build/docs
	@$(BIN)/python tools/check_site.py build/docs

# The archives and wheels of both distributions, in dist/.
dist: .venv/bin/python
	@rm -rf dist build
	@$(BIN)/python -m pip install -qq --disable-pip-version-check build
	@$(BIN)/python -m build --outdir dist .
	@$(BIN)/python -m build --outdir dist lab

# What a release must pass: texts, symbols, and every test against the installed wheels, without a compiler or the sources.
dist-check: dist
	@$(BIN)/python -m pip install -qq --disable-pip-version-check abi3audit auditwheel twine
	@$(BIN)/twine check --strict dist/*
	@$(BIN)/abi3audit --strict dist/rsoftmax-[0-9]*.whl
	@$(BIN)/auditwheel show dist/rsoftmax-[0-9]*.whl
	@tools/test_wheels.sh dist

clean:
	rm -rf .venv .venv.oldest build demo dist

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; say make PYTHON=...")'
	@$(PYTHON) -m venv .venv

.venv/installed-demo: .venv/bin/python $(DECLARED)
	@echo "installing into .venv (a minute or two the first time)"
	@$(INSTALL) --editable . --editable lab
	@touch $@

.venv/installed-dev: .venv/bin/python $(DECLARED)
	@echo "installing into .venv (a minute or two the first time)"
	@$(INSTALL) --editable '.[dev]' --editable 'lab[dask,images,ray]'
	@touch $@ .venv/installed-demo

.venv/installed-docs: .venv/installed-dev
	@$(INSTALL) 'rsoftmax[docs]'
	@touch $@

.venv.oldest/installed: $(DECLARED)
	@echo "installing the oldest releases into .venv.oldest (a few minutes)"
	@$(PYTHON) -m venv .venv.oldest
	@.venv.oldest/bin/python -m pip install -qq --disable-pip-version-check uv
	@{ printf '%s\n' '-e .[dev,images]' '-e lab[dask,images,ray]'; grep '^torch==' constraints.txt; } \
		| .venv.oldest/bin/uv pip compile --quiet --resolution lowest-direct - | grep '==' > .venv.oldest/constraints.txt
	@.venv.oldest/bin/python -m pip install -qq --disable-pip-version-check --constraint .venv.oldest/constraints.txt \
		--editable '.[dev,images]' --editable 'lab[dask,images,ray]'
	@touch $@
