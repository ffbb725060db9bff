# In a fresh clone, with Python 3.11 and make (PYTHON=python3.13 uses another, in .venv-python3.13):
#
#   make demo    trains on a film larger than its memory, and reports               (ARGS="--data my.npy")
#                ARGS=--quick: a film of 120 MB, one epoch
#   make test    every test: the fast set first, on a machine without frameworks     (under 25 minutes)
#   make check   format, lint, types
#   make bench   every benchmark, one after another; see the docstring of each       (BENCH=benchmarks/x.py)
#   make clean   removes the results
#
# While you work: `make test-fast` (a minute), `make format`.
# Requirements are installed into .venv once, and again when pyproject.toml changes.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
# With it, each of the hundreds of processes that tests start would compile the package again.
unexport PYTHONDONTWRITEBYTECODE
.NOTPARALLEL: # one venv, and tests that measure
.PHONY: demo test test-fast test-framework test-keras test-faults test-limits check format bench clean

# python3.11, the oldest supported version; without it, the first that is new enough.
PYTHON :=
PYTHONS := $(or $(PYTHON),python3.11 python3 python)
VENV := .venv$(if $(PYTHON),-$(subst /,-,$(PYTHON)))
PY := $(VENV)/bin/python
PIP_INSTALL := $(PY) -m pip install --quiet --disable-pip-version-check
INSTALLING = @echo "Installing what $(subst $(STAMP)-,,$@) needs into $(VENV) ..."
STAMP := $(VENV)/.installed
BENCH ?= $(sort $(wildcard benchmarks/[!_]*.py))
ARGS ?=

# Every test belongs to exactly one of the five sets; a set without tests is an error.
FAST := not framework and not limits and not faults and not slow
FRAMEWORK := framework and not keras and not limits
KERAS := keras and not limits
FAULTS := (faults or slow) and not framework and not limits
LIMITS := limits
# Two processes run the tests of a set. Each checks for leftovers. If a test hangs, its process prints all stacks and
# fails, and a new one continues. ARGS=-n0 uses a single process.
PARALLEL := --numprocesses=2 --dist=worksteal

demo: $(STAMP)-demo
	$(VENV)/bin/penstock demo $(ARGS)

test: test-fast test-framework test-keras test-faults test-limits

test-fast: $(STAMP)-core
	$(PY) -m pytest $(PARALLEL) -m "$(FAST)" -o faulthandler_timeout=60 $(ARGS)

test-framework: $(STAMP)-frameworks
	$(PY) -m pytest $(PARALLEL) -m "$(FRAMEWORK)" $(ARGS)

# A process has one Keras backend for its whole life.
test-keras: $(STAMP)-frameworks
	@for backend in tensorflow jax torch; do \
		echo "== Keras on $$backend"; \
		KERAS_BACKEND=$$backend $(PY) -m pytest $(PARALLEL) -m "$(KERAS)" $(ARGS); \
	done

test-faults: $(STAMP)-core
	$(PY) -m pytest $(PARALLEL) -m "$(FAULTS)" $(ARGS)

# One after the other, because these measure.
test-limits: $(STAMP)-frameworks
	$(PY) -m pytest -m "$(LIMITS)" $(ARGS)

check: $(STAMP)-check
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

format: $(STAMP)-check
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

bench: $(STAMP)-bench
	@for file in $(BENCH); do echo "== $$file"; $(PY) "$$file" $(ARGS); done

clean:
	rm -rf .venv .venv-* build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# pip: 25.1 is the first that knows dependency groups.
$(STAMP)-venv:
	@for python in $(PYTHONS); do \
		if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			$$python -m venv --clear $(VENV); \
			$(PIP_INSTALL) --upgrade 'pip>=25.1'; \
			touch $@; \
			exit 0; \
		fi; \
	done; \
	echo 'penstock needs Python 3.11 or newer; none on PATH of $(PYTHONS) is one.' >&2; \
	exit 1

$(STAMP)-core: $(STAMP)-venv pyproject.toml
	$(INSTALLING)
	$(PIP_INSTALL) -e '.[hdf5,image,parquet,remote,tfrecord,zarr]' --group test
	touch $@

$(STAMP)-demo: $(STAMP)-venv pyproject.toml
	$(INSTALLING)
	$(PIP_INSTALL) -e '.[demo]' --group tensorflow
	touch $@

$(STAMP)-frameworks: $(STAMP)-core pyproject.toml
	$(INSTALLING)
	$(PIP_INSTALL) -e '.[demo,hdf5,image,jax,keras,parquet,remote,tfrecord,zarr]' --group test --group frameworks
	touch $@

$(STAMP)-bench: $(STAMP)-frameworks pyproject.toml
	$(INSTALLING)
	$(PIP_INSTALL) -e . --group frameworks --group bench
	touch $@

$(STAMP)-check: $(STAMP)-venv pyproject.toml
	$(INSTALLING)
	$(PIP_INSTALL) -e . --group check
	touch $@
