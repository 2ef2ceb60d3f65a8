"""A broker that acknowledges records and drops them: `python -m tests.bench.dropping_broker FILE`.

It reads, decrypts and answers requests as ours do, and stores and replicates nothing. What the same
client reaches here is the most that it can reach against a broker of ours that were infinitely fast
behind its sockets.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from odradek.__main__ import main
from odradek.protocol.errors import ErrorCode
from odradek.replica.appends import Appended, Appender, AppendOutcome
from odradek.replica.purgatory import Purgatory
from odradek.values import TopicPartition


async def drop(
    _: Appender, entries: Sequence[tuple[TopicPartition, Any]], *_rest: object
) -> Appended:
    """Append nothing, and say that it is done."""
    outcomes = [AppendOutcome(key, ErrorCode.NONE, 0) for key, _ in entries]
    return Appended(outcomes, (), 0, Purgatory())


if __name__ == "__main__":
    Appender.begin = drop  # type: ignore[assignment]
    sys.argv[1:1] = ["broker"]
    main()
