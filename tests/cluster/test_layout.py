"""The layout of the built-in cluster by kind-config.yaml."""

import pytest
import yaml

from tests.cluster import layout


def cluster(nodes: str) -> object:
    return yaml.safe_load(f"kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\nnodes: {nodes}")


def test_workers_are_numbered_in_order_and_the_control_plane_is_no_node() -> None:
    found = layout.parse(
        cluster("[{role: worker, labels: {a: 1}}, {role: control-plane}, {role: worker}]")
    )
    assert [(node.name, dict(node.labels)) for node in found] == [
        ("node1", {"a": "1"}),
        ("node2", {}),
    ]
    assert [node.address for node in found] == ["172.30.0.11", "172.30.0.12"]
    assert [node.pod_cidr for node in found] == ["10.244.1.0/24", "10.244.2.0/24"]


def test_the_projects_own_file_has_three_workers_in_three_zones() -> None:
    zones = [node.labels["topology.kubernetes.io/zone"] for node in layout.load()]
    assert len(zones) == len(set(zones)) == 3


def test_interface_names_fit_the_kernels_fifteen_bytes() -> None:
    found = layout.parse(cluster("[" + ", ".join(["{role: worker}"] * 200) + "]"))
    assert max(len(node.veth) for node in found) <= 15


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ("[{role: control-plane}]", "no worker"),
        ("[]", "no worker"),
        ("[{role: worker}, {role: etcd}]", "unknown role etcd"),
        ("[" + ", ".join(["{role: worker}"] * 201) + "]", "201 workers"),
    ],
)
def test_what_cannot_be_booted_is_refused_with_the_reason(nodes: str, reason: str) -> None:
    with pytest.raises(layout.LayoutError, match=reason):
        layout.parse(cluster(nodes))


def test_another_kind_of_document_is_refused() -> None:
    with pytest.raises(layout.LayoutError, match="not a kind Cluster"):
        layout.parse({"kind": "Pod"})
