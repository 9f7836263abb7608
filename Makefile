# The few commands a person types; `make help` lists them.
#
#   make paper STUDY=name         a study of workflow/config
#   make paper CONFIGFILE=path    any study file
#   make paper FROM=archive.zip   the paper of an archived study, from its records alone
#   make archive STUDY=name       PARTIAL=yes packs the records of an unfinished study
#   PYTHON=python3.12             the interpreter behind .venv (3.11 or later)
#   PIP_ARGS=...                  options for pip, e.g. --extra-index-url of CPU-only wheels
#   make image BASE_IMAGE=...     another base than NVIDIA's; BUILDER=docker|buildah|apptainer,
#                                 BUILD_OPTIONS='--volume ...' and FORCE=--force are passed on

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?=
export PYTHON
export PIP_ARGS
export BASE_IMAGE
export BUILDER
export BUILD_OPTIONS

VENV := .venv
BIN := $(VENV)/bin
LOCK := envs/requirements.lock
STAMP := $(VENV)/.stamp-$(shell { cat $(LOCK); pwd; } | sha256sum | cut -c1-16)

STUDY ?= smoke
CONFIGFILE ?= workflow/config/$(STUDY).yaml
# The name that the study file gives itself is the name of its folder below results/.
NAME = $(shell sed -n 's/^study:[[:space:]]*["'\'']\{0,1\}\([a-z0-9-]*\).*/\1/p' '$(CONFIGFILE)')
RESULTS = results/$(NAME)
# What a session of tests spent its time on.
SLOWEST = --durations=15 --durations-min=10
SNAKEMAKE = sh envs/run_workflow.sh --configfile '$(CONFIGFILE)'
ARCHIVE = archives/$(NAME).zip

.PHONY: help paper archive test check bench image setup lock clean clean-results

help: ## list these commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | \
	    while IFS='|' read -r name text; do printf '%-22s %s\n' "$$name" "$$text"; done

ifdef FROM
# Nothing is trained, so Horovod is not built; results/<study> is not touched.
paper: $(STAMP)
	@folder=$$($(BIN)/python -m pipeline unpack --archive '$(FROM)' --into results/from_archive) && \
	sh envs/run_workflow.sh --snakefile from_archive.smk --configfile "$$folder/study.json" \
	    --cores all && \
	printf '%-8s %s\n' paper "$$folder/paper/paper.pdf" figures "$$folder/figures/" \
	    tables "$$folder/tables/" && \
	$(BIN)/python -m pipeline verify --results "$$folder"
else
paper: setup ## set up, run the study, build its report; STUDY=smoke
	@test -f '$(CONFIGFILE)' || { \
	    echo "error: no study file $(CONFIGFILE); see workflow/config" >&2; exit 2; }
	@$(SNAKEMAKE) --cores all
	@printf '%-8s %s\n' paper $(RESULTS)/paper/paper.pdf report $(RESULTS)/report.html \
	    figures $(RESULTS)/figures/ tables $(RESULTS)/tables/
endif

archive: $(STAMP) ## a finished study as one file, archives/<study>.zip; STUDY=smoke
	@test -f $(RESULTS)/study.json || { \
	    echo "error: there is no $(RESULTS); run make paper STUDY=$(STUDY) first" >&2; exit 2; }
	@$(BIN)/python -m pipeline archive --results $(RESULTS) --out $(ARCHIVE) $(if $(PARTIAL),--partial)

# What starts a cluster, a container or emulated nodes has the machine to itself.
test: setup check ## set up, check, and run the whole test suite
	@status=0; \
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --ignore=tests/system -n logical --dist loadfile $(SLOWEST) \
	    || status=1; \
	$(BIN)/python -m pytest $(SLOWEST) tests/system || status=1; \
	exit $$status

check: setup ## linters, formats, types, boundaries
	@sh envs/check.sh

bench: setup ## run the benchmarks in bench/; numbers go to bench/results/
	@set -e; for script in bench/*.py; do name=$$(basename "$$script" .py); echo "== $$name"; \
	    $(BIN)/python -m "bench.$$name" --out "bench/results/$$name.json"; done

image: ## the container image as one file, images/samestep.sif, without .venv; BASE_IMAGE=...
	@$(or $(PYTHON),python3) -m envs.build_image $(FORCE)

setup: $(STAMP) ## make .venv from the lock, build Horovod once
	@$(BIN)/python -m envs.build_horovod

$(STAMP):
	@sh envs/setup.sh $(STAMP)

lock: setup ## compile envs/*.lock from their .in files; UPGRADE=1 for newer versions
	@sh envs/lock.sh $(if $(UPGRADE),--upgrade)

clean: ## remove caches of the tools; results and .venv stay
	rm -rf .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

clean-results: ## remove results/<study>, measured runs included; needs CONFIRM=yes
	@test '$(CONFIRM)' = yes || { \
	    echo "error: this removes $(RESULTS) and its measured runs; add CONFIRM=yes" >&2; exit 2; }
	rm -rf '$(RESULTS)'
