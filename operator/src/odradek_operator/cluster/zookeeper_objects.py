"""What a cluster's login for ZooKeeper becomes in the pods of brokers: settings and files. Pure.

The login, and keys, are files of a Secret, which brokers read anew for each connection. Whom
ZooKeeper takes brokers for is an annotation of pods: another login restarts them, another password
does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from odradek.zookeeper_settings import OPTIONS_VARIABLE
from odradek_operator.cluster import zookeeper_plan
from odradek_operator.cluster.zookeeper_plan import ZooKeeperPlan
from odradek_operator.shared import zookeeper_credentials
from odradek_operator.shared.objects import Object
from odradek_operator.shared.zookeeper_credentials import MOUNT, ZooKeeperCredentials

_VOLUME: Final = "zookeeper"


@dataclass(frozen=True, slots=True)
class ZooKeeperSetup:
    """A plan, and what pods get for it: the name of the Secret with the files, and settings.

    `options` is what brokers have in KAFKA_OPTS, which names the file with the login. `files` are
    the names of those that the Secret has.
    """

    plan: ZooKeeperPlan
    secret: str
    settings: Mapping[str, str]
    options: str
    files: tuple[str, ...]

    def annotations(self) -> dict[str, str]:
        """Return the annotations of the pod template."""
        return {zookeeper_plan.MARK: zookeeper_plan.stamp(self.plan)}


def setup(plan: ZooKeeperPlan, credentials: ZooKeeperCredentials, secret: str) -> ZooKeeperSetup:
    """Return what pods get for a plan."""
    return ZooKeeperSetup(
        plan,
        secret,
        zookeeper_credentials.broker_settings(credentials, set_acl=plan.set_acl),
        zookeeper_credentials.broker_options(credentials),
        tuple(sorted(zookeeper_credentials.files(credentials))),
    )


def environment(given: ZooKeeperSetup) -> list[Object]:
    """Return the environment that brokers get with it."""
    return [{"name": OPTIONS_VARIABLE, "value": given.options}] if given.options else []


def volume(secret: str) -> Object:
    """Return the volume with the files of a Secret."""
    return {"name": _VOLUME, "secret": {"secretName": secret, "defaultMode": 0o440}}


def mount() -> dict[str, Any]:
    """Return its mount."""
    return {"name": _VOLUME, "mountPath": MOUNT, "readOnly": True}
