# Every target installs what it needs, also in a new clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests start many interpreters; without bytecode files, each would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo serve check test test-all lint setup docs dist figures paper paper-sample paper-gpu clean

demo: $(VENV)/.plot
	$(BIN)/lastword demo --plot out/demo.png

# Serve an embedded model on http://127.0.0.1:8000, with a page and the OpenAI API.
serve: $(VENV)/.serve
	$(BIN)/lastword serve --model tiny-llada-instruct

# One worker per core, with one thread each, because torch threads that share a core slow each other down. All tests
# of a file run in one worker, so its fixtures are created once.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile

# Tests that `check` skips and `test` runs: other programs, records, training, servers under load. `check` also skips
# the laws on the networks of LLaDA and Dream, and the tests that rows of a batch equal their solo runs.
BEYOND_CHECK := lastword/evaluate $(addprefix tests/,bad_inputs benchmarks cli evaluate sandbox tasks training \
	batch/test_docs.py batch/test_engines.py engines/test_processes.py laws/test_cross.py serve/test_contract.py \
	serve/test_load.py serve/test_process.py test_bench.py test_examples.py test_package.py test_platforms.py \
	test_readme.py test_skips.py viz/test_watch.py)

# While you work: unit tests, contracts, laws on the toy model, golden runs. Under 2 minutes on two cores.
check: setup
	$(PYTEST) -m 'not gpu and not full and not slow' -k 'not solo_run and not (laws and (llada or dream))' \
		$(BEYOND_CHECK:%=--ignore=%)

# Before a commit: lint, types and all tests that are not marked `full`. Under 6 minutes on two cores.
test: setup lint
	$(PYTEST)

# The slowest tests: more combinations of parts, whole datasets, packages, other Pythons. Under 30 minutes on two cores.
test-all: setup
	$(PYTEST) --dist load -m full

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/codespell

# Build the site: open out/site/index.html. A dead link, anchor or name is an error.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Measure and draw every figure in README and docs.
figures: setup
	$(BIN)/python -m benchmarks.figures --measure

# Reproduce the paper's tables with the embedded models: completely on a GPU, otherwise a sample.
paper: setup
	@if $(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; \
		then $(MAKE) paper-gpu; else $(MAKE) paper-sample; fi

# Six minutes on one core. SAMPLED="tiny-dream-base" selects another model.
SAMPLED ?= tiny-llada-base tiny-llada-instruct
PER_FAMILY ?= 1
BATCH_SIZE ?= 5
WORKERS ?= 1
paper-sample: setup
	$(BIN)/python -m benchmarks.study run --arms paper --models $(SAMPLED) --per-family $(PER_FAMILY) --batch-size $(BATCH_SIZE) \
		--workers $(WORKERS) --out out/paper-sample/records --kept out/paper-sample/kept
	$(BIN)/python -m benchmarks.paper --records out/paper-sample/records --out out/paper-sample/tables

# Several workers compute the answers; then a single process measures the seconds.
paper-gpu: setup
	$(BIN)/python -m benchmarks.study run --arms paper beyond --workers 6 \
		--out out/paper/records --kept out/paper/kept
	$(BIN)/python -m benchmarks.study run --arms speed --batch-size 1 --per-family 10 \
		--out out/paper/timed --kept out/paper/kept
	$(BIN)/python -m benchmarks.paper --records out/paper/records --timed out/paper/timed --out out/paper/tables

# Build and check the wheel and the source distribution of a release.
dist: setup
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist
	$(BIN)/twine check --strict dist/*

setup: $(VENV)/.dev

# Install the package with one extra. constraints.txt pins torch and the packages that score answers. A build of this
# torch for CPUs that $(VENV) has already is kept; the default build downloads gigabytes of CUDA.
$(VENV)/.%: pyproject.toml constraints.txt
	@echo "Installing lastword[$*] into $(VENV), quietly. The first time fetches torch, which may take minutes."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$*]'
	mkdir -p out
	touch $@

clean:
	rm -rf $(VENV) out dist build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
