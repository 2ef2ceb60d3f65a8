"""Users and certificates on real nodes: who belongs gets in, and nobody notices a renewal."""

from __future__ import annotations

import base64
import json
import os
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from odradek_operator.shared import certificates
from odradek_operator.shared.certificates import Pair
from tests.e2e.conftest import scram, secret
from tests.e2e.test_quickstart import topic
from tests.e2e.test_under_load import PARTITIONS, load, wait_for
from tests.support.clients import QUIET, login, settings
from tests.support.kubectl import Kubectl, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

# When a new Kubernetes reads a Secret again, and a broker its files: 90 s and 30 s.
RENEWAL_SECONDS = 400
SHUT_OUT = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError._AUTHENTICATION,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._MSG_TIMED_OUT,
}


def user(name: str, topic_name: str) -> dict[str, object]:
    return {
        "apiVersion": "odradek.io/v1alpha1",
        "kind": "User",
        "metadata": {"name": name},
        "spec": {
            "clusterRef": {"name": "main"},
            "authentication": {"type": "scram-sha-512"},
            "authorization": {
                "acls": [
                    {
                        "resource": {"type": "topic", "name": topic_name},
                        "operations": ["Read", "Write", "Describe"],
                    }
                ]
            },
        },
    }


def send(producer: Producer, name: str) -> KafkaError | None:
    """Produce one record; return its error."""
    errors: list[KafkaError | None] = []
    producer.produce(name, b"record", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(60) == 0
    return errors[0]


def test_a_user_gets_in_and_is_shut_out_when_it_is_deleted(
    kubectl: Kubectl, healthy: None, bootstrap: str
) -> None:
    assert kubectl.condition("kafkacluster", "main", "Secured")["status"] == "True"
    assert kubectl.condition("kafkacluster", "main", "ZooKeeperSecured")["status"] == "True"
    name = "belongs"
    kubectl.apply(topic(name, partitions=1))
    try:
        wait_for(kubectl, "topic", name, "Synced")
        comes_and_goes(kubectl, bootstrap, name)
    finally:
        kubectl("delete", "user", name, "--ignore-not-found", "--timeout=120s")
        kubectl("delete", "topic", name, "--timeout=120s")


def comes_and_goes(kubectl: Kubectl, bootstrap: str, name: str) -> None:
    """Create a User for a topic, work as this user, delete it, and be refused."""
    began = time.monotonic()
    kubectl.apply(user(name, name))
    given = eventually(lambda: scram(kubectl, name), "the Secret of the User", 120, 0.1)
    options: dict[str, str | int | float | bool] = {
        "bootstrap.servers": bootstrap,
        **QUIET,
        **given,
    }
    # A client that begins before the brokers know the user tries again.
    producer = Producer({**options, "message.timeout.ms": 5000})
    eventually(lambda: send(producer, name) is None, "the user writes", 120, 0.1)
    worked_s = time.monotonic() - began
    # What its ACLs do not name it may not even see.
    assert set(AdminClient(options).list_topics(timeout=60).topics) == {name}

    began = time.monotonic()
    kubectl("delete", "user", name, "--timeout=120s")

    def refused() -> bool:
        error = send(producer, name)
        assert error is not None
        assert error.code() in SHUT_OUT, error
        return True

    eventually(refused, "the open connection may do nothing more", 120, 0.1)

    def stays_out() -> bool:
        told: list[KafkaError] = []
        client = AdminClient(options, error_cb=told.append)
        with pytest.raises(KafkaException):
            client.list_topics(timeout=5)
        client.poll(0)
        assert KafkaError._AUTHENTICATION in {one.code() for one in told}, told
        return True

    eventually(stays_out, "a new connection is refused", 120, 0.1)
    out_s = time.monotonic() - began
    print(f"a User works after {worked_s:.1f} s, and is shut out {out_s:.1f} s after its deletion")


def test_the_command_of_open_znodes_secures_them(kubectl: Kubectl, healthy: None) -> None:
    def status(reason: str) -> str:
        now = f"look={time.monotonic()}"
        kubectl("annotate", "kafkacluster", "main", now, "--overwrite")
        found = kubectl.condition("kafkacluster", "main", "ZooKeeperSecured")
        assert found["reason"] == reason, found
        message: str = found["message"]
        return message

    status("Secured")
    place = kubectl.get("kafkacluster", "main")["spec"]["zookeeper"]
    keeper = place["connect"] + place["chroot"]
    tool = ("odradek", "zookeeper", "unsecure", "--zookeeper", keeper)
    kubectl("exec", "main-broker-0", "--", *tool)
    message = eventually(lambda: status("OpenZnodes"), "open znodes are seen")
    _, _, command = message.partition(": run ")
    paths = f"{kubectl.binary.parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": paths, "KUBECONFIG": str(kubectl.kubeconfig)}
    ended = subprocess.run(
        ["sh", "-c", command], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, (command, ended.stderr)
    eventually(lambda: status("Secured"), "znodes have ACLs again")


def served(address: str, authority: str) -> str:
    """Return the certificate with which a broker serves, as PEM."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cadata=authority)
    with (
        socket.create_connection((host, int(port)), 60) as plain,
        context.wrap_socket(plain, server_hostname=host) as secured,
    ):
        return ssl.DER_cert_to_PEM_cert(cast("bytes", secured.getpeercert(binary_form=True)))


@contextmanager
def reading(bootstrap: str, name: str, group: str) -> Iterator[list[bytes]]:
    """Consume as a member of a group; yield the list of values so far."""
    found: list[bytes] = []
    errors: list[object] = []
    stop = threading.Event()

    def read() -> None:
        consumer = Consumer(
            {**settings(bootstrap), "group.id": group, "auto.offset.reset": "earliest"}
        )
        consumer.subscribe([name])
        while not stop.is_set():
            message = consumer.poll(0.2)
            if message is None:
                continue
            if message.error() is None:
                found.append(message.value() or b"")
            else:
                errors.append(message.error())
        consumer.close()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield found
    finally:
        stop.set()
        reader.join()
    assert errors == []


def test_certificates_are_renewed_while_clients_work(
    kubectl: Kubectl, healthy: None, bootstrap: str
) -> None:
    name = "renewed-under-load"
    kubectl.apply(topic(name, partitions=PARTITIONS, replicationFactor=3))
    wait_for(kubectl, "topic", name, "Synced")
    authority = secret(kubectl, "main-cluster-ca")
    trusted = login(bootstrap)["ssl.ca.pem"]
    addresses = bootstrap.split(",")
    before = {one: served(one, trusted) for one in addresses}
    present = next(iter(before.values()))
    # As if 80 of its 90 days were over.
    due = certificates.sign_server(
        Pair(authority["ca.crt"], authority["ca.key"]),
        certificates.load(present)[0].subject,
        certificates.hosts_of(present),
        datetime.now(UTC) - timedelta(days=80),
    )
    text = base64.b64encode(f"{due.key.rstrip()}\n{due.certificate.rstrip()}\n".encode()).decode()
    pods = ("pods", "-l", "app.kubernetes.io/component=broker")
    with load(bootstrap, name) as acknowledged, reading(bootstrap, name, name) as found:
        eventually(lambda: len(acknowledged) > 500, "a first load", 120, 0.2)
        began = time.monotonic()
        kubectl(
            *("patch", "secret", "main-brokers", "--type=merge"),
            f"--patch={json.dumps({'data': {'broker.pem': text}})}",
        )
        kubectl("annotate", "kafkacluster", "main", f"look={began}", "--overwrite")

        def signed() -> str:
            pem = secret(kubectl, "main-brokers")["broker.pem"].partition("-----BEGIN CERTIFICATE")
            new = (pem[1] + pem[2]).strip()
            assert new != due.certificate.strip()
            return new

        new = eventually(signed, "the operator signs a new certificate")
        signed_s = time.monotonic() - began
        # The kubelet brings Secrets when it looks after a pod, which a change of the pod hastens.
        kubectl("annotate", *pods, f"look={began}", "--overwrite")

        def all_serve_it() -> bool:
            return all(served(one, trusted).strip() == new for one in addresses)

        eventually(all_serve_it, "all brokers serve the new certificate", RENEWAL_SECONDS)
        served_s = time.monotonic() - began
        reached = len(acknowledged)
        eventually(lambda: len(acknowledged) > reached + 200, "load afterwards", 120, 0.2)
    with reading(bootstrap, name, name) as rest:
        eventually(lambda: len({*found, *rest}) >= len(acknowledged), "all is read", 120, 0.2)
    assert {*found, *rest} == {*acknowledged}
    print(f"signed after {signed_s:.1f} s, served by all brokers after {served_s:.1f} s")
    kubectl("delete", "topic", name, "--timeout=120s")
