"""The user with which a job reads its topics and commits: made before its driver, gone with it.

A cluster whose listener of brokers asks for nothing but an address needs neither user nor Secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from odradek_operator.group import job_account
from odradek_operator.group.group_spec import GroupSpec
from odradek_operator.group.observe import GroupContext
from odradek_operator.shared import client_users, cluster_access, cluster_secrets
from odradek_operator.shared.apply import ReconcileContext
from odradek_operator.shared.client_users import ClientUser, ClientUserError
from odradek_operator.shared.job_spec import JobSpec
from odradek_operator.shared.spec import ResourceMeta


def with_secret(meta: ResourceMeta, job: JobSpec | None, around: GroupContext) -> JobSpec | None:
    """Return the job, with the names of its Secrets where more is needed than an address."""
    if job is None:
        return None
    if around.zookeeper_files.needed:
        job = replace(job, zookeeper_secret=job_account.zookeeper_secret(meta))
    if around.access is None or not around.access.is_secured:
        return job
    authority = around.authority if around.access.tls else 0
    return replace(job, brokers_secret=job_account.brokers_secret(meta), authority=authority)


def has_secret(job: JobSpec) -> bool:
    """Return whether the job's pods mount a Secret for their connections to brokers."""
    return job.brokers_secret is not None


def needs_user(job: JobSpec | None, around: GroupContext) -> bool:
    """Return whether the job gets a user, which must be removed."""
    return job is not None and around.access is not None and around.access.mechanism is not None


def may_have_user(context: ReconcileContext, meta: ResourceMeta, around: GroupContext) -> bool:
    """Return whether a user must be removed: brokers ask for one, or they did.

    Its Secret is written before it, and stays when brokers ask for something else.
    """
    if around.access is not None and around.access.mechanism is not None:
        return True
    name = job_account.brokers_secret(meta)
    found = context.kube.get("v1", "Secret", meta.namespace, name)
    return bool(cluster_access.field(found, cluster_secrets.USERNAME))


def ensure(
    context: ReconcileContext,
    meta: ResourceMeta,
    wanted: GroupSpec,
    job: JobSpec,
    around: GroupContext,
    labels: Mapping[str, str],
) -> None:
    """Make the job's Secret, and its user with the rights that it needs now.

    Raises ClientUserError.
    """
    assert around.access is not None
    assert job.brokers_secret is not None
    written = job.raw["sink"].get("topic", {}).get("name")
    user = ClientUser(
        meta,
        labels,
        job.brokers_secret,
        cluster_access.job_user(meta.namespace, meta.name),
        cluster_access.job_rights(wanted.topics, wanted.topic_pattern, wanted.group, written),
        changes=True,
    )
    client_users.ensure(context, around.zookeeper, around.access, around.namespace, user)


def ensure_files(
    context: ReconcileContext,
    meta: ResourceMeta,
    job: JobSpec,
    around: GroupContext,
    labels: Mapping[str, str],
    *,
    starts: bool,
) -> None:
    """Write with what the driver connects to ZooKeeper.

    Raises ClientUserError for a driver that `starts`; one that runs goes on with what it has.
    """
    if job.zookeeper_secret is None:
        return
    problem = around.zookeeper_files.problem
    if problem is None:
        texts = around.zookeeper_files.texts
        client_users.write_files(context, meta, labels, job.zookeeper_secret, texts)
    elif starts:
        raise ClientUserError(problem.reason, str(problem))


def remove(meta: ResourceMeta, around: GroupContext) -> None:
    """Remove the job's user and its rights; its Secret goes with its owner.

    Raises ClientUserError.
    """
    if around.zookeeper is None:
        raise ClientUserError("ZooKeeperUnreachable", around.cluster.away, waits=True)
    client_users.remove(around.zookeeper, cluster_access.job_user(meta.namespace, meta.name))
