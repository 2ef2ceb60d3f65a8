"""How a later version of the operator may make other pods and other files."""

from typing import Final

SETTING: Final = "odradek.of.later=1\n"
VARIABLE: Final = {"name": "OF_LATER", "value": "1"}
