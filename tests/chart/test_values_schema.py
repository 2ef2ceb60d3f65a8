"""values.schema.json refuses what the chart would not understand, and says where it stands."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import helm, yaml_text
from tests.support.helm import Manifest

REFUSED: dict[str, tuple[Manifest, str]] = {
    "a key that nobody reads": ({"zookeper": {"replicas": 3}}, "at '': additional properties"),
    "an unknown key below a known one": (
        {"zookeeper": {"replica": 3}},
        "at '/zookeeper': additional properties 'replica'",
    ),
    "an unknown key of an image": (
        {"image": {"broker": {"repo": "r/b"}}},
        "at '/image/broker': additional properties 'repo'",
    ),
    "a third kind of resources": (
        {"operator": {"resources": {"claims": {}}}},
        "at '/operator/resources': additional properties 'claims'",
    ),
    # A label of its pods is the name, a dash, and a hash of up to ten digits.
    "a name that ZooKeeper's pods cannot have": (
        {"zookeeper": {"name": "a" * 53}},
        "at '/zookeeper/name'",
    ),
    "an even ensemble": ({"zookeeper": {"replicas": 2}}, "at '/zookeeper/replicas'"),
    "a number as text": ({"zookeeper": {"replicas": "three"}}, "at '/zookeeper/replicas'"),
    "ZooKeeper as root": ({"zookeeper": {"runAsUser": 0}}, "at '/zookeeper/runAsUser'"),
    "a heap of nothing": ({"zookeeper": {"heapMegabytes": 0}}, "at '/zookeeper/heapMegabytes'"),
    "a size without a unit": (
        {"zookeeper": {"storage": {"size": "10"}}},
        "at '/zookeeper/storage/size'",
    ),
    "an image without repository": (
        {"image": {"broker": {"repository": ""}}},
        "at '/image/broker/repository'",
    ),
    "a tag with a space": ({"image": {"operator": {"tag": "a b"}}}, "at '/image/operator/tag'"),
    "a digest that is cut off": (
        {"image": {"broker": {"digest": "sha256:0123"}}},
        "at '/image/broker/digest'",
    ),
    "a label that the chart gives itself": (
        {"commonLabels": {"app.kubernetes.io/part-of": "logs"}},
        "invalid propertyName 'app.kubernetes.io/part-of'",
    ),
    "an unknown pull policy": ({"image": {"pullPolicy": "Sometimes"}}, "at '/image/pullPolicy'"),
    "a namespace that is no label": ({"watchNamespace": "Logs_1"}, "at '/watchNamespace'"),
    "a list of watched namespaces": ({"watchNamespace": ["a", "b"]}, "at '/watchNamespace'"),
    "an address block without length": (
        {"networkPolicy": {"nodeCidrs": ["10.0.0.0"]}},
        "at '/networkPolicy/nodeCidrs/0'",
    ),
    "a peer that names nobody": (
        {"networkPolicy": {"zookeeperFrom": [{}]}},
        "at '/networkPolicy/zookeeperFrom/0'",
    ),
    "an unknown log level": ({"zookeeper": {"logLevel": "LOUD"}}, "at '/zookeeper/logLevel'"),
    "an unknown log format": ({"operator": {"logFormat": "xml"}}, "at '/operator/logFormat'"),
    "yes for true": ({"rbac": {"readNodes": "yes"}}, "at '/rbac/readNodes'"),
    "one name for the accounts of all jobs": (
        {"sparkJob": {"serviceAccount": {"name": "jobs"}}},
        "at '/sparkJob/serviceAccount': additional properties 'name'",
    ),
    "a negative alert limit": (
        {"monitoring": {"rules": {"maxLag": -1}}},
        "at '/monitoring/rules/maxLag'",
    ),
    "a threshold that is no number": (
        {"monitoring": {"rules": {"maxLagSeconds": "15m"}}},
        "at '/monitoring/rules/maxLagSeconds'",
    ),
    "a duration without a unit": (
        {"monitoring": {"rules": {"groupStoppedFor": "10"}}},
        "at '/monitoring/rules/groupStoppedFor'",
    ),
    "a share of more than the whole": (
        {"monitoring": {"rules": {"diskFillingPercent": 120}}},
        "at '/monitoring/rules/diskFillingPercent'",
    ),
    "a list of groups": ({"exporter": {"groups": ["a", "b"]}}, "at '/exporter/groups'"),
    "an exporter that never reads": (
        {"exporter": {"intervalSeconds": 0}},
        "at '/exporter/intervalSeconds'",
    ),
    "a priority class that is no name": (
        {"operator": {"priorityClassName": "a: b"}},
        "at '/operator/priorityClassName'",
    ),
    "a Secret that is no name": (
        {"zookeeper": {"authentication": {"secretName": "{{ .Release.Name }}"}}},
        "at '/zookeeper/authentication/secretName'",
    ),
    "a quantity with an unknown unit": (
        {"operator": {"resources": {"limits": {"memory": "1GB"}}}},
        "at '/operator/resources/limits/memory'",
    ),
}


@pytest.mark.parametrize(("values", "place"), REFUSED.values(), ids=REFUSED)
def test_nonsense_is_refused_where_it_stands(values: Manifest, place: str) -> None:
    with pytest.raises(helm.HelmError) as refused:
        helm.template(values)
    assert "don't meet the specifications of the schema" in str(refused.value)
    assert place in str(refused.value)


@pytest.mark.parametrize(
    ("values", "missing"),
    [
        ({"exporter": None}, "missing property 'exporter'"),
        ({"zookeeper": {"metrics": None}}, "at '/zookeeper': missing property 'metrics'"),
        ({"monitoring": {"dashboards": None}}, "at '/monitoring': missing property 'dashboards'"),
        ({"monitoring": {"rules": {"maxLagSeconds": None}}}, "missing property 'maxLagSeconds'"),
    ],
)
def test_values_of_an_older_chart_are_refused_by_name(values: Manifest, missing: str) -> None:
    # `helm upgrade --reuse-values` takes these, without the defaults of what has come since.
    with pytest.raises(helm.HelmError) as refused:
        helm.template(values)
    assert missing in str(refused.value)


def sections(values: Manifest, schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Paths of all keys of values.yaml that have known keys below them."""
    for key, value in values.items():
        part = schema["properties"][key]
        # A selector of Kubernetes' may be empty.
        if isinstance(value, dict) and "properties" in part and key != "metricsFrom":
            yield f"{path}/{key}"
            yield from sections(value, part, f"{path}/{key}")


def test_sections_without_any_key_are_refused_by_name() -> None:
    # Somebody has put a # before all of their lines; YAML reads null, and Helm drops the defaults.
    values = yaml_text.load((helm.CHART / "values.yaml").read_text())
    schema = json.loads((helm.CHART / "values.schema.json").read_text())
    for path in sections(values, schema):
        *above, last = path.strip("/").split("/")
        emptied: Manifest = {last: None}
        for key in reversed(above):
            emptied = {key: emptied}
        with pytest.raises(helm.HelmError, match=f"missing property '{last}'"):
            helm.template(emptied)


def leaves(values: Manifest, schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every key of values.yaml with its part of the schema."""
    for key, value in values.items():
        part = schema.get("properties", {}).get(key)
        yield f"{path}/{key}", part
        if isinstance(value, dict) and part and "properties" in part:
            yield from leaves(value, part, f"{path}/{key}")


def test_schema_knows_exactly_the_documented_keys() -> None:
    values = yaml_text.load((helm.CHART / "values.yaml").read_text())
    schema = json.loads((helm.CHART / "values.schema.json").read_text())
    documented = dict(leaves(values, schema))
    assert not [path for path, part in documented.items() if part is None]

    def known(part: dict[str, Any], path: str = "") -> Iterator[str]:
        for key, below in part.get("properties", {}).items():
            yield f"{path}/{key}"
            yield from known(below, f"{path}/{key}")

    # metricsFrom is a selector, written where it is wanted; global is Helm's own.
    free = {"/global"} | {p for p in known(schema) if p.startswith("/networkPolicy/metricsFrom/")}
    assert set(known(schema)) - free == set(documented)
