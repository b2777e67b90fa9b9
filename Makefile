# Every target sets itself up: .venv and, for the tests, the Debian packages. Nothing is installed twice.
#
#   make test SUITES="jobs contracts"    only those suites (lint, format, imports and types are suites too)
#   make test ARGS="-k lease -x"          handed to pytest
#   make test PYTHON=python3.13           makes .venv anew with that interpreter

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo test coverage lint types bench load smoke torture engines schemas docs clean base dev packages

SUITES ?=
ARGS ?=
export PYTHON

python := .venv/bin/python

help: ## show this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: base ## a task from idea to documents, offline, watched live (ARGS="--keep", "--plans": commands, and a kill)
	@$(python) -m farro demo $(ARGS)

test: dev packages ## all checks and all suites: what CI runs (SUITES="jobs crash", ARGS="-k name")
	@$(python) scripts/suites.py --suites "$(SUITES)" -- $(ARGS)

coverage: dev packages ## make test, and a list of the branches of src that no test takes (SUITES, ARGS as there)
	@$(python) scripts/suites.py --branches --suites "$(SUITES)" -- $(ARGS)

lint: dev ## ruff (rules and format) and the import contracts
	@$(python) scripts/suites.py --suites "lint format imports"

types: dev ## mypy, strict
	@$(python) scripts/suites.py --suites "types"

bench: dev ## farro beside its floor and its peers, written to docs/benchmarks.md (QUICK=1: a glance)
	@$(python) scripts/bench.py $(ARGS)

load: base ## jobs over all roles: P95, failures, throughput, caps that refuse (ARGS="--jobs 1000")
	@$(python) scripts/load.py $(ARGS)

smoke: base ## a manager, a worker, one job from end to end
	@scripts/smoke.sh

torture: dev packages ## the long form of the crash and contract suites (TORTURE=10 for ten times as long)
	@FARRO_TORTURE=$(or $(TORTURE),1) $(python) scripts/suites.py --suites "$(or $(SUITES),contracts crash)" -- $(ARGS)

engines: dev packages ## the tests on engines of the long form: podman
	@scripts/docker.sh podman >/dev/null
	@FARRO_LONG=engines $(python) scripts/suites.py --suites engines -- -m engines $(ARGS)

schemas: dev ## write schemas/*.json anew from the models
	@$(python) scripts/schemas.py

docs: dev ## check the documents: links, decision records, the commands they name
	@$(python) -m pytest tests/house/test_documents.py -q $(ARGS)

clean: ## remove everything that make made, .venv included
	rm -rf .venv .build .mypy_cache .ruff_cache .import_linter_cache .hypothesis dist
	find src tests scripts -name __pycache__ -prune -exec rm -rf {} +

base:
	@scripts/venv.sh base

dev:
	@scripts/venv.sh dev

packages:
	@scripts/packages.sh
