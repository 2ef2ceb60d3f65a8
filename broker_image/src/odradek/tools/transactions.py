"""`odradek transactions`: list and describe transactions, find hanging ones, and abort them.

As kafka-transactions.sh (KIP-664). A usage error is one line and exit status 2.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from odradek.clock import wall_ms
from odradek.protocol.messages.transaction_states import DescribedTransaction, ListedTransaction
from odradek.terminal_text import tell
from odradek.tools import transaction_states as states
from odradek.tools.client import ToolClient
from odradek.tools.command_line import (
    bootstrap_option,
    command_config_option,
    connected,
    output_option,
    run,
    say,
    show_rows,
)
from odradek.tools.errors import ToolError, shown
from odradek.tools.retries import by_leader
from odradek.tools.transaction_states import OpenTransaction
from odradek.values import TopicPartition

_MINUTE_MS: Final = 60_000
_LONG: Final = click.IntRange(0, 2**63 - 1)
_INT: Final = click.IntRange(0, 2**31 - 1)
_STATES: Final = (
    *("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"),
)


@click.group("transactions")
def commands() -> None:
    """List and describe transactions, find hanging ones, and abort them."""


# --- looking ----------------------------------------------------------------------------------


@commands.command("list")
@bootstrap_option
@command_config_option
@click.option(
    "--state",
    "wanted",
    multiple=True,
    type=click.Choice(_STATES, case_sensitive=False),
    help="Only ids in this state. Repeatable.",
)
@click.option(
    "--producer-id", "producer_ids", type=_LONG, multiple=True, help="Only this one. Repeatable."
)
@click.option(
    "--duration-filter",
    type=_LONG,
    metavar="MS",
    help="Only transactions that began longer ago, and ids that never had one.",
)
@output_option
def list_transactions(
    bootstrap_server: str,
    command_config: Path | None,
    wanted: tuple[str, ...],
    producer_ids: tuple[int, ...],
    duration_filter: int | None,
    output: str,
) -> None:
    """Print the transactional ids of all coordinators."""

    async def work() -> None:
        longer_than_ms = -1 if duration_filter is None else duration_filter
        async with connected(bootstrap_server, command_config) as brokers:
            found = await states.listed(brokers, wanted, producer_ids, longer_than_ms)
        header = ("TRANSACTIONAL-ID", "COORDINATOR", "PRODUCER-ID", "STATE")
        show_rows(output, header, [_listed(*one) for one in found])

    run(work())


def _listed(node: int, one: ListedTransaction) -> dict[str, Any]:
    return {
        "transactionalId": one.transactional_id,
        "coordinator": node,
        "producerId": one.producer_id,
        "state": one.transaction_state,
    }


@commands.command()
@click.argument("names", nargs=-1, required=True, metavar="TRANSACTIONAL-ID...")
@bootstrap_option
@command_config_option
@output_option
def describe(
    names: tuple[str, ...], bootstrap_server: str, command_config: Path | None, output: str
) -> None:
    """Show the producer, the state and the partitions of transactional ids."""

    async def work() -> None:
        rows = []
        async with connected(bootstrap_server, command_config) as brokers:
            for name in dict.fromkeys(names):
                node, state = await states.described(brokers, name)
                if state is None:
                    raise ToolError(f"transactional id {shown(name)} does not exist")
                rows.append(_described(node, state))
        header = (
            *("TRANSACTIONAL-ID", "COORDINATOR", "PRODUCER-ID", "PRODUCER-EPOCH", "STATE"),
            *("TIMEOUT-MS", "START-MS", "DURATION-MS", "PARTITIONS"),
        )
        show_rows(output, header, rows)

    run(work())


def _described(node: int, state: DescribedTransaction) -> dict[str, Any]:
    start_ms = state.transaction_start_time_ms
    has_started = start_ms >= 0
    return {
        "transactionalId": state.transactional_id,
        "coordinator": node,
        "producerId": state.producer_id,
        "producerEpoch": state.producer_epoch,
        "state": state.transaction_state,
        "timeoutMs": state.transaction_timeout_ms,
        "startMs": start_ms if has_started else None,
        "durationMs": wall_ms() - start_ms if has_started else None,
        "partitions": sorted(
            f"{topic.topic}-{index}" for topic in state.topics for index in topic.partitions
        ),
    }


@commands.command("find-hanging")
@bootstrap_option
@command_config_option
@click.option("--broker-id", type=_INT, help="Ask this broker's replicas, not the leaders.")
@click.option("--topic", help="Look at this topic only.")
@click.option("--partition", type=_INT, help="Look at this partition only; needs --topic.")
@click.option(
    "--max-transaction-timeout",
    type=_INT,
    default=15,
    show_default=True,
    metavar="MINUTES",
    help="Leave out producers that wrote a batch since then.",
)
@output_option
def find_hanging(
    bootstrap_server: str,
    command_config: Path | None,
    broker_id: int | None,
    topic: str | None,
    partition: int | None,
    max_transaction_timeout: int,
    output: str,
) -> None:
    """Show transactions that are open in a partition, and that no coordinator will end."""

    async def work() -> None:
        if partition is not None and topic is None:
            raise ToolError("--partition needs --topic")
        now_ms = wall_ms()
        async with connected(bootstrap_server, command_config) as brokers:
            places = _places(brokers, broker_id, topic, partition)
            before_ms = now_ms - max_transaction_timeout * _MINUTE_MS
            found, unknown = await states.hanging(brokers, places, before_ms)
        header = (
            *("TOPIC", "PARTITION", "PRODUCER-ID", "PRODUCER-EPOCH", "COORDINATOR-EPOCH"),
            *("START-OFFSET", "LAST-TIMESTAMP", "DURATION-MIN"),
        )
        show_rows(output, header, [_hanging(one, now_ms) for one in found])
        if unknown:
            raise ToolError(
                f"whether {len(unknown)} other open transactions hang is not known, as in "
                f"{unknown[0].partition}: that needs Describe on every transactional id"
            )

    run(work())


def _places(
    brokers: ToolClient, broker_id: int | None, topic: str | None, partition: int | None
) -> dict[int, list[TopicPartition]]:
    """Return the partitions to look at by broker. Raises ToolError."""
    if broker_id is not None and broker_id not in brokers.nodes:
        raise ToolError(f"there is no live broker {broker_id}")
    if topic is not None:
        _check_exists(brokers, topic, partition)
    replicas = {
        TopicPartition(one.name, part.partition_index): part.replica_nodes
        for one in brokers.topics()
        if topic in (None, one.name)
        for part in one.partitions
        if partition in (None, part.partition_index)
    }
    if broker_id is not None:
        return {broker_id: [key for key, nodes in replicas.items() if broker_id in nodes]}
    places = by_leader(brokers, replicas)
    for key in places.pop(-1, ()):
        tell(f"warning: {key} has no leader to ask")
    return places


def _check_exists(brokers: ToolClient, topic: str, partition: int | None) -> None:
    indexes = {one.partition for one in brokers.leaders if one.topic == topic}
    if not indexes:
        raise ToolError(f"topic {shown(topic)} does not exist")
    if partition is not None and partition not in indexes:
        raise ToolError(f"topic {topic} has no partition {partition}")


def _hanging(one: OpenTransaction, now_ms: int) -> dict[str, Any]:
    producer = one.producer
    return {
        "topic": one.partition.topic,
        "partition": one.partition.partition,
        "producerId": producer.producer_id,
        "producerEpoch": producer.producer_epoch,
        "coordinatorEpoch": producer.coordinator_epoch,
        "startOffset": producer.current_txn_start_offset,
        "lastTimestamp": producer.last_timestamp,
        "durationMin": (now_ms - producer.last_timestamp) // _MINUTE_MS,
    }


# --- changing ---------------------------------------------------------------------------------


@commands.command()
@bootstrap_option
@command_config_option
@click.option("--topic", required=True)
@click.option("--partition", type=_INT, required=True)
@click.option("--start-offset", type=_LONG, help="Where the transaction begins.")
@click.option("--producer-id", type=_LONG, help="Whose it is, instead of where it begins.")
@click.option("--producer-epoch", type=click.IntRange(0, 2**15 - 1), help="With --producer-id.")
@click.option("--coordinator-epoch", type=click.IntRange(-1, 2**31 - 1), help="With --producer-id.")
def abort(
    bootstrap_server: str,
    command_config: Path | None,
    topic: str,
    partition: int,
    start_offset: int | None,
    producer_id: int | None,
    producer_epoch: int | None,
    coordinator_epoch: int | None,
) -> None:
    """Abort a hanging transaction in one partition; see find-hanging."""

    async def work() -> None:
        of_producer = (producer_id, producer_epoch, coordinator_epoch)
        given = [one for one in of_producer if one is not None]
        if start_offset is not None if given else start_offset is None:
            raise ToolError("give either --start-offset or --producer-id")
        if given and len(given) < len(of_producer):
            raise ToolError("--producer-id, --producer-epoch and --coordinator-epoch go together")
        key = TopicPartition(topic, partition)
        async with connected(bootstrap_server, command_config) as brokers:
            _check_exists(brokers, topic, partition)
            found = await states.open_in(brokers, key)
            if start_offset is not None:
                chosen = _starting_at(found, key, start_offset)
            else:
                chosen = _of_producer(found, key, of_producer)
            await states.abort(brokers, chosen)
        producer = chosen.producer
        say(
            f"aborted the transaction of producer {producer.producer_id}, epoch "
            f"{producer.producer_epoch}, in {key} from offset {producer.current_txn_start_offset}"
        )

    run(work())


def _starting_at(found: list[OpenTransaction], key: TopicPartition, offset: int) -> OpenTransaction:
    for one in found:
        if one.producer.current_txn_start_offset == offset:
            return one
    raise ToolError(f"no open transaction begins at offset {offset} of {key}{_others(found)}")


def _of_producer(
    found: list[OpenTransaction], key: TopicPartition, named: tuple[int | None, ...]
) -> OpenTransaction:
    """Return the transaction of a producer, whose epochs must be those that the leader knows."""
    producer_id, *epochs = named
    for one in found:
        producer = one.producer
        if producer.producer_id == producer_id:
            known = [producer.producer_epoch, producer.coordinator_epoch]
            if epochs != known:
                raise ToolError(
                    f"producer {producer_id} has epoch {known[0]} and coordinator epoch {known[1]} "
                    f"in {key}"
                )
            return one
    raise ToolError(f"producer {producer_id} has no open transaction in {key}{_others(found)}")


def _others(found: list[OpenTransaction]) -> str:
    offsets = sorted(one.producer.current_txn_start_offset for one in found)
    if not offsets:
        return "; none is open there"
    return f"; open ones begin at {', '.join(map(str, offsets[:5]))}"
