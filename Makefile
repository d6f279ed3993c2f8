# make build    kernels, wheel, and a .venv that has it           make test       all that needs no GPU
#   KERNELS="hopper tma" leaves the others out, for work on these
# make wheels   every CPython 3.10-3.14 that is there, MACHINES   make test-gpu   on a GPU, in the environment of PYTHON
# make golden   keeps the emitter's text anew                     make bench      the same, beside cuBLAS and others
# make emulate  TESTS="tests/gpu/..." on an emulator of PTX: slow, needs no GPU
# make lock     pins what requirements/*.txt name, with hashes    make lock-artifacts  keeps the kernels' hashes anew
# make repro    two builds, two folders, two dates: equal bytes   make clean
# make lint     ruff, clang-format, clang-tidy, pyright          make format   what of it a program can mend
# make fuzz     on a GPU: random walks for SECONDS, from SEED on  make sanitize   the same without one, under sanitizers
PYTHON ?= python3
ARCHS ?= 80 90
KERNELS ?=
VENV ?= .venv
PYTHONS ?= $(shell .ci/pythons)
MACHINES ?= x86_64 aarch64
SECONDS ?= 60
SEED ?= 1
TESTS ?= tests/gpu/test_quantize.py
ARGS ?= --seconds $(SECONDS) --seed $(SEED)
export ARCHS KERNELS
# Dates inside the wheel: 2026-01-01, whatever the day.
export SOURCE_DATE_EPOCH := 1767225600

BIN := $(VENV)/bin
# 3.12, or 3.14t of a free-threaded one.
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d%s" % (*sys.version_info[:2], sys.abiflags))')
MACHINE := $(shell uname -m)
OWN_WHEEL := dist/gg_runtime-*-cp3*-cp$(subst .,,$(VERSION))-*_$(MACHINE).whl
# Triton 3.9 has no wheel for Python 3.10: there, the newest interpreter that is found compiles the kernels.
KERNEL_PYTHON ?= $(if $(filter 3.10,$(VERSION)),$(or $(lastword $(filter-out %3.10,$(PYTHONS))),\
  $(error Python 3.10 links the wheel, but 3.11 to 3.14 must compile the kernels and none is found: set KERNEL_PYTHON)))
INSTALL := $(BIN)/pip install -qq --disable-pip-version-check
MANIFEST := build/aot/manifest.json
ENVIRONMENT := $(VENV)/environment-$(VERSION)
COMPILER := $(if $(filter 3.10,$(VERSION)),build/venv-kernels,$(VENV))
WHEEL := build/wheel-$(VERSION)
SITE := build/site-$(VERSION)
LINT := build/venv-lint
C_SOURCES = $(shell find csrc tests -name '*.[ch]' -o -name '*.[ch]pp' | grep -v -e ^tests/cpu/golden/ -e ^csrc/abi/dlpack/)
SOURCES := setup.py aot/build/native.py aot/emit/sbom.py pyproject.toml README.md LICENSE $(wildcard LICENSES/*) .ci/wheel \
  requirements/wheel.txt requirements/build.lock \
  $(shell find csrc gg_runtime -type f -not -name '*.pyc')

.PHONY: build kernels wheel wheels test test-gpu emulate bench fuzz sanitize lint lint-python lint-cpp lint-types format golden
.PHONY: lock lock-artifacts repro clean FORCE
.DELETE_ON_ERROR:

build: $(VENV)/installed-$(VERSION)
	@$(BIN)/python -m aot list
	@ls -l $(OWN_WHEEL)
	@echo "next: make test"

kernels: $(MANIFEST)
wheel: $(WHEEL)

$(ENVIRONMENT): requirements/build.lock requirements/test.txt requirements/transformers.txt
	$(PYTHON) -m venv --clear $(VENV)
	$(INSTALL) --require-hashes -r requirements/build.lock
	$(INSTALL) -r requirements/test.txt $(if $(filter %t,$(VERSION)),,-r requirements/transformers.txt)
	@# Only a CPU build, which is found where an index offers it; the plain one would bring gigabytes of CUDA.
	@$(INSTALL) torch==2.13.0+cpu 2>/dev/null \
	  || echo "no CPU build of torch is to be had here: the tests run with numpy alone"
	@touch $@

build/venv-kernels/environment: requirements/build.lock
	$(KERNEL_PYTHON) -m venv --clear build/venv-kernels
	build/venv-kernels/bin/pip install -qq --disable-pip-version-check --require-hashes -r requirements/build.lock
	@touch $@

# Always asked, as only the builder knows its keys; the folder is replaced only when its content changes.
$(MANIFEST): $(ENVIRONMENT) $(if $(filter $(VENV),$(COMPILER)),,build/venv-kernels/environment) FORCE
	@$(COMPILER)/bin/python -m aot build -q

$(WHEEL): $(MANIFEST) $(SOURCES) $(if $(wildcard $(OWN_WHEEL)),,FORCE)
	.ci/wheel $(BIN) $(BIN)/python $(MACHINE)
	@touch $@

$(VENV)/installed-$(VERSION): $(WHEEL)
	$(INSTALL) --no-deps --no-index --force-reinstall $(OWN_WHEEL)
	@touch $@

# From the same cubins, all by the environment of `make build`: of the other interpreters only headers and names are asked.
wheels: build
	@for python in $(PYTHONS); do for machine in $(MACHINES); do \
	  .ci/wheel $(BIN) $$python $$machine || exit 1; \
	done; done
	@ls -l dist

test: build
	$(BIN)/python -m aot verify
	$(BIN)/pytest -q -n 2 tests --ignore=tests/gpu --ignore=tests/multi_gpu

# PYTHON's environment brings torch with CUDA and pytest; the wheel for it must lie in dist/. The checkout's own
# gg_runtime, which has no extension, must not come first: hence the safe path.
test-gpu bench fuzz: export PYTHONSAFEPATH := 1
$(SITE): $(wildcard $(OWN_WHEEL))
	rm -rf $@
	$(PYTHON) -m pip install -qq --disable-pip-version-check --no-deps --no-index --target $@ $^
	@touch $@

test-gpu: $(SITE)
	@$(PYTHON) -c 'import sys, torch; torch.cuda.is_available() or sys.exit("torch sees no GPU; without one: make test")'
	PYTHONPATH=$(SITE) $(PYTHON) -m pytest -q -rs tests/gpu tests/multi_gpu

bench: $(SITE)
	PYTHONPATH=$(SITE):. $(PYTHON) -m benchmarks --out build/bench

# What it can tell and what not: tests/emulator/__init__.py.
emulate: build
	PYTHONSAFEPATH=1 PYTHONPATH=tests $(BIN)/python -m emulator --seed $(SEED) -q $(TESTS)

# A failure leaves the actions of a walk in build/fuzz, which ARGS="again FILE" repeats.
fuzz: $(SITE)
	PYTHONPATH=$(SITE):tests $(PYTHON) -m fuzz $(ARGS)

# Takes longer than .ci/run should: it compiles csrc twice more. Needs gcc with its sanitizers.
sanitize: build
	PYTHONSAFEPATH=1 PYTHONPATH=tests $(BIN)/python -m sanitize

# Needs no kernels. The environments are made first; then some seconds, or two minutes for clang-tidy's first time.
lint: lint-python lint-cpp lint-types

$(LINT)/environment: requirements/lint.lock
	$(PYTHON) -m venv --clear $(LINT)
	$(LINT)/bin/pip install -qq --disable-pip-version-check --require-hashes -r requirements/lint.lock
	@touch $@

lint-python: $(LINT)/environment
	$(LINT)/bin/ruff check .
	$(LINT)/bin/ruff format --check .

lint-cpp: $(LINT)/environment $(ENVIRONMENT)
	@echo clang-format
	@$(LINT)/bin/clang-format --dry-run -Werror $(C_SOURCES)
	$(LINT)/bin/python .ci/tidy.py $(BIN)/python

# README's examples are checked as one file, each on its own lines.
lint-types: $(LINT)/environment $(ENVIRONMENT)
	@$(BIN)/python tests/readme_examples.py build/lint/README.py
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(LINT)/bin/pyright --pythonpath $(BIN)/python

format: $(LINT)/environment
	$(LINT)/bin/ruff check --fix --exit-zero .
	$(LINT)/bin/ruff format .
	@$(LINT)/bin/clang-format -i $(C_SOURCES)

golden: $(ENVIRONMENT)
	$(BIN)/python -m aot golden --update

lock-artifacts: kernels
	$(COMPILER)/bin/python -m aot lock --update

# One resolution for every platform and Python from 3.10 on; lint's part takes the versions of build.lock.
# A version that a lock has is kept while its input allows it; UPGRADE=1 takes the newest that it allows.
LOCK := build/venv-lock/bin/uv pip compile -q --universal --python-version 3.10 --generate-hashes \
  --no-emit-index-url --annotation-style line --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade)
lock: build/venv-lock/environment
	@$(LOCK) requirements/build.txt -o requirements/build.lock
	@$(LOCK) requirements/lint.txt -c requirements/build.lock -o requirements/lint.lock

build/venv-lock/environment: requirements/uv.txt
	$(PYTHON) -m venv --clear build/venv-lock
	build/venv-lock/bin/pip install -qq --disable-pip-version-check -r requirements/uv.txt
	@touch $@

repro: $(ENVIRONMENT)
	.ci/repro $(abspath $(VENV))

clean:
	rm -rf build dist $(VENV)

FORCE:
