"""For `kopf run -m`: an operator as a later version may be, with other pods and other files."""

from typing import Any

from odradek_operator.cluster import objects

SETTING = "odradek.of.later=1\n"
VARIABLE = {"name": "OF_LATER", "value": "1"}

_server_properties, _container = objects.server_properties, objects._container


def _other_properties(*arguments: Any, **named: Any) -> str:
    return _server_properties(*arguments, **named) + SETTING


def _other_container(*arguments: Any, **named: Any) -> dict[str, Any]:
    made = _container(*arguments, **named)
    made["env"].append(dict(VARIABLE))
    return made


objects.server_properties = _other_properties
objects._container = _other_container
