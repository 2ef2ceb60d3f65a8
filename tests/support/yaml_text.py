"""Reads YAML by libyaml: the chart's objects take PyYAML's own parser as long as helm to render."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import yaml


def load(text: str) -> Any:
    """Return the one document of a text. Raises yaml.YAMLError."""
    return yaml.load(text, yaml.CSafeLoader)


def load_all(text: str) -> Iterator[Any]:
    """Return the documents of a text. Raises yaml.YAMLError."""
    return yaml.load_all(text, yaml.CSafeLoader)


def dump_all(documents: Iterable[Any]) -> str:
    """Return a text with these documents."""
    return str(yaml.dump_all(documents, Dumper=yaml.CSafeDumper))
