# Two commands set everything up on a fresh machine: `make demo` and `make test`.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# So many processes share the tests. More want more memory and cores: each may run a virtual cluster.
WORKERS ?= 2

# Tests start the command hundreds of times: it is to find its modules compiled, whatever the surroundings say.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo test lint format bench schema tables wheels docs site clean

help: ## list the targets
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

# Installed once for each state of the requirements; the stamp is the proof.
$(VENV)/.installed: pyproject.toml constraints.txt tests/cluster/packages.txt
	bash tests/cluster/install.sh
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,smoke,ray,kubernetes]'
	touch $@

# The releases of Paddle that the reference trainer runs with, each apart: they want other versions of numpy and protobuf.
$(VENV)/paddle/3.3.1/.installed: WITH = paddlepaddle==3.3.1
$(VENV)/paddle/2.6.2/.installed: WITH = paddlepaddle==2.6.2 'numpy<2' 'protobuf<5' setuptools
$(VENV)/paddle/%/.installed: $(VENV)/.installed
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check $(WITH)
	touch $@

# A viewer of SARIF that our logs are opened with, without what it draws charts with.
$(VENV)/sarif-tools/.installed: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(@D) sarif-tools==3.0.5 jsonpath-ng==1.16.0
	touch $@

demo: $(VENV)/.installed ## an embedded cluster, a good job checked to `go`, a broken one to `no-go`
	$(BIN)/python examples/demo.py

test: $(VENV)/.installed $(VENV)/sarif-tools/.installed $(VENV)/paddle/3.3.1/.installed $(VENV)/paddle/2.6.2/.installed ## linters, types and all tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder

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
	$(BIN)/preflight schema diagnosis > docs/diagnosis.schema.json
	$(BIN)/preflight schema difference > docs/difference.schema.json
	$(BIN)/preflight schema examination > docs/examination.schema.json
	$(BIN)/preflight schema events > docs/events.schema.json

wheels: $(VENV)/.installed ## write the table of what wheels were built for anew (asks the package index)
	$(BIN)/python -m tools.wheels

tables: $(VENV)/.installed ## generate the tables of launcher options anew (fetches the pinned distributions)
	$(BIN)/python -m tools.tables

pictures: $(VENV)/.installed ## take the pictures of the documentation anew (in a Chromium)
	$(BIN)/python -m tools.pictures

docs: $(VENV)/.installed ## write generated pages, shown output and pictures anew
	$(BIN)/python -m tools.modules
	$(BIN)/python -m tools.fields
	$(BIN)/preflight rules --output markdown --to docs/rules
	$(BIN)/python -m tools.transcripts
	$(BIN)/python -m tools.gallery
	$(BIN)/python -m tools.picture
	$(BIN)/python -m tools.manifests

site: $(VENV)/.installed ## build the site from docs/ into build/site
	$(BIN)/python -m mkdocs build --strict

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
