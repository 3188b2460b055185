# The two commands that matter are `make demo` and `make test`. Each creates .venv with this machine's Python, installs
# what it needs and runs; no environment has to be activated. Another interpreter: `make PYTHON=python3.13 test`.

PYTHON      ?= python3
PYTEST_ARGS ?=
FAULTS_ARGS ?=
YES         ?=
BENCH_ARGS  ?=

VENV  := .venv
BENCH := .venv-bench
PIP   := -m pip --disable-pip-version-check --quiet

CORE_READY  := $(VENV)/.ready-core
DEV_READY   := $(VENV)/.ready-dev
BENCH_READY := $(BENCH)/.ready

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test check docs picture format faults kills bench bench-engine bench-storage bench-magentic clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

demo: $(CORE_READY) ## a researcher/writer team at work; YES=1 approves its plan by itself
	@YES=$(YES) $(VENV)/bin/stepwell demo

test: $(DEV_READY) ## run the tests
	$(VENV)/bin/python -m pytest -n auto --maxprocesses 4 --dist worksteal $(PYTEST_ARGS)

check: $(DEV_READY) docs ## formatting, lint, types, import directions, the documentation
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy stepwell $(wildcard tests/typing)
	$(VENV)/bin/lint-imports

# The variable silences an announcement: Material for MkDocs is maintained until May 2027, and its successor reads mkdocs.yml.
docs: $(DEV_READY) ## build the documentation into build/docs
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

picture: $(DEV_READY) ## docs/images/demo.svg anew, from a real run that is killed and resumed
	$(VENV)/bin/python docs/images/make_demo.py

format: $(DEV_READY) ## rewrite the files as `make check` wants them
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

faults: $(DEV_READY) ## the long fault runs, with their tables
	$(VENV)/bin/python benchmarks/printed.py docs/measured/faults.md $(VENV)/bin/python -m tests.faults $(FAULTS_ARGS)
	$(VENV)/bin/python -m pytest -m faults -s -o timeout=7200 \
	  --deselect tests/faults/test_kills.py::test_a_thousand_kills $(PYTEST_ARGS)

kills: $(DEV_READY) ## a Magentic team killed at every call, with the table
	$(VENV)/bin/python benchmarks/printed.py docs/measured/kills.md $(VENV)/bin/python -m tests.orchestrations.kills

bench-engine: $(BENCH_READY) ## the engine beside its peers
	$(BENCH)/bin/python benchmarks/engine.py $(BENCH_ARGS)

bench-storage: $(BENCH_READY) ## the storages beside their peers and raw SQLite
	$(BENCH)/bin/python benchmarks/storage.py $(BENCH_ARGS)

bench-magentic: $(BENCH_READY) ## Magentic teams beside AutoGen and agent-framework
	$(BENCH)/bin/python benchmarks/magentic.py $(BENCH_ARGS)

# A missed target is no reason to leave out the others, nor to keep it from the docs; the exit status tells of it.
bench: $(BENCH_READY) ## all benchmarks, and the tables and pictures of the docs
	@status=0; for part in engine storage magentic; do \
	  $(BENCH)/bin/python benchmarks/$$part.py $(BENCH_ARGS) || status=1; done; \
	  $(BENCH)/bin/python benchmarks/report.py || status=1; exit $$status

clean: ## remove environments, caches and results
	rm -rf $(VENV) $(BENCH) dist build .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	rm -rf benchmarks/results
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python $(BENCH)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "stepwell needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1)." >&2; \
	  echo "Name another one: make PYTHON=python3.13 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(@:/bin/python=) || { rm -rf $(@:/bin/python=); exit 1; }

$(CORE_READY): pyproject.toml | $(VENV)/bin/python
	$(VENV)/bin/python $(PIP) install --editable '.[cli]'
	@touch $@

$(DEV_READY): pyproject.toml | $(VENV)/bin/python
	$(VENV)/bin/python $(PIP) install --editable '.[dev,docs,postgres]'
	@touch $(CORE_READY) $@

$(BENCH_READY): pyproject.toml benchmarks/peers.txt | $(BENCH)/bin/python
	$(BENCH)/bin/python $(PIP) install --editable '.[bench]' --requirement benchmarks/peers.txt
	@touch $@
