"""Reads a Delta table by its log, without Spark: a session for it would take ten seconds."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq

_LOG = "_delta_log"
# A transaction's number has the batches of its query in these bits (odradek_spark.sinks.delta).
_BATCHES = (1 << 30) - 1


class DeltaTable:
    """A table in a folder. Commits are never replaced, nor data files, so each is read once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._commits: list[list[dict[str, Any]]] = []
        self._data: dict[str, list[dict[str, Any]]] = {}

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the files that the commits added and did not remove."""
        files: set[str] = set()
        for action in self._actions():
            if "add" in action:
                files.add(unquote(action["add"]["path"]))
            elif "remove" in action:
                files.discard(unquote(action["remove"]["path"]))
        for name in files - self._data.keys():
            self._data[name] = pq.read_table(self._folder / name).to_pylist()
        return [row for name in sorted(files) for row in self._data[name]]

    def batches(self) -> int:
        """Return how many batches the table has, by the number of its transactions."""
        numbers = [action["txn"]["version"] for action in self._actions() if "txn" in action]
        return max(numbers, default=0) & _BATCHES

    def files_without_commit(self) -> set[str]:
        """Return the names of data files that no commit has added."""
        # Looked up first: a file may be committed meanwhile.
        there = {str(path.relative_to(self._folder)) for path in self._folder.rglob("*.parquet")}
        there = {name for name in there if not name.startswith(_LOG)}
        added = {unquote(action["add"]["path"]) for action in self._actions() if "add" in action}
        return there - added

    def _actions(self) -> Iterator[dict[str, Any]]:
        while (commit := self._folder / _LOG / f"{len(self._commits):020}.json").exists():
            lines = commit.read_text().splitlines()
            self._commits.append([json.loads(line) for line in lines])
        return itertools.chain.from_iterable(self._commits)
