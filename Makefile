# The few commands a person types; `make help` lists them.
#
#   make paper STUDY=name         a study of workflow/config
#   make paper CONFIGFILE=path    any study file
#   PYTHON=python3.12             the interpreter behind .venv (3.11 or later)
#   PIP_ARGS=...                  options for pip, e.g. --extra-index-url of CPU-only wheels

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?=
export PYTHON
export PIP_ARGS

VENV := .venv
BIN := $(VENV)/bin
LOCK := envs/requirements.lock
STAMP := $(VENV)/.stamp-$(shell { cat $(LOCK); pwd; } | sha256sum | cut -c1-16)

STUDY ?= smoke
CONFIGFILE ?= workflow/config/$(STUDY).yaml
# The name that the study file gives itself is the name of its folder below results/.
NAME = $(shell sed -n 's/^study:[[:space:]]*["'\'']\{0,1\}\([a-z0-9-]*\).*/\1/p' '$(CONFIGFILE)')
RESULTS = results/$(NAME)
REPORT = $(RESULTS)/report.html
SNAKEMAKE = sh envs/run_workflow.sh --configfile '$(CONFIGFILE)'

.PHONY: help paper test check bench setup lock clean clean-results

help: ## list these commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | \
	    while IFS='|' read -r name text; do printf '%-22s %s\n' "$$name" "$$text"; done

paper: setup ## set up, run the study, build its report; STUDY=smoke
	@test -f '$(CONFIGFILE)' || { \
	    echo "error: no study file $(CONFIGFILE); see workflow/config" >&2; exit 2; }
	@$(SNAKEMAKE) --cores all
	@if [ ! -f $(REPORT) ] || [ -n "$$(find Snakefile workflow $(RESULTS) -type f \
	        -newer $(REPORT) -print 2>/dev/null | head -n 1)" ]; then \
	    $(SNAKEMAKE) --cores 1 --quiet all --report $(RESULTS)/.report.html && \
	    mv $(RESULTS)/.report.html $(REPORT); \
	fi
	@printf '%-8s %s\n' paper $(RESULTS)/paper/paper.pdf report $(REPORT) \
	    figures $(RESULTS)/figures/ tables $(RESULTS)/tables/

test: setup check ## set up, check, and run the whole test suite
	@$(BIN)/python -m pytest

check: setup ## linters, formats, types, boundaries
	@sh envs/check.sh

bench: setup ## run the benchmarks in bench/; numbers go to bench/results/
	@set -e; for script in bench/*.py; do name=$$(basename "$$script" .py); echo "== $$name"; \
	    $(BIN)/python "$$script" --out "bench/results/$$name.json"; done

setup: $(STAMP) ## make .venv from the lock, build Horovod once
	@$(BIN)/python -m envs.build_horovod

$(STAMP):
	@sh envs/setup.sh $(STAMP)

lock: setup ## compile envs/requirements.lock from requirements.in; UPGRADE=1 for newer versions
	@sh envs/lock.sh $(if $(UPGRADE),--upgrade)

clean: ## remove caches of the tools; results and .venv stay
	rm -rf .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

clean-results: ## remove results/<study>, measured runs included; needs CONFIRM=yes
	@test '$(CONFIRM)' = yes || { \
	    echo "error: this removes $(RESULTS) and its measured runs; add CONFIRM=yes" >&2; exit 2; }
	rm -rf '$(RESULTS)'
