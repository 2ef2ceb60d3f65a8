"""`odradek cluster`: the brokers of a cluster, what they hold, and what is wrong."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any, Final

import click

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.admin import DescribeLogDirsRequest
from odradek.terminal_text import tell
from odradek.tools.client import ToolClient, format_address
from odradek.tools.command_line import (
    UNKNOWN,
    bootstrap_option,
    command_config_option,
    connected,
    output_option,
    run,
    say,
    show_json,
    show_rows,
)
from odradek.tools.errors import ToolError
from odradek.tools.topics import is_unavailable
from odradek.tools.under_replication import adding_replicas_or_warning, under_replicated

_LOG_DIRS_VERSION: Final = 1
_HEADER: Final = (
    *("BROKER", "ADDRESS", "RACK", "CONTROLLER", "LEADERS", "REPLICAS", "BYTES"),
    "OFFLINE-LOG-DIRS",
)


@click.command("cluster")
@bootstrap_option
@command_config_option
@output_option
def command(bootstrap_server: str, command_config: Path | None, output: str) -> None:
    """Show the brokers of a cluster, and how many partitions are in a bad state."""

    async def work() -> None:
        async with connected(bootstrap_server, command_config) as brokers:
            nodes = sorted(brokers.nodes)
            disks = await asyncio.gather(*(_disks(brokers, node) for node in nodes))
            adding = await adding_replicas_or_warning(brokers)
        partitions = [one for topic in brokers.topics() for one in topic.partitions]
        led = Counter(one.leader_id for one in partitions)
        held = Counter(node for one in partitions for node in one.replica_nodes)
        rows = [
            {
                "broker": node,
                "address": format_address(*brokers.nodes[node]),
                "rack": brokers.racks[node],
                "controller": node == brokers.controller,
                "leaders": led[node],
                "replicas": held[node],
                **disk,
            }
            for node, disk in zip(nodes, disks, strict=True)
        ]
        summary = {
            "clusterId": brokers.cluster_id,
            "controller": brokers.controller,
            "topics": len(brokers.topics()),
            "partitions": len(partitions),
            "underReplicated": sum(len(under_replicated(one, adding)) for one in brokers.topics()),
            "unavailable": sum(map(is_unavailable, partitions)),
        }
        if output == "json":
            show_json({**summary, "brokers": rows})
            return
        controller = UNKNOWN if brokers.controller is None else brokers.controller
        say(f"cluster {brokers.cluster_id or UNKNOWN}, controller {controller}")
        say(
            f"{summary['topics']} topics, {summary['partitions']} partitions, "
            f"{summary['underReplicated']} under-replicated, {summary['unavailable']} unavailable"
        )
        show_rows(output, _HEADER, rows)

    run(work())


async def _disks(brokers: ToolClient, node: int) -> dict[str, Any]:
    """Return the bytes in a broker's log directories; unknown if it does not answer."""
    try:
        answer = await brokers.call(node, DescribeLogDirsRequest(), _LOG_DIRS_VERSION)
    except ToolError as error:
        tell(f"warning: {error}")
        return {"bytes": None, "offlineLogDirs": None}
    return {
        "bytes": sum(
            partition.partition_size
            for directory in answer.results
            for topic in directory.topics
            for partition in topic.partitions
        ),
        "offlineLogDirs": sum(one.error_code != ErrorCode.NONE for one in answer.results),
    }
