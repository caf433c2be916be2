# Commands for people and for CI. `make` alone lists them.
PYTHON ?= python3
VENV ?= .venv
DOCS_VENV ?= .venv-docs
BIN = $(VENV)/bin

help:
	@echo "make setup   make a virtual environment in $(VENV) with upconv and the tools of its tests"
	@echo "make fmt     format the code"
	@echo "make check   check lint rules, formatting and types (seconds)"
	@echo "make test    run the test suite (minutes)"
	@echo "make test-costs   run the test suite, and print the time of each area, file and test"
	@echo "make bench   run real layers through every engine, and verify them"
	@echo "make docs    build the documentation site in docs/_build (a minute, mostly downloads)"

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

test-costs: setup
	$(BIN)/python tests/costs.py -n 2 $(ARGS)

bench: setup
	$(BIN)/upconv bench $(ARGS)

docs: $(DOCS_VENV)/bin/sphinx-build
	$(DOCS_VENV)/bin/sphinx-build --quiet --fail-on-warning --keep-going -E docs docs/_build
	@echo "The site is docs/_build/index.html"

# The site has a separate environment: it needs neither the frameworks nor the test tools.
$(DOCS_VENV)/bin/sphinx-build: pyproject.toml
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install --quiet --editable '.[docs]'
	@touch $@

.PHONY: help setup fmt check test test-costs bench docs
