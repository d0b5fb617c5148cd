# Every target sets up what it needs on a fresh machine: a virtual environment with the pinned versions of constraints.txt.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-gpu lint types format clean

help:  ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' | column -t -s '|'

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(READY)

setup: $(READY)  ## Create the virtual environment

demo: $(READY)  ## Run the main job on the embedded corpus
	$(BIN)/varsmooth demo

test: $(READY)  ## Run the fast tests
	$(BIN)/python -m pytest -q -n logical --dist worksteal

# The slow ones start processes of their own, so they take turns.
test-all: test  ## Run the fast and the slow tests
	$(BIN)/python -m pytest -q -m 'slow and not gpu'

test-gpu: $(READY)  ## Run the tests that need a GPU, and record the outcome
	$(BIN)/python -m pytest -q -m gpu --record=results/gpu-tests.json

lint: $(READY)  ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)  ## Check types, strictly
	$(BIN)/mypy

format: $(READY)  ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## Remove everything the targets made
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
