# `make` alone lists the targets. Everything is installed into .venv; nothing outside the checkout changes,
# except that missing system packages (Java, Maven) are installed if possible: as root, on a machine with apt.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= $(shell python3 -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null && echo python3 || echo python3.11)
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
MINIO := v0.0.0-20260212201848-7aac2a2c5b7c
MINIO_FOLDER := $(CURDIR)/$(VENV)/share/odf/minio
KAFKA_JARS := $(VENV)/share/odf/kafka
SAMPLES := $(VENV)/share/odf/samples
PROTO_OUT := libs/odf_common/odf_common/proto
PROTO_NEW := $(PROTO_OUT)/.new
PROTO_FILES := $(sort $(shell find proto -name '*.proto'))
PROJECTS := libs/odf_common libs/odf_cli services/ingest services/coordinator services/engine-spark services/verifier services/sync tests/support
PYPROJECTS := $(addsuffix /pyproject.toml,$(PROJECTS))
CHECKED := libs/odf_common/odf_common libs/odf_common/tests libs/odf_cli/odf_cli libs/odf_cli/tests $(wildcard services/*/odf_*) tests benchmarks examples docs
comma := ,
MVN := mvn --batch-mode --quiet
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Tests and nodes start hundreds of processes: their modules are compiled once, also where the environment says otherwise.
export PYTHONDONTWRITEBYTECODE :=

# $(call need,check,what,Debian package): afterwards the check succeeds, or make stops with a clear error.
need = $(1) >/dev/null 2>&1 || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	{ apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(3) >/dev/null; }; } || \
	{ echo "error: $(2) was not found; install it (Debian: apt-get install $(3)) and run make again" >&2; exit 1; }

.PHONY: help
help:
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

.PHONY: setup
setup: $(STAMPS)/projects $(STAMPS)/kafka $(PROTO_OUT)/.stamp $(STAMPS)/archive $(STAMPS)/spark ## install everything into .venv; fast if nothing has changed

.PHONY: testsetup
testsetup: setup $(STAMPS)/minio $(STAMPS)/nginx $(STAMPS)/postgres $(STAMPS)/samples $(STAMPS)/compiled ## install what only tests need: a MinIO, built once; needs Go, takes some minutes

.PHONY: demo
demo: setup ## run the demo on real data: from messages to verified derivatives
	@python examples/demo.py

.PHONY: test
test: lint tests ## lint and all tests

# In three processes, as tests wait a lot, and more of them make each other late; tests of one file share its fixtures.
.PHONY: tests
tests: testsetup
	@python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --durations 20

.PHONY: unit
unit: testsetup ## tests that need neither broker nor Spark
	@python -m pytest --ignore=tests/integration --ignore=services/engine-spark

# Half as long again as `make unit`. What only a process of its own runs counts as not covered.
.PHONY: coverage
coverage: testsetup ## the same, and print the share of lines and branches that they reach
	@python -m pytest -n 2 --dist loadfile --ignore=tests/integration --ignore=services/engine-spark --cov --cov-report=term

.PHONY: engine
engine: setup ## tests of the engine, over Spark
	@python -m pytest services/engine-spark

.PHONY: integration
integration: testsetup ## tests over the real broker, Redis and Spark
	@python -m pytest tests/integration

.PHONY: soak
soak: testsetup ## the long cases that `make test` leaves out: before a release; an hour
	@TZ=Asia/Kolkata python -m pytest -n 2 --dist loadfile --timeout 1800 -m soak

.PHONY: explore
explore: testsetup ## property-based and model tests with random examples, and many more; half an hour or longer
	@HYPOTHESIS_PROFILE=explore python -m pytest -n 2 --dist loadfile --timeout 0 -m hypothesis

.PHONY: mutants
mutants: testsetup ## change the code in 60 places, one at a time, and print the share that no unit test notices; SEED=2 takes others
	@python -m tests.mutants.run --seed $(or $(SEED),1)

.PHONY: bench
bench: testsetup ## run the benchmarks, and print the numbers
	@python benchmarks/run.py

# The variables are settings of tests/containers/images.py and conftest.py.
.PHONY: containers
containers: setup ## run a node in containers and break it in 40 ways under load: before a release; needs Docker or podman, takes an hour and a half
	@python -m pytest -s --timeout 0 tests/containers $(if $(CASE),-k "$(CASE)")

.PHONY: lint
lint: $(STAMPS)/projects $(PROTO_OUT)/.stamp ## ruff, mypy, import-linter and the documents' links; changes nothing
	@ruff check
	@ruff format --check
	@mypy $(CHECKED)
	@for tests in $(wildcard services/*/tests); do mypy $$tests; done # separately: several have a conftest
	@lint-imports
	@mkdocs build --strict --quiet

.PHONY: fmt
fmt: setup ## format the code and fix what can be fixed safely
	@ruff check --fix-only --quiet
	@ruff format

.PHONY: proto
proto: $(PROTO_OUT)/.stamp ## generate Python from proto/**.proto

.PHONY: schemas
schemas: setup ## generate docs/schemas from the model
	@rm -rf docs/schemas && odf schema --folder docs/schemas

.PHONY: docs
docs: setup ## generate docs/reference from commands, settings, metrics, errors and benchmark results
	@python docs/generate.py

.PHONY: up
up: setup ## start the embedded node in the background
	@odf up --detach

.PHONY: down
down: setup ## stop the embedded node
	@odf down

.PHONY: run
run: setup ## run one service of a running node in this terminal: make run SERVICE=coordinator [DEBUG=1]
	@python -m odf_cli.embedded.foreground $(SERVICE) $(if $(DEBUG),--debug)

.PHONY: lock
lock: $(STAMPS)/requirements ## write requirements.txt from requirements.in; UPGRADE=--upgrade upgrades the packages
	@python -m venv $(VENV)/lock && $(VENV)/lock/bin/pip install --quiet uv
	@$(VENV)/lock/bin/uv pip compile --quiet $(UPGRADE) --generate-hashes --no-strip-extras --no-emit-index-url --no-header \
		--python-version 3.11 --python-platform x86_64-unknown-linux-gnu requirements.in --output-file requirements.txt

$(BIN)/python:
	@$(call need,$(PYTHON) -c 'import sys; assert sys.version_info[:2] == (3$(comma) 11)',Python 3.11,python3)
	@$(call need,$(PYTHON) -c 'import ensurepip',the venv module of Python,python3-venv)
	@$(PYTHON) -m venv $(VENV)

$(STAMPS)/requirements: requirements.txt | $(BIN)/python
	@echo "installing the locked requirements"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.txt
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/projects: $(PYPROJECTS) $(STAMPS)/requirements
	@echo "installing the projects"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation $(addprefix -e ./,$(PROJECTS))
	@touch $@

$(STAMPS)/kafka: deploy/embedded/pom.xml | $(BIN)/python
	@$(call need,java -version,Java 17,default-jre-headless)
	@$(call need,mvn --version,Maven,maven)
	@echo "fetching Kafka's jars"
	@rm -rf $(KAFKA_JARS)
	@$(MVN) -f deploy/embedded/pom.xml dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=$(CURDIR)/$(KAFKA_JARS)
	@mkdir -p $(STAMPS) && touch $@

# The module proxy's checksum database checks the sources. Go's own caches make a second checkout fast. Compiled without
# optimizations, in 181 instead of 284 processor seconds, and debug information: the tests send it little.
$(STAMPS)/minio: Makefile | $(BIN)/python
	@if ! $(MINIO_FOLDER)/$(MINIO) --version >/dev/null 2>&1; then \
		command -v go >/dev/null || { echo "error: Go was not found; install Go 1.21 or newer, with which the tests' MinIO is built" >&2; exit 1; }; \
		echo "building MinIO for the tests; this takes some minutes"; \
		rm -rf $(MINIO_FOLDER) && mkdir -p $(MINIO_FOLDER) && cd $(MINIO_FOLDER) && \
		GOBIN=$(MINIO_FOLDER) GOFLAGS=-mod=mod CGO_ENABLED=0 go install -trimpath -ldflags "-s -w" -gcflags "all=-N -l -dwarf=false" github.com/minio/minio@$(MINIO) && \
		mv minio $(MINIO); \
	fi
	@mkdir -p $(STAMPS) && touch $@

# Debian has it outside the path of users.
$(STAMPS)/nginx: | $(BIN)/python
	@$(call need,PATH=$$PATH:/usr/sbin nginx -v,nginx$(comma) of which tests run a proxy$(comma),nginx-light)
	@mkdir -p $(STAMPS) && touch $@

# The same. Tests start servers of their own, and use none that the system starts.
$(STAMPS)/postgres: | $(BIN)/python
	@$(call need,{ ls /usr/lib/postgresql/*/bin/initdb || command -v initdb; },PostgreSQL$(comma) of which tests run a server$(comma),postgresql)
	@mkdir -p $(STAMPS) && touch $@

# Shapefiles that tests read: they are in the sources of the package, not in its wheel.
$(STAMPS)/samples: $(STAMPS)/requirements
	@mkdir -p $(SAMPLES)
	@awk '/^pyshp==/ { found = 1 } found { print } found && !/\\$$/ { exit }' requirements.txt > $(SAMPLES)/requirements.txt
	@$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-binary :all: \
		--require-hashes --requirement $(SAMPLES)/requirements.txt --dest $(SAMPLES)
	@touch $@

# Only for speed: each process of a test run collects all tests, and would compile them itself, all at the same time.
$(STAMPS)/compiled: $(STAMPS)/requirements | $(STAMPS)/projects $(PROTO_OUT)/.stamp
	@echo "compiling the tests"
	@$(BIN)/python -m pytest --collect-only -qq >/dev/null || echo "warning: that failed; the run will say why" >&2
	@touch $@

# Only for speed: the node also starts without the archive.
$(STAMPS)/archive: $(STAMPS)/kafka | $(STAMPS)/projects $(PROTO_OUT)/.stamp
	@echo "preparing a class archive, so that Kafka starts faster"
	@$(BIN)/python -m odf_cli.embedded.parts.kafka_cds || echo "warning: that failed; Kafka will start more slowly" >&2
	@touch $@

$(STAMPS)/spark: $(STAMPS)/requirements services/engine-spark/odf_engine_spark/spark/session.py | $(STAMPS)/projects $(PROTO_OUT)/.stamp
	@$(call need,java -version,Java 17,default-jre-headless)
	@echo "preparing a class archive, so that Spark starts faster"
	@$(BIN)/python -m odf_engine_spark.spark.class_archive 2>/dev/null || echo "warning: that failed; Spark will start more slowly" >&2
	@touch $@

# protoc derives module names from paths under proto/; here the modules are under odf_common.proto, so rewrite imports.
# Each module is renamed into its place, because processes that start meanwhile import them: none is missing at any time.
$(PROTO_OUT)/.stamp: $(PROTO_FILES) $(STAMPS)/requirements
	@echo "generating $(PROTO_OUT)"
	@rm -rf $(PROTO_NEW) && mkdir -p $(PROTO_NEW) && touch $(PROTO_NEW)/.stamp
	@$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=$(PROTO_NEW) --pyi_out=$(PROTO_NEW) --grpc_python_out=$(PROTO_NEW) $(PROTO_FILES)
	@find $(PROTO_NEW) -name '*.py*' -exec sed -i -E 's/^from (odf|engine)(\.[a-z0-9_.]+)? import /from odf_common.proto.\1\2 import /' {} +
	@find $(PROTO_NEW) -type d -exec touch {}/__init__.py \;
	@cd $(PROTO_NEW) && find . -type d -exec mkdir -p ../{} \; && find . -name '*.py*' -exec mv -f {} ../{} \;
	@find $(PROTO_OUT) -name '*.py*' ! -newer $(PROTO_NEW)/.stamp -delete # of proto files that no longer exist
	@mv -f $(PROTO_NEW)/.stamp $@ && rm -rf $(PROTO_NEW)
