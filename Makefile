# Two commands set everything up on a fresh machine: `make demo` and `make test`.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test lint format bench schema tables clean

help: ## list the targets
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

# Installed once for each state of the requirements; the stamp is the proof.
$(VENV)/.installed: pyproject.toml constraints.txt tests/cluster/packages.txt
	bash tests/cluster/install.sh
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,smoke]'
	touch $@

demo: $(VENV)/.installed ## an embedded cluster, a good job checked to `go`, a broken one to `no-go`
	$(BIN)/python examples/demo.py

test: $(VENV)/.installed ## linters, types and all tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

lint: $(VENV)/.installed ## ruff and mypy alone
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed ## let ruff lay out the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed ## the benchmarks, as ratios against a peer in the same run
	$(BIN)/python -m benchmarks

schema: $(VENV)/.installed ## write the committed JSON Schemas anew
	$(BIN)/preflight schema report > docs/report.schema.json
	$(BIN)/preflight schema recording > docs/recording.schema.json
	$(BIN)/preflight schema config > docs/config.schema.json
	$(BIN)/preflight schema site-rules > docs/site-rules.schema.json

tables: $(VENV)/.installed ## generate the tables of launcher options anew (fetches the pinned distributions)
	$(BIN)/python -m tools.tables

docs: $(VENV)/.installed ## write the pages about rules, checks and modules anew
	$(BIN)/python -m tools.modules
	$(BIN)/preflight rules --output markdown --to docs/rules

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
