"""What users add to the pods of a job: environment, Secrets, annotations and a pod template. Pure.

Driver and executors get the same additions. What decides about their rights, their place in the
cluster's services or their life is the operator's, and refused here by the name of its field. The
API server checks the rest when the driver's pod is created.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

SECRETS_FOLDER: Final = "/etc/odradek/secrets"
# The container of a template that stands for the driver's and the executors'.
CONTAINER: Final = "spark"

_SPEC_FIELDS: Final = frozenset(
    {
        "affinity",
        "topologySpreadConstraints",
        "schedulerName",
        "runtimeClassName",
        "hostAliases",
        "dnsPolicy",
        "dnsConfig",
        "imagePullSecrets",
    }
)
_CONTAINER_LISTS: Final = ("env", "envFrom", "volumeMounts")
_VOLUME_KINDS: Final = frozenset({"configMap", "secret", "emptyDir", "persistentVolumeClaim"})
# By the key of a source in a volume or a variable: the field with the name of what it is.
_NAMES: Final = {
    "configMap": "name",
    "configMapKeyRef": "name",
    "configMapRef": "name",
    "persistentVolumeClaim": "claimName",
    "secret": "secretName",
    "secretKeyRef": "name",
    "secretRef": "name",
}
_ELSEWHERE: Final = frozenset({"nodeSelector", "tolerations", "priorityClassName"})
_OWN_VOLUMES: Final = frozenset(
    {"job", "tmp", "data", "credentials", "auth", "brokers", "zookeeper"}
)
_OWN_VOLUME_PREFIXES: Final = ("secret-", "spark-")
_OWN_LABELS: Final = ("app.kubernetes.io/", "odradek.io/", "spark-")
_OWN_ANNOTATIONS: Final = ("odradek.io/",)
_OWN_VARIABLES: Final = ("POD_", "ODRADEK_", "SPARK_", "_SPARK_", "KUBERNETES_")
_OWN_FOLDERS: Final = (
    "/etc/odradek",
    "/etc/odradek-zookeeper",
    "/opt/odradek",
    "/var/run/secrets",
)
_OWN_PATHS: Final = frozenset({"", "/data", "/tmp", "/etc", "/opt", "/var", "/var/run"})  # noqa: S108 (inside the container)


class TemplateError(ValueError):
    """A field that may not be set; the message names it."""


@dataclass(frozen=True, slots=True)
class PodAdditions:
    """What driver and executors have beside their own; `container` is of Spark's container.

    `spec` has no volumes, which are apart.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    volumes: tuple[Mapping[str, Any], ...] = ()
    container: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return them as the driver reads them in its job file; empty if there are none."""
        parts: dict[str, Any] = {
            "labels": dict(self.labels),
            "annotations": dict(self.annotations),
            "spec": dict(self.spec),
            "volumes": [dict(one) for one in self.volumes],
            "container": dict(self.container),
        }
        return {name: part for name, part in parts.items() if part}


def parse(job: Mapping[str, Any]) -> PodAdditions:
    """Read the additions of a job (spec.job). Raises TemplateError."""
    template = job.get("template", {})
    meta = template.get("metadata", {})
    spec = _mapping(template.get("spec", {}), "template.spec")
    labels, annotations = meta.get("labels", {}), meta.get("annotations", {})
    _check_keys(labels, _OWN_LABELS, "template.metadata.labels")
    _check_keys(annotations, _OWN_ANNOTATIONS, "template.metadata.annotations")
    _check_keys(job.get("podAnnotations", {}), _OWN_ANNOTATIONS, "podAnnotations")
    for name in spec:
        if name in _ELSEWHERE:
            raise TemplateError(f"template.spec.{name} may not be set; use spec.job.{name}")
        if name not in _SPEC_FIELDS | {"volumes", "containers"}:
            raise TemplateError(f"template.spec.{name} may not be set")
    own = _container(spec)
    secrets = [one["name"] for one in job.get("secretRefs", ())]
    mounts = [
        {"name": f"secret-{number}", "mountPath": f"{SECRETS_FOLDER}/{name}", "readOnly": True}
        for number, name in enumerate(secrets)
    ]
    held = [
        {"name": f"secret-{number}", "secret": {"secretName": name}}
        for number, name in enumerate(secrets)
    ]
    variables = _variables(own.get("env", ()), job.get("env", ()))
    container = {**own, "env": variables, "volumeMounts": [*own.get("volumeMounts", ()), *mounts]}
    return PodAdditions(
        labels=labels,
        annotations={**annotations, **job.get("podAnnotations", {})},
        spec={name: value for name, value in spec.items() if name in _SPEC_FIELDS},
        volumes=(*_volumes(spec), *held),
        container={name: value for name, value in container.items() if value},
    )


def _mapping(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TemplateError(f"{path} must be an object")
    return value


def _objects(value: Any, path: str) -> list[Mapping[str, Any]]:
    if not isinstance(value, list):
        raise TemplateError(f"{path} must be a list")
    return [_mapping(one, f"{path}[{number}]") for number, one in enumerate(value)]


def _check_keys(found: Iterable[str], own: tuple[str, ...], path: str) -> None:
    for key in found:
        if key.startswith(own):
            raise TemplateError(f"{path}: {key} belongs to the operator")


def _container(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a template sets of Spark's container."""
    found = _objects(spec.get("containers", []), "template.spec.containers")
    for number, one in enumerate(found):
        path = f"template.spec.containers[{number}]"
        if one.get("name") != CONTAINER or number:
            raise TemplateError(f"{path} may not be set: the one container is named {CONTAINER}")
        for name in one:
            if name not in (*_CONTAINER_LISTS, "name", "resources"):
                raise TemplateError(f"{path}.{name} may not be set")
        _check_resources(one.get("resources", {}), f"{path}.resources")
        for place, mount in enumerate(
            _objects(one.get("volumeMounts", []), f"{path}.volumeMounts")
        ):
            _check_mount(mount, f"{path}.volumeMounts[{place}].mountPath")
        _check_variables(one.get("env", []), f"{path}.env")
        for place, source in enumerate(_objects(one.get("envFrom", []), f"{path}.envFrom")):
            _check_source(source, f"{path}.envFrom[{place}]")
    return {name: value for one in found for name, value in one.items() if name != "name"}


def _check_resources(resources: Any, path: str) -> None:
    for kind, amounts in _mapping(resources, path).items():
        for name in _mapping(amounts, f"{path}.{kind}"):
            if name in ("cpu", "memory"):
                raise TemplateError(
                    f"{path}.{kind}.{name} may not be set; use spec.job.driver and executors"
                )


def _check_mount(mount: Mapping[str, Any], path: str) -> None:
    place = str(mount.get("mountPath", "")).rstrip("/")
    inside = any(place == own or place.startswith(f"{own}/") for own in _OWN_FOLDERS)
    if inside or place in _OWN_PATHS:
        raise TemplateError(f"{path}: {place or '/'} belongs to the operator")


def _check_variables(found: Any, path: str) -> None:
    for number, one in enumerate(_objects(found, path)):
        name = one.get("name")
        if not isinstance(name, str) or not name:
            raise TemplateError(f"{path}[{number}].name is missing")
        if name.startswith(_OWN_VARIABLES):
            raise TemplateError(f"{path}[{number}]: {name} belongs to the operator")
        if "valueFrom" in one:
            source = _mapping(one["valueFrom"], f"{path}[{number}].valueFrom")
            _check_source(source, f"{path}[{number}].valueFrom")


def _check_source(holder: Mapping[str, Any], path: str) -> None:
    """Raise TemplateError for what has no name: the API server would refuse it, and the account of
    a job names all that its pods have.
    """
    for kind in _NAMES.keys() & holder.keys():
        name = _mapping(holder[kind], f"{path}.{kind}").get(_NAMES[kind])
        if not isinstance(name, str) or not name:
            raise TemplateError(f"{path}.{kind}.{_NAMES[kind]} is missing")


def _variables(
    template: Iterable[Mapping[str, Any]], job: Iterable[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Return the variables of both, the job's where a name is in both."""
    _check_variables(list(job), "env")
    return list({one.get("name"): one for one in (*template, *job)}.values())


def _volumes(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = _objects(spec.get("volumes", []), "template.spec.volumes")
    for number, one in enumerate(found):
        path, name = f"template.spec.volumes[{number}]", str(one.get("name", ""))
        if name in _OWN_VOLUMES or name.startswith(_OWN_VOLUME_PREFIXES):
            raise TemplateError(f"{path}: the name {name} belongs to the operator")
        for kind in one:
            if kind != "name" and kind not in _VOLUME_KINDS:
                raise TemplateError(f"{path}.{kind} may not be set")
            if kind != "name":
                _mapping(one[kind], f"{path}.{kind}")
        _check_source(one, path)
    return found
