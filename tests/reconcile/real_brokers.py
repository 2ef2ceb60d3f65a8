"""An operator with real brokers, and what tests of several files ask of these."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.reconcile import kills
from tests.reconcile.conftest import Operator, Place
from tests.support.apiserver import ApiServer
from tests.support.broker import STEADY, Cluster

# A broker that is stopped must still be registered when the operator next looks.
SETTINGS = {**STEADY, "offsets.topic.num.partitions": "3"}
# For operators of KafkaClusters whose brokers are processes of the test.
OUTSIDE = ("tests.reconcile.outside_brokers",)


class Running(Place):
    """Three brokers with ids 1 to 3, and a KafkaCluster that tells where their znodes are."""

    cluster: Cluster
    operator: Operator


@contextmanager
def run(api: ApiServer, folder: Path, namespace: str) -> Iterator[Running]:
    """Run an operator in a namespace of its own, with brokers of its own."""
    api.create_namespace(namespace)
    with (
        Cluster(folder, 3, SETTINGS, own_zookeeper=True) as cluster,
        cluster.zookeeper.client() as client,
    ):
        place = Running(api, cluster.zookeeper, client, namespace)
        place.cluster = cluster
        place.kubectl.apply(
            {
                "apiVersion": "odradek.io/v1alpha1",
                "kind": "KafkaCluster",
                "metadata": {"name": "main"},
                "spec": {
                    "zookeeper": {"connect": cluster.zookeeper.connect},
                    # Ids begin at 0 on Kubernetes.
                    "brokers": {"replicas": 4},
                },
            }
        )
        log = folder / "operator.log"
        with Operator(api, namespace, log, "operator-0", modules=OUTSIDE) as place.operator:
            yield place
        print(log.read_text())


def status(place: Place, name: str) -> dict[str, Any]:
    return dict(place.kubectl.get("consumergroup", name)["status"])


def settle(running: Running, api: ApiServer, namespace: str) -> kills.FusedKube:
    """Make a namespace for operators that live in this process, with the same brokers."""
    kube = kills.client(api.kubeconfig)
    meta = {"name": namespace, "namespace": ""}
    kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
    (cluster,) = running.kubectl.get("kafkacluster")["items"]
    kube.create(
        {
            "apiVersion": kills.API,
            "kind": "KafkaCluster",
            "metadata": {"name": "main", "namespace": namespace},
            "spec": cluster["spec"],
        }
    )
    return kube
