# `make help` lists everything.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
TESTS ?= tests
# Processes of `make test`: two more than there are cores, because many tests wait.
WORKERS ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 2)))

.DEFAULT_GOAL := help
.PHONY: help run page screenshots test test-unit test-fleet test-zigbee2mqtt test-faults test-fleet-faults fuzz mutation fleet-package demo-fleet deb image image-if-changed test-image test-image-pi3 soak lint format bench bench-fleet bench-fleet-subscriptions lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The demo needs the gateway and an embedded broker; the tests need the rest.
$(VENV)/run.stamp: requirements.lock pyproject.toml
	@test -d $(VENV) || $(if $(filter 3.%,$(PYTHON)),python3,$(PYTHON)) -m venv $(VENV)
	@echo "installing the pinned dependencies into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/test.stamp: $(VENV)/run.stamp requirements-test.lock
	@echo "installing what the tests need into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-test.lock
	@touch $@

# Needs npm or PyPI for Node, and the npm registry, when source/ has changed.
PAGE := gateway/page/built/index.html
$(PAGE): gateway/page/build.sh gateway/page/node.lock $(shell find gateway/page/source -type f)
	@PYTHON=$(if $(filter 3.%,$(PYTHON)),python3,$(PYTHON)) sh gateway/page/build.sh || \
	  echo "page: not built; the gateway serves its text page instead" >&2

page: $(PAGE) ## the web page: gateway/page/built

screenshots: $(VENV)/test.stamp $(PAGE) ## the pictures of the documents: docs/images, from a running demo in Chromium
	@sh tests/install-components.sh
	@$(BIN)/python -m tests.screenshots

run: $(VENV)/run.stamp $(PAGE) ## the demo: a street of ten lamps; ARGS="--for 30" ends by itself
	@$(BIN)/lamplighter demo $(ARGS)

test: $(VENV)/test.stamp $(PAGE) ## all tests but those of the fleet, the fault tier and the image; TESTS=tests/engine for a part
	@sh tests/install-components.sh
	@sh tests/fetch-suite.sh $(BIN)/python rdflib build/w3c "the W3C test suite of SPARQL"
	@sh tests/fetch-suite.sh $(BIN)/python pyshacl build/shacl "the W3C test suite of SHACL"
	@sh tests/clients/fetch.sh $(BIN)/python
	@sh tests/fetch-npm.sh tests/e2e/page/axe build/axe axe-core
	@sh tests/fetch-npm.sh tests/wot build/wot node-wot
	@$(BIN)/python -m pytest -m "not faults and not fleet and not image" --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0 $(TESTS) $(ARGS)

test-unit: $(VENV)/test.stamp $(PAGE) ## the unit tests of engine, gateway and ontology: no listeners, no components
	@$(BIN)/python -m pytest -m "not faults and not fleet and not image" --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0 tests/engine tests/gateway tests/ontology $(ARGS)

test-fleet: $(VENV)/test.stamp ## the fleet: collector, tables and jobs on Spark, against DuckDB, the store and the simulator's truth
	@sh tests/install-components.sh
	@$(BIN)/python -m pytest -m "fleet and not faults" tests/cloud_sync tests/trials $(ARGS)

test-zigbee2mqtt: $(VENV)/test.stamp ## the published Zigbee2MQTT with a simulated radio; fetches it from npm once
	@sh tests/install-components.sh
	@sh tests/fetch-npm.sh tests/zigbee2mqtt build/zigbee2mqtt Zigbee2MQTT
	@$(BIN)/python -m pytest tests/zigbee2mqtt/running_zigbee2mqtt.py $(ARGS)

test-faults: $(VENV)/test.stamp $(PAGE) ## kills, power cuts, full disks, restarts and damaged files
	@sh tests/install-components.sh
	@sh tests/fetch-npm.sh tests/wot build/wot node-wot
	@$(BIN)/python -m pytest -m "faults and not fleet_faults" --numprocesses 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 $(TESTS) $(ARGS)

test-fleet-faults: $(VENV)/test.stamp ## kills of the fleet's commands, of Spark's processes and of a cluster's worker
	@sh tests/install-components.sh
	@$(BIN)/python -m pytest -m fleet_faults $(TESTS) $(ARGS)

fuzz: $(VENV)/test.stamp ## mutated texts, messages, segments, RDF, files and profiles for five minutes; ARGS="--seconds 3600 --target lexer"
	@$(BIN)/python -m tests.fuzz $(ARGS)

mutation: $(VENV)/test.stamp $(PAGE) ## whether the tests notice 400 small changes of the code: build/mutation; hours; ARGS="--count 40" for a look
	@sh tests/fetch-suite.sh $(BIN)/python rdflib build/w3c "the W3C test suite of SPARQL"
	@$(BIN)/python -m tests.mutation all build/mutation $(ARGS)

deb: $(VENV)/run.stamp $(PAGE) ## the Debian package: build/deb/lamplighter_*.deb; ARCH=arm64 PYTHON=3.13 for another machine
	@ARCH="$(ARCH)" PYTHON="$(filter 3.%,$(PYTHON))" image/deb/build.sh

image: $(VENV)/run.stamp ## the image of an SD card, as root: build/image/lamplighter-<version>.img.zst
	@image/build.sh

test-image: $(VENV)/test.stamp ## look at the image that `make image` made, and start it on an emulated board
	@sh tests/install-components.sh
	@sh tests/image/install-emulator.sh
	@sh tests/image/fetch-schema.sh $(BIN)/python
	@$(BIN)/python -m pytest -m image tests/image $(ARGS)
	@test -n "$(ARGS)" || image/if-changed.sh --done

test-image-pi3: $(VENV)/test.stamp ## the same image on an emulated Pi 3: half an hour for one start
	@sh tests/image/install-emulator.sh
	@$(BIN)/python -m pytest -m image tests/image/started_pi3.py $(ARGS)

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

clean: ## remove what was installed and made
	rm -rf $(VENV) build dist *.egg-info
