# The five verbs, for people and for CI alike. `make` alone lists them.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

help:
	@echo "make setup   a virtual environment in $(VENV) with upconv and all it is tested with"
	@echo "make fmt     format the code"
	@echo "make check   lint, formatting and types; seconds"
	@echo "make test    the test suite; minutes"
	@echo "make bench   real layers through every engine, verified"

setup: $(BIN)/upconv

$(BIN)/upconv: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@touch $@

fmt: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: setup
	$(BIN)/python -m pytest -n 2 $(ARGS)

bench: setup
	$(BIN)/upconv bench $(ARGS)

.PHONY: help setup fmt check test bench
