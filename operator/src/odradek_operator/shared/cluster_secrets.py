"""Names of the Secrets of a KafkaCluster with listeners, and of the users that it needs itself.

| Secret | keys |
|---|---|
| `CLUSTER-cluster-ca` | `ca.crt`, `ca.key`: signs the certificates of brokers and of the operator |
| `CLUSTER-cluster-ca-cert` | `ca.crt`: whom clients trust, of every TLS listener |
| `CLUSTER-clients-ca` | `ca.crt`, `ca.key`: signs the certificates of users of type tls |
| `CLUSTER-clients-ca-cert` | `ca.crt` |
| `CLUSTER-brokers` | what the pods of brokers mount |
| `CLUSTER-operator` | `username`, `password`; `user.crt`, `user.key` |
| `CLUSTER-authorities` | which CAs were published, and which of them sign: `authorities` |
| `CLUSTER-zookeeper` | what the pods of brokers mount to connect to ZooKeeper |
| `CLUSTER-lag-exporter-zookeeper` | the same for the lag exporter, without the brokers' login |
| `CLUSTER-lag-exporter`, `CLUSTER-console` | see `cluster_access` |
"""

from __future__ import annotations

from typing import Final

# SCRAM users of each cluster, and those of jobs. No User resource and no token has a name that
# begins so.
RESERVED_PREFIX: Final = "odradek-"
BROKER_USER: Final = "odradek-broker"
OPERATOR_USER: Final = "odradek-operator"
EXPORTER_USER: Final = "odradek-lag-exporter"
CONSOLE_USER: Final = "odradek-console"
# In the subjects of certificates of brokers and of the operator, so that no user of the clients' CA
# has the same.
ORGANIZATION: Final = "odradek"

CA_CERTIFICATE: Final = "ca.crt"
CA_KEY: Final = "ca.key"
USER_CERTIFICATE: Final = "user.crt"
USER_KEY: Final = "user.key"
USERNAME: Final = "username"
PASSWORD: Final = "password"  # noqa: S105 (a key of a Secret)


def cluster_ca(cluster: str) -> str:
    """Name of the Secret with the CA of brokers, and its key."""
    return f"{cluster}-cluster-ca"


def cluster_ca_cert(cluster: str) -> str:
    """Name of the Secret that clients need: whom to trust."""
    return f"{cluster}-cluster-ca-cert"


def clients_ca(cluster: str) -> str:
    """Name of the Secret with the CA of users of type tls, and its key."""
    return f"{cluster}-clients-ca"


def clients_ca_cert(cluster: str) -> str:
    """Name of the Secret with the certificate of that CA alone."""
    return f"{cluster}-clients-ca-cert"


def brokers(cluster: str) -> str:
    """Name of the Secret that brokers mount."""
    return f"{cluster}-brokers"


def operator(cluster: str) -> str:
    """Name of the Secret with the operator's own user."""
    return f"{cluster}-operator"


def zookeeper(cluster: str) -> str:
    """Name of the Secret with which brokers connect to ZooKeeper."""
    return f"{cluster}-zookeeper"


def exporter_zookeeper(cluster: str) -> str:
    """Name of the Secret with which the lag exporter connects to ZooKeeper."""
    return f"{cluster}-lag-exporter-zookeeper"


def authorities(cluster: str) -> str:
    """Name of the Secret with the phases of the CAs."""
    return f"{cluster}-authorities"
