"""Due times of a cron expression, in UTC. Pure.

The fields mean what they mean in Debian's cron and in a Kubernetes CronJob: minute, hour, day of
the month, month, day of the week. All functions but `check` expect an expression that it accepts.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from cronsim import CronSim, CronSimError

_MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_SECOND: Final = timedelta(seconds=1)
_ANY_TIME: Final = datetime(2000, 1, 1, tzinfo=UTC)


def check(text: str) -> None:
    """Raise ValueError, in a few words, for what is no cron expression or never due."""
    expression = _expand(text)
    if len(expression.split()) != 5:
        raise ValueError(f"{text!r} has not five fields")
    try:
        next(CronSim(expression, _ANY_TIME))
    except CronSimError as error:
        raise ValueError(f"{text!r}: {error}") from None
    except StopIteration:
        raise ValueError(f"{text!r} is never due") from None


def next_due(text: str, after: datetime) -> datetime:
    """Return the first due time after a moment."""
    return next(CronSim(_expand(text), after.astimezone(UTC)))


def last_due(text: str, until: datetime) -> datetime:
    """Return the last due time that is not after a moment."""
    end = until.astimezone(UTC).replace(microsecond=0) + _SECOND
    return next(CronSim(_expand(text), end, reverse=True))


def is_due(text: str, moment: datetime) -> bool:
    """Return whether this moment is a due time."""
    return next_due(text, moment - _SECOND) == moment


def _expand(text: str) -> str:
    return _MACROS.get(text, text)
