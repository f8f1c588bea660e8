# Every target sets up what it needs in a fresh clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests start many interpreters: each would compile all it imports anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo serve check test test-all lint setup docs dist figures paper paper-sample paper-gpu clean

demo: $(VENV)/.plot
	$(BIN)/lastword demo --plot out/demo.png

# The server on an embedded model: http://127.0.0.1:8000, a page and the OpenAI API.
serve: $(VENV)/.serve
	$(BIN)/lastword serve --model tiny-llada-instruct

# A worker per core with one thread each: torch threads that share a core wait for one another. Tests of a file
# go to one worker, which makes its fixtures once.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile

# What `check` leaves to `test`: other programs, records, training, servers under load, and laws that need a network,
# above all that rows of a batch equal their solo runs.
BEYOND_CHECK := lastword/evaluate $(addprefix tests/,bad_inputs benchmarks cli evaluate sandbox tasks training \
	batch/test_docs.py batch/test_engines.py engines/test_processes.py laws/test_cross.py serve/test_contract.py \
	serve/test_load.py serve/test_process.py test_bench.py test_examples.py test_package.py test_platforms.py \
	test_readme.py test_skips.py viz/test_watch.py)

# While you work: units, contracts, laws on the toy model, golden runs. Under 2 minutes on two cores.
check: setup
	$(PYTEST) -m 'not gpu and not full and not slow' -k 'not solo_run and not (laws and (llada or dream))' \
		$(BEYOND_CHECK:%=--ignore=%)

# Before a commit: lint, types and every test that is not slow by nature. Under 6 minutes on two cores.
test: setup lint
	$(PYTEST)

# Slow by nature: more of the cross, whole datasets, wheel and sdist, other Pythons. Under 30 minutes on two cores.
test-all: setup
	$(PYTEST) --dist load -m full

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/codespell

# The site, into out/site: open out/site/index.html. A dead link, anchor or name is an error.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Every figure in README and docs, drawn anew.
figures: setup
	$(BIN)/python -m benchmarks.figures --measure

# The paper's tables on the embedded models: all of it where there is a GPU, else a sample.
paper: setup
	@if $(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; \
		then $(MAKE) paper-gpu; else $(MAKE) paper-sample; fi

# Six minutes of one core; SAMPLED="tiny-dream-base" asks another model.
SAMPLED ?= tiny-llada-base tiny-llada-instruct
PER_FAMILY ?= 1
ROWS ?= 5
WORKERS ?= 1
paper-sample: setup
	$(BIN)/python -m benchmarks.study run --arms paper --models $(SAMPLED) --per-family $(PER_FAMILY) --rows $(ROWS) \
		--workers $(WORKERS) --out out/paper-sample/records --kept out/paper-sample/kept
	$(BIN)/python -m benchmarks.paper --records out/paper-sample/records --out out/paper-sample/tables

# Answers by several workers at once, then seconds by one alone.
paper-gpu: setup
	$(BIN)/python -m benchmarks.study run --arms paper beyond --rows 500 --workers 6 \
		--out out/paper/records --kept out/paper/kept
	$(BIN)/python -m benchmarks.study run --arms speed --rows 500 --out out/paper/timed --kept out/paper/kept
	$(BIN)/python -m benchmarks.paper --records out/paper/records --timed out/paper/timed --out out/paper/tables

# Wheel and source distribution as a release has them, checked as the package index would.
dist: setup
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist
	$(BIN)/twine check --strict dist/*

setup: $(VENV)/.dev

# The package with one extra and no more. constraints.txt pins torch and what scores. Where $(VENV) has that
# torch already, built for CPUs perhaps, it is kept: the usual build brings gigabytes of CUDA.
$(VENV)/.%: pyproject.toml constraints.txt
	@echo "Installing lastword[$*] into $(VENV), quietly. The first time fetches torch, which may take minutes."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$*]'
	mkdir -p out
	touch $@

clean:
	rm -rf $(VENV) out dist build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
