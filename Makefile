.DEFAULT_GOAL := help
.PHONY: help setup fmt lint type compiled unit quick quickstart e2e test bench benches clocks chaos simulate docs up down cluster images kubeconfig release lock

PY := .venv/bin/python
PACKAGES := broker_image/src operator/src operator/spark_job/src
SOURCES := $(PACKAGES) tests examples charts
# What needs no other process: the pure cores and the codecs.
CORES := tests/assignment tests/config tests/controller/test_core.py tests/controller/test_histories.py \
  tests/controller/test_outbox.py tests/controller/test_transcripts.py tests/group/test_group.py \
  tests/group/test_members.py tests/group/test_offsets.py tests/group/test_shard.py \
  tests/group/test_subscriptions.py tests/protocol/test_codec.py tests/protocol/test_headers.py \
  tests/transaction/test_decisions.py tests/transaction/test_entries.py \
  tests/transaction/test_histories.py tests/transaction/test_records.py \
  tests/zk/test_znodes.py tests/log/test_batches.py tests/log/test_compaction.py \
  tests/log/test_log_behaviour.py tests/replica tests/net/test_frame.py \
  tests/reconcile/test_cluster_planning.py tests/reconcile/test_group_planning.py \
  tests/reconcile/test_driver_planning.py tests/reconcile/test_topic_planning.py \
  tests/reconcile/test_placement.py tests/reconcile/test_status.py tests/spark/test_config.py \
  tests/spark/test_offsets.py tests/spark/test_turns.py
# Most tests wait most of the time, so there are more workers than processors.
WORKERS ?= 6
# Where the images of a release will be pushed. This one takes nothing: there is no registry of the project yet.
REGISTRY ?= registry.example.com/odradek
# Few tests that fail run once more, alone; what passes then is named as flaky.
PYTEST := $(PY) -m tests.second_try
# A file's tests share processes; the longest files begin first (tests/conftest.py).
UNIT := -m "not e2e and not bench" -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# The tests start some hundred Python processes: their modules are compiled once, beside the checkout.
# Measurements start brokers as they are installed: compiled.
compiled unit quick chaos simulate bench benches: export PYTHONPYCACHEPREFIX := $(HOME)/.cache/odradek/pycache
compiled unit quick chaos simulate bench benches: export PYTHONDONTWRITEBYTECODE :=

help: ## show this list
	@sed -n 's/^\([a-z0-9]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

.venv/.ready: tests/requirements.lock tests/setup.sh pyproject.toml
	@bash tests/setup.sh

setup: .venv/.ready ## make .venv with locked versions; install missing system packages

fmt: .venv/.ready ## format and sort imports
	@.venv/bin/ruff format $(SOURCES)
	@.venv/bin/ruff check --fix $(SOURCES)

lint: .venv/.ready ## style, import contracts
	@.venv/bin/ruff format --check $(SOURCES)
	@.venv/bin/ruff check $(SOURCES)
	@.venv/bin/lint-imports

type: .venv/.ready ## mypy, strict, on packages and tests
	@.venv/bin/mypy

unit: .venv/.ready ## every test that needs no Kubernetes node
	@$(PY) -m tests.cluster tools
	@$(PYTEST) $(UNIT) --durations 15 $(ARGS)

quick: lint type ## lint, types and the tests of the pure cores, within a minute
	@.venv/bin/pytest -q -n 2 $(CORES) $(ARGS)

e2e: .venv/.ready ## the whole path on the built-in Kubernetes; leaves it up
	@$(PY) -m tests.cluster tools
	@$(PYTEST) -m e2e tests/e2e $(ARGS)

# In a fresh checkout each worker would compile all tests. One process does it while mypy runs.
compiled: .venv/.ready
	@said=$$(.venv/bin/pytest --collect-only -qq -m "not e2e and not bench") || { echo "$$said"; exit 1; }

test: .venv/.ready ## everything: lint, types, unit and end-to-end tests, from nothing
	@$(MAKE) --no-print-directory -j 2 --output-sync=target type lint compiled
	@$(MAKE) --no-print-directory unit
	@status=0; $(MAKE) --no-print-directory e2e || status=$$?; \
	  $(MAKE) --no-print-directory down || status=$$?; \
	  exit $$status

bench: .venv/.ready ## beside Apache Kafka 2.8.2 and 4.1.0: tests/bench/RESULTS.md (QUICK=1: in minutes)
	@$(PY) -m tests.bench.report $(if $(QUICK),--quick) $(ARGS)

benches: .venv/.ready ## the other measurements, beside Apache Kafka where there is a peer
	@$(PY) -m tests.cluster tools
	@.venv/bin/pytest -q -s tests/bench/bench_log.py
	@for each in codec requests produce_fetch groups partitions replication many_brokers secured security_roll handshakes controller operator exporter exporter_roll jobs console; do $(PY) -m tests.bench.bench_$$each || exit 1; done

clocks: ## how long the first minutes take, in a fresh clone with an empty HOME (ARGS=quickstart or up: that alone)
	@bash tests/bench/clocks.sh $(ARGS)

chaos: .venv/.ready ## every test without samples; 200 faults under load, and again under transactions, with checkers (some hours)
	@$(PY) -m tests.cluster tools
	@ODRADEK_FULL_COUNTS=1 .venv/bin/pytest $(UNIT) --dist worksteal
	@$(PY) -m tests.fuzz --grammar
	@$(PY) -m tests.chaos $(ARGS)
	@$(PY) -m tests.chaos --transactions $(ARGS)

simulate: .venv/.ready ## ten thousand seeded schedules of faults for controller and replication, and as many for transactions, in virtual time
	@$(PY) -m tests.simulator $(ARGS)
	@$(PY) -m tests.simulator --transactions $(ARGS)
	@$(PY) -m tests.simulator.large_cluster

quickstart: ## a first look on this machine: no Kubernetes, no root (ARGS=--once: and end)
	@bash examples/quickstart/local.sh $(ARGS)

docs: .venv/.ready ## build the documentation as a site, strictly, and say where it is
	@$(PY) -m tests.docs

up: .venv/.ready ## a Kubernetes cluster, Odradek and the quickstart on it, and what they show
	@$(PY) -m tests.cluster up

down: .venv/.ready ## remove the cluster and every trace of it
	@$(PY) -m tests.cluster down

cluster: .venv/.ready ## boot the Kubernetes cluster alone
	@$(PY) -m tests.cluster cluster

images: .venv/.ready ## build the images; load them on the nodes where there is a cluster
	@$(PY) -m tests.cluster images

kubeconfig: .venv/.ready ## print the path of the cluster's kubeconfig
	@$(PY) -m tests.cluster kubeconfig

release: .venv/.ready ## make dist/ of this commit: wheel, images, chart, SBOMs (REGISTRY=... names where images will be)
	@$(PY) -m tests.release --registry $(REGISTRY)

lock: .venv/.ready ## resolve the dependencies anew and write the requirements.lock files
	@bash tests/lock.sh
