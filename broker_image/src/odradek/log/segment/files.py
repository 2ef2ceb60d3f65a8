"""File access of the log: positioned writes, fsync, and files that sendfile reads.

`SharedFile` is an open file with a count of its users. A `Region` (file descriptor, position,
length) holds one count from the moment a fetch is planned until its last byte is sent. So a segment
that retention deletes or truncation replaces stays readable during a transfer. A file without users
may be closed at any time (`close_idle`, `open_files`) and opens again by itself, so there may be
more partitions than descriptors.

Every call here may block. The broker makes the short ones (a write into the page cache, a header
read) directly and runs the rest (fsync, cold reads, recovery) in `DiskThreads`, so that a slow disk
never stalls heartbeats or the ZooKeeper session.
"""

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from odradek.log.segment.open_files import OPEN_FILES
from odradek.protocol.regions import Buffer

P = ParamSpec("P")
T = TypeVar("T")

_DISK_FAILURES = frozenset(
    {
        # The device or its file system failed, is full, or takes no writes.
        errno.EIO,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EROFS,
        errno.EUCLEAN,
        errno.EBADMSG,
        errno.ENXIO,
        errno.ENODEV,
        errno.ENOMEDIUM,
        errno.ENODATA,
        errno.EILSEQ,
        # A device or file system behind a network is out of reach.
        errno.ESTALE,
        errno.EREMOTEIO,
        errno.ENOLINK,
        errno.ETIMEDOUT,
        errno.ENOTCONN,
        errno.ESHUTDOWN,
        # Somebody unmounted, removed or replaced our files, or took our access away.
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EACCES,
        errno.EPERM,
    }
)


# A disk writes so many bytes at once, or none of them.
_SECTOR_BYTES = 512
_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})


def is_shortage(error: OSError) -> bool:
    """Return whether the process or the machine ran short of descriptors or memory."""
    return error.errno in _SHORTAGES


def is_disk_failure(error: OSError) -> bool:
    """Return whether `error` condemns the log directory.

    Others fail only the operation: one name is too long or taken, an argument is wrong, the process
    ran short of descriptors or memory.
    """
    return error.errno in _DISK_FAILURES


def _with_descriptor(take: Callable[[], T]) -> T:
    """Return what `take` returns, which needs a descriptor. If there is none, unused files of logs
    are closed first.
    """
    try:
        return take()
    except OSError as error:
        if error.errno not in _NO_DESCRIPTORS or not OPEN_FILES.release_some():
            raise
    return take()


def open_file(path: str, flags: int) -> int:
    """Return a new descriptor of a file. Raises OSError."""
    return _with_descriptor(lambda: os.open(path, flags | os.O_CLOEXEC, 0o644))


def read_file(path: str) -> bytes:
    """Return the bytes of a small file. Raises OSError."""
    with _with_descriptor(lambda: open(path, "rb")) as file:
        return file.read()


def list_names(directory: str) -> list[str]:
    """Return the names in a directory. Raises OSError."""
    return _with_descriptor(lambda: os.listdir(directory))


class FileRetiredError(Exception):
    """The file left the log; a read that was planned on it has to be planned again."""


class StoppedError(Exception):
    """The broker stops; background work under way is abandoned."""


class SharedFile:
    """A file that is opened on demand and counts its users; read-write unless `read_only`.

    With `unmap`, the owner maps the file, which takes a second descriptor; `unmap` drops the map.
    """

    __slots__ = ("_fd", "_lock", "_retired", "_unmap", "_used", "_users", "cost", "path",
        "read_only")  # fmt: skip

    def __init__(
        self, path: str, *, read_only: bool = False, unmap: Callable[[], None] | None = None
    ) -> None:
        self.path = path
        self.read_only = read_only
        self.cost = 1 if unmap is None else 2
        self._unmap = unmap
        self._fd = -1
        self._users = 0
        self._retired = False
        self._used = False
        self._lock = threading.Lock()

    def acquire(self) -> int:
        """Return the descriptor and hold it open until `release`.

        Raises FileRetiredError once the file left the log, OSError if it cannot be opened.
        """
        with self._lock:
            if self._fd < 0:
                if self._retired:
                    raise FileRetiredError(self.path)
                flags = os.O_RDONLY if self.read_only else os.O_RDWR | os.O_CREAT
                self._fd = open_file(self.path, flags)
                OPEN_FILES.add(self)
            self._users += 1
            self._used = True
            return self._fd

    def release(self) -> None:
        """Release one `acquire`."""
        with self._lock:
            assert self._users > 0, f"{self.path} released more often than acquired"
            self._users -= 1
            if self._retired and self._users == 0:
                self._close()

    def modified_ns(self) -> int:
        """Return when the file was last written, ns since 1970. Opens nothing, raises as
        `acquire`.
        """
        with self._lock:
            if self._fd >= 0:
                return os.fstat(self._fd).st_mtime_ns
            if self._retired:
                raise FileRetiredError(self.path)
            return os.stat(self.path).st_mtime_ns

    def rename(self, path: str) -> None:
        """Give the file another name, if it exists. Raises OSError.

        Whoever would open it waits meanwhile: its former name would make an empty file. One that
        left the log opens no more.
        """
        if self._retired:
            self._rename(path)
            return
        with self._lock:
            self._rename(path)

    def _rename(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.replace(self.path, path)
        self.path = path

    def set_modified_ns(self, time_ns: int) -> None:
        """Set the time of the last write. Raises as `acquire`."""
        fd = self.acquire()
        try:
            os.utime(fd, ns=(time_ns, time_ns))
        finally:
            self.release()

    def retire(self) -> None:
        """Close the descriptor as soon as it has no users, and never open it again.

        The map goes with its owner, which is freed at once as nothing here refers to it any more.
        """
        with self._lock:
            self._retired = True
            self._unmap = None
            if self._users == 0:
                self._close()

    def close_now(self) -> None:
        """Close the descriptor if it has no users: nobody is expected to use it soon."""
        with self._lock:
            if self._users == 0:
                self._close()

    def close_idle(self) -> None:
        """Close a descriptor that has no users and had none since the last call."""
        with self._lock:
            if self._users == 0 and not self._used:
                self._close()
            self._used = False

    def close_unused(self, *, even_if_used_lately: bool = False) -> bool:
        """As `open_files.OpenFile` says; also drops the map."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._users or self._fd < 0:
                return False
            if self._used and not even_if_used_lately:
                self._used = False
                return False
            if self._unmap is not None:
                self._unmap()
            fd, self._fd = self._fd, -1
            os.close(fd)
            return True
        finally:
            self._lock.release()

    def _close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
            OPEN_FILES.remove(self)


class Region:
    """A part of a log file: what sendfile needs, and the count that keeps the file open.

    `fd` is valid until `close()`, which may be called more than once. Structural type
    `odradek.protocol.regions.FileRegion`.
    """

    __slots__ = ("_file", "fd", "length", "position")

    def __init__(self, file: SharedFile, position: int, length: int) -> None:
        self.fd = file.acquire()
        self.position = position
        self.length = length
        self._file: SharedFile | None = file

    def read(self) -> bytes:
        """Return the bytes of the region. Raises OSError when they are no longer there."""
        data = read_exactly(self.fd, self.length, self.position)
        if len(data) < self.length:
            raise OSError(errno.EIO, "the region is shorter than it was when it was planned")
        return data

    def close(self) -> None:
        """Release the file."""
        file, self._file = self._file, None
        if file is not None:
            file.release()

    def __enter__(self) -> "Region":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def write_all(fd: int, buffers: Sequence[Buffer], position: int) -> int:
    """Write `buffers` one after another at `position`; return their total length.

    A short write is continued. When a write fails, OSError is raised and any prefix of the bytes
    may be in the file: the caller truncates it.
    """
    total = sum(map(len, buffers))
    written = os.pwritev(fd, buffers, position)
    if written == total:
        return total
    rest = memoryview(b"".join(buffers))
    while written < total:
        count = os.pwrite(fd, rest[written:], position + written)
        if count == 0:
            raise OSError(errno.ENOSPC, "the disk takes no more bytes")
        written += count
    return total


def read_exactly(fd: int, length: int, position: int) -> bytes:
    """Read up to `length` bytes at `position`; fewer only at the end of the file."""
    data = os.pread(fd, length, position)
    if len(data) == length or not data:
        return data
    parts = [data]
    have = len(data)
    while have < length:
        data = os.pread(fd, length - have, position + have)
        if not data:
            break
        parts.append(data)
        have += len(data)
    return b"".join(parts)


def sync(fd: int) -> None:
    """Fsync. Whatever the reason, a failure condemns the log directory: the kernel may have dropped
    the data, and the next fsync would succeed.
    """
    try:
        os.fsync(fd)
    except OSError as error:
        if is_disk_failure(error):
            raise
        raise OSError(errno.EIO, f"fsync failed: {error}") from error


def fsync_path(path: str) -> None:
    """Make the data of a file, or the names in a directory, durable."""
    fd = open_file(path, os.O_RDONLY)
    try:
        sync(fd)
    finally:
        os.close(fd)


def write_atomically(path: str, data: bytes, *, durable: bool = True) -> None:
    """Replace the file at `path`: temporary name, fsync, rename, fsync of the directory.

    With `durable=False` the fsyncs are left out. After a power failure either content may be found,
    so this is only for files that are checked when read and can be rebuilt.
    """
    temporary = path + ".tmp"
    fd = open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(fd, [data], 0)
        if durable:
            sync(fd)
    finally:
        os.close(fd)
    os.replace(temporary, path)
    if durable:
        fsync_path(os.path.dirname(path))


def write_in_place(path: str, data: bytes) -> bool:
    """Make a small file, or replace all of one that is no longer than the data.

    Return whether that was done. It costs a fraction of a rename, of one over a file a fiftieth. Up
    to the size of a sector either content may be found after a power failure, or one with the
    length of the other: only for files that are checked when read and can be rebuilt.
    """
    if len(data) > _SECTOR_BYTES:
        return False
    fd = open_file(path, os.O_WRONLY | os.O_CREAT)
    try:
        if os.fstat(fd).st_size > len(data):
            return False
        write_all(fd, [data], 0)
    finally:
        os.close(fd)
    return True


def remove_if_there(path: str) -> None:
    """Delete a file if it exists."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


class DiskThreads:
    """A bounded pool of threads for disk work that may block. The broker owns it and closes it
    last.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="disk")
        self._former: list[ThreadPoolExecutor] = []

    def resize(self, threads: int) -> None:
        """Run further work in so many threads. What is queued is still done by the former ones."""
        if threads == self._threads:
            return
        self._threads = threads
        self._pool.shutdown(wait=False)
        self._former.append(self._pool)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="disk")

    async def run(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` in a thread of the pool and return what it returns."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: work(*args, **kwargs))

    def close(self) -> None:
        """Wait for running work and end the threads."""
        for pool in (*self._former, self._pool):
            pool.shutdown(wait=True, cancel_futures=True)


def remove_tree(path: str) -> None:
    """Delete a folder and the files in it, as far as they exist."""
    try:
        for entry in _with_descriptor(lambda: os.scandir(path)):
            if entry.is_dir(follow_symlinks=False):
                remove_tree(entry.path)
            else:
                remove_if_there(entry.path)
        os.rmdir(path)
    except FileNotFoundError:
        return
