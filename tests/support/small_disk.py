"""A small file system that fills up, for brokers that run inside its mount namespace."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.support.broker import Broker, FreshBroker

BLOCKS = (1 << 20, 4096)


class SmallDisk:
    """A tmpfs at `path` in a mount namespace of its own; a context manager. `size` as for mount."""

    def __init__(self, path: Path, size: str) -> None:
        self.path = path
        self._size = size
        self._holder: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> SmallDisk:
        self.path.mkdir(parents=True)
        mount = f"mount -t tmpfs -o size={self._size} tmpfs '{self.path}'"
        holding = f"{mount} && echo ready && exec sleep 86400"
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", holding],
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"ready\n", f"no small disk at {self.path}"
        return self

    def __exit__(self, *_: object) -> None:
        assert self._holder is not None
        self._holder.kill()
        self._holder.communicate()

    @property
    def namespace(self) -> int:
        """Return the id of the process whose mount namespace has the disk."""
        assert self._holder is not None
        return self._holder.pid

    def seen_from_outside(self, path: Path) -> Path:
        """Return how other processes reach a path of the namespace."""
        return Path(f"/proc/{self.namespace}/root", *path.parts[1:])

    def fill(self) -> None:
        """Leave no space."""
        with self._filler.open("wb", buffering=0) as out:
            for size in BLOCKS:
                try:
                    while out.write(bytes(size)) == size:
                        pass
                except OSError:
                    continue

    def free(self) -> None:
        """Give the space back."""
        self._filler.unlink(missing_ok=True)

    @property
    def _filler(self) -> Path:
        return self.seen_from_outside(self.path) / "filler"

    def broker_class(self) -> type[Broker]:
        """Return the class of brokers that run inside."""
        disk = self

        class Inside(FreshBroker):
            def __init__(
                self,
                directory: Path,
                broker_id: int,
                connect: str,
                settings: Mapping[str, str],
                port: int | None = None,
            ) -> None:
                super().__init__(directory, broker_id, connect, settings, port)
                self.log_dir = disk.seen_from_outside(self.log_dir)

            def _command(self) -> list[str]:
                return ["nsenter", f"--target={disk.namespace}", "--mount", *super()._command()]

        return Inside
