# Everything runs in .venv, which each target makes or refreshes by itself; nothing needs to be done before.
# It needs Python 3.11 or newer with pip, and for Spark a Java 17 runtime.

SHELL := /bin/bash
.DEFAULT_GOAL := help

# Arguments for the program of a target: `make test ARGS="tests/wire -k frame"`.
ARGS ?=

# The parts of test-all: names of `python -m tests.parts`, or all, or auto.
PART ?= all

PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13 python3.14; do \
	$$python -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v $$python; break; }; done)

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
RIVALS := $(VENV)/.rivals

# The oldest PySpark that is supported, in an environment of its own. Spark's jars for Kafka are those of its version.
SPARK40 := $(VENV)/spark40
SPARK40_INSTALLED := $(SPARK40)/.installed
SPARK40_VERSION := 4.0.0

# A real server of S3, for the tests that need one: they are skipped where it is missing.
VERSITYGW := $(BIN)/versitygw
VERSITYGW_VERSION := v1.8.0

APPLICATIONS := word_count sensors new_version in_step fraud search change_feed event_time

.PHONY: help demo elastic applications torture failover killmatrix chain million install test test-all spark40 s3 check lint docs format serve bench load clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(INSTALLED)  ## recorded temperatures: segments split, Spark converts them, server and driver are killed, nothing is missing
	$(BIN)/millrace demo $(ARGS)

elastic: $(INSTALLED)  ## drive load up and down for four minutes, check every event, draw the splits and merges
	$(BIN)/python examples/elastic_stream.py $(ARGS)

applications: $(INSTALLED)  ## the applications of docs/applications, one after the other; each checks its own results
	@for name in $(APPLICATIONS); do echo "== applications.$$name"; $(BIN)/python -m applications.$$name || exit; done

torture: $(INSTALLED)  ## kill a server that scales and forgets under load and transactions, again and again; check all (ARGS="--rounds 20 --seed 7")
	$(BIN)/python -m tests.crash.test_elastic $(ARGS)
	$(BIN)/python -m tests.crash.test_transactions $(ARGS)
	$(BIN)/python -m tests.crash.test_producers $(ARGS)

failover: $(INSTALLED) $(VERSITYGW)  ## two servers over one bucket: kill, stop and cut off servers and store; check all (ARGS="--rounds 5 --seed 7")
	$(BIN)/python -m tests.crash.test_failover $(ARGS)

killmatrix: $(INSTALLED)  ## kill drivers, executors and servers of Spark queries in each cell of a table (ARGS="--rounds 10 --seed 7")
	$(BIN)/python -m tests.spark_source.kills $(ARGS)

chain: $(INSTALLED)  ## two chained Spark queries while producers, drivers, workers and the server are killed (ARGS="--rounds 5 --seed 7")
	$(BIN)/python -m tests.spark_source.kills.test_chain $(ARGS)

million: $(INSTALLED)  ## create a million streams; show memory, starts, and how long a page and an event take
	$(BIN)/python -m benchmarks.million_streams $(ARGS)

install: $(INSTALLED)  ## make or refresh .venv, as each target does by itself

test: $(INSTALLED)  ## the tests of each change, about ten minutes (ARGS="tests/crash -m slow" runs others)
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "smoke or not (slow or spark)" $(ARGS)

test-all: $(INSTALLED)  ## the slow tests, tortures and drawn examples, by part (PART="crash spark" ARGS="--minutes 20 --seed 7")
	$(BIN)/python -m tests.parts $(PART) $(ARGS)

# It leaves sockets to the collector of garbage, which later versions close. The kill matrix is of the writer of Arrow
# batches, which queries have from 4.1 on.
spark40: $(SPARK40_INSTALLED)  ## the tests of the Spark source with the oldest PySpark that is supported
	$(SPARK40)/bin/python -m pytest -W "ignore:unclosed <socket:ResourceWarning" tests/spark_source \
		--ignore tests/spark_source/kills $(ARGS)

s3: $(VERSITYGW)  ## install versitygw with Go: without it, the tests against a real server of S3 are skipped

check: lint test  ## what each change has to pass: format, lint, types, import arrows, documentation, tests

# Warnings are errors: a link or an anchor that leads nowhere, a public name that is on no page, a page that needs the network.
SITE := sphinx-build --quiet --fail-on-warning --keep-going --jobs auto --doctree-dir build/doctrees docs build/site

docs: $(INSTALLED)  ## the documentation as a site: build/site/index.html
	$(BIN)/$(SITE)

# All run, so that one failure does not hide the others.
lint: $(INSTALLED)  ## the part of check that runs no code: format, lint, types, import arrows, documentation
	@failed=0; for program in "ruff format --check ." "ruff check ." mypy basedpyright lint-imports "$(SITE)"; do \
		echo "$$program"; $(BIN)/$$program || failed=1; \
	done; exit $$failed

format: $(INSTALLED)  ## put imports and layout in order
	$(BIN)/ruff check --select I --fix .
	$(BIN)/ruff format .

serve: $(INSTALLED)  ## a server on 127.0.0.1:9240 (see `millrace serve --help` for ARGS)
	$(BIN)/millrace serve $(ARGS)

bench: $(INSTALLED) $(RIVALS) $(SPARK40_INSTALLED)  ## every row of the benchmark table beside bare disk, bare loopback and the rivals found here
	$(BIN)/python -m benchmarks $(ARGS)

load: $(INSTALLED)  ## load tests with locust, headless; a table here, HTML in loadtests/results
	$(BIN)/python -m loadtests $(ARGS)

clean:  ## remove what building and testing left behind (.venv stays)
	rm -rf build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .coverage .coverage.*
	rm -rf spark-warehouse metastore_db derby.log loadtests/results
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

# The stamp is written last, so an interrupted installation is repeated. Debian splits ensurepip out of its Python:
# without it the virtual environment is made bare and filled from outside, by the pip that is there.
define make_environment
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer was not found; name one with PYTHON=/path/to/python3" >&2; exit 1; }
	@test -x $(1)/bin/python -a -x $(1)/bin/pip || $(PYTHON) -m venv $(1) >/dev/null 2>&1 || { \
		$(PYTHON) -m venv --clear --without-pip $(1) && \
		$(PYTHON) -m pip --python $(1)/bin/python install --quiet pip; }
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' $(2)
endef

$(INSTALLED): pyproject.toml
	$(call make_environment,$(VENV))
	@touch $@

$(SPARK40_INSTALLED): pyproject.toml
	$(call make_environment,$(SPARK40),'pyspark[connect]==$(SPARK40_VERSION)')
	@touch $@

$(RIVALS): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[rivals]'
	@touch $@

$(VERSITYGW):
	@command -v go >/dev/null || { echo "versitygw is built with Go, which was not found: https://go.dev/dl" >&2; exit 1; }
	@mkdir -p $(BIN)
	GOBIN=$(abspath $(BIN)) go install github.com/versity/versitygw/cmd/versitygw@$(VERSITYGW_VERSION)
