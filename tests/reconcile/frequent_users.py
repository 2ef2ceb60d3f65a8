"""For `kopf run -m`: an operator that looks at Users, their Secrets and clusters every second.

An authority (CA) that somebody replaced signs once brokers were given it, not minutes later.
"""

from datetime import timedelta

from odradek_operator.cluster import reconcile as cluster_reconcile
from odradek_operator.shared import authorities
from odradek_operator.user import reconcile

reconcile.STEADY_SECONDS = 1.0  # type: ignore[misc]
reconcile.WAIT_SECONDS = 1.0  # type: ignore[misc]
cluster_reconcile.STEADY_SECONDS = 1.0  # type: ignore[misc]
authorities.PROPAGATION = timedelta(0)  # type: ignore[misc]
