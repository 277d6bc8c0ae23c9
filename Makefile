# Each target does all its own set-up: a virtual environment, an install with the tested versions, then its work.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test check docs bench soak

help:
	@echo "make demo   train a small model privately and show what it cost"
	@echo "make test   run the tests"
	@echo "make check  lint and type-check"
	@echo "make docs   build the documents, into docs/_build/html"
	@echo "make bench  compare one private step with plain PyTorch and Opacus"
	@echo "make soak   the tests that are too long for CI"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing Sordino into $(VENV) (once; a minute or two) ..."
	$(INSTALL) -e ".[dev]"
	@touch $@

$(VENV)/.installed-bench: $(VENV)/.installed
	$(INSTALL) -e ".[bench]"
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(INSTALL) -e ".[docs]"
	@touch $@

demo: $(VENV)/.installed
	$(BIN)/sordino train digits --epsilon 3 --delta 1e-5

test: $(VENV)/.installed
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.installed-docs
	$(BIN)/python -m sphinx --fresh-env --fail-on-warning --keep-going --nitpicky --quiet docs docs/_build/html
	@echo "The documents are in docs/_build/html/index.html"

bench: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/private_step.py

soak: $(VENV)/.installed
	$(BIN)/python -m pytest -m soak
