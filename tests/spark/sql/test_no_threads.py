"""`odradek sql` and `odradek datagen` on a machine that lets librdkafka start no thread."""

from __future__ import annotations

import io
import signal
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaError, KafkaException

from odradek import commands, thread_errors
from odradek_spark.broker_access import BrokerAccess
from odradek_spark.client_errors import Refusals, starting_threads
from odradek_spark.datagen import producer
from odradek_spark.sql import topics
from odradek_spark.sql.errors import SqlError
from odradek_spark.sql.session import ShellOptions, SqlSession


def refuse(settings: dict[str, Any]) -> NoReturn:
    """Make a client as librdkafka does there."""
    raise KafkaException(KafkaError(KafkaError._CRIT_SYS_RESOURCE))


@pytest.mark.parametrize(
    "arguments",
    [["datagen", "--quickstart", "users"], ["sql", "-e", "SHOW TOPICS"]],
    ids=["datagen", "sql"],
)
def test_a_command_says_what_to_do(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.setattr(producer, "Producer", refuse)
    monkeypatch.setattr(topics, "AdminClient", refuse)
    # The shell's own would outlive it here.
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    words = [*arguments, "--bootstrap-server", "localhost:1"]
    done = CliRunner().invoke(commands.main, words)
    said = f"odradek: {thread_errors.NO_THREAD}\n"
    assert (done.exit_code, done.stderr, done.stdout) == (1, said, "")


def test_a_statement_fails_and_the_shell_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    session = SqlSession(ShellOptions(BrokerAccess("localhost:1"), None, "1g"), io.StringIO())
    try:
        with monkeypatch.context() as patched:
            patched.setattr(topics, "AdminClient", refuse)
            with pytest.raises(SqlError) as failed:
                session.execute("SHOW TOPICS")
        assert str(failed.value) == thread_errors.NO_THREAD
        assert session.execute("HELP")
    finally:
        session.close()


def test_other_errors_of_a_client_are_not_taken_for_it() -> None:
    with pytest.raises(KafkaException), starting_threads():
        raise KafkaException(KafkaError(KafkaError._INVALID_ARG))


def test_a_broker_without_a_thread_is_said_where_nobody_answers() -> None:
    refusals = Refusals()
    refusals(KafkaError(KafkaError._CRIT_SYS_RESOURCE, "Unable to create broker thread"))
    assert refusals.text() == ": Unable to create broker thread"
