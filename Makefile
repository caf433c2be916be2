# The verbs, for people and for CI alike. `make` alone lists them.
PYTHON ?= python3
VENV ?= .venv
DOCS_VENV ?= .venv-docs
BIN = $(VENV)/bin

help:
	@echo "make setup   a virtual environment in $(VENV) with upconv and all it is tested with"
	@echo "make fmt     format the code"
	@echo "make check   lint, formatting and types; seconds"
	@echo "make test    the test suite; minutes"
	@echo "make test-costs   the same, and then what each area, file and test costs"
	@echo "make bench   real layers through every engine, verified"
	@echo "make docs    the documentation site, in docs/_build; a minute, most of it download"

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

# An environment of its own: the site needs neither the frameworks nor the tools of the tests.
$(DOCS_VENV)/bin/sphinx-build: pyproject.toml
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install --quiet --editable '.[docs]'
	@touch $@

.PHONY: help setup fmt check test test-costs bench docs
