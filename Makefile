# make build    kernels, wheel, and a .venv that has it           make test       all that needs no GPU
#   KERNELS="hopper tma" leaves the others out, for work on these
# make wheels   for every CPython 3.10-3.13 that is there         make test-gpu   on a GPU, in the environment of PYTHON
# make golden   keeps the emitter's text anew                     make bench      the same, beside cuBLAS and others
# make repro    two builds, two folders, two dates: equal bytes   make clean
# make lint     ruff, clang-format, clang-tidy, pyright          make format   what of it a program can mend
# make fuzz     on a GPU: random walks for SECONDS, from SEED on  make sanitize   the same without one, under sanitizers
PYTHON ?= python3
ARCHS ?= 80 90
KERNELS ?=
VENV ?= .venv
PYTHONS ?= $(shell .ci/pythons)
SECONDS ?= 60
SEED ?= 1
ARGS ?= --seconds $(SECONDS) --seed $(SEED)
export ARCHS KERNELS
# Dates inside the wheel: 2026-01-01, whatever the day.
export SOURCE_DATE_EPOCH := 1767225600

BIN := $(VENV)/bin
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
TAG := cp$(subst .,,$(VERSION))
# Triton 3.9 has no wheel for Python 3.10: there, the newest interpreter that is found compiles the kernels.
KERNEL_PYTHON ?= $(if $(filter 3.10,$(VERSION)),$(or $(lastword $(filter-out %3.10,$(PYTHONS))),\
  $(error Python 3.10 links the wheel, but 3.11 to 3.13 must compile the kernels and none is found: set KERNEL_PYTHON)))
INSTALL := $(BIN)/pip install -qq --disable-pip-version-check
MANIFEST := build/aot/manifest.json
ENVIRONMENT := $(VENV)/environment-$(VERSION)
COMPILER := $(if $(filter 3.10,$(VERSION)),build/venv-kernels,$(VENV))
WHEEL := build/wheel-$(VERSION)
SITE := build/site-$(VERSION)
LINT := build/venv-lint
C_SOURCES = $(shell find csrc tests -name '*.[ch]' -o -name '*.[ch]pp' | grep -v ^tests/cpu/golden/)
SOURCES := setup.py pyproject.toml README.md LICENSE .ci/wheel requirements/wheel.txt \
  $(shell find csrc gg_runtime -type f -not -name '*.pyc')

.PHONY: build kernels wheel wheels test test-gpu bench fuzz sanitize lint lint-python lint-cpp lint-types format golden
.PHONY: repro clean FORCE
.DELETE_ON_ERROR:

build: $(VENV)/installed-$(VERSION)
	@$(BIN)/python -m aot list
	@ls -l dist/gg_runtime-*-$(TAG)-*.whl
	@echo "next: make test"

kernels: $(MANIFEST)
wheel: $(WHEEL)

$(ENVIRONMENT): requirements/build.txt requirements/wheel.txt requirements/test.txt
	$(PYTHON) -m venv --clear $(VENV)
	$(INSTALL) -r requirements/build.txt -r requirements/test.txt
	@# Only a CPU build, which is found where an index offers it; the plain one would bring gigabytes of CUDA.
	@$(INSTALL) torch==2.13.0+cpu 2>/dev/null \
	  || echo "no CPU build of torch is to be had here: the tests run with numpy alone"
	@touch $@

build/venv-kernels/environment: requirements/build.txt
	$(KERNEL_PYTHON) -m venv --clear build/venv-kernels
	build/venv-kernels/bin/pip install -qq --disable-pip-version-check -r requirements/build.txt
	@touch $@

# Always asked, as only the builder knows its keys; the folder is replaced only when its content changes.
$(MANIFEST): $(ENVIRONMENT) $(if $(filter $(VENV),$(COMPILER)),,build/venv-kernels/environment) FORCE
	@$(COMPILER)/bin/python -m aot build -q

$(WHEEL): $(MANIFEST) $(SOURCES)
	.ci/wheel $(BIN)/python $(BIN) $@

$(VENV)/installed-$(VERSION): $(WHEEL)
	$(INSTALL) --no-deps --no-index --force-reinstall dist/gg_runtime-*-$(TAG)-*.whl
	@touch $@

# The kernels are compiled once; each interpreter links them anew, in an environment of its own under build/.
wheels: build
	@for python in $(PYTHONS); do \
	  version=$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])') && \
	  test $$version = $(VERSION) || { \
	    test -x build/venv-$$version/bin/python || $$python -m venv build/venv-$$version; \
	    build/venv-$$version/bin/pip install -qq --disable-pip-version-check -r requirements/wheel.txt && \
	    .ci/wheel build/venv-$$version/bin/python build/venv-$$version/bin build/wheel-$$version; } || exit 1; \
	done
	@ls -l dist

test: build
	$(BIN)/python -m aot verify
	$(BIN)/pytest -q -n 2 tests --ignore=tests/gpu --ignore=tests/multi_gpu

# PYTHON's environment brings torch with CUDA and pytest; the wheel for it must lie in dist/. The checkout's own
# gg_runtime, which has no extension, must not come first: hence the safe path.
test-gpu bench fuzz: export PYTHONSAFEPATH := 1
$(SITE): $(wildcard dist/gg_runtime-*-$(TAG)-*.whl)
	rm -rf $@
	$(PYTHON) -m pip install -qq --disable-pip-version-check --no-deps --no-index --target $@ $^
	@touch $@

test-gpu: $(SITE)
	@$(PYTHON) -c 'import sys, torch; torch.cuda.is_available() or sys.exit("torch sees no GPU; without one: make test")'
	PYTHONPATH=$(SITE) $(PYTHON) -m pytest -q tests/gpu tests/multi_gpu

bench: $(SITE)
	PYTHONPATH=$(SITE):. $(PYTHON) -m benchmarks --out build/bench

# A failure leaves the actions of a walk in build/fuzz, which ARGS="again FILE" repeats.
fuzz: $(SITE)
	PYTHONPATH=$(SITE):tests $(PYTHON) -m fuzz $(ARGS)

# Takes longer than .ci/run should: it compiles csrc twice more. Needs gcc with its sanitizers.
sanitize: build
	PYTHONSAFEPATH=1 PYTHONPATH=tests $(BIN)/python -m sanitize

# Needs no kernels. The environments are made first; then some seconds, or two minutes for clang-tidy's first time.
lint: lint-python lint-cpp lint-types

$(LINT)/environment: requirements/lint.txt
	$(PYTHON) -m venv --clear $(LINT)
	$(LINT)/bin/pip install -qq --disable-pip-version-check -r requirements/lint.txt
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
	$(LINT)/bin/ruff check --fix .
	$(LINT)/bin/ruff format .
	@$(LINT)/bin/clang-format -i $(C_SOURCES)

golden: $(ENVIRONMENT)
	$(BIN)/python -m aot golden --update

repro: $(ENVIRONMENT)
	.ci/repro $(abspath $(VENV))

clean:
	rm -rf build dist $(VENV)

FORCE:
