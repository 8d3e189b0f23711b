# One command for each habit. Needs only make and Python >= 3.11: every target sets up .venv first, and only when something changed.

PYTHON ?= python3
BIN := .venv/bin
TORCH := $(shell grep '^torch==' requirements/constraints.txt)
PLUGINS := $(sort $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/*/pyproject.toml)))
DISTRIBUTIONS := core $(PLUGINS) .
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements/constraints.txt
SGLANG := $(if $(ASYNCRL_SGLANG_VENV),,.venv-sglang/.installed)
SITE = $(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -c docs -d build/doctrees . build/site

# One thread a process: a second one beside a busy neighbour only spins.
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-long test-sglang test-sglang-long chaos soak check bench docs site figures build version clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1#/p' $(firstword $(MAKEFILE_LIST)) | awk -F'#' '{ printf "%-20s %s\n", $$1, $$2 }'

setup: .venv/.installed  ## make .venv and install every distribution in it

demo: setup  ## train the small embedded model: held-out accuracy rises to 95 % and more
	$(BIN)/asyncrl train examples/demo.toml

test: setup  ## run the tests, those of the plugins too, a file at a time in each of several processes
	$(BIN)/python -m pytest -q --numprocesses auto --maxprocesses 4 --dist loadfile

test-slow: setup  ## run the tests that take minutes: what is built, in a clean environment
	$(BIN)/python -m pytest -q -m 'minutes and not long'

test-long: setup  ## run the whole runs that are too long for every change: more kills, faults and evaluations
	$(BIN)/python -m pytest -q -m 'long and not sglang'

test-sglang: setup $(SGLANG)  ## run the tests against real SGLang servers, in an environment of their own (2.2 GB, made once)
	$(BIN)/python -m pytest -q -m 'sglang and not long'

test-sglang-long: setup $(SGLANG)  ## run those against real SGLang servers that are too long for every change: more kills and hangs
	$(BIN)/python -m pytest -q -m 'sglang and long'

chaos: setup  ## kill a run of the demo thirty times and see that nothing is lost: half an hour
	$(BIN)/python tools/chaos.py --accuracy 0.95

soak: setup  ## train for 20 minutes and see that no process grows
	$(BIN)/python tools/soak.py

check: setup  ## format, lint, types, generated docs, the site and its links
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python docs/generate.py --check
	$(SITE)

bench: setup  ## measure against the alternatives; writes benchmarks/results.json
	$(BIN)/python benchmarks/run.py

docs: setup  ## write the generated reference pages again
	$(BIN)/python docs/generate.py

site: setup  ## build the documentation's site in build/site; a warning or a dead link is an error
	$(SITE)

figures: setup  ## run the simulations of docs/scheduling.md again
	$(BIN)/python docs/figures.py

build: setup  ## build the sdist and the wheel of every distribution in dist/
	rm -rf dist
	$(BIN)/python tools/release.py build

version: setup  ## give every distribution a version: make version V=0.2.0
	$(BIN)/python tools/release.py version $(V)

clean:  ## remove .venv, caches, runs and what was built
	rm -rf .venv .venv-sglang runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -type d \( -name __pycache__ -o -name '*.egg-info' \) -prune -exec rm -rf {} +

# torch is asked for by its exact version before anything that only names a range, so that the build pip was pointed at is kept.
.venv/.tools: requirements/constraints.txt requirements/dev.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("asyncrl needs Python 3.11 or newer; make PYTHON=/path/to/python3.11")'
	@echo "setting up .venv (some minutes the first time)"
	@$(PYTHON) -m venv .venv
	@$(PIP) $(TORCH)
	@$(PIP) 'setuptools>=77' wheel --requirement requirements/dev.txt
	@touch $@

.venv/.installed: .venv/.tools $(DISTRIBUTIONS:%=%/pyproject.toml)
	@echo "installing $(words $(DISTRIBUTIONS)) distributions"
	@$(PIP) --no-build-isolation $(DISTRIBUTIONS:%=--editable ./%)
	@touch $@

# A real SGLang server for machines without a GPU; ASYNCRL_SGLANG_VENV names an environment that exists already.
.venv-sglang/.installed: tools/sglang_cpu.py $(wildcard tools/sglang_cpu_shim/* tools/sglang_cpu_shim/*/*.py) requirements/sglang-cpu.txt
	@$(PYTHON) tools/sglang_cpu.py
	@touch $@
