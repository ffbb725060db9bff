# In a fresh clone, with Python 3.11 and make (PYTHON=python3.13 uses another, in .venv-python3.13):
#
#   make demo    trains on a film larger than its memory, and reports               (ARGS="--data my.npy")
#                ARGS=--quick: a film of 120 MB, one epoch
#   make test    every test: the fast set first, on a machine without frameworks     (about 15 minutes)
#                What fails runs once more, alone; a summary stands at the end       (outputs: build/tests/)
#   make check   format, lint, types; where there is a C++ compiler, the copy engine with its warnings as errors
#   make bench   every benchmark, one after another; see the docstring of each       (BENCH=benchmarks/x.py)
#   make docs    the site of the documentation, in site/
#   make dist    the sdist, and a wheel for this platform, in dist/
#   make sanitize   the tests of the copy engine under AddressSanitizer, UBSan and ThreadSanitizer (Linux, GCC)
#   make fuzz    damages small files of every format, and reads them             (SECONDS=3600; ARGS="--formats npy")
#   make clean   removes the results
#
# While you work: `make test-fast` (two minutes), `make format`.
# Requirements are installed into .venv once, and again when pyproject.toml changes.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
# With it, each of the hundreds of processes that tests start would compile the package again.
unexport PYTHONDONTWRITEBYTECODE
.NOTPARALLEL: # one venv, and tests that measure
.PHONY: demo test test-fast test-framework test-keras test-faults test-cluster test-trainers test-limits
.PHONY: check check-native sanitize fuzz dist format bench clean docs

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

# Every test belongs to exactly one of the seven sets; a set without tests is an error.
FAST := not framework and not limits and not faults and not slow
FRAMEWORK := framework and not keras and not limits and not trainers and not cluster
KERAS := keras and not limits
FAULTS := (faults or slow) and not framework and not limits and not cluster
CLUSTER := cluster
TRAINERS := trainers
LIMITS := limits
# For two cores: two processes run tests that compute, more run those that often wait. Each checks for leftovers. If a
# test hangs, its process prints all stacks and fails, and a new one continues. ARGS=-n0 uses a single process.
PARALLEL := --numprocesses=2 --dist=worksteal
# The same with one process, for tests that measure or share a cluster.
SERIAL := --numprocesses=1
PYTEST = $(PY) -m pytest
KERAS_SETS := keras-tensorflow keras-jax keras-torch
KERAS_AT_ONCE := keras-tensorflow+keras-jax+keras-torch
.PHONY: $(KERAS_SETS:%=test-%)
# Tests and programs run side by side, and their frameworks' threads would wait for each other's CPUs.
FRAMEWORK_ENV := OMP_NUM_THREADS=1

demo: $(STAMP)-demo
	$(VENV)/bin/penstock demo $(ARGS)

# All sets run, also after one that failed. PYTEST is then tests/sets.py, which runs once more what failed. A cluster
# waits most of the time, so its set runs beside another.
test: $(STAMP)-venv
	@$(PY) -m tests.sets all $(MAKE_COMMAND) fast framework+cluster $(KERAS_AT_ONCE) faults limits

test-fast: $(STAMP)-core
	$(PYTEST) $(PARALLEL) --numprocesses=3 -m "$(FAST)" $(ARGS)

test-framework: $(STAMP)-frameworks
	$(FRAMEWORK_ENV) $(PYTEST) $(PARALLEL) -m "$(FRAMEWORK)" $(ARGS)

test-keras: $(STAMP)-venv
	@$(PY) -m tests.sets all $(MAKE_COMMAND) $(KERAS_AT_ONCE)

# A process has one Keras backend for its whole life, and imports it in ten seconds: one process for each.
$(KERAS_SETS:%=test-%): test-keras-%: $(STAMP)-frameworks
	$(FRAMEWORK_ENV) KERAS_BACKEND=$* $(PYTEST) $(SERIAL) -m "$(KERAS)" $(ARGS)

# Half of the time these tests wait, for processes that start or end, and one waits for the fuzzer: six processes.
test-faults: $(STAMP)-core
	$(PYTEST) $(PARALLEL) --numprocesses=6 -m "$(FAULTS)" $(ARGS)

test-cluster: $(STAMP)-cluster
	$(PYTEST) $(SERIAL) -m "$(CLUSTER)" $(ARGS)

# Not part of `test`: Lightning, accelerate and transformers are large, and take three minutes.
test-trainers: $(STAMP)-trainers
	$(PYTEST) -m "$(TRAINERS)" $(ARGS)

test-limits: $(STAMP)-frameworks
	$(PYTEST) $(SERIAL) -m "$(LIMITS)" $(ARGS)

check: $(STAMP)-check
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	@if command -v $(CXX) >/dev/null; then $(MAKE) --no-print-directory check-native; fi

# The copy engine: format, and warnings are errors.
NATIVE := $(wildcard src/penstock/native/*.?pp tests/native/*.cpp)
CMAKE := $(PY) -m cmake
CONFIGURE = $(CMAKE) -S . -DPython_EXECUTABLE=$(abspath $(PY)) -DPENSTOCK_WERROR=ON --log-level=WARNING
check-native: $(STAMP)-check
	$(VENV)/bin/clang-format --dry-run --Werror $(NATIVE)
	$(CONFIGURE) -B build/check -DCMAKE_BUILD_TYPE=Release
	$(CMAKE) --build build/check

# Left out: builds of the package, the oracle, programs of their own (they load the ordinary build), and rows of megabytes.
SANITIZED := not builds and not numpy and not divided and not other_faults and not forked and not forgotten and not environment and not memory_calls and not program_ends
PRELOAD = $(shell $(CXX) -print-file-name=libasan.so):$(shell $(CXX) -print-file-name=libstdc++.so)
# Python's own memory is no leak, and a request for too much is a MemoryError.
ASAN := detect_leaks=0:allocator_may_return_null=1
sanitize: $(STAMP)-core $(STAMP)-check
	$(CONFIGURE) -B build/address -DPENSTOCK_SANITIZE=address
	$(CMAKE) --build build/address
	PENSTOCK_ENGINE=$$(echo build/address/_engine*.so) LD_PRELOAD=$(PRELOAD) ASAN_OPTIONS=$(ASAN) \
		$(PY) -m pytest -p tests.native.sanitized tests/native --numprocesses=0 -k "$(SANITIZED)" $(ARGS)
	PENSTOCK_ENGINE=$$(echo build/address/_engine*.so) LD_PRELOAD=$(PRELOAD) ASAN_OPTIONS=$(ASAN) \
		$(PY) -m tests.fuzz --seconds 60
	$(CONFIGURE) -B build/thread -DPENSTOCK_SANITIZE=thread
	$(CMAKE) --build build/thread
	setarch -R build/thread/races

# Prints what ran of each format. Inputs that fail are kept in build/fuzz, with the commands that repeat them.
SECONDS := 300
fuzz: $(STAMP)-core
	$(PY) -m tests.fuzz --seconds $(SECONDS) $(ARGS)

docs: $(STAMP)-docs
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict
	@echo 'Open site/index.html, or serve it, for the search: $(PY) -m http.server -d site'

dist: $(STAMP)-dist
	rm -rf dist
	$(PY) -m build --outdir dist/built .
	mv dist/built/*.tar.gz dist/
	if [ -x $(VENV)/bin/auditwheel ]; then \
		PATH=$(abspath $(VENV)/bin):$$PATH $(VENV)/bin/auditwheel repair --wheel-dir dist dist/built/*.whl; \
	else \
		mv dist/built/*.whl dist/; \
	fi
	rm -rf dist/built

format: $(STAMP)-check
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/clang-format -i $(NATIVE)

bench: $(STAMP)-bench
	@for file in $(BENCH); do echo "== $$file"; $(PY) "$$file" $(ARGS); done

clean:
	rm -rf .venv .venv-* build dist site src/penstock/native/*.so .hypothesis .mypy_cache .pytest_cache .ruff_cache
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

$(STAMP)-core: $(STAMP)-venv pyproject.toml CMakeLists.txt $(wildcard src/penstock/native/*.?pp)
	$(INSTALLING)
	$(PIP_INSTALL) -e '.[arrayrecord,audio,hdf5,image,nifti,parquet,remote,text,tfrecord,video,xarray,zarr]' --group test
	touch $@

$(STAMP)-demo: $(STAMP)-venv pyproject.toml
	$(INSTALLING)
	$(PIP_INSTALL) -e '.[demo]' --group tensorflow
	touch $@

$(STAMP)-frameworks: $(STAMP)-core pyproject.toml
	$(INSTALLING)
	$(PIP_INSTALL) -e '.[arrayrecord,audio,demo,hdf5,image,jax,keras,lance,nifti,parquet,remote,text,tfrecord,video,xarray,zarr]' --group test --group frameworks
	touch $@

$(STAMP)-cluster: $(STAMP)-frameworks pyproject.toml
	$(INSTALLING)
	$(PIP_INSTALL) -e '.[ray]' --group cluster
	touch $@

$(STAMP)-trainers: $(STAMP)-frameworks pyproject.toml
	$(INSTALLING)
	$(PIP_INSTALL) -e . --group frameworks --group trainers
	touch $@

$(STAMP)-bench: $(STAMP)-frameworks pyproject.toml
	$(INSTALLING)
	$(PIP_INSTALL) -e . --group frameworks --group bench
	touch $@

$(STAMP)-check: $(STAMP)-venv pyproject.toml
	$(INSTALLING)
	$(PIP_INSTALL) -e . --group check
	touch $@

$(STAMP)-docs: $(STAMP)-venv pyproject.toml
	$(INSTALLING)
	$(PIP_INSTALL) --group docs
	touch $@

$(STAMP)-dist: $(STAMP)-venv pyproject.toml
	$(INSTALLING)
	$(PIP_INSTALL) --group dist
	touch $@
