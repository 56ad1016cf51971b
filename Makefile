# make demo, make test: everything on a fresh machine with Python 3.11 or newer, git, make and a compiler.
PYTHON ?= python3
BIN := .venv/bin
PARALLEL := --numprocesses auto --dist worksteal
INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt
DECLARED := pyproject.toml lab/pyproject.toml constraints.txt setup.py $(wildcard $(addprefix src/rsoftmax/kernels/cpu/csrc/*/,*.cpp *.h))

.PHONY: demo check test test-all coverage test-wide test-fragile browser test-gpu test-oldest sanitize compilers fuzz tables docs dist dist-check clean

demo: .venv/installed-demo
	@$(BIN)/rsoftmax demo

# Linters, types and import rules.
check: .venv/installed-dev
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { echo "run: $(BIN)/ruff format ."; exit 1; }
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-logo > .venv/lint-imports.log || { cat .venv/lint-imports.log; exit 1; }

# The short suite, for every commit: the tests without a mark (pyproject.toml declares the marks).
test: check
	@$(BIN)/pytest $(PARALLEL) --short

# The whole suite; its tests of the kernels also with other libraries than the one that this processor chooses.
test-all: check test-wide
	@RSOFTMAX_TEST_LIBRARY=baseline $(BIN)/pytest $(PARALLEL) --short tests/test_attention_kernel.py tests/test_attention.py
	@$(BIN)/pytest $(PARALLEL)

# The tests of the kernels with the vectors of AVX-512, which any processor with AVX2 runs in two registers each.
test-wide: .venv/installed-wide
	@RSOFTMAX_TEST_LIBRARY=wide $(BIN)/pytest $(PARALLEL) --short tests/test_kernels.py tests/test_attention_kernel.py \
		tests/test_attention.py tests/test_vector_width.py tests/test_properties_attention.py tests/test_properties_mappings.py

# The lines that the short suite runs, by file; TESTS=... selects other tests.
coverage: .venv/installed-dev
	@$(BIN)/pytest $(PARALLEL) $(or $(TESTS),--short) --cov=rsoftmax --cov=rsoftmax_lab --cov-report=term:skip-covered

# Tests whose verdict depends on instruction sets, threads or seeds: the short suite in seven environments, or
# TESTS="-m train" and other arguments of pytest.
test-fragile: .venv/installed-dev
	@$(BIN)/python tools/fragile.py $(TESTS)

# Installs chromium and the packages for the tests in a browser, which skip without them.
browser: .venv/installed-dev
	@$(INSTALL) 'rsoftmax[browser]' || echo "make browser: gradio and playwright could not be installed; tests in a browser will skip"
	@command -v chromium > /dev/null || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes chromium; } \
		|| echo "make browser: no chromium, and apt-get cannot install one here; tests in a browser will skip"

# The tests of the GPU kernels on a CUDA or ROCm GPU; needs a build of torch for it.
test-gpu: .venv/installed-dev
	@$(BIN)/python -c 'import sys, torch; sys.exit(None if torch.cuda.is_available() else f"make test-gpu: torch {torch.__version__} finds no CUDA or ROCm GPU; run it where there is one, with a build of torch for it")'
	@$(BIN)/pytest -m gpu

# The whole suite with the oldest release of every dependency that pyproject.toml allows; torch stays the pinned one.
test-oldest: .venv.oldest/installed
	@.venv.oldest/bin/pytest $(PARALLEL) --override-ini filterwarnings=default  # old releases emit deprecation warnings

# The kernels under AddressSanitizer and UBSan: built apart, and tested at every instruction set.
sanitize: .venv/installed-dev
	@$(BIN)/python tools/sanitize.py

# The kernels by gcc and by clang, built apart; a warning is an error.
compilers: .venv/installed-dev
	@for pair in "gcc g++" "clang clang++"; do \
		set -- $$pair; rm -rf build/$$1; \
		output=$$(CC=$$1 CXX=$$2 $(BIN)/python setup.py -q build_ext --build-temp build/$$1 --build-lib build/$$1 2>&1) || { echo "$$output"; exit 1; }; \
		case "$$output" in *warning:*|*error:*|*failed*) echo "$$output"; exit 1;; esac; \
		echo "$$1: $$(find build/$$1 -name '_rows_*.so' | wc -l) libraries, no warnings"; \
	done

# The property tests with very many random cases, in rounds until five minutes or SECONDS=... are over. What fails is
# shrunk and kept in .hypothesis, where the next run of that test starts. TESTS=... selects some of them.
PROPERTIES := tests/test_properties_*.py lab/tests/test_damaged_files.py
fuzz: .venv/installed-dev
	@end=$$(($$(date +%s) + $(or $(SECONDS),300))); until [ $$(date +%s) -ge $$end ]; do \
		$(BIN)/pytest $(PARALLEL) --hypothesis-profile fuzz $(or $(TESTS),$(PROPERTIES)) || exit 1; \
	done

# Regenerates the tables of the documentation, and the pictures of the README.
tables: .venv/installed-dev
	@$(BIN)/python tools/tables.py
	@$(BIN)/python tools/pictures.py

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
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; run make PYTHON=...")'
	@$(PYTHON) -m venv .venv

.venv/installed-demo: .venv/bin/python $(DECLARED)
	@echo "installing into .venv and compiling the kernels (a minute or two the first time)"
	@$(INSTALL) --editable . --editable lab
	@touch $@

.venv/installed-dev: .venv/bin/python $(DECLARED)
	@echo "installing into .venv and compiling the kernels (a minute or two the first time)"
	@$(INSTALL) --editable '.[dev]' --editable 'lab[dask,images,ray]'
	@touch $@ .venv/installed-demo

.venv/installed-wide: .venv/installed-dev
	@RSOFTMAX_WIDE=1 $(BIN)/python setup.py -q build_ext --inplace
	@touch $@

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
