"""For `kopf run -m`: an operator that looks at Users and their Secrets every second."""

from odradek_operator.user import reconcile

reconcile.STEADY_SECONDS = 1.0  # type: ignore[misc]
reconcile.WAIT_SECONDS = 1.0  # type: ignore[misc]
