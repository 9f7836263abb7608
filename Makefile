# The few commands a person types; `make help` lists them.
#
#   make paper STUDY=name         a study of workflow/config, or the path of a study file
#   make paper FROM=archive.zip   the paper of an archived study, from its records alone
#   PYTHON=python3.12             the interpreter behind .venv (3.11 or later)
#   PIP_ARGS=...                  options for pip, e.g. --extra-index-url of CPU-only wheels
#   make image IMAGE=apex         NVIDIA's base with Apex, else its newest (IMAGE=current);
#                                 BASE_IMAGE=... another base; BUILDER=docker|buildah|apptainer,
#                                 BUILD_OPTIONS='--volume ...' and FORCE=--force are passed on

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# What a person gives is data: Make expands no `$` in it, and a recipe gets it as a variable of the
# shell, in quotes, never as text of the command.
override GIVEN := STUDY FROM PYTHON PIP_ARGS IMAGE BASE_IMAGE BUILDER \
    BUILD_OPTIONS FORCE UPGRADE
# What a target reads besides PYTHON and PIP_ARGS; another variable would be ignored, and of two that
# name a study one would, be it given or exported.
override TAKES := paper:STUDY archive:STUDY paper:FROM lock:UPGRADE \
    $(foreach name,IMAGE BASE_IMAGE BUILDER BUILD_OPTIONS FORCE,image:$(name))
override idle := $(strip $(foreach name,$(filter-out PYTHON PIP_ARGS,$(GIVEN)),$(if \
    $(filter command,$(origin $(name))),$(if $(filter $(MAKECMDGOALS:=:$(name)),$(TAKES)),,$(name)))))
ifneq ($(and $(MAKECMDGOALS),$(idle)),)
$(error error: $(idle) would do nothing with make $(MAKECMDGOALS); leave it out)
endif
override named := $(strip $(foreach name,STUDY FROM,$(if \
    $(filter-out undefined,$(origin $(name))),$(name))))
ifneq ($(and $(word 2,$(named)),$(filter paper archive,$(MAKECMDGOALS))),)
$(error error: $(named) all name a study; give one of them and unset the others)
endif
$(foreach name,$(GIVEN),$(if $(filter-out undefined,$(origin $(name))),\
    $(eval override export $(name) := $$(value $(name)))))
# A misspelt name would run the default study.
override unknown := $(strip $(foreach name,$(.VARIABLES),$(if $(filter command,$(origin $(name))),\
    $(filter-out STAMP BIN PIPELINE SHELL LOCK SLOWEST,$(name)))))
ifneq ($(unknown),)
$(error error: no variable is called $(unknown); use one of $(GIVEN))
endif
# What follows is the Makefile's own, and nothing that is given takes its place.
override SHELL := /bin/sh
override BIN := .venv/bin
override LOCK := envs/requirements.lock
# Not held fast: `STAMP=` says that the environment is there, as tests in a copy of the checkout do.
STAMP := .venv/.stamp-$(shell { cat $(LOCK) 2>/dev/null; pwd -P; } | sha256sum | cut -c1-16)
override PIPELINE := $(BIN)/python -m pipeline
# What a session of tests spent its time on.
override SLOWEST := --durations=15 --durations-min=10

# Python finds the packages of the lock, whatever the caller's shell says of its own.
$(foreach name,$(filter-out PYTHON,$(filter PYTHON%,$(.VARIABLES))),$(eval unexport $(name)))

.PHONY: help paper studies archive test test-system check bench image setup lock clean

help: ## list these commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | \
	    while IFS='|' read -r name text; do printf '%-22s %s\n' "$$name" "$$text"; done

ifneq ($(origin FROM),undefined)
# Nothing is trained, so neither torch nor Horovod is installed; results/<study> is not touched.
paper: $(if $(STAMP),$(or $(wildcard $(STAMP)),$(STAMP)-paper))
	@folder=$$($(PIPELINE) unpack --archive="$$FROM" --into results/from_archive) && \
	$(PIPELINE) follow --study="$$folder/study.json" --results="$$folder" -- \
	    sh envs/run_workflow.sh --snakefile from_archive.smk --show-failed-logs --cores all && \
	printf '%-8s %s\n' paper "$$folder/paper/paper.pdf" report "$$folder/report.html" \
	    figures "$$folder/figures/" tables "$$folder/tables/" && \
	$(PIPELINE) verify --results "$$folder"
else
paper: setup ## set up, run the study, build its report; STUDY=smoke
	@folder=$$($(PIPELINE) check --study="$${STUDY-smoke}") && \
	$(PIPELINE) follow --study="$${STUDY-smoke}" -- \
	    sh envs/run_workflow.sh --show-failed-logs --cores all && \
	printf '%-8s %s\n' paper "$$folder/paper/paper.pdf" report "$$folder/report.html" \
	    figures "$$folder/figures/" tables "$$folder/tables/"
endif

# One after the other; a restart goes on where it was, and one that fails stops none.
studies: setup ## every study on published claims that needs no GPU, and one page of all claims
	@for study in $$($(PIPELINE) index --list); do STUDY=$$study $(MAKE) --no-print-directory paper || \
	    echo "warning: $$study ended with an error; its claims are left out" >&2; done; \
	$(PIPELINE) index

archive: $(STAMP) ## a finished study as one file, archives/<study>.zip; STUDY=smoke
	@$(PIPELINE) archive --study="$${STUDY-smoke}"

test: setup check ## set up, check, and run all tests but those of the next line
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest --ignore=tests/system -n logical --dist loadfile \
	    --no-loadscope-reorder $(SLOWEST)

# First what waits a lot, two at a time; then what measures, with the machine to itself.
test-system: setup ## the tests that start a cluster, an image, a browser or emulated nodes
	@status=0; \
	$(BIN)/python -m pytest $(SLOWEST) -m 'not alone' -n 2 --dist loadfile \
	    --no-loadscope-reorder tests/system || status=1; \
	$(BIN)/python -m pytest $(SLOWEST) -m alone tests/system || status=1; \
	exit $$status

check: setup ## linters, formats, types, boundaries
	@sh envs/check.sh

bench: setup ## run the benchmarks in bench/; numbers go to bench/results/
	@set -e; for script in bench/*.py; do name=$$(basename "$$script" .py); echo "== $$name"; \
	    if [ "$$name" = gpu ] && [ ! -e /dev/nvidiactl ]; then echo "no GPU: left out"; continue; fi; \
	    $(BIN)/python -m "bench.$$name" --out "bench/results/$$name.json"; done

image: ## the container image as one file, images/samestep.sif, without .venv; BASE_IMAGE=...
	@"$${PYTHON:-python3}" -m envs.build_image $${FORCE:+--force}

setup: $(STAMP) ## make .venv from the lock, build Horovod once
	@$(BIN)/python -m envs.build_horovod

$(STAMP) $(STAMP)-paper:
	@sh envs/setup.sh $@

lock: setup ## compile envs/*.lock from their .in files; UPGRADE=1 for newer versions
	@sh envs/lock.sh $${UPGRADE:+--upgrade}

clean: ## remove caches of the tools; results and .venv stay
	rm -rf .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +
