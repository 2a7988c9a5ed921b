# Needs Python >= 3.11 and make, nothing else. `make help` lists the targets.
#
#   PYTHON=…  the interpreter that makes the virtual environment (default: the first of python3, python3.13, … that is new enough)
#   VENV=…    the path of that environment
#   EXTRAS=…  the extras of pyproject.toml that `make test` installs

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
EXTRAS ?= test
WORKERS ?= 2
PYTEST_FLAGS ?=

HARDWARE_EXTRAS ?= train$(COMMA)serve$(if $(wildcard /dev/nvidia0),$(COMMA)cuda)$(if $(wildcard /dev/accel0 /dev/vfio/0),$(COMMA)tpu)

DEMO_RUN ?= runs/demo
DEMO_TRAIN_FLAGS ?=
DEMO_GENERATE_FLAGS ?= --prompt "The function "

BIN := $(VENV)/bin
COMMA := ,
FLOOR := $(shell sed -n 's/^    "jax>=\(.*\)",/\1/p' pyproject.toml | head -1)
INSTALLED = $(VENV)/.installed-$(subst $(COMMA),-,$(1))
OPTIMIZED := "optimized and not (slow or compilers)"
WHOLE := "(end_to_end or download) and not (slow or thorough or compilers or optimized)"
FAILED := --last-failed --last-failed-no-failures none
# Python keeps its byte code: else every command that a test starts would compile a thousand files.
export PYTHONDONTWRITEBYTECODE :=
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_FLAGS)

.DEFAULT_GOAL := help
.PHONY: help demo test end-to-end test-all hardware compilers floor book cases site picture mutations lint format clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

demo: $(call INSTALLED,train) ## train a small model on Python's documentation and sample from it
	$(BIN)/python scripts/train.py d --preset demo --run $(DEMO_RUN) $(DEMO_TRAIN_FLAGS)
	$(BIN)/python scripts/generate.py $(DEMO_RUN) $(DEMO_GENERATE_FLAGS)

test: $(call INSTALLED,$(EXTRAS)) ## run the quick tests, which need neither PyTorch nor a download; what fails, once more
	$(PYTEST) || $(PYTEST) $(FAILED)

# A drawn part of these, of the quick tests and of more of their cases, another each week, with all of XLA's
# optimizations, as users have them; the others without, which takes half the time. What fails runs once more, since tests
# with deadlines can miss them on a busy machine.
end-to-end: export TEST_SEED := $(or $(TEST_SEED),$(shell date +%G-%V))
end-to-end: $(call INSTALLED,test$(COMMA)compare) ## run whole commands as users do, and compare with PyTorch and downloaded models
	export JAX_DISABLE_MOST_OPTIMIZATIONS=0; $(PYTEST) -m $(OPTIMIZED) || $(PYTEST) -m $(OPTIMIZED) $(FAILED)
	$(PYTEST) -m $(WHOLE) || $(PYTEST) -m $(WHOLE) $(FAILED)

test-all: $(call INSTALLED,test$(COMMA)compare) ## run every test, including the thorough and the slow, with all of XLA's optimizations
	JAX_DISABLE_MOST_OPTIMIZATIONS=0 $(PYTEST) -m ""

hardware: $(call INSTALLED,$(HARDWARE_EXTRAS)) ## check every kernel of a GPU or a TPU, and measure it, to build/hardware.md
	$(BIN)/python scripts/benchmark.py hardware

compilers: ## compile small steps for TPUs and H100s, each in its own environment, and check their cost
	$(MAKE) test VENV=$(VENV)-tpu EXTRAS=test,tpu WORKERS=0 PYTEST_FLAGS="-m compilers"
	$(MAKE) test VENV=$(VENV)-cuda EXTRAS=test,cuda WORKERS=0 PYTEST_FLAGS="-m compilers"

floor: ## cross-check algorithms with the oldest JAX that they support, in an environment of its own
	$(MAKE) VENV=$(VENV)-floor $(VENV)-floor/.installed-book
	$(VENV)-floor/bin/python -m pip install --no-compile --quiet --disable-pip-version-check jax==$(FLOOR) jaxlib==$(FLOOR)
	$(VENV)-floor/bin/python scripts/crosscheck.py --algorithm 4 --algorithm 10 --algorithm 14

book: $(call INSTALLED,book) ## write the cross-check of the paper and of published models to build/book, page by page
	$(BIN)/python scripts/crosscheck.py --variant all --html build/book

cases: $(call INSTALLED,train$(COMMA)book$(COMMA)models) ## write a case of every algorithm and model, with hashes, to build/cases
	$(BIN)/python scripts/crosscheck.py --write-case build/cases --variant all

site: $(call INSTALLED,book$(COMMA)site) ## build the documents and the book as one site in build/site, to be opened offline
	test -f build/book/index.html || $(MAKE) book
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

picture: $(call INSTALLED,train$(COMMA)book) ## redraw the README's picture of Algorithm 4, with Chromium and matplotlib's fonts
	$(BIN)/python -m docs.picture

mutations: $(call INSTALLED,test) ## plant bugs in scratch copies, and report which test catches each
	$(BIN)/python -m tests.mutations

lint: $(call INSTALLED,dev) ## check formatting, rules, the order of imports and types
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(call INSTALLED,dev) ## reformat the files
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove the environment and generated files, but not runs/
	rm -rf $(VENV) .cache .hypothesis .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp's name contains its extras, so a later `make` installs only what is new in pyproject.toml.
$(VENV)/.installed-%: pyproject.toml | $(VENV)/.created
	@echo "installing the extras '$*' into $(VENV); this takes half a minute to two minutes"
	@$(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check --editable '.[$(subst -,$(COMMA),$*)]'
	@touch $@

$(VENV)/.created:
	@test -n "$(PYTHON)" || { echo "make: no Python >= 3.11 found; install one, or name it: make PYTHON=/path/to/python3" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "make: $(PYTHON) cannot be run or is older than 3.11; name another: make PYTHON=/path/to/python3" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "make: $(PYTHON) lacks the venv module; install it (on Debian and Ubuntu: apt install python3-venv)" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@touch $@
