"""`odradek topics`: list, describe, create, grow and delete topics."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import click

from odradek.protocol.messages.metadata import MetadataResponsePartition, MetadataResponseTopic
from odradek.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from odradek.tools.client import TIMEOUT_MS, ToolClient
from odradek.tools.command_line import (
    bootstrap_option,
    command_config_option,
    connected,
    output_option,
    parse_pairs,
    report,
    run,
    say,
    show_rows,
)
from odradek.tools.errors import ToolError, is_number, shown
from odradek.tools.retries import call_controller
from odradek.tools.under_replication import (
    Adding,
    adding_replicas_or_warning,
    is_under_replicated,
    under_replicated,
)

# Since this version the broker's own defaults can be asked for.
_CREATE_VERSION: Final = 4
_DELETE_VERSION: Final = 3
_GROW_VERSION: Final = 1
_DEFAULT: Final = -1
_PARTITIONS: Final = click.IntRange(1, 2**31 - 1)


@click.group("topics")
def commands() -> None:
    """List, describe, create, grow and delete topics."""


# --- looking ----------------------------------------------------------------------------------


@commands.command("list")
@bootstrap_option
@command_config_option
@click.option("--exclude-internal", is_flag=True, help="Leave out the brokers' own topics.")
@output_option
def list_topics(
    bootstrap_server: str, command_config: Path | None, exclude_internal: bool, output: str
) -> None:
    """Print all topics."""

    async def work() -> None:
        async with connected(bootstrap_server, command_config) as brokers:
            topics = [one for one in brokers.topics() if not (exclude_internal and one.is_internal)]
            adding = await adding_replicas_or_warning(brokers)
        header = ("TOPIC", "PARTITIONS", "REPLICATION-FACTOR", "UNDER-REPLICATED", "UNAVAILABLE")
        show_rows(output, header, [_summary(topic, adding) for topic in topics])

    run(work())


def _summary(topic: MetadataResponseTopic, adding: Adding) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "partitions": len(topic.partitions),
        "replicationFactor": max((len(one.replica_nodes) for one in topic.partitions), default=0),
        "underReplicated": len(under_replicated(topic, adding)),
        "unavailable": sum(map(is_unavailable, topic.partitions)),
    }


def is_unavailable(partition: MetadataResponsePartition) -> bool:
    """Return whether the partition has no leader."""
    return partition.leader_id < 0


@commands.command()
@click.argument("names", nargs=-1, metavar="[TOPIC]...")
@bootstrap_option
@command_config_option
@click.option("--under-replicated-partitions", is_flag=True, help="Only these.")
@click.option("--unavailable-partitions", is_flag=True, help="Only these, which have no leader.")
@output_option
def describe(
    names: tuple[str, ...],
    bootstrap_server: str,
    command_config: Path | None,
    under_replicated_partitions: bool,
    unavailable_partitions: bool,
    output: str,
) -> None:
    """Show the partitions of topics, by default of all: leader, replicas, in-sync replicas."""

    async def work() -> None:
        adding: Adding = {}
        async with connected(bootstrap_server, command_config) as brokers:
            topics = _chosen(brokers, names)
            if under_replicated_partitions:
                adding = await adding_replicas_or_warning(brokers)

        def is_wanted(topic: str, one: MetadataResponsePartition) -> bool:
            if under_replicated_partitions and is_under_replicated(topic, one, adding):
                return True
            if unavailable_partitions and is_unavailable(one):
                return True
            return not (under_replicated_partitions or unavailable_partitions)

        header = ("TOPIC", "PARTITION", "LEADER", "REPLICAS", "ISR", "OFFLINE")
        rows = [
            _partition(topic.name, one)
            for topic in topics
            for one in sorted(topic.partitions, key=lambda one: one.partition_index)
            if is_wanted(topic.name, one)
        ]
        show_rows(output, header, rows)

    run(work())


def _partition(topic: str, one: MetadataResponsePartition) -> dict[str, Any]:
    return {
        "topic": topic,
        "partition": one.partition_index,
        "leader": None if is_unavailable(one) else one.leader_id,
        "replicas": one.replica_nodes,
        "isr": one.isr_nodes,
        "offline": one.offline_replicas,
    }


def _chosen(brokers: ToolClient, names: Iterable[str]) -> list[MetadataResponseTopic]:
    """Return the topics of these names, or all. Raises ToolError for one that does not exist."""
    topics = {one.name: one for one in brokers.topics()}
    missing = [name for name in names if name not in topics]
    if missing:
        raise ToolError(f"topic {', '.join(map(shown, missing))} does not exist")
    return [topics[name] for name in dict.fromkeys(names)] or list(topics.values())


# --- changing ---------------------------------------------------------------------------------


@commands.command()
@click.argument("name", metavar="TOPIC")
@bootstrap_option
@command_config_option
@click.option("--partitions", type=_PARTITIONS, help="Default: the brokers'.")
@click.option("--replication-factor", type=click.IntRange(1, 32767), help="Default: the brokers'.")
@click.option(
    "--replica-assignment",
    metavar="0:1,1:2",
    help="The brokers of each partition, the preferred leader first.",
)
@click.option("--config", "configs", multiple=True, metavar="KEY=VALUE", help="Repeatable.")
@click.option("--if-not-exists", is_flag=True, help="Do nothing if the topic exists.")
@click.option("--validate-only", is_flag=True, help="Only ask whether it could be created.")
def create(
    name: str,
    bootstrap_server: str,
    command_config: Path | None,
    partitions: int | None,
    replication_factor: int | None,
    replica_assignment: str | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    validate_only: bool,
) -> None:
    """Create a topic, and wait until its partitions have leaders."""

    async def work() -> None:
        if replica_assignment is not None and not (partitions is replication_factor is None):
            raise ToolError(
                "give either --replica-assignment, or --partitions and --replication-factor"
            )
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions or _DEFAULT,
            replication_factor=replication_factor or _DEFAULT,
            assignments=_parse_assignment(replica_assignment),
            configs=[
                CreateableTopicConfig(name=key, value=value)
                for key, value in parse_pairs("--config", configs).items()
            ],
        )
        request = CreateTopicsRequest(
            topics=[topic], timeout_ms=TIMEOUT_MS, validate_only=validate_only
        )
        async with connected(bootstrap_server, command_config) as brokers:
            if if_not_exists and any(one.name == name for one in brokers.topics()):
                say(f"topic {name} exists already")
                return
            answer = await call_controller(
                brokers,
                request,
                _CREATE_VERSION,
                lambda answer: (one.error_code for one in answer.topics),
            )
        outcomes = [
            (f"topic {shown(one.name)}", one.error_code, one.error_message) for one in answer.topics
        ]
        report(outcomes, "could be created" if validate_only else "created")

    run(work())


def _parse_assignment(text: str | None) -> list[CreatableReplicaAssignment]:
    """Read `0:1,1:2`: partition 0 on brokers 0 and 1, partition 1 on brokers 1 and 2."""
    if text is None:
        return []
    partitions = [one.split(":") for one in text.split(",")]
    if not all(is_number(each, 2**31 - 1) for one in partitions for each in one):
        raise ToolError(f"--replica-assignment {text} is not a list such as 0:1,1:2")
    return [
        CreatableReplicaAssignment(partition_index=index, broker_ids=[int(each) for each in one])
        for index, one in enumerate(partitions)
    ]


@commands.command()
@click.argument("name", metavar="TOPIC")
@bootstrap_option
@command_config_option
@click.option("--partitions", type=_PARTITIONS, required=True, help="So many in all.")
def alter(name: str, bootstrap_server: str, command_config: Path | None, partitions: int) -> None:
    """Add partitions to a topic; records with keys then go to other partitions."""

    async def work() -> None:
        topic = CreatePartitionsTopic(name=name, count=partitions)
        request = CreatePartitionsRequest(topics=[topic], timeout_ms=TIMEOUT_MS)
        async with connected(bootstrap_server, command_config) as brokers:
            answer = await call_controller(
                brokers,
                request,
                _GROW_VERSION,
                lambda answer: (one.error_code for one in answer.results),
            )
        report(
            [
                (f"topic {shown(one.name)}", one.error_code, one.error_message)
                for one in answer.results
            ],
            f"has {partitions} partitions",
        )

    run(work())


@commands.command()
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...")
@bootstrap_option
@command_config_option
@click.option("--if-exists", is_flag=True, help="Leave out those that do not exist.")
def delete(
    names: tuple[str, ...], bootstrap_server: str, command_config: Path | None, if_exists: bool
) -> None:
    """Delete topics with all their records."""

    async def work() -> None:
        async with connected(bootstrap_server, command_config) as brokers:
            existing = {one.name for one in brokers.topics()}
            chosen = [one for one in dict.fromkeys(names) if one in existing or not if_exists]
            if not chosen:
                say("no such topic exists")
                return
            request = DeleteTopicsRequest(topic_names=chosen, timeout_ms=TIMEOUT_MS)
            answer = await call_controller(
                brokers,
                request,
                _DELETE_VERSION,
                lambda answer: (one.error_code for one in answer.responses),
            )
        report(
            [(f"topic {shown(one.name)}", one.error_code, None) for one in answer.responses],
            "deleted",
        )

    run(work())
