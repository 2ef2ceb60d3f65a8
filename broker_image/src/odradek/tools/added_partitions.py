"""Partitions that are added to a topic while it is read: all of their records are new."""

from __future__ import annotations

from collections.abc import Sequence

from odradek.tools.client import EARLIEST, ToolClient
from odradek.tools.errors import ToolError
from odradek.values import TopicPartition

REFRESH_INTERVAL_S = 5.0
"""How often readers should ask."""


async def starts(client: ToolClient, known: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Return where the logs of partitions begin that the topic of `known` has beside these.

    A leader of the known ones is asked. Those whose own leader does not tell yet are left for the
    next time, and so are all if nobody answers: that concerns the known ones, too.
    """
    leaders = (client.leaders.get(one, -1) for one in known)
    asked = next((leader for leader in leaders if leader in client.nodes), -1)
    try:
        found = await client.topic_leaders(asked, known[0].topic)
        added = {one: found[one] for one in found.keys() - set(known) if found[one] >= 0}
        if not added:
            return {}
        client.leaders |= added
        return await client.offsets(sorted(added), EARLIEST)
    except ToolError:
        return {}
