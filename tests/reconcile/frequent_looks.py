"""For `kopf run -m`: an operator that looks at each resource again within two seconds.

Of Secrets, Services' addresses and ZooKeeper it hears nothing: it looks at them every 20 to 60
seconds, for which a test would wait.
"""

from odradek_operator.loop import workqueue
from odradek_operator.loop.workqueue import ClusterQueue
from odradek_operator.shared.store import ResourceKey

LONGEST_SECONDS = 2.0

_requeue = ClusterQueue._requeue


def _requeue_soon(self: ClusterQueue, key: ResourceKey, result: float | Exception) -> None:
    _requeue(self, key, result if isinstance(result, Exception) else min(result, LONGEST_SECONDS))


workqueue.LONGEST_RETRY_SECONDS = LONGEST_SECONDS  # type: ignore[misc]
ClusterQueue._requeue = _requeue_soon  # type: ignore[method-assign]
