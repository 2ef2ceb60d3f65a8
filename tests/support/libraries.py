"""Imports what brokers and operators import, for the process that `preloaded` forks them from."""

import gc

import kazoo.client  # noqa: F401
import kopf.cli  # noqa: F401
import kubernetes.client  # noqa: F401
import prometheus_client  # noqa: F401
import re2  # noqa: F401

import odradek.config
import odradek.server.process
import odradek.tools.groups
import odradek.tools.log_dump
import odradek.tools.log_repair
import odradek.zookeeper  # noqa: F401

# Nobody's garbage: collections in the forks need not look through them, and share their pages.
gc.collect()
gc.freeze()
