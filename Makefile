SHELL := /bin/bash
.DEFAULT_GOAL := help
# One thread per process: on a small machine a second one is slower whenever anything else runs.
export OMP_NUM_THREADS ?= 1
export PYTHONUNBUFFERED := 1
SEEDS ?= 1
ARGS ?=
COMPILE := .venv/bin/uv pip compile --python-version 3.12 --generate-hashes --no-header --no-emit-index-url \
	--override requirements/overrides.txt --constraint requirements/pins.in

.PHONY: help demo test test-fast lint format types lock clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

demo: .venv/.demo ## a robot arm learns to lift: clone 5 demonstrations, then fine-tune (about 6 minutes)
	.venv/bin/flowrl demo --seeds $(SEEDS) $(ARGS)

test: .venv/.dev lint types ## lint, type check and every test
	.venv/bin/python -m pytest -n 2 --dist worksteal

test-fast: .venv/.dev ## the tests that take seconds
	.venv/bin/python -m pytest -n 2 --dist worksteal -m "not slow"

lint: .venv/.dev ## ruff, lint and format
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

format: .venv/.dev ## rewrite files in the house's format
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

types: .venv/.dev ## pyright, strict, on the four packages
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 .venv/bin/pyright

.venv/.demo: requirements/demo.txt pyproject.toml tools/setup.sh
	tools/setup.sh demo

.venv/.dev: requirements/dev.txt pyproject.toml tools/setup.sh
	tools/setup.sh dev

lock: ## compile the requirement files again from pyproject.toml
	tools/setup.sh venv
	$(COMPILE) pyproject.toml --extra dev --extra vla -o requirements/dev.txt
	$(COMPILE) pyproject.toml --extra sim --constraint requirements/dev.txt -o requirements/demo.txt

clean: ## remove the environment and caches; runs are kept
	rm -rf .venv .pytest_cache .ruff_cache
