"""Every status that the tests' operators wrote, held against the words of Argo CD and kstatus.

The API server's audit log holds each write with the resource as it was then. What is true of it
comes from this table, made by hand, and not from the conditions that the judges read.
"""

from __future__ import annotations

import fcntl
import json
import os
from enum import Enum
from pathlib import Path
from typing import Any

from odradek_operator.shared.status import condition_of
from tests.support import judges


class Truth(Enum):
    """What a person would say; the value is Argo CD's word and those that kstatus may choose."""

    DONE = ("Healthy", frozenset({"Current"}))
    UNDER_WAY = ("Progressing", frozenset({"InProgress"}))
    FAILED = ("Degraded", frozenset({"Failed"}))
    # kstatus knows no rest: it tells whether something is left to do.
    AT_REST = ("Suspended", frozenset({"Current", "InProgress", "Failed"}))
    GOING = ("Progressing", frozenset({"Terminating"}))


# By the reason of Ready.
REASONS = {
    Truth.DONE: """
        BrokersReady Synced Observed Running Completed Scheduled Suspended
    """,
    Truth.UNDER_WAY: """
        ZooKeeperUnreachable BrokerIdsTaken BrokersStarting NoController PartitionsOffline
        BrokersRolling
        Creating Updating Reassigning WaitingForBrokers WaitingForLeaders TopicDeleting Deleting
        TopicNotFound ClusterInvalid ClusterNotFound ClusterConflict
        Due Pending Starting Stopping Restarting Suspending
        BrokersUnreachable ResetWaiting Resetting
        ExecutorsPending DriverUnreachable NoClientsAuthority NoClusterAuthority
        AuthorityPending
        CertificatePending UsersNotWritten SecretTerminating
        AddressPending NotAdvertised ServiceTerminating
    """,
    Truth.FAILED: """
        ScaleDownBlocked ResourceConflict ZnodeUnreadable ApplyRejected DriverRejected
        RefNotPermitted
        AdoptionRefused TopicExists TopicCollision TooManyPartitions
        PartitionDecreaseUnsupported PartitionsNotAdded ReassignmentFailed
        TopicDeletionDisabled
        InvalidReplicationFactor InvalidConfig InvalidReplicaAssignment InvalidTopicPattern
        TooManyBrokers PortsTaken
        JobFailing InvalidJob TopicRecreated DataTruncated StatefulQueryChanged BatchOverdue
        ClaimDeleted
        ResetTooLarge ResetWithoutPartitions InvalidReset
        SecretInUse SuperUser InvalidPassword InvalidAcl InvalidClientsAuthority SecretRejected
        TooManyAcls ZooKeeperRefuses CertificateNeeded
        UnsafeListenerChange CertificateMissing CertificateUnusable CertManagerMissing
        AuthorityUnusable SecretConflict CertificateConflict UsersTooLarge
        ListenersUnknown
        ZooKeeperSecretMissing ZooKeeperSecretUnusable UnsafeZooKeeperChange
        ServiceRejected ServiceConflict InvalidExpose
    """,
    Truth.AT_REST: "Paused",
}
# By the phase of a Reassignment, but for plans that are refused: those stay Pending.
PHASES = {
    "Pending": Truth.UNDER_WAY,
    "Planned": Truth.UNDER_WAY,
    "AwaitingApproval": Truth.AT_REST,
    "Running": Truth.UNDER_WAY,
    "Completed": Truth.DONE,
    "Cancelled": Truth.DONE,
    "RolledBack": Truth.FAILED,
    "Failed": Truth.FAILED,
}
REFUSED_PLANS = frozenset(
    {
        "InvalidMove",
        "NotEnoughBrokers",
        "UnknownBroker",
        "UnknownPartition",
        "UnknownTopic",
        "PlanTooLarge",
        "ZnodeUnreadable",
        "ApplyRejected",
    }
)
# Of Reassignments, beside their phases, which say how they are.
OF_REASSIGNMENTS = frozenset({"Blocked", "BrokerUnavailable", "DestinationMissing", "RollingBack"})
_BY_REASON = {reason: truth for truth, text in REASONS.items() for reason in text.split()}


def reasons() -> set[str]:
    """Return all that the tables know."""
    return {*_BY_REASON, *PHASES, *REFUSED_PLANS, *OF_REASSIGNMENTS}


def truth_of(resource: dict[str, Any]) -> Truth:
    """Say how a resource is. KeyError: the table above has no word on its reason."""
    meta, spec, status = resource["metadata"], resource["spec"], resource.get("status", {})
    if "deletionTimestamp" in meta:
        return Truth.GOING
    if spec.get("paused") or spec.get("job", {}).get("suspend"):
        return Truth.AT_REST
    ready = condition_of(status, "Ready")
    if status.get("observedGeneration", -1) != meta["generation"] or ready is None:
        return Truth.UNDER_WAY
    paused = condition_of(status, "Paused")
    if paused is not None and paused["status"] == "True":
        return Truth.AT_REST
    if "(spec.job.timeouts.startSeconds)" in ready["message"]:
        # It should have started long ago.
        return Truth.FAILED
    if ready["reason"] not in reasons():
        raise KeyError(ready["reason"])
    if resource["kind"] == "Reassignment" and ready["reason"] not in REFUSED_PLANS:
        return PHASES[status["phase"]] if "phase" in status else _BY_REASON[ready["reason"]]
    return Truth.FAILED if ready["reason"] in REFUSED_PLANS else _BY_REASON[ready["reason"]]


def take_written(audit_log: Path) -> list[dict[str, Any]]:
    """Return resources as they were after each write, those that say the same only once.

    Of the test processes that share an API server, each takes what no other took before.
    """
    seen, found = set(), []
    with (
        audit_log.with_suffix(".taken").open("a+") as place,
        audit_log.open("rb") as lines,
    ):
        fcntl.flock(place, fcntl.LOCK_EX)
        place.seek(0)
        lines.seek(int(place.read() or 0))
        for line in iter(lines.readline, b""):
            # The last line may be incomplete.
            if not line.endswith(b"}\n"):
                lines.seek(-len(line), os.SEEK_CUR)
                break
            resource = json.loads(line).get("responseObject", {})
            if not resource.get("apiVersion", "").startswith("odradek.io/"):
                continue
            told = json.dumps(_told(resource), sort_keys=True)
            if told not in seen:
                seen.add(told)
                found.append(resource)
        place.truncate(0)
        place.write(str(lines.tell()))
    return found


def _told(resource: dict[str, Any]) -> object:
    """Return what may matter to a judge."""
    meta, spec, status = resource["metadata"], resource["spec"], resource.get("status", {})
    conditions = [
        (one["type"], one["status"], one["reason"]) for one in status.get("conditions", ())
    ]
    current = status.get("observedGeneration") == meta["generation"]
    rest = spec.get("paused"), spec.get("job", {}).get("suspend"), status.get("phase")
    return resource["kind"], current, "deletionTimestamp" in meta, rest, conditions


def disagreements(resources: list[dict[str, Any]]) -> list[str]:
    """Return a line for each resource of which a judge does not say what is true."""
    found = []
    for one, verdicts in zip(resources, judges.judge(resources), strict=True):
        where = f"{one['kind']} {one['metadata']['name']}"
        ready = condition_of(one.get("status", {}), "Ready") or {"reason": "-"}
        try:
            argo, flux = truth_of(one).value
        except KeyError as unknown:
            found.append(f"{where}: tests/reconcile/statuses.py has no word on {unknown}")
            continue
        if verdicts.argo != argo or verdicts.kstatus not in flux:
            said = f"Argo CD {verdicts.argo}, kstatus {verdicts.kstatus}"
            found.append(f"{where}, {ready['reason']}: {said}, not {argo}, {'/'.join(flux)}")
    return found
