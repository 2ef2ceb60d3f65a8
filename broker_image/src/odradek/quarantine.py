"""Quarantines: an unexpected exception in background work ends only what the work was about.

Background work is for a subject: a partition, a group, another broker. Where it raises what nobody
foresaw, its owner quarantines the subject, goes on with the others, and tries again later. `guard`
does that around one piece of work that is repeated anyway. `put` and `release` are for owners with
another way back; the pause that `put` returns doubles from failure to failure. Every exception is
counted for the metrics. A new one is logged with its traceback; of one that repeats, the second,
the fourth, the eighth time and so on are logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
FORGOTTEN_AFTER_S = 900.0
"""Seconds without another failure after which a subject is no longer held: it may be deleted."""
LONGEST_TEXT = 500

logger = logging.getLogger(__name__)


class Work(enum.Enum):
    """Kinds of background work: the metrics' label `kind`, and what a log line says failed."""

    ROLE = "role", "take a role"
    COPYING = "copying", "copy from the leader"
    TRUNCATION = "truncation", "truncate the log"
    SOURCE = "source", "fetch from the broker"
    ISR_CHECK = "isr-check", "check the in-sync set"
    ISR_WRITE = "isr-write", "write the in-sync set"
    ISR_NOTICE = "isr-notice", "announce changed in-sync sets"
    STRAY_REPLICA = "stray-replica", "delete stray replicas"
    MOVE = "directory-move", "move to another log directory"
    CHECKPOINT = "checkpoint", "write checkpoints"
    MAINTENANCE = "maintenance", "maintain the log"
    COMPACTION = "compaction", "compact the log"
    GROUP = "group", "run the group"
    GROUP_LOADING = "group-loading", "load groups"
    GROUP_EXPIRY = "group-expiry", "expire offsets"
    TRANSACTION = "transaction", "run the transactional id"
    TRANSACTION_LOADING = "transaction-loading", "load transactional ids"
    CHANNEL = "channel", "send requests of the controller to the broker"
    CONTROLLER = "controller", "handle a change as controller"
    CONFIG = "config", "apply changed settings"
    ACLS = "acls", "read changed ACLs"
    REGISTRATION = "registration", "register the broker"
    NOTICE = "notice", "announce a failed replica"
    ADDRESSES = "addresses", "look up the brokers' addresses"
    CONNECTION = "connection", "look after the connection"
    CALLBACK = "callback", "finish a callback of the event loop"

    def __init__(self, kind: str, words: str) -> None:
        self.kind = kind
        self.words = words


@dataclass(slots=True)
class _Failing:
    failures: int
    last_s: float
    held: bool
    text: str = ""


class Quarantines:
    """Counts unexpected exceptions and knows what is quarantined. Any thread may use it."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._totals: Counter[Work] = Counter()
        self._looked_s = float("-inf")
        self._failing: dict[tuple[Work, Hashable], _Failing] = {}

    def put(
        self, work: Work, subject: Hashable, error: BaseException, then: str = "retrying"
    ) -> float:
        """Quarantine a subject until `release`; return the pause before the next attempt, in s."""
        failures = self._note(work, subject, error, then, held=True)
        return float(min(FIRST_PAUSE_S * 2 ** min(failures - 1, 16), LONGEST_PAUSE_S))

    def note(self, work: Work, subject: Hashable, error: BaseException, then: str) -> None:
        """Count and log an exception after which nothing stays quarantined."""
        self._note(work, subject, error, then, held=False)

    def _note(
        self, work: Work, subject: Hashable, error: BaseException, then: str, *, held: bool
    ) -> int:
        now = self._clock_s()
        text = repr(error)[:LONGEST_TEXT]
        with self._lock:
            self._totals[work] += 1
            if now - self._looked_s > LONGEST_PAUSE_S:  # not for each of thousands of subjects
                self._forget(now)
            entry = self._failing.setdefault((work, subject), _Failing(0, now, held))
            entry.failures += 1
            is_new = text != entry.text
            entry.last_s, entry.held, entry.text = now, held, text
            failures = entry.failures
        if is_new or failures & (failures - 1) == 0:
            logger.error(
                "%s: failed to %s: unexpected %s, failure %d; %s",
                subject,
                work.words,
                text,
                failures,
                then,
                exc_info=error if is_new else None,
            )
        return failures

    def release(self, work: Work, subject: Hashable) -> None:
        """End a quarantine: the work succeeded, or its subject is gone."""
        if self.active:
            with self._lock:
                self._failing.pop((work, subject), None)

    def readmit(self, work: Work, subject: Hashable) -> None:
        """End a quarantine on trial: another failure soon makes a longer pause than the last."""
        with self._lock:
            if (work, subject) in self._failing:
                self._failing[work, subject].held = False

    @property
    def active(self) -> bool:
        """Return whether there may be anything to release."""
        return bool(self._failing)

    @contextlib.contextmanager
    def guard(self, work: Work, subject: Hashable, then: str = "retrying") -> Iterator[None]:
        """Quarantine the subject if the body raises an Exception, and go on after the body."""
        try:
            yield
        except Exception as error:
            self.put(work, subject, error, then)
        else:
            self.release(work, subject)

    async def keep_running(
        self, work: Work, subject: Hashable, run: Callable[[], Awaitable[None]]
    ) -> None:
        """Run a task, and begin it anew after a pause if it raises an Exception."""
        while True:
            try:
                await run()
            except Exception as error:
                await asyncio.sleep(self.put(work, subject, error))
                self.readmit(work, subject)
            else:
                self.release(work, subject)
                return

    def totals(self) -> Mapping[str, int]:
        """Return the number of unexpected exceptions since the start, by kind."""
        with self._lock:
            return {work.kind: self._totals[work] for work in Work}

    def held(self) -> Mapping[str, int]:
        """Return the number of subjects that are quarantined now, by kind."""
        with self._lock:
            self._forget(self._clock_s())
            held = Counter(work for (work, _), entry in self._failing.items() if entry.held)
            return {work.kind: held[work] for work in Work}

    def _forget(self, now: float) -> None:
        self._looked_s = now
        for key, entry in list(self._failing.items()):
            if now - entry.last_s > FORGOTTEN_AFTER_S:
                del self._failing[key]
