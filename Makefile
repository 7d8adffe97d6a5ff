# Two commands set everything up on a fresh machine: `make demo` and `make test`.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Seconds after which the tests stop and report.
SESSION_S ?= 3600
# So many processes share the tests. More want more memory and cores: each may run a virtual cluster.
WORKERS ?= 2

# Tests start the command hundreds of times: it is to find its modules compiled, whatever the surroundings say.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
# Minutes of CPU for each target of `make fuzz`; TARGETS=judge for some of them alone.
FUZZ_MINUTES ?= 1
TARGETS      ?=

.PHONY: help demo test test-all test-newest lint format agreement oracle bench fuzz schema tables wheels vscode lock \
  lock-upgrade pictures docs site dist release clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

# What is installed, exactly; `make test-newest` sets it to nothing.
LOCK = --constraint constraints.txt
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check
EXTRAS = dev,smoke,ray,kubernetes,history,serve,webhook,lsp

# Installed once for each state of the requirements; the stamp is the proof. torch comes by pip, which may know of a build
# that uv does not; uv installs the rest in seconds.
$(VENV)/.installed: pyproject.toml constraints.txt tests/cluster/packages.txt
	sh tests/cluster/install.sh tests/cluster/packages.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(LOCK) --no-compile torch==2.13.0 uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python $(LOCK) --editable '.[$(EXTRAS)]'
	touch $@

UV_PIP = $(BIN)/uv pip install --quiet --python $(@D)/bin/python

# The releases of Paddle that the reference trainer runs with, each apart: they want other versions of numpy and protobuf.
$(VENV)/paddle/%/.installed: tests/locks/paddle-%.txt $(VENV)/.installed
	$(PYTHON) -m venv $(@D)
	$(UV_PIP) --requirement $<
	touch $@

# Launchers that only `make test-all` compares plans with, each apart, with the torch of the tests. Their own modules are
# what runs, so none of their C++ is built: horovod's Python alone is unpacked, and its check for Gloo is answered for it.
SITE_PACKAGES = $$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
$(VENV)/launchers/deepspeed/.installed: WITH = deepspeed
$(VENV)/launchers/accelerate/.installed: WITH = accelerate
$(VENV)/launchers/%/.installed: tests/locks/launchers.txt $(VENV)/.installed
	$(PYTHON) -m venv $(@D)
	echo "$(call SITE_PACKAGES,$(VENV))" > "$(call SITE_PACKAGES,$(@D))/torch.pth"
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $< numpy setuptools wheel py-cpuinfo
	DS_BUILD_OPS=0 $(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --constraint $< $(WITH)
	touch $@

$(VENV)/launchers/horovod/.installed: tests/locks/horovod.txt $(VENV)/.installed
	$(PYTHON) -m venv $(@D)
	$(UV_PIP) --requirement $<
	$(@D)/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: --no-build-isolation \
	  --dest $(@D) horovod==0.28.1
	tar --extract --gzip --file $(@D)/horovod-0.28.1.tar.gz --strip-components 1 \
	  --directory "$(call SITE_PACKAGES,$(@D))" horovod-0.28.1/horovod horovod-0.28.1/horovod.egg-info
	printf '%s\n' '#!$(abspath $(@D))/bin/python' 'from horovod.runner import launch' \
	  'launch.gloo_built = lambda verbose=False: True' 'if __name__ == "__main__":' '    launch.run_commandline()' > $(@D)/bin/horovodrun
	chmod +x $(@D)/bin/horovodrun
	touch $@

# A viewer of SARIF that our logs are opened with, without what it draws charts with.
$(VENV)/sarif-tools/.installed: $(VENV)/.installed
	$(PIP) --no-deps --target $(@D) sarif-tools==3.0.5 jsonpath-ng==1.16.0
	touch $@

# Helm's own code, which our evaluation of charts is compared with: 75 MB that only `make test-all` fetches.
$(VENV)/.helm-installed: $(VENV)/.installed
	$(PIP) --no-deps helm-python-sdk==0.2.2
	touch $@

demo: $(VENV)/.installed ## an embedded cluster, a good job checked to `go`, a broken one to `no-go`
	$(BIN)/python examples/demo.py

# What only `make test-all` needs: Debian packages, releases of Paddle, launchers, consumers of reports.
ALL := $(VENV)/.packages $(VENV)/sarif-tools/.installed $(VENV)/.helm-installed \
  $(foreach version,3.3.1 2.6.2,$(VENV)/paddle/$(version)/.installed) \
  $(foreach name,deepspeed accelerate horovod,$(VENV)/launchers/$(name)/.installed)

$(VENV)/.packages: $(VENV)/.installed tests/cluster/packages-thorough.txt
	sh tests/cluster/install.sh tests/cluster/packages-thorough.txt
	touch $@

# A run that takes longer than the session timeout ends with what it found so far instead of being cut off.
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder --rerun-failed

# Linters and types run beside the tests, in what these leave of the processors; the tests' count is the last line.
define gate
	@mkdir -p build
	@nice $(MAKE) --no-print-directory lint > build/lint.txt 2>&1 & lint=$$!; \
	$(PYTEST) $(1); tests=$$?; \
	wait $$lint || { cat build/lint.txt; exit 1; }; \
	exit $$tests
endef

test: $(VENV)/.installed ## the gate: linters, types, all tests of this process and a thin slice of the real thing
	$(call gate,--session-timeout $(SESSION_S))

test-all: $(ALL) ## the gate and everything marked thorough, and what each test file costs; before an issue is closed
	$(call gate,--thorough --timeout 900 --session-timeout 86400 --cpu-report)

test-newest: ## the gate with the newest release of every package, in an environment of its own
	$(MAKE) VENV=build/newest LOCK= test

lint: $(VENV)/.installed ## ruff and mypy alone
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed ## let ruff lay out the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

fuzz: $(VENV)/.fuzz-installed ## coverage-guided fuzzing of every reader, wire and document (docs/fuzzing.md)
	$(BIN)/python -m tests.fuzz $(TARGETS) --minutes $(FUZZ_MINUTES)

$(VENV)/.fuzz-installed: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[fuzz]'
	touch $@

agreement: $(ALL) ## hold the plans of generated jobs against the real launchers, as a table
	$(BIN)/python -m tests.agreement

oracle: $(VENV)/.installed ## score lint against the recorded verdicts of the frameworks' validators, as a table
	$(BIN)/python -m tools.oracle.score

bench: $(VENV)/.installed ## the benchmarks, as ratios against a peer in the same run
	$(BIN)/python -m benchmarks

schema: $(VENV)/.installed ## write the committed JSON Schemas anew
	$(BIN)/preflight schema report > docs/report.schema.json
	$(BIN)/preflight schema recording > docs/recording.schema.json
	$(BIN)/preflight schema config > docs/config.schema.json
	$(BIN)/preflight schema site-rules > docs/site-rules.schema.json
	$(BIN)/preflight schema diagnosis > docs/diagnosis.schema.json
	$(BIN)/preflight schema difference > docs/difference.schema.json
	$(BIN)/preflight schema plan > docs/plan.schema.json
	$(BIN)/preflight schema examination > docs/examination.schema.json
	$(BIN)/preflight schema events > docs/events.schema.json
	$(BIN)/preflight schema history > docs/history.schema.json

vscode: $(VENV)/.installed ## build the extension for VS Code, and test it with node (fetches from the npm registry)
	cd editors/vscode && npm ci --no-audit --no-fund && npm test

wheels: $(VENV)/.installed ## write the tables of what wheels were built for and require anew (asks the package index)
	$(BIN)/python -m tools.wheels
	$(BIN)/python -m tools.requirements

tables: $(VENV)/.installed ## generate the tables of launcher options anew (fetches the pinned distributions)
	$(BIN)/python -m tools.tables

# paddlepaddle 2.6.2 is locked for Linux alone: on Windows it would hold protobuf back for all systems.
COMPILE = $(BIN)/uv pip compile --quiet --no-emit-index-url --custom-compile-command 'make lock'

lock: $(VENV)/.installed ## pin what tests, CI and a release install, and keep pins that still hold (asks the package index)
	$(COMPILE) --universal --python-version 3.10 --all-extras --no-annotate $(UPGRADE) --output-file constraints.txt pyproject.toml
	echo hatchling | $(COMPILE) --universal --python-version 3.10 --generate-hashes --constraint constraints.txt \
	  --output-file integrations/requirements.txt pyproject.toml -
	for lock in "paddle-2.6.2 --python-platform linux" "paddle-3.3.1 --universal" "horovod --universal" "launchers --universal"; do \
	  set -- $$lock; $(COMPILE) $$2 $$3 --python-version 3.10 --no-annotate $(UPGRADE) --output-file tests/locks/$$1.txt tests/locks/$$1.in || exit 1; \
	done
	printf '%s\n' build click hatchling twine | $(COMPILE) --universal --python-version 3.12 --generate-hashes --constraint constraints.txt \
	  --output-file .github/release-requirements.txt -

lock-upgrade: UPGRADE = --upgrade
lock-upgrade: lock ## the same with the newest release of every package

pictures: $(VENV)/.installed ## take the pictures of the documentation anew (in a Chromium)
	$(BIN)/python -m tools.pictures

docs: $(VENV)/.installed ## write generated pages, shown output and pictures anew
	$(BIN)/python -m tools.report_fields
	$(BIN)/python -m tools.transcripts
	$(BIN)/python -m tools.gallery
	$(BIN)/python -m tools.picture
	$(BIN)/python -m tools.manifests
	$(BIN)/python -m tools.walk

site: $(VENV)/.installed ## build the site from docs/ into build/site
	$(BIN)/python -m mkdocs build --strict

dist: $(VENV)/.installed ## build the source distribution and the wheel into dist/, and check their metadata
	rm -rf dist
	$(BIN)/python -m build --quiet --outdir dist
	$(BIN)/python -m twine check --strict dist/*

release: $(VENV)/.installed ## set the version, date the changelog, commit and tag: make release VERSION=0.2.0 (pushes nothing)
	$(BIN)/python -m tools.release "$(VERSION)"

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
