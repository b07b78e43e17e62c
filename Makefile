# Every target makes its own .venv and installs what it needs. A machine needs only make and Python >= 3.11 (with venv and pip).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
UP_FLAGS ?=
DEMO_FLAGS ?=
UI_FLAGS ?=
TEST_FLAGS ?=
# Tests of whole brokers wait most of their time: five processes on two processors end two minutes sooner than four, and six starve
# one another.
TEST_WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(5, 2 * (os.cpu_count() or 1) + 1))')
BENCH_FLAGS ?=
SIMULATE_FLAGS ?=
CHAOS_FLAGS ?=
COMPAT_FLAGS ?=
RELEASE_FLAGS ?=

# One line for each large library and each 25 found ones, instead of pip's five for each.
PROGRESS := /^ *Downloading .*[0-9.]+ MB\)/ { print } /^Collecting/ && ++n % 25 == 0 { print "  " n " libraries found" } \
	/^Installing collected/ { print "  installing them" } { fflush() }

# Compiled modules are kept: a broker answers four times sooner with them.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install up demo ui test soak chaos compat transactions security simulate lint audit format bench release clean

help: ## what there is to do
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  Options: PYTHON=python3.12, UP_FLAGS='--store s3://bucket/prefix', TEST_FLAGS='-k wal', BENCH_FLAGS='--help'"

install: $(STAMP) ## make .venv and install everything into it

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Headgate needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "the venv module is missing: install it (on Debian: apt-get install python3-venv)"; exit 1; }
	@rm -f $@
	@echo "Headgate and its libraries are installed into $(VENV): about 1.5 GB, some minutes, once"
	@{ $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off --editable '.[dev,demo]' && touch $@; } | awk '$(PROGRESS)'
	@test -f $@

up: $(STAMP) ## run a local broker until Ctrl-C; the store is ./headgate-data
	@$(BIN)/headgate up $(UP_FLAGS)

demo: $(STAMP) ## a flood of real flights: Dagster, Spark, brokers 1 to 3 to 1, live traffic throughout (DEMO_FLAGS=--keep)
	@$(BIN)/headgate demo $(DEMO_FLAGS)

ui: $(STAMP) ## Dagster's web page and daemon for your floods, until Ctrl-C; its state is ./.dagster
	@$(BIN)/headgate ui $(UI_FLAGS)

test: $(STAMP) ## every test, some files at a time
	@$(BIN)/python -m compileall -q headgate broker pipelines assets
	@$(BIN)/python -m pytest --numprocesses $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder $(TEST_FLAGS)

soak: $(STAMP) ## the long tests: kills, pauses and cuts on every store, and a run that must not grow (hours of it: python -m tests.soak)
	@$(BIN)/python -m pytest -m slow $(TEST_FLAGS)

compat: $(STAMP) ## old and new versions of clients and frameworks, and the table of what works with which (COMPAT_FLAGS='--only java')
	@$(BIN)/python -m tests.compat.matrix $(COMPAT_FLAGS)

transactions: $(STAMP) ## 30 rounds of kills for each client that consumes, transforms and produces in transactions
	HEADGATE_TRANSACTION_ROUNDS=30 $(BIN)/python -m pytest -q tests/e2e/test_transactions.py -m "slow or not slow"

security: $(STAMP) ## logins, ACLs and quotas beside Apache Kafka, all clients through changes of certificates, long fuzzing
	HEADGATE_FUZZ_EXAMPLES=800 $(BIN)/python -m pytest -q -m "slow or not slow" tests/compat/test_security_kafka.py \
		tests/compat/test_security_clients.py tests/unit/access tests/e2e/test_tls.py tests/e2e/test_access.py tests/e2e/test_quotas.py tests/e2e/test_secrets.py

chaos: $(STAMP) ## rounds of faults for a cluster, judged by `broker/verify/`: CHAOS_FLAGS='--rounds 100 --seed 7'
	@$(BIN)/python -m tests.chaos $(CHAOS_FLAGS)

simulate: $(STAMP) ## 1,000 lives of a simulated cluster, each from a seed that can be run again; then every planted bug
	@$(BIN)/python -m headgate.broker.testing.simulate $(SIMULATE_FLAGS)
	@$(if $(SIMULATE_FLAGS),,$(BIN)/python -m pytest -q -m "slow or not slow" tests/simulation/test_canaries.py)

lint: $(STAMP) ## ruff, mypy --strict, and the import contracts
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

audit: $(STAMP) ## known weaknesses of the installed libraries, by pip-audit
	@$(BIN)/python -m pip_audit --local --skip-editable --progress-spinner off

format: $(STAMP) ## rewrite the code in the project's format
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

bench: $(STAMP) ## measure, as ratios to a bare peer and to the raw disk of the same run
	@$(BIN)/python -m tests.bench $(BENCH_FLAGS)

release: $(STAMP) ## wheel, source archive and SBOM in dist/, tested in empty environments (RELEASE_FLAGS=--demo)
	@$(BIN)/python deploy/release.py $(RELEASE_FLAGS)

clean: ## remove .venv and caches, not your data
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist *.egg-info
