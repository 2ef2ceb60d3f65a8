"""Reads KafkaCluster, Topics and ConsumerGroups from YAML, with the operator's own parser.

A resource is checked by the schema of its CRD first, as the API server does it. What has no meaning
without Kubernetes is left out, and named in `LocalResources.unused`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import yaml

from odradek import given_files
from odradek_local import schema
from odradek_local.errors import LocalError
from odradek_operator.group import group_spec
from odradek_operator.group.group_spec import GroupSpec
from odradek_operator.shared import cluster_spec, spec
from odradek_operator.shared.cluster_spec import ClusterSpec
from odradek_operator.shared.spec import InvalidSpec
from odradek_operator.topic import topic_spec
from odradek_operator.topic.topic_spec import TopicSpec
from odradek_spark.datagen.quickstarts import QUICKSTARTS

# The annotation of a Topic that is filled with the records of a quickstart of `odradek datagen`.
DATAGEN: Final = "odradek.io/datagen"
_CRDS: Final = {
    "KafkaCluster": "kafkaclusters.yaml",
    "Topic": "topics.yaml",
    "ConsumerGroup": "consumergroups.yaml",
    "User": "users.yaml",
    "Reassignment": "reassignments.yaml",
}
# As the API server has it (RFC 1123).
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LONGEST_NAME: Final = 253
# Fields that say something to Kubernetes, or to the operator over time.
_UNUSED: Final[Mapping[str, tuple[str, ...]]] = {
    "KafkaCluster": (
        "zookeeper.connect",
        "zookeeper.authentication",
        "brokers.hostNetwork",
        "brokers.perNode",
        "brokers.storage",
        "brokers.rackTopologyKey",
        "brokers.resources",
        "brokers.nodeSelector",
        "brokers.affinity",
        "brokers.tolerations",
        "brokers.priorityClassName",
        "brokers.podLabels",
        "brokers.podAnnotations",
        "brokers.topologySpreadConstraints",
        "brokers.env",
        "jobs",
        "console.users",
        "console.certificate",
        "console.hosts",
        "console.writable",
        # Brokers are plain, on loopback.
        "listeners",
        "authorization",
        "clusterCa",
        "clientsCa",
        # Brokers are processes of this installation.
        "image",
        "rollout",
        "paused",
    ),
    "Topic": (
        "unmanagedConfig",
        "management",
        "adoption",
        "deletionPolicy",
        "paused",
        "table",
        "replicaAssignment",
    ),
    "ConsumerGroup": (
        "slo",
        "reset",
        "deletionPolicy",
        "job.schedule",
        "job.suspend",
        "job.executors.dynamicAllocation",
        "job.executors.memory",
        "job.driver.cores",
        "job.volume",
        "job.ui",
        "job.checkpoint",
        "job.sink.delta.secretRef",
        "job.sink.jdbc.secretRef",
        "job.sink.jdbc.credentialsSecret",
        "job.eventLog.secretRef",
        "job.timeouts.startSeconds",
        "job.env",
        "job.secretRefs",
        "job.podAnnotations",
        "job.template",
        "job.nodeSelector",
        "job.tolerations",
        "job.priorityClassName",
        "job.image",
    ),
}


@dataclass(frozen=True, slots=True)
class LocalTopic:
    """A Topic, and the quickstart whose records fill it; None: nobody fills it."""

    name: str
    spec: TopicSpec
    datagen: str | None


@dataclass(frozen=True, slots=True)
class LocalGroup:
    """A ConsumerGroup; `job` is spec.job as it is written, with defaults, None: it has none."""

    name: str
    spec: GroupSpec
    job: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class LocalResources:
    """What runs. `unused` names what was left out, in the words of the files."""

    name: str
    cluster: ClusterSpec
    topics: tuple[LocalTopic, ...]
    groups: tuple[LocalGroup, ...]
    unused: tuple[str, ...]


def read(place: Path | None) -> LocalResources:
    """Return the resources of a file or folder; None: those that come with the package.

    Raises LocalError, one line that names the file and the field.
    """
    if place is None:
        text = files("odradek_local").joinpath("quickstart.yaml").read_text(encoding="utf-8")
        documents = [("the default resources", one) for one in yaml.safe_load_all(text)]
        return _resources(documents)
    try:
        documents = [one for file in _files(place) for one in _documents(file)]
    except OSError as error:  # of a folder that may not be looked into
        raise LocalError(f"cannot read {error.filename or place}: {error.strerror}") from error
    return _resources(documents)


def _files(place: Path, within: tuple[Path, ...] = ()) -> list[Path]:
    """Return the files of a file or folder, which kustomizations of the folders `within` name."""
    if not place.is_dir():
        return [place]
    if place.resolve() in within:
        raise LocalError(f"a kustomization of {place} names a folder that it is in")
    for name in ("kustomization.yaml", "kustomization.yml", "Kustomization"):
        if (place / name).is_file():
            return _listed(place / name, (*within, place.resolve()))
    try:
        found = sorted(one for one in place.iterdir() if one.suffix in (".yaml", ".yml"))
    except OSError as error:
        raise LocalError(f"cannot read {place}: {error.strerror}") from error
    if not found:
        raise LocalError(f"{place} has no YAML files")
    return found


def _listed(kustomization: Path, within: tuple[Path, ...]) -> list[Path]:
    """Return the files that a kustomization names, with those in its folders."""
    named: list[Path] = []
    for _, document in _documents(kustomization):
        resources = (document.get("resources") if isinstance(document, dict) else None) or []
        if not isinstance(resources, list):
            raise LocalError(f"{kustomization}: resources must be a list")
        named += [kustomization.parent / str(one) for one in resources]
    return [file for one in named for file in _files(one, within)]


def _documents(file: Path) -> list[tuple[str, Any]]:
    try:
        text = given_files.read_text(file)
        return [(str(file), one) for one in yaml.safe_load_all(text) if one is not None]
    except OSError as error:
        raise LocalError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise LocalError(f"{file} is not UTF-8 text") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise LocalError(f"{file} is not YAML: {_yaml_reason(error)}") from error


def _yaml_reason(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    reason = getattr(error, "problem", None) or str(error).partition("\n")[0]
    return f"line {mark.line + 1}: {reason}" if mark is not None else reason


def _resources(documents: list[tuple[str, Any]]) -> LocalResources:
    clusters: list[tuple[str, spec.Body]] = []
    topics: dict[str, LocalTopic] = {}
    groups: dict[str, LocalGroup] = {}
    unused: list[str] = []
    seen: set[tuple[str, str]] = set()
    for file, document in documents:
        kind, name = _identity(file, document)
        where = f"{file}: {kind} {name}"
        if not str(document["apiVersion"]).startswith(f"{spec.GROUP}/"):
            unused.append(f"{kind} {name}")
            continue
        body = _admitted(where, kind, document)
        if (kind, name) in seen:
            raise LocalError(f"{where} is there twice")
        seen.add((kind, name))
        if kind in ("User", "Reassignment"):
            # Brokers are plain, and ask nobody who he is. Nobody carries out moves.
            unused.append(f"{kind} {name}")
            continue
        unused += [f"{kind}.spec.{path}" for path in _UNUSED[kind] if _has(document["spec"], path)]
        try:
            if kind == "KafkaCluster":
                clusters.append((where, body))
            elif kind == "Topic":
                topic = _topic(where, name, body)
                if topic.spec.topic in topics:
                    raise LocalError(f"{where}: topic {topic.spec.topic} is there twice")
                topics[topic.spec.topic] = topic
            else:
                group = LocalGroup(name, group_spec.parse_group(body), body["spec"].get("job"))
                if group.spec.group in groups:
                    raise LocalError(f"{where}: group {group.spec.group} is there twice")
                groups[group.spec.group] = group
        except InvalidSpec as error:
            raise LocalError(f"{where}: {error}") from error
    name, cluster = _the_cluster(clusters)
    resources = LocalResources(
        name, cluster, tuple(topics.values()), tuple(groups.values()), tuple(dict.fromkeys(unused))
    )
    _check_references(resources)
    return resources


def _identity(file: str, document: Any) -> tuple[str, str]:
    if not isinstance(document, dict):
        raise LocalError(f"{file} is no resource: it must have apiVersion, kind and metadata.name")
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    texts = (document.get("apiVersion"), document.get("kind"), name)
    if not all(isinstance(one, str) and one for one in texts):
        raise LocalError(f"{file} is no resource: it must have apiVersion, kind and metadata.name")
    return str(document["kind"]), str(name)


def _admitted(where: str, kind: str, document: dict[str, Any]) -> spec.Body:
    """Return the resource as the API server would store it."""
    if document["apiVersion"] != spec.API_VERSION or kind not in _CRDS:
        known = ", ".join(_CRDS)
        raise LocalError(
            f"{where} ({document['apiVersion']}) is not supported here; {known} of "
            f"{spec.API_VERSION} are"
        )
    # Folders and logs have its name.
    if len(document["metadata"]["name"]) > _LONGEST_NAME or not _NAME.fullmatch(
        document["metadata"]["name"]
    ):
        raise LocalError(
            f"{where}: metadata.name must be lower case letters, digits, '-' and '.', at most "
            f"{_LONGEST_NAME}, with a letter or digit at both ends"
        )
    extra = sorted(set(document) - {"apiVersion", "kind", "metadata", "spec", "status"}, key=str)
    if extra:
        raise LocalError(f"{where}: {extra[0]} is unknown")
    if not isinstance(document.get("spec"), dict):
        raise LocalError(f"{where}: spec is missing")
    try:
        wanted = schema.checked(_schema(kind), document["spec"], "spec")
    except schema.SchemaError as error:
        raise LocalError(f"{where}: {error}") from error
    metadata = {"namespace": "default", **document["metadata"]}
    return {**document, "metadata": metadata, "spec": wanted}


@cache
def _schema(kind: str) -> schema.Schema:
    text = files("odradek_local").joinpath("crds", _CRDS[kind]).read_text(encoding="utf-8")
    (version,) = yaml.safe_load(text)["spec"]["versions"]
    found: schema.Schema = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return found


def _has(value: Any, path: str) -> bool:
    for name in path.split("."):
        if not isinstance(value, dict) or name not in value:
            return False
        value = value[name]
    return True


def _topic(where: str, name: str, body: spec.Body) -> LocalTopic:
    annotations = body["metadata"].get("annotations") or {}
    datagen = annotations.get(DATAGEN) if isinstance(annotations, dict) else None
    if datagen is not None and not (isinstance(datagen, str) and datagen in QUICKSTARTS):
        known = ", ".join(QUICKSTARTS)
        raise LocalError(f"{where}: {DATAGEN} {datagen!r} is not one of {known}")
    return LocalTopic(name, topic_spec.parse_topic(body), datagen)


def _the_cluster(found: list[tuple[str, spec.Body]]) -> tuple[str, ClusterSpec]:
    if len(found) != 1:
        named = ", ".join(where for where, _ in found) or "none"
        raise LocalError(f"exactly one KafkaCluster is needed, and there is {named}")
    where, body = found[0]
    try:
        # All brokers are on this machine, whatever perNode says.
        cluster = replace(cluster_spec.parse_cluster(body), per_node=1)
        cluster_spec.check_fits(cluster)
    except InvalidSpec as error:
        raise LocalError(f"{where}: {error}") from error
    return str(body["metadata"]["name"]), cluster


def _check_references(resources: LocalResources) -> None:
    for kind, name, reference in _references(resources):
        if reference.rpartition("/")[2] != resources.name:
            raise LocalError(
                f"{kind} {name} is of KafkaCluster {reference}, which is not there; "
                f"there is {resources.name}"
            )
    names = {topic.spec.topic for topic in resources.topics}
    for topic in resources.topics:
        factor = topic.spec.replication_factor or resources.cluster.default_replication_factor
        if factor > resources.cluster.replicas:
            raise LocalError(
                f"Topic {topic.name}: {factor} replicas are more than the "
                f"{resources.cluster.replicas} brokers"
            )
    for group in resources.groups:
        missing = sorted(set(group.spec.topics) - names)
        if group.job is not None and missing:
            raise LocalError(f"ConsumerGroup {group.name}: there is no Topic {missing[0]}")


def _references(resources: LocalResources) -> Iterator[tuple[str, str, str]]:
    for topic in resources.topics:
        yield "Topic", topic.name, topic.spec.cluster
    for group in resources.groups:
        yield "ConsumerGroup", group.name, group.spec.cluster
