"""For `kopf run -m`: an operator that looks for missed deletions every few seconds."""

from odradek_operator.loop import resync

resync.CHECK_SECONDS = 5.0  # type: ignore[misc]
