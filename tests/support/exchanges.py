"""What a user of secured brokers does, with each client: write values, and read them with a group.

outcomes = exchanges.CLIENTS["franz-go"].run([exchange, ...], folder)

Every client does the same with the same certificates, names and passwords, and tells what it read,
or the name that it has for the brokers' refusal.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import ssl
import subprocess
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiokafka
import aiokafka.abc
import aiokafka.errors
import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from tests.support import jvm, kafka_peer
from tests.support.apiserver import require_programs
from tests.support.broker import wait_until
from tests.support.certificates import PASSWORD, Issued
from tests.support.clients import QUIET, kafka
from tests.support.node_packages import node_path
from tests.support.secure_broker import jaas

PEERS = Path(__file__).parents[1] / "peers"
JAVA, NODE = PEERS / "JavaClient.java", PEERS / "node"
LIMIT_S = 120
OAUTHBEARER, TOKEN_LIFETIME_S = "OAUTHBEARER", 3600
AUTHENTICATION = "SASL_AUTHENTICATION_FAILED"
TOPIC = "TOPIC_AUTHORIZATION_FAILED"
GROUP = "GROUP_AUTHORIZATION_FAILED"


@dataclass(frozen=True)
class Exchange:
    """What a user does at brokers with TLS; without a mechanism, a certificate tells who it is.

    With OAUTHBEARER the password is a token.
    """

    bootstrap: list[str]
    topic: str
    group: str
    count: int
    authority: str
    mechanism: str = ""
    user: str = ""
    password: str = ""
    certificate: str = ""
    key: str = ""
    key_store: str = ""  # both in PKCS12, with the password of certificates

    @property
    def values(self) -> list[str]:
        """What is written, and comes back."""
        return [f"value {number}" for number in range(self.count)]

    @property
    def protocol(self) -> str:
        """Kafka's security protocol."""
        return "SASL_SSL" if self.mechanism else "SSL"

    def settings(self) -> dict[str, Any]:
        """Return librdkafka's settings."""
        sasl = {"mechanism": self.mechanism, "username": self.user, "password": self.password}
        ends_s = time.time() + TOKEN_LIFETIME_S
        token = {"oauth_cb": lambda _: (self.password, ends_s)}
        shown = {"certificate": self.certificate, "key": self.key}
        return {
            "bootstrap.servers": ",".join(self.bootstrap),
            "security.protocol": self.protocol,
            "ssl.ca.location": self.authority,
            **{f"ssl.{name}.location": path for name, path in shown.items() if path},
            **{f"sasl.{name}": text for name, text in sasl.items() if self.mechanism},
            **(token if self.mechanism == OAUTHBEARER else {}),
        }


def with_certificate(exchange: Mapping[str, Any], own: Issued) -> Exchange:
    """Return the exchange of whom a certificate names."""
    return Exchange(
        **exchange,
        certificate=str(own.certificate_path),
        key=str(own.key_path),
        key_store=str(own.pkcs12_path),
    )


@dataclass(frozen=True)
class Outcome:
    """What was read, or the client's name for the refusal."""

    read: list[str]
    refused: str = ""


@dataclass(frozen=True)
class Client:
    """Does exchanges; `refusals` has its own names of error codes.

    Under OAUTHBEARER it has the name of a refused token, if that has one of its own.
    """

    run: Callable[[Sequence[Exchange], Path], list[Outcome]]
    refusals: Mapping[str, str]

    def refusal_of(self, mechanism: str) -> str:
        """Return its name of a wrong password or token."""
        return self.refusals.get(mechanism, self.refusals[AUTHENTICATION])


# --- programs -----------------------------------------------------------------------------------


def _output(command: Sequence[str | Path], stdin: str = "", **environment: str) -> str:
    done = subprocess.run(
        command,
        input=stdin,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=1000,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def _outcomes(exchanges: Sequence[Exchange], command: Sequence[str | Path], **env: str) -> Any:
    said = _output(command, json.dumps([asdict(one) for one in exchanges]), **env)
    return [Outcome(one["read"] or [], one["refused"]) for one in json.loads(said)]


def _go(name: str) -> Callable[[Sequence[Exchange], Path], list[Outcome]]:
    def run(exchanges: Sequence[Exchange], _: Path) -> list[Outcome]:
        program = require_programs(f"{name}-client") / f"{name}-client"
        found: list[Outcome] = _outcomes(exchanges, [program, "exchange"])
        return found

    return run


def _kafkajs(exchanges: Sequence[Exchange], _: Path) -> list[Outcome]:
    command: list[str | Path] = ["node", NODE / "client.js", "exchange"]
    found: list[Outcome] = _outcomes(exchanges, command, NODE_PATH=node_path(NODE))
    return found


def _java(version: str) -> Callable[[Sequence[Exchange], Path], list[Outcome]]:
    def run(exchanges: Sequence[Exchange], folder: Path) -> list[Outcome]:
        classpath = kafka_peer.classpath(kafka_peer.clients(version))
        everything = f"{jvm.compiled(JAVA, classpath)}:{classpath}"
        files = [folder / f"exchange-{number}.properties" for number in range(len(exchanges))]
        for file, exchange in zip(files, exchanges, strict=True):
            lines = _java_settings(exchange)
            file.write_text("".join(f"{name}={text}\n" for name, text in lines.items()))
        java = (*kafka_peer.JAVA, kafka_peer.scratch(folder), "-Xmx128m", "-cp", everything)
        said = _output([*java, JAVA.stem, "exchange", *files]).splitlines()
        return [
            Outcome(one.split(",")) if one.startswith("value ") else Outcome([], one)
            for one in said
        ]

    return run


def _java_settings(exchange: Exchange) -> dict[str, str]:
    found = {
        "bootstrap.servers": ",".join(exchange.bootstrap),
        "security.protocol": exchange.protocol,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": exchange.authority,
        "acks": "all",
        "group.id": exchange.group,
        "auto.offset.reset": "earliest",
        "exchange.topic": exchange.topic,
        "exchange.count": str(exchange.count),
    }
    if exchange.mechanism:
        login = jaas(exchange.mechanism, username=exchange.user, password=exchange.password)
        found |= {"sasl.mechanism": exchange.mechanism, "sasl.jaas.config": login}
    if exchange.mechanism == OAUTHBEARER:
        found["sasl.login.callback.handler.class"] = f"{JAVA.stem}$GivenToken"
    if exchange.key_store:
        # In PEM, 2.8 takes encrypted keys only.
        found |= {
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": exchange.key_store,
            "ssl.keystore.password": PASSWORD,
            "ssl.key.password": PASSWORD,
        }
    return found


# --- clients of Python --------------------------------------------------------------------------


def _each(
    exchange: Callable[[Exchange], list[str]], refusal: type[Exception]
) -> Callable[[Sequence[Exchange], Path], list[Outcome]]:
    """Return what does exchanges one after the other; `refusal` is what may be raised."""

    def outcome(asked: Exchange) -> Outcome:
        try:
            return Outcome(exchange(asked))
        except refusal as error:
            code = error.args[0].name() if isinstance(error, KafkaException) else ""
            return Outcome([], code or type(error).__name__)

    def run(exchanges: Sequence[Exchange], _: Path) -> list[Outcome]:
        # Clients in Python leave sockets of refused connections to the collector, which complains.
        # What pytest keeps of the log of one would keep its sockets beyond the test.
        logger = logging.getLogger("kafka")
        logger.setLevel(logging.CRITICAL + 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            try:
                return [outcome(one) for one in exchanges]
            finally:
                gc.collect()
                logger.setLevel(logging.NOTSET)

    return run


def _librdkafka(exchange: Exchange) -> list[str]:
    failures: list[KafkaError] = []

    def note(error: KafkaError | None, _: object = None) -> None:
        # That no broker is left is told beside the reason.
        if error is not None and error.code() != KafkaError._ALL_BROKERS_DOWN:
            failures.append(error)

    def complain() -> None:
        if failures:
            raise KafkaException(failures[0])

    settings = {**exchange.settings(), **QUIET}
    producer = confluent_kafka.Producer({**settings, "acks": "all", "error_cb": note})
    for value in exchange.values:
        producer.produce(exchange.topic, value, on_delivery=note)
    wait_until(lambda: producer.flush(0.1) == 0 or bool(failures), "all is written, or refused")
    producer.purge()
    complain()
    consumer = confluent_kafka.Consumer(
        {**settings, "group.id": exchange.group, "auto.offset.reset": "earliest", "error_cb": note}
    )
    found: list[str] = []

    def is_complete() -> bool:
        for message in consumer.consume(exchange.count, 0.2):
            note(message.error())
            if message.error() is None:
                found.append((message.value() or b"").decode())
        return len(found) >= exchange.count or bool(failures)

    try:
        consumer.subscribe([exchange.topic])
        wait_until(is_complete, "all is read, or refused")
    finally:
        consumer.close()
    complain()
    return found


def _kafka_python(exchange: Exchange) -> list[str]:
    settings = {
        "bootstrap_servers": exchange.bootstrap,
        "security_protocol": exchange.protocol,
        "ssl_cafile": exchange.authority,
        "ssl_certfile": exchange.certificate or None,
        "ssl_keyfile": exchange.key or None,
        **_python_sasl(exchange, _KafkaPythonToken),
    }
    producer = kafka.KafkaProducer(acks="all", **settings)
    try:
        sent = [producer.send(exchange.topic, value.encode()) for value in exchange.values]
        for one in sent:
            one.get(LIMIT_S)
    finally:
        producer.close()
    consumer = kafka.KafkaConsumer(
        exchange.topic, group_id=exchange.group, auto_offset_reset="earliest", **settings
    )
    found: list[str] = []
    until = time.monotonic() + LIMIT_S
    try:
        # Else it may assign nothing to itself, and forget that it has to join again
        # (`group_members.kafka_python`).
        wait_until(lambda: bool(consumer.partitions_for_topic(exchange.topic)), "it is known")
        while len(found) < exchange.count and time.monotonic() < until:
            for some in consumer.poll(200).values():
                found += [one.value.decode() for one in some]
    finally:
        consumer.close()
    return found


class _KafkaPythonToken(kafka.net.sasl.oauth.AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        self._token = token

    def token(self) -> str:
        return self._token


class _AiokafkaToken(aiokafka.abc.AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


def _python_sasl(exchange: Exchange, token: Callable[[str], object]) -> dict[str, Any]:
    if not exchange.mechanism:
        return {}
    if exchange.mechanism == OAUTHBEARER:
        return {
            "sasl_mechanism": OAUTHBEARER,
            "sasl_oauth_token_provider": token(exchange.password),
        }
    return {
        "sasl_mechanism": exchange.mechanism,
        "sasl_plain_username": exchange.user,
        "sasl_plain_password": exchange.password,
    }


def _aiokafka(exchange: Exchange) -> list[str]:
    async def write_and_read() -> list[str]:
        context = ssl.create_default_context(cafile=exchange.authority)
        if exchange.key:
            context.load_cert_chain(exchange.certificate, exchange.key)
        settings = {
            "bootstrap_servers": exchange.bootstrap,
            "security_protocol": exchange.protocol,
            "ssl_context": context,
            **_python_sasl(exchange, _AiokafkaToken),
        }
        # Also one that did not start has to be stopped.
        async with contextlib.AsyncExitStack() as running:
            producer = aiokafka.AIOKafkaProducer(acks="all", **settings)
            running.push_async_callback(producer.stop)
            await producer.start()
            sent = [await producer.send(exchange.topic, one.encode()) for one in exchange.values]
            answers = asyncio.gather(*sent, return_exceptions=True)
            for answer in await asyncio.wait_for(answers, LIMIT_S):
                if isinstance(answer, BaseException):
                    raise answer
            consumer = aiokafka.AIOKafkaConsumer(
                exchange.topic, group_id=exchange.group, auto_offset_reset="earliest", **settings
            )
            running.push_async_callback(consumer.stop)
            await consumer.start()
            found = [
                await asyncio.wait_for(consumer.getone(), LIMIT_S) for _ in range(exchange.count)
            ]
        return [one.value.decode() for one in found]

    return asyncio.run(write_and_read())


_CODES = {code: code for code in (AUTHENTICATION, TOPIC, GROUP)}
_JAVA_ERRORS = {
    AUTHENTICATION: "SaslAuthenticationException",
    TOPIC: "TopicAuthorizationException",
    GROUP: "GroupAuthorizationException",
}
_PYTHON_ERRORS = {TOPIC: "TopicAuthorizationFailedError", GROUP: "GroupAuthorizationFailedError"}
CLIENTS = {
    **{f"java-{one}": Client(_java(one), _JAVA_ERRORS) for one in ("2.8.2", "3.9.1", "4.1.0")},
    "franz-go": Client(
        _go("franz-go"), {**_CODES, OAUTHBEARER: "unexpected data in oauth response"}
    ),
    "sarama": Client(_go("sarama"), _CODES),
    # Here and below: the reasons of some refusals are only in the logs of clients.
    "kafkajs": Client(_kafkajs, {**_CODES, GROUP: "KafkaJSGroupCoordinatorNotFound"}),
    "librdkafka": Client(
        _each(_librdkafka, KafkaException), {**_CODES, AUTHENTICATION: "_AUTHENTICATION"}
    ),
    "aiokafka": Client(
        _each(_aiokafka, aiokafka.errors.KafkaError),
        {**_PYTHON_ERRORS, AUTHENTICATION: "KafkaConnectionError"},
    ),
    "kafka-python": Client(
        _each(_kafka_python, kafka.errors.KafkaError),
        {**_PYTHON_ERRORS, AUTHENTICATION: "KafkaTimeoutError"},
    ),
}
