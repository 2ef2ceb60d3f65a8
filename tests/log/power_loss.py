"""What a disk holds after a power loss, as a journaling file system leaves it.

`Recorder` follows each change of the files and folders below one folder, and each fsync, in the
order in which they were made. `Disk` takes them up to any of them and makes a folder as a power
loss right there could leave it. What was synced is there. Of the rest:

- Of a file that was written since its fsync each sector may have any of its contents since then,
  or zeros if it is new, and the file any of its sizes since then.
- Creating, renaming and removing names, and cutting files, go through a journal: up to some change
  they are kept, and all later ones are lost. ext4, XFS and Btrfs promise that. With
  `any_order` each of them is kept or lost for itself, which is all that POSIX promises.
- An fsync keeps the changes of the file or folder, and with a journal all changes before them.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SECTOR_BYTES = 512
_TOP = 0


@dataclass(frozen=True)
class Write:
    """A write to a file, or with `is_cut` a change of its size alone."""

    file: int
    content: bytes
    is_cut: bool = False


@dataclass(frozen=True)
class Names:
    """One change of names: which file or folder each (folder, name) stands for now, None for
    nothing.
    """

    changed: dict[tuple[int, str], int | None]


@dataclass(frozen=True)
class Folder:
    """A new folder."""

    node: int


@dataclass(frozen=True)
class Sync:
    """An fsync of a file or folder."""

    node: int


Event = Write | Folder | Names | Sync


class Recorder:
    """Follows what is done below `top`. All that is there at first is on the disk. Fsyncs are
    noted, and not done.
    """

    def __init__(self, top: Path) -> None:
        self.top = str(top)
        self.events: list[Event] = []
        self._nodes: dict[int, int] = {}  # by inode
        self._made = _TOP
        self._add(self.top)
        for folder, folders, files in os.walk(self.top):
            for name in (*folders, *files):
                self._found(os.path.join(folder, name))
        self.events += [Sync(node) for node in self._nodes.values()]

    def _found(self, path: str) -> None:
        node = self._add(path)
        self.events.append(Names({self._place(path): node}))
        if os.path.isfile(path):
            self.events.append(Write(node, Path(path).read_bytes()))

    def _add(self, path: str) -> int:
        """Note a new file or folder. Its inode may have been another's before."""
        node = self._nodes[os.stat(path).st_ino] = self._made
        self._made += 1
        if os.path.isdir(path):
            self.events.append(Folder(node))
        return node

    def _node(self, path: str) -> int:
        return self._nodes[os.stat(path).st_ino]

    def _place(self, path: str) -> tuple[int, str]:
        folder, name = os.path.split(path)
        return self._node(folder), name

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patched:
            for name in ("open", "mkdir", "rename", "replace", "unlink", "rmdir", "pwrite",
                         "pwritev", "ftruncate", "fsync"):  # fmt: skip
                patched.setattr(
                    os, name, self._noting(getattr(self, f"_{name}"), getattr(os, name))
                )
            yield

    def _noting(self, note: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
        def call(target: str | int, *arguments: Any, **options: Any) -> Any:
            known = (
                os.fstat(target).st_ino in self._nodes
                if isinstance(target, int)
                else os.fspath(target).startswith(self.top + os.sep)
            )
            if known:
                return note(real, target, *arguments, **options)
            return real(target, *arguments, **options)

        return call

    def _open(self, real: Callable[..., int], path: str, flags: int, *rest: int) -> int:
        is_new = not os.path.exists(path)
        fd = real(path, flags, *rest)
        if is_new:
            node = self._add(path)
            self.events.append(Names({self._place(path): node}))
        elif flags & os.O_TRUNC:
            self.events.append(Write(self._node(path), b"", is_cut=True))
        return fd

    def _mkdir(self, real: Callable[..., None], path: str, *rest: int) -> None:
        real(path, *rest)
        node = self._add(path)
        self.events.append(Names({self._place(path): node}))

    def _rename(self, real: Callable[..., None], path: str, new: str) -> None:
        before = self._place(path)
        node = self._node(path)
        real(path, new)
        self.events.append(Names({before: None, self._place(new): node}))

    _replace = _rename

    def _unlink(self, real: Callable[..., None], path: str) -> None:
        real(path)
        self.events.append(Names({self._place(path): None}))

    _rmdir = _unlink

    def _pwrite(self, real: Callable[..., int], fd: int, *arguments: Any) -> int:
        written = real(fd, *arguments)
        self._note_content(fd, is_cut=False)
        return written

    _pwritev = _pwrite

    def _ftruncate(self, real: Callable[..., None], fd: int, size: int) -> None:
        real(fd, size)
        self._note_content(fd, is_cut=True)

    def _note_content(self, fd: int, *, is_cut: bool) -> None:
        content = Path(f"/proc/self/fd/{fd}").read_bytes()
        self.events.append(Write(self._nodes[os.fstat(fd).st_ino], content, is_cut))

    def _fsync(self, real: Callable[..., None], fd: int) -> None:
        self.events.append(Sync(self._nodes[os.fstat(fd).st_ino]))


@dataclass(frozen=True)
class _Version:
    """What was in a file since event `at`."""

    content: bytes
    is_cut: bool
    at: int


class Disk:
    """The changes up to a power loss."""

    def __init__(self, events: Sequence[Event], *, any_order: bool) -> None:
        self._any_order = any_order
        self._folders: set[int] = set()
        # Of each file what is on the disk, and what it may have instead.
        self._files: dict[int, list[_Version]] = {}
        # The names that are on the disk, and changes that may be there, too, by event.
        self._names: dict[tuple[int, str], int] = {}
        self._unsynced: dict[int, Names] = {}
        self._journaled = -1  # the last event up to which the journal is on the disk
        self._end = len(events)
        for at, event in enumerate(events):
            match event:
                case Write(file, content, is_cut):
                    versions = self._files.setdefault(file, [_Version(b"", True, -1)])
                    versions.append(_Version(content, is_cut, at))
                case Folder(node):
                    self._folders.add(node)
                case Names():
                    self._unsynced[at] = event
                case Sync(node):
                    self._sync(node)

    def _sync(self, node: int) -> None:
        versions = self._files.get(node, [])
        cuts = [version.at for version in versions if version.is_cut]
        del versions[:-1]
        synced = [
            at
            for at, names in self._unsynced.items()
            if any(folder == node for folder, _ in names.changed)
        ]
        if not self._any_order:
            self._journaled = max([self._journaled, *cuts, *synced])
            synced = [at for at in self._unsynced if at <= self._journaled]
        for at in synced:
            _apply(self._unsynced.pop(at), self._names)

    def write(self, top: Path, chance: random.Random) -> None:
        """Make a folder at `top` as a power loss could leave it."""
        # The journal often is there up to the last fsync, or to the end.
        until = chance.choice([self._journaled, chance.randint(-1, self._end), self._end])
        until = max(until, self._journaled)
        names = dict(self._names)
        for at, change in self._unsynced.items():
            if chance.random() < 0.5 if self._any_order else at <= until:
                _apply(change, names)
        self._write_folder(_TOP, top, names, until, chance)

    def _write_folder(
        self,
        folder: int,
        path: Path,
        names: dict[tuple[int, str], int],
        until: int,
        chance: random.Random,
    ) -> None:
        path.mkdir()
        for (parent, name), node in names.items():
            if parent != folder:
                continue
            if node in self._folders:
                self._write_folder(node, path / name, names, until, chance)
            else:
                (path / name).write_bytes(self._content(node, until, chance))

    def _content(self, file: int, until: int, chance: random.Random) -> bytes:
        """Return what a file may have where the journal is kept up to event `until`."""
        versions = self._files.get(file, [])
        first, last = 0, len(versions)
        if not self._any_order:
            cuts = [
                (number, one.at) for number, one in enumerate(versions) if one.is_cut and number
            ]
            first = max((number for number, at in cuts if at <= until), default=0)
            last = min((number for number, at in cuts if at > until), default=last)
        contents = [version.content for version in versions[first:]] or [b""]
        oldest, newest = contents[0], contents[-1]
        size = len(contents[chance.randrange(max(last - first, 1))])
        share = chance.random()  # of the sectors that are as they were
        result = bytearray()
        for at in range(0, size, SECTOR_BYTES):
            found = oldest
            if chance.random() >= share:
                zeros = [] if at < len(oldest) else [b""]
                found = chance.choice([*contents, newest, *zeros])
            result += found[at : at + SECTOR_BYTES].ljust(SECTOR_BYTES, b"\0")
        return bytes(result[:size])


def _apply(change: Names, names: dict[tuple[int, str], int]) -> None:
    for place, node in change.changed.items():
        if node is None:
            names.pop(place, None)
        else:
            names[place] = node
