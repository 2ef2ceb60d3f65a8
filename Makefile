.DEFAULT_GOAL := help
.PHONY: help setup fmt lint type unit e2e test bench chaos simulate up down cluster images kubeconfig lock

PY := .venv/bin/python
PACKAGES := broker_image/src operator/src operator/spark_job/src
SOURCES := $(PACKAGES) tests examples charts

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

type: .venv/.ready ## mypy, strict, on the three packages
	@.venv/bin/mypy

unit: .venv/.ready ## every test that needs no Kubernetes node
	@$(PY) -m tests.cluster tools
	@.venv/bin/pytest -m "not e2e and not bench" -n 2 --dist loadfile --durations 15 $(ARGS)

e2e: .venv/.ready ## the whole path on the built-in Kubernetes; leaves it up
	@.venv/bin/pytest -m e2e tests/e2e $(ARGS)

test: lint type unit ## everything: lint, types, unit and end-to-end tests, from nothing
	@status=0; $(MAKE) --no-print-directory e2e || status=$$?; \
	  $(MAKE) --no-print-directory down || status=$$?; \
	  exit $$status

bench: .venv/.ready ## measurements, beside Apache Kafka where there is a peer
	@$(PY) -m tests.cluster tools
	@.venv/bin/pytest -q -s tests/bench/bench_log.py
	@for each in codec requests produce_fetch groups replication controller operator; do $(PY) -m tests.bench.bench_$$each || exit 1; done

chaos: .venv/.ready ## every test without samples; 170 faults under load, and a checker (some hours)
	@$(PY) -m tests.cluster tools
	@ODRADEK_FULL_COUNTS=1 .venv/bin/pytest -m "not e2e and not bench" -n 3 --dist worksteal $(FULL_ARGS)
	@$(PY) -m tests.chaos $(ARGS)

simulate: .venv/.ready ## ten thousand seeded schedules of faults for controller and replication, in virtual time
	@$(PY) -m tests.simulator $(ARGS)

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

lock: .venv/.ready ## resolve the dependencies anew and write the requirements.lock files
	@bash tests/lock.sh
