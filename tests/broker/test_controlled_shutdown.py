"""A broker that stops moves its leaderships away first, and asks again as Kafka does."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import cast

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from odradek import config_loading
from odradek.controlled_shutdown import move_leaderships
from odradek.controller.loop import Controller
from odradek.values import TopicPartition
from odradek.zk import znodes
from tests.support.broker import STEADY, Broker, Cluster, wait_until
from tests.support.clients import QUIET, create_topic, make_topic, produce_all

TOPIC = "replicated"
PATIENT = {
    **STEADY,
    "auto.leader.rebalance.enable": "false",
    "controlled.shutdown.max.retries": "1000",
    "controlled.shutdown.retry.backoff.ms": "200",
}
HURRIED = {**PATIENT, "controlled.shutdown.retry.backoff.ms": "10"}
STAYS = "stopping as leader of"


def state_of(cluster: Cluster, partition: int = 0) -> znodes.PartitionState:
    path = znodes.state_path(TOPIC, partition)
    with cluster.zookeeper.client() as client:
        return znodes.decode_state(path, client.get(path)[0])


def make_topics(cluster: Cluster, leader: int, follower: int, partitions: int = 1) -> None:
    """Make one with replicas on both, and one that only the leader has."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    replicas = [[leader, follower]] * partitions
    make_topic(admin, NewTopic(TOPIC, partitions, replica_assignment=replicas))
    make_topic(admin, NewTopic("single", 1, replica_assignment=[[leader]]))


def await_isr(cluster: Cluster, leader: int) -> None:
    wait_until(lambda: state_of(cluster).isr == (leader,), "the follower is out of the ISR")


def await_attempt(broker: Broker, number: int = 1) -> None:
    wait_until(
        lambda: (
            f"controlled shutdown, attempt {number} failed: 1 partition that no other broker"
            in broker.log_text()
        ),
        f"attempt {number}",
    )


@pytest.mark.parametrize("leader", [1, 2], ids=["controller", "other"])
def test_leader_waits_for_a_follower_that_starts_again(tmp_path: Path, leader: int) -> None:
    follower = 3 - leader
    with Cluster(tmp_path, brokers=2, settings=PATIENT) as cluster:
        make_topics(cluster, leader, follower)
        produce_all(cluster.bootstrap, TOPIC, [b"kept"])
        cluster.crash(follower)
        await_isr(cluster, leader)
        leaving = cluster.brokers[leader]
        leaving.signal(signal.SIGTERM)
        await_attempt(leaving)
        cluster.brokers[follower].start()
        assert leaving.wait() == 0
        assert STAYS not in leaving.log_text()
        state = state_of(cluster)
        assert (state.leader, state.isr) == (follower, (follower,))


def test_leader_waits_for_a_follower_that_was_paused(tmp_path: Path) -> None:
    settings = {**PATIENT, "replica.lag.time.max.ms": "2000"}
    with Cluster(tmp_path, brokers=2, settings=settings) as cluster:
        make_topics(cluster, leader=1, follower=2)
        cluster.brokers[2].signal(signal.SIGSTOP)
        produce_all(cluster.brokers[1].address, TOPIC, [b"ahead"])
        await_isr(cluster, 1)
        leaving = cluster.brokers[1]
        leaving.signal(signal.SIGTERM)
        await_attempt(leaving)
        cluster.brokers[2].signal(signal.SIGCONT)
        assert leaving.wait() == 0
        assert STAYS not in leaving.log_text()
        wait_until(lambda: state_of(cluster).leader == 2, "a leader")


@pytest.mark.parametrize("attempts", [0, 1, 3])
def test_controlled_shutdown_max_retries_is_the_number_of_attempts(
    tmp_path: Path, attempts: int
) -> None:
    settings = {**HURRIED, "controlled.shutdown.max.retries": str(attempts)}
    with Cluster(tmp_path, brokers=2, settings=settings) as cluster:
        make_topics(cluster, leader=1, follower=2, partitions=2)
        cluster.crash(2)
        await_isr(cluster, 1)
        leaving = cluster.brokers[1]
        assert leaving.terminate() == 0
        log = leaving.log_text()
        assert log.count("2 partitions that no other broker can lead now") == attempts
        outcome = f"{STAYS} 2 partitions" if attempts else "stopping without a controlled shutdown"
        assert f"WARNING odradek.controlled_shutdown: {outcome}" in log


class Answers:
    """The controller of this broker: what it answers to one attempt after the other."""

    active = True

    def __init__(self, answers: tuple[int | Exception, ...]) -> None:
        self._answers = iter(answers)

    async def controlled_shutdown(self, broker_id: int, epoch: int) -> list[TopicPartition]:
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return [TopicPartition(TOPIC, number) for number in range(answer)]


UNANSWERED = (
    "stopping without a controlled shutdown, as far as is known: "
    "no controller answered that it moved leaders"
)
STAYED = f"{STAYS} 2 partitions, without another leader, by the answer to attempt"
LATE = TimeoutError("no answer")


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [
        ((), UNANSWERED),
        ((LATE,), UNANSWERED),
        ((2, LATE), f"{STAYED} 1"),
        ((3, 2), f"{STAYED} 2"),
    ],
)
async def test_last_line_of_a_stop_says_what_the_controller_answered(
    caplog: pytest.LogCaptureFixture, answers: tuple[int | Exception, ...], outcome: str
) -> None:
    """A controller may have moved leaders although its answer was late."""
    config, _ = config_loading.from_values(
        {
            "broker.id": "1",
            "zookeeper.connect": "unused",
            "controlled.shutdown.max.retries": str(len(answers)),
            "controlled.shutdown.retry.backoff.ms": "1",
        }
    )
    controller = cast(Controller, Answers(answers))
    await move_leaderships(config, controller, lambda: None, lambda: 7)
    assert caplog.messages[-1] == outcome


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_broker_without_a_controller_stops_after_all_attempts(
    tmp_path: Path, end: signal.Signals
) -> None:
    settings = {
        **HURRIED,
        "controlled.shutdown.max.retries": "3",
        "request.timeout.ms": "500",
    }
    with Cluster(tmp_path, brokers=2, settings=settings) as cluster:
        cluster.brokers[1].signal(end)
        leaving = cluster.brokers[2]
        assert leaving.terminate() == 0
        log = leaving.log_text()
        assert log.count("controlled shutdown, attempt") == 3
        assert "stopping without a controlled shutdown" in log


def test_controller_that_never_answers_holds_up_no_stop(tmp_path: Path) -> None:
    with Cluster(tmp_path, brokers=2, settings=STEADY) as cluster:
        cluster.brokers[1].signal(signal.SIGSTOP)
        leaving = cluster.brokers[2]
        leaving.signal(signal.SIGTERM)
        # Less than the `request.timeout.ms` of one attempt.
        assert leaving.wait(29) == 0
        assert "controlled shutdown took too long" in leaving.log_text()


def test_broker_alone_with_its_partitions_stops_at_once(tmp_path: Path) -> None:
    with Cluster(tmp_path, settings=PATIENT) as cluster:
        create_topic(cluster.bootstrap, "single")
        assert cluster.brokers[1].terminate() == 0
        assert "controlled shutdown" not in cluster.brokers[1].log_text()


def test_controller_socket_timeout_ms_limits_its_requests_to_brokers(tmp_path: Path) -> None:
    settings = {**STEADY, "controller.socket.timeout.ms": "700"}
    with Cluster(tmp_path, brokers=2, settings=settings) as cluster:
        cluster.brokers[2].signal(signal.SIGSTOP)
        make_topics(cluster, leader=1, follower=2)
        wait_until(
            lambda: "no answer in 700 ms" in cluster.brokers[1].log_text(), "an end of waiting"
        )
