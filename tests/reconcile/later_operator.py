"""For `kopf run -m` only: makes an operator one of a later version (`later_version`)."""

from typing import Any

from odradek_operator.cluster import objects
from tests.reconcile.later_version import SETTING, VARIABLE

_server_properties, _container = objects.server_properties, objects._container


def _other_properties(*arguments: Any, **named: Any) -> str:
    return _server_properties(*arguments, **named) + SETTING


def _other_container(*arguments: Any, **named: Any) -> dict[str, Any]:
    made = _container(*arguments, **named)
    made["env"].append(dict(VARIABLE))
    return made


objects.server_properties = _other_properties
objects._container = _other_container
