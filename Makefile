# `make help` lists everything.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
TESTS ?= tests
# Processes of the tests: four more than there are cores, because most of a test is waiting.
WORKERS ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 4)))
# The tests of a change: since this commit, with what is not committed.
SINCE ?= HEAD
# Tests write and sync thousands of small files: in memory, where there is room.
TEMPORARY := $(shell df -k --output=avail /dev/shm 2>/dev/null | awk 'NR == 2 && $$1 > 4000000 { print "/dev/shm" }')
PYTEST := TMPDIR=$(TEMPORARY) $(BIN)/python -m pytest
QUICK := tests/engine tests/adapters/mapping tests/gateway/state tests/gateway/security tests/gateway/test_settings.py
UNMARKED := -m "not faults and not fleet and not image"

# Containers set it; each process would compile all sources that it imports, and a gateway would start in twice the time.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run page docs screenshots quick test test-all components install test-fleet test-zigbee2mqtt test-faults test-fleet-faults fuzz fuzz-doors fleet-package demo-fleet deb image image-if-changed test-image test-image-pi3 mutation soak lint format bench bench-fleet bench-fleet-subscriptions lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The demo needs the gateway and an embedded broker; the tests need the rest. pip compiles what it installs, but not the
# sources of this checkout. Their bytecode lies beside them and not in build/ (PYTHONPYCACHEPREFIX): that setting holds for
# the standard library and the dependencies too, which would be compiled twice, and not for commands outside `make`.
$(VENV)/run.stamp: requirements.lock pyproject.toml
	@test -d $(VENV) || $(if $(filter 3.%,$(PYTHON)),python3,$(PYTHON)) -m venv $(VENV)
	@echo "installing the pinned dependencies into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(BIN)/python -m compileall -q -j 0 $(CURDIR)/lamplighter/*.py $(CURDIR)/lamplighter/*/
	@touch $@

$(VENV)/test.stamp: $(VENV)/run.stamp requirements-test.lock
	@echo "installing what the tests need into $(VENV)"
# Not compiled: that takes as long as the rest, and the tests import a small part.
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --require-hashes -r requirements-test.lock
	@touch $@

# Needs npm or PyPI for Node, and the npm registry, when source/ has changed.
PAGE := gateway/page/built/index.html
$(PAGE): gateway/page/build.sh gateway/page/node.lock $(shell find gateway/page/source -type f)
	@PYTHON=$(if $(filter 3.%,$(PYTHON)),python3,$(PYTHON)) sh gateway/page/build.sh || \
	  echo "page: not built; the gateway serves its text page instead" >&2

page: $(PAGE) ## the web page: gateway/page/built

# Needs PyPI for Sphinx once, when requirements-docs.lock has changed. A page that links to nothing is an error; without
# Sphinx, the gateway has no documents.
DOCS := gateway/page/built-docs/files.json
$(DOCS): requirements-docs.lock pyproject.toml README.md SECURITY.md $(shell find docs_site docs -type f)
	@PYTHON=$(if $(filter 3.%,$(PYTHON)),python3,$(PYTHON)) sh docs_site/build.sh || { test $$? -eq 3 && \
	  echo "docs: not built; the gateway serves no documents" >&2; }

docs: $(DOCS) ## the site of the documents: gateway/page/built-docs, which the gateway serves at /page/docs/

screenshots: $(VENV)/test.stamp $(PAGE) ## the pictures of the documents: docs/images, from a running demo in Chromium
	@sh tests/install-components.sh
	@$(BIN)/python -m tests.screenshots

run: $(VENV)/run.stamp $(PAGE) ## the demo: a street of ten lamps; ARGS="--for 30" ends by itself
	@$(BIN)/lamplighter demo $(ARGS)

install: components $(VENV)/test.stamp $(PAGE) $(DOCS) ## all that the tests need

quick: $(VENV)/test.stamp $(PAGE) ## a minute: engine, mapping and units of the gateway; ruff of what changed
	@files=$$(git diff --name-only --diff-filter=d $(SINCE) -- '*.py'); test -z "$$files" || { $(BIN)/ruff check $$files && $(BIN)/ruff format --check $$files; }
	@$(PYTEST) $(UNMARKED) -q --processes $(WORKERS) $(QUICK) $(ARGS)

test: ## what a change can break; TESTS=tests/engine for a part, TESTS=changed for what the change reaches
	@$(MAKE) --no-print-directory -j 2 install
	@tests="$(TESTS)"; if [ "$$tests" = changed ]; then tests=$$($(BIN)/python -m tests.support.changed $(SINCE)); fi; \
	test -n "$$tests" || { echo "no test reaches what changed"; exit 0; }; \
	$(PYTEST) $(UNMARKED) --processes $(WORKERS) $$tests $(ARGS)

test-all: test test-fleet test-faults test-fleet-faults test-zigbee2mqtt ## nightly: every tier, random tests with new seeds, the image
	@$(MAKE) soak ARGS="--updates 20000"
	@$(MAKE) image test-image

# They need neither each other nor what the tests need of Python.
components: $(VENV)/run.stamp
	@sh tests/install-components.sh
	@sh tests/fetch-suite.sh $(BIN)/python rdflib build/w3c "the W3C test suite of SPARQL" & \
	sh tests/fetch-suite.sh $(BIN)/python pyshacl build/shacl "the W3C test suite of SHACL" & \
	sh tests/fetch-npm.sh tests/e2e/page/axe build/axe axe-core & \
	sh tests/fetch-npm.sh tests/wot build/wot node-wot & \
	sh tests/clients/fetch.sh $(BIN)/python; \
	wait

test-fleet: $(VENV)/test.stamp ## the fleet: collector, tables and jobs on Spark, against DuckDB, the store and the simulator's truth
	@sh tests/install-components.sh
	@TEST_AMOUNTS=1 $(PYTEST) -m "fleet and not faults" --processes 2 tests/cloud_sync tests/trials $(ARGS)

test-zigbee2mqtt: $(VENV)/test.stamp ## the published Zigbee2MQTT with a simulated radio; fetches it from npm once
	@sh tests/install-components.sh
	@sh tests/fetch-npm.sh tests/zigbee2mqtt build/zigbee2mqtt Zigbee2MQTT
	@$(PYTEST) tests/zigbee2mqtt/running_zigbee2mqtt.py $(ARGS)

test-faults: install ## kills, power cuts, full disks, restarts and damaged files; all random cases
	@TEST_AMOUNTS=1 $(PYTEST) -m "(faults or amounts) and not fleet_faults" --processes $(WORKERS) $(TESTS) $(ARGS)

test-fleet-faults: $(VENV)/test.stamp ## kills of the fleet's commands, of Spark's processes and of a cluster's worker
	@sh tests/install-components.sh
	@$(PYTEST) -m fleet_faults $(TESTS) $(ARGS)

fuzz: $(VENV)/test.stamp ## mutated texts, messages, segments, RDF, files and profiles for five minutes; ARGS="--seconds 3600 --target lexer"
	@$(BIN)/python -m tests.fuzz $(ARGS)

fuzz-doors: $(VENV)/test.stamp ## random texts of the grammar at all doors of a gateway for ten minutes; ARGS="--seconds 3600"
	@$(BIN)/python -m tests.fuzz.doors $(ARGS)

mutation: $(VENV)/test.stamp $(PAGE) ## whether the tests notice 400 small changes of the code: build/mutation; hours; ARGS="--count 40" for a look
	@sh tests/fetch-suite.sh $(BIN)/python rdflib build/w3c "the W3C test suite of SPARQL"
	@$(BIN)/python -m tests.mutation all build/mutation $(ARGS)

deb: $(VENV)/run.stamp $(PAGE) $(DOCS) ## the Debian package: build/deb/lamplighter_*.deb; ARCH=arm64 PYTHON=3.13 for another machine
	@ARCH="$(ARCH)" PYTHON="$(filter 3.%,$(PYTHON))" image/deb/build.sh

image: $(VENV)/run.stamp ## the image of an SD card, as root: build/image/lamplighter-<version>.img.zst; DEVICE=pi5: build/image-pi5
	@image/build.sh $(DEVICE)

test-image: $(VENV)/test.stamp ## look at the image that `make image` made, and start it on an emulated board
	@sh tests/install-components.sh
	@sh tests/image/install-emulator.sh
	@sh tests/image/fetch-schema.sh $(BIN)/python
	@DEVICE=$(DEVICE) $(PYTEST) -m image tests/image $(ARGS)
	@test -n "$(ARGS)" || image/if-changed.sh --done $(DEVICE)

test-image-pi3: $(VENV)/test.stamp ## the same image on an emulated Pi 3: half an hour for one start
	@sh tests/image/install-emulator.sh
	@$(PYTEST) -m image tests/image/started_pi3.py $(ARGS)

image-if-changed: $(VENV)/test.stamp ## for CI: image and test-image, if the base is not the one that was tested (image/tested)
	@image/if-changed.sh

fleet-package: $(VENV)/run.stamp ## the files for spark-submit: build/fleet/lamplighter.zip and lamplighter_fleet.py
	@$(BIN)/lamplighter-fleet package build/fleet

demo-fleet: $(VENV)/test.stamp ## a fleet through real S3, Spark and every job, checked against what happened
	@sh tests/install-components.sh
	@$(BIN)/lamplighter-fleet demo $(ARGS)

soak: $(VENV)/test.stamp ## a million random updates against the oracle, for hours; ARGS="--updates 20000" for a part, ARGS=faults for kills and cuts, ARGS=days for 72 h of load
	@$(BIN)/python -m tests.soak $(ARGS)

lint: $(VENV)/test.stamp $(PAGE) ## ruff and mypy --strict
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: $(VENV)/run.stamp $(PAGE) ## LAMP, ROAD and the rest of benchmarks/README.md; ARGS="lamp road" for a part, "--quick" for a look
	@$(BIN)/python -m benchmarks.sub_engine $(ARGS)

bench-fleet: $(VENV)/test.stamp ## what the fleet's tables and jobs cost on Spark, beside DuckDB; ARGS="--sizes 1 2" for a part
	@$(BIN)/python -m benchmarks.fleet $(ARGS)

bench-fleet-subscriptions: $(VENV)/test.stamp ## what fleet subscriptions cost on Spark; ARGS="osma-csma latency" for some parts
	@$(BIN)/python -m benchmarks.fleet_subscriptions $(ARGS)

format: $(VENV)/test.stamp ## lay the code out
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

lock: $(VENV)/test.stamp ## pin the dependencies anew (names, versions and hashes; no addresses)
	@$(BIN)/python -m pip install --quiet uv
	@for set in ":demo" "-test:demo,test,cloud,mcp,modbus" "-cloud:cloud"; do \
	  name=requirements$${set%%:*}.lock; extras=$${set#*:}; \
	  $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	    --no-annotate --no-emit-index-url --no-emit-find-links \
	    $$(echo $$extras | sed 's/\([a-z]*\),*/--extra \1 /g') \
	    pyproject.toml requirements-build.in -o $$name; \
	done
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --no-emit-index-url --no-emit-find-links requirements-docs.in -o requirements-docs.lock

clean: ## remove what was installed and made
	rm -rf $(VENV) build dist *.egg-info
