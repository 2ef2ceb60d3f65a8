"""The end of the operator together with its namespace.

A namespace that is deleted loses its pods first, this one among them, and only then all else (since
Kubernetes 1.34; before, in any order). What has a finalizer of ours would then keep it for ever,
since nobody is left to take that away. So an operator that stops because its own namespace goes
lets go of what is in there: all of it is lost anyway, and what ZooKeeper has of it stays.
"""

from __future__ import annotations

import logging

from odradek_operator.shared.apply import ReconcileContext, namespace_terminating
from odradek_operator.shared.kube import KubeError
from odradek_operator.shared.spec import API_VERSION, FINALIZER
from odradek_operator.shared.store import KIND_ORDER

log = logging.getLogger(__name__)


def let_go(context: ReconcileContext, namespace: str) -> None:
    """Take our finalizers away in a namespace that is being deleted. Raises KubeError."""
    if not namespace_terminating(context, namespace):
        return
    for kind in KIND_ORDER:
        for body in context.kube.select(API_VERSION, kind, namespace):
            finalizers = body["metadata"].get("finalizers", ())
            if FINALIZER not in finalizers:
                continue
            others = [one for one in finalizers if one != FINALIZER]
            try:
                context.kube.set_finalizers(body, others)
            except KubeError as error:
                if error.code not in (404, 409):
                    raise
                log.warning("%s %s: %s", kind, body["metadata"]["name"], error)
                continue
            name = body["metadata"]["name"]
            log.warning("%s %s goes with its namespace; ZooKeeper keeps what is its", kind, name)
