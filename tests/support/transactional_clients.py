"""The Python clients, with one face for transactions: librdkafka, kafka-python, aiokafka."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, TypeVar

import aiokafka
import confluent_kafka

from tests.support.clients import kafka, settings
from tests.support.transactional_steps import PATIENCE_S, Consumer, Offsets, Producer

T = TypeVar("T")

# --- librdkafka ---------------------------------------------------------------------------------


class Librdkafka:
    """confluent-kafka."""

    def __init__(self, bootstrap: str) -> None:
        self._settings = settings(bootstrap)

    def producer(self, transactional_id: str | None, timeout_ms: int = 60_000) -> Producer:
        more: dict[str, str | int] = {}
        if transactional_id is not None:
            more = {"transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms}
        made = confluent_kafka.Producer({**self._settings, **more})
        if transactional_id is not None:
            made.init_transactions(PATIENCE_S)
        return _LibrdkafkaProducer(made)

    def consumer(self, topic: str, partitions: int, isolation: str, group: str) -> Consumer:
        made = confluent_kafka.Consumer(
            {
                **self._settings,
                "group.id": group or "none",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": isolation,
                "fetch.wait.max.ms": 50,
            }
        )
        places = [confluent_kafka.TopicPartition(topic, one) for one in range(partitions)]
        if group:
            made.subscribe([topic])
        else:
            made.assign([confluent_kafka.TopicPartition(topic, one.partition, 0) for one in places])
        return _LibrdkafkaConsumer(made, places)

    def error_name(self, error: Exception) -> str:
        assert isinstance(error, confluent_kafka.KafkaException), repr(error)
        return str(error.args[0].name())


class _LibrdkafkaProducer:
    def __init__(self, producer: confluent_kafka.Producer) -> None:
        self._producer = producer
        self.begin = producer.begin_transaction

    def send(self, topic: str, values: Mapping[str, int]) -> None:
        errors: list[object] = []
        for value, partition in values.items():
            self._producer.produce(
                topic, value, partition=partition, on_delivery=lambda error, _: errors.append(error)
            )
        assert self._producer.flush(PATIENCE_S) == 0
        assert errors == [None] * len(values)

    def send_offsets(self, consumer: _LibrdkafkaConsumer, topic: str, offsets: Offsets) -> None:
        places = [confluent_kafka.TopicPartition(topic, *one) for one in offsets.items()]
        member = consumer.consumer.consumer_group_metadata()
        self._producer.send_offsets_to_transaction(places, member, PATIENCE_S)

    def commit(self) -> None:
        self._producer.commit_transaction(PATIENCE_S)

    def abort(self) -> None:
        self._producer.abort_transaction(PATIENCE_S)

    def close(self) -> None:
        self._producer.purge()


class _LibrdkafkaConsumer:
    def __init__(
        self, consumer: confluent_kafka.Consumer, places: list[confluent_kafka.TopicPartition]
    ) -> None:
        self.consumer = consumer
        self._places = places
        self.close = consumer.close

    def poll(self) -> list[str]:
        found = []
        for one in self.consumer.consume(100, 0.1):
            assert one.error() is None, one.error()
            value = one.value()
            assert value is not None
            found.append(value.decode())
        return found

    def committed(self) -> Offsets:
        found = self.consumer.committed(self._places, PATIENCE_S)
        assert all(one.error is None for one in found)
        return {one.partition: max(one.offset, -1) for one in found}


# --- kafka-python -------------------------------------------------------------------------------


class KafkaPython:
    """kafka-python."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def producer(self, transactional_id: str | None, timeout_ms: int = 60_000) -> Producer:
        made = kafka.KafkaProducer(
            bootstrap_servers=self._bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
        )
        with contextlib.ExitStack() as if_it_fails:
            if_it_fails.callback(made.close, 0)
            if transactional_id is not None:
                made.init_transactions()
            if_it_fails.pop_all()
        return _KafkaPythonProducer(made)

    def consumer(self, topic: str, partitions: int, isolation: str, group: str) -> Consumer:
        made = kafka.KafkaConsumer(
            bootstrap_servers=self._bootstrap,
            group_id=group or None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level=isolation,
            fetch_max_wait_ms=50,
        )
        places = [kafka.TopicPartition(topic, one) for one in range(partitions)]
        if group:
            made.subscribe([topic])
        else:
            made.assign(places)
        return _KafkaPythonConsumer(made, places)

    def error_name(self, error: Exception) -> str:
        return type(error).__name__


class _KafkaPythonProducer:
    def __init__(self, producer: Any) -> None:
        self._producer = producer
        self.begin = producer.begin_transaction
        self.commit = producer.commit_transaction
        self.abort = producer.abort_transaction

    def send(self, topic: str, values: Mapping[str, int]) -> None:
        sent = [
            self._producer.send(topic, value.encode(), partition=partition)
            for value, partition in values.items()
        ]
        for one in sent:
            one.get(PATIENCE_S)

    def send_offsets(self, consumer: _KafkaPythonConsumer, topic: str, offsets: Offsets) -> None:
        places = {
            kafka.TopicPartition(topic, partition): kafka.OffsetAndMetadata(offset, "", -1)
            for partition, offset in offsets.items()
        }
        self._producer.send_offsets_to_transaction(places, consumer.consumer.group_metadata())

    def close(self) -> None:
        self._producer.close(0)


class _KafkaPythonConsumer:
    def __init__(self, consumer: Any, places: list[Any]) -> None:
        self.consumer = consumer
        self._places = places
        self.close = consumer.close

    def poll(self) -> list[str]:
        polled = self.consumer.poll(timeout_ms=100)
        return [one.value.decode() for records in polled.values() for one in records]

    def committed(self) -> Offsets:
        found = {one.partition: self.consumer.committed(one) for one in self._places}
        return {partition: -1 if at is None else at for partition, at in found.items()}


# --- aiokafka -----------------------------------------------------------------------------------


class Aiokafka:
    """aiokafka, whose tasks run in a thread of their own."""

    def __init__(self, bootstrap: str, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._bootstrap = bootstrap
        self._run = run

    @classmethod
    @contextlib.contextmanager
    def running(cls, bootstrap: str) -> Iterator[Aiokafka]:
        """Give the client while its event loop runs."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()

        def run(work: Coroutine[Any, Any, T]) -> T:
            return asyncio.run_coroutine_threadsafe(work, loop).result(PATIENCE_S)

        try:
            yield cls(bootstrap, run)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def producer(self, transactional_id: str | None, timeout_ms: int = 60_000) -> Producer:
        async def start() -> aiokafka.AIOKafkaProducer:
            made = aiokafka.AIOKafkaProducer(
                bootstrap_servers=self._bootstrap,
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
            )
            await made.start()
            return made

        return _AiokafkaProducer(self._run(start()), self._run)

    def consumer(self, topic: str, partitions: int, isolation: str, group: str) -> Consumer:
        places = [aiokafka.TopicPartition(topic, one) for one in range(partitions)]

        async def start() -> aiokafka.AIOKafkaConsumer:
            made = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=self._bootstrap,
                group_id=group or None,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                isolation_level=isolation,
                fetch_max_wait_ms=50,
            )
            if group:
                made.subscribe([topic])
            else:
                made.assign(places)
            await made.start()
            return made

        return _AiokafkaConsumer(self._run(start()), places, self._run)

    def error_name(self, error: Exception) -> str:
        return type(error).__name__


class _AiokafkaProducer:
    def __init__(self, producer: aiokafka.AIOKafkaProducer, run: Callable[..., Any]) -> None:
        self._producer = producer
        self._run = run

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(self, topic: str, values: Mapping[str, int]) -> None:
        async def send() -> None:
            sent = [
                await self._producer.send(topic, value.encode(), partition=partition)
                for value, partition in values.items()
            ]
            await asyncio.gather(*sent)

        self._run(send())

    def send_offsets(self, consumer: _AiokafkaConsumer, topic: str, offsets: Offsets) -> None:
        places = {
            aiokafka.TopicPartition(topic, partition): offset
            for partition, offset in offsets.items()
        }
        self._run(self._producer.send_offsets_to_transaction(places, consumer.group))

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def close(self) -> None:
        self._run(self._producer.stop())


class _AiokafkaConsumer:
    def __init__(
        self, consumer: aiokafka.AIOKafkaConsumer, places: list[Any], run: Callable[..., Any]
    ) -> None:
        self._consumer = consumer
        self._places = places
        self._run = run

    @property
    def group(self) -> str:
        return str(self._consumer._group_id)

    def poll(self) -> list[str]:
        polled = self._run(self._consumer.getmany(timeout_ms=100))
        return [one.value.decode() for records in polled.values() for one in records]

    def committed(self) -> Offsets:
        found = {one.partition: self._run(self._consumer.committed(one)) for one in self._places}
        return {partition: -1 if at is None else at for partition, at in found.items()}

    def close(self) -> None:
        self._run(self._consumer.stop())
