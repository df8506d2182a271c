# Everything that make writes lives in the user's cache folder, one place for each checkout; the repository stays clean.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help test test-kit test-servers test-thorough check lint types borders format docs model crash-matrix kafka-copy pravega-soak bench demo clean venv java

ARGS ?=
TARGET ?=
EXTRAS ?= dev,all

# A checksum, and not the path itself: make can't handle a space in a path.
HERE := $(shell pwd -P | cksum | cut -d ' ' -f 1)
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/twophase/$(HERE)
BIN := $(CACHE)/venv/bin

export PYTHONPYCACHEPREFIX := $(CACHE)/pycache
export RUFF_CACHE_DIR := $(CACHE)/ruff
export MYPY_CACHE_DIR := $(CACHE)/mypy
export HYPOTHESIS_STORAGE_DIRECTORY := $(CACHE)/hypothesis

PYTEST := "$(BIN)/python" -m pytest -o cache_dir="$(CACHE)/pytest"

help: ## say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo 'ARGS="..." is passed on by test, test-kit, test-servers and model; EXTRAS=dev leaves the vendor clients out.'
	@echo 'Environment and caches: $(CACHE)'

# Three at a time on two cores: half of the tests wait for Spark to start. What shares a session or a server stays together: conftest.py.
test: venv ## run the tests that need nothing but Java; about eleven minutes
	$(PYTEST) -n 3 -m "not servers and not kit" $(ARGS)

test-kit: venv ## run the tests of what tests: suites on sinks with mistakes, the model's reductions; five minutes
	$(PYTEST) -n 3 -m kit $(ARGS)

test-servers: venv ## run the tests on Kafka, PostgreSQL, HDFS and Pravega, which they fetch and start, RocksDB and sockets; forty minutes
	$(PYTEST) -n 3 -m "servers and not thorough" $(ARGS)

test-thorough: venv ## run the suites that differ little from those of test-servers: the other client of HDFS, another PostgreSQL
	$(PYTEST) -n 4 -m thorough $(ARGS)

check: lint types borders ## run every check that is not a test of behaviour

lint: venv ## check style and format (ruff)
	"$(BIN)/ruff" check .
	"$(BIN)/ruff" format --check .

types: venv ## check types, over a tree in which the folders lie as they install (mypy)
	"$(BIN)/python" tools/link_tree.py "$(CACHE)/tree"
	cd "$(CACHE)/tree" && "$(BIN)/mypy" --config-file "$(CURDIR)/pyproject.toml" .

borders: venv ## check who imports whom, and what the wheel and the editable install hold
	$(PYTEST) tests/test_borders.py tests/test_packaging.py

format: venv ## mend style and format where ruff can
	"$(BIN)/ruff" check --fix .
	"$(BIN)/ruff" format .

docs: venv ## write docs/options.md anew from the option classes
	@"$(BIN)/python" -m tools.options_page

model: venv ## search the protocol's model to a larger bound; goes on where it was stopped
	"$(BIN)/python" -m tests.model --processes "$$(nproc 2> /dev/null || echo 2)" --journal "$(CACHE)/model" $(ARGS)

CRASH_files := integration_tests.tables:FilesTarget
CRASH_hdfs := integration_tests.hdfs_tables:HdfsTarget
CRASH_webhdfs := integration_tests.hdfs_tables:WebHdfsTarget
CRASH_kafka := integration_tests.topics:KafkaTarget
CRASH_postgres := integration_tests.postgres_tables:PostgresTarget
CRASH_postgres-mvcc := integration_tests.postgres_tables:VersionsTarget
CRASH_postgres-xa := integration_tests.postgres_tables:PreparedTarget
CRASH_rocksdb := integration_tests.states:StateTarget
CRASH_pravega := integration_tests.pravega_streams:PravegaTarget
CRASH_ALL := $(CRASH_files) $(CRASH_kafka) $(CRASH_postgres) $(CRASH_postgres-mvcc) $(CRASH_postgres-xa) $(CRASH_rocksdb) $(CRASH_pravega) $(CRASH_hdfs) $(CRASH_webhdfs)

crash-matrix: java venv ## kill real queries at every step; four hours. TARGET=files for one target, ARGS="--cell NAME" for one step
	"$(BIN)/python" -m twophase.testing.crash $(if $(TARGET),$(or $(CRASH_$(TARGET)),$(TARGET)),$(CRASH_ALL)) \
		--json "$(CACHE)/crash-matrix.json" --page docs/reliability.md $(ARGS)

kafka-copy: java venv ## copy a million records while drivers, executors and the broker are killed; ten minutes
	"$(BIN)/python" -m integration_tests.kafka_copy $(ARGS)

pravega-soak: java venv ## write a hundred epochs to a stream while their driver is killed a hundred times; ten minutes
	"$(BIN)/python" -m integration_tests.pravega_soak $(ARGS)

bench: java venv ## measure beside what people had before; TARGET=files for one target
	"$(BIN)/python" -m benchmarks $(TARGET) --out "$(CACHE)/bench" $(ARGS)

demo: java venv ## kill a pipeline four times, and count its rows; about five minutes
	@"$(BIN)/python" -m examples.demo

clean: ## remove the environment and all caches of this checkout
	rm -rf "$(CACHE)"

# Before the environment is made: whoever lacks Java should learn it at once.
java:
	@if ! command -v java > /dev/null && [ -z "$$JAVA_HOME" ]; then \
		echo 'This runs Spark, which needs Java 17 or newer: install a JRE (on Debian: apt install default-jre-headless).' >&2; \
		exit 1; \
	fi

# The stamp holds what was installed, and which extensions were built: those lie in the checkout and not in the environment, so a
# new clone at the place of an old one lacks them. It is removed before an installation begins and written when it is complete:
# an environment without it is begun again from nothing. The lock is for two makes at once.
venv:
	@set -euo pipefail; \
	mkdir -p "$(CACHE)"; \
	exec 9> "$(CACHE)/lock"; \
	if command -v flock > /dev/null; then flock 9; fi; \
	stamp="$(CACHE)/venv/installed"; \
	state() { echo "$(EXTRAS) $$(cat pyproject.toml constraints.txt twophase/*.c | cksum)"; echo "built: $$(find twophase -maxdepth 1 -name '*.so' | sort | xargs)"; }; \
	if "$(BIN)/python" -c '' 2> /dev/null && [ "$$(cat "$$stamp" 2> /dev/null)" = "$$(state)" ]; then exit 0; fi; \
	if ! { "$(BIN)/python" -c '' 2> /dev/null && [ -e "$$stamp" ]; }; then \
		for python in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11 ''; do \
			if [ -z "$$python" ]; then echo 'twophase needs Python 3.11 or newer, and none is on the PATH.' >&2; exit 1; fi; \
			if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; then break; fi; \
		done; \
		echo "Making the environment with $$python (the first time this takes a minute or two)"; \
		"$$python" -m venv --clear "$(CACHE)/venv"; \
	fi; \
	rm -f "$$stamp"; \
	echo 'Installing twophase[$(EXTRAS)] and what it needs'; \
	pip=("$(BIN)/python" -m pip --quiet --disable-pip-version-check install -c constraints.txt); \
	"$${pip[@]}" setuptools; \
	"$${pip[@]}" --no-build-isolation -e '.[$(EXTRAS)]'; \
	state > "$$stamp"
