# Everything a fresh machine needs, in one word each: make serve, make test.
#
#   make serve [MODEL=...] [ARGS=...]   install what serving needs, then serve
#   make test                           install what tests need, then lint and test: what CI runs
#   make soak                           the long tests
#   make lint                           format check, lint, types
#   make docs                           rebuild the generated pages and tables
#   make bench                          run the benchmarks of the README again
#
# Steps that are done leave a stamp in .venv and are not done again until pyproject.toml changes.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin

# The first Python that is new enough.
PYTHON ?= $(shell for one in python3 python3.13 python3.12 python3.11; do \
	$$one -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$one && break; done)

# MLX comes as one of three builds: Metal on a Mac, CUDA where there is an NVIDIA driver, else the CPU's.
ifeq ($(shell uname -s),Darwin)
EXTRA :=
else ifneq ($(wildcard /proc/driver/nvidia/version)$(shell command -v nvidia-smi 2>/dev/null),)
EXTRA := cuda
else
EXTRA := cpu
endif
BACKEND ?= $(EXTRA)
empty :=
comma := ,
SERVE_EXTRAS := $(if $(BACKEND),[$(BACKEND)])
TEST_EXTRAS := [$(if $(BACKEND),$(BACKEND)$(comma))dev]

# Tests that need a device run where it is.
RUNNABLE := not soak$(if $(BACKEND), and not metal)$(if $(filter-out cuda,$(or $(BACKEND),metal)), and not cuda)

# The oracles' torch, as pinned in pyproject.toml: installed before anything could ask for a larger one.
TORCH := $(if $(filter Linux,$(shell uname -s)),$(shell sed -n 's/^ *"\(torch==[^;"]*\).*/\1/p' pyproject.toml))

PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet

.PHONY: serve test soak lint docs bench clean

serve: $(VENV)/serve.stamp
	@$(BIN)/phyla serve $(if $(MODEL),--model "$(MODEL)") $(ARGS)

test: lint
	@$(BIN)/python -m pytest -m "$(RUNNABLE)" $(ARGS)

soak: $(VENV)/test.stamp
	@$(BIN)/python -m pytest -m soak --timeout 1800 $(ARGS)

lint: $(VENV)/test.stamp
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy

docs: $(VENV)/test.stamp
	@$(BIN)/python -m benchmarks.tables
	@$(BIN)/python -m tests.compat.matrix
	@$(BIN)/python -m tests.plugins.grammar.keyword_support

bench: $(VENV)/test.stamp
	@$(BIN)/python -m benchmarks.starter_vs_mlx_lm
	@$(BIN)/python -m benchmarks.prefix_starter
	@$(BIN)/python -m benchmarks.kv_quality
	@$(BIN)/python -m benchmarks.server_cost
	@$(BIN)/python -m benchmarks.server_starter
	@$(BIN)/python -m benchmarks.tables

clean:
	rm -rf $(VENV)

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "Phyla needs Python 3.11 or newer: install it, or name it with PYTHON=..."; exit 1; }
	@echo "Creating $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { \
		rm -rf $(VENV); echo "$(PYTHON) can't make environments; on Debian and Ubuntu: apt install python3-venv"; exit 1; }

$(VENV)/serve.stamp: pyproject.toml | $(VENV)/bin/python
	@echo "Installing phyla$(SERVE_EXTRAS)"
	@$(PIP) --editable ".$(SERVE_EXTRAS)"
	@touch $@

$(VENV)/test.stamp: pyproject.toml | $(VENV)/bin/python
	@echo "Installing phyla$(TEST_EXTRAS)"
	@$(if $(TORCH),$(PIP) "$(TORCH)")
	@$(PIP) --editable ".$(TEST_EXTRAS)"
	@touch $@ $(VENV)/serve.stamp
