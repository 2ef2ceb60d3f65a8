"""Folders that the driver itself reads and writes beside Spark: on a volume, or at a URL.

`LocalFolder` is on the volume, `HadoopFolder` at any URL that Hadoop has a file system for. Names
are relative, with `/`. Each file is small, and replaced as a whole: a reader sees the old text or
the new one.
"""

import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, cast

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from odradek_spark.config import JobConfigError
from odradek_spark.errors import JobError

_NO_CLIENT = ("UnsupportedFileSystemException", "ClassNotFoundException")
_INTERCEPTORS = "fs.s3a.audit.execution.interceptors"


class StorageError(JobError, OSError):
    """A folder at a URL does not answer, or refuses; the message is one line."""


class StorageFolder(Protocol):
    """One folder. Every method raises OSError."""

    @property
    def url(self) -> str:
        """The folder as Spark takes it."""

    def read(self, name: str) -> str | None:
        """Return the text of a file, None if there is none."""

    def names(self, name: str) -> list[str]:
        """Return the names in a folder below this one, none if it does not exist."""

    def write(self, name: str, text: str) -> None:
        """Write a file, or replace it."""

    def remove(self, name: str) -> None:
        """Remove a file or a folder with all that it has, if it exists."""


class LocalFolder:
    """A folder in the file system, which need not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def url(self) -> str:
        """The folder as Spark takes it."""
        return f"file://{self._path}"

    def read(self, name: str) -> str | None:
        """Return the text of a file, None if there is none."""
        try:
            return (self._path / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def names(self, name: str) -> list[str]:
        """Return the names in a folder below this one."""
        try:
            return [entry.name for entry in (self._path / name).iterdir()]
        except FileNotFoundError:
            return []

    def write(self, name: str, text: str) -> None:
        """Write a file, or replace it."""
        path = self._path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # With the checksum of the old file beside it, Hadoop would call the new one corrupt.
        _checksum(path).unlink(missing_ok=True)
        new = path.with_name(f".{path.name}.new")
        new.write_text(text, encoding="utf-8")
        new.replace(path)

    def remove(self, name: str) -> None:
        """Remove a file or a folder, if it exists."""
        path = self._path / name
        if path.is_dir():
            shutil.rmtree(path)
            return
        _checksum(path).unlink(missing_ok=True)
        path.unlink(missing_ok=True)


def _checksum(path: Path) -> Path:
    return path.with_name(f".{path.name}.crc")


class EmptyFolder:
    """A folder without files, which keeps none: what a new checkpoint finds."""

    url = ""

    def read(self, name: str) -> str | None:
        """Return None."""

    def names(self, name: str) -> list[str]:
        """Return no names."""
        return []

    def write(self, name: str, text: str) -> None:
        """Keep nothing."""

    def remove(self, name: str) -> None:
        """Remove nothing."""


class HadoopFolder:
    """A folder at a URL, by Hadoop's client for its scheme.

    Raises JobConfigError if the image has no such client, and StorageError.
    """

    def __init__(self, spark: SparkSession, url: str) -> None:
        self.url = url
        self._jvm = cast(Any, spark._jvm)
        conf = self._jvm.org.apache.hadoop.conf.Configuration(spark._jsc.hadoopConfiguration())
        # Spark's own writes never replace an offset; these do.
        conf.unset(_INTERCEPTORS)
        try:
            self._files = self._jvm.org.apache.hadoop.fs.FileSystem.newInstance(
                self._path("").toUri(), conf
            )
            self._files.exists(self._path(""))
        except Py4JJavaError as error:
            raise _error_of(url, error) from error

    def read(self, name: str) -> str | None:
        """Return the text of a file, None if there is none."""
        try:
            stream = self._files.open(self._path(name))
            try:
                text = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
            finally:
                stream.close()
            return str(text)
        except Py4JJavaError as error:
            if _is_missing(error):
                return None
            raise self._error(name, error) from error

    def names(self, name: str) -> list[str]:
        """Return the names in a folder below this one."""
        try:
            found = self._files.listStatus(self._path(name))
            return [str(status.getPath().getName()) for status in found]
        except Py4JJavaError as error:
            if _is_missing(error):
                return []
            raise self._error(name, error) from error

    def write(self, name: str, text: str) -> None:
        """Write a file, or replace it."""
        try:
            stream = self._files.create(self._path(name), True)
            stream.write(bytearray(text.encode()))
            # An object store shows the file now, as a whole.
            stream.close()
        except Py4JJavaError as error:
            raise self._error(name, error) from error

    def remove(self, name: str) -> None:
        """Remove a file or a folder, if it exists."""
        try:
            self._files.delete(self._path(name), True)
        except Py4JJavaError as error:
            raise self._error(name, error) from error

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.url}/{name}" if name else self.url)

    def _error(self, name: str, error: Py4JJavaError) -> StorageError:
        return StorageError(f"{self.url}/{name}: {_reason(error)}")


def make_event_log_folder(conf: Mapping[str, str], url: str) -> None:
    """Create the folder of event logs: Spark starts with these properties only if it is there.

    Raises JobConfigError if the image has no client for the URL, or the path cannot be, and
    StorageError.
    """
    if url.startswith("/"):
        try:
            Path(url).mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise JobConfigError(f"job.eventLog.path {url}: {error.strerror}") from error
        except OSError as error:
            raise StorageError(f"job.eventLog.path {url}: {error.strerror}") from error
        return
    settings = SparkConf().setAll(list(conf.items()))
    # The JVM is the one that the session gets: its memory is settled now.
    SparkContext._ensure_initialized(conf=settings)
    jvm: Any = SparkContext._jvm
    java_conf = jvm.org.apache.spark.SparkConf(False)
    for name, value in conf.items():
        java_conf.set(name, value)
    try:
        hadoop = jvm.org.apache.spark.deploy.SparkHadoopUtil.get().newConfiguration(java_conf)
        path = jvm.org.apache.hadoop.fs.Path(url)
        path.getFileSystem(hadoop).mkdirs(path)
    except Py4JJavaError as error:
        raise _error_of(url, error) from error


def _error_of(url: str, error: Py4JJavaError) -> JobConfigError | StorageError:
    reason = _reason(error)
    if any(name in reason for name in _NO_CLIENT):
        return JobConfigError(f"{url}: the image has no client for it: {reason}")
    return StorageError(f"{url}: {reason}")


def open_folder(spark: SparkSession, url: str) -> StorageFolder:
    """Return the folder of a URL or of an absolute path. Raises JobConfigError, StorageError."""
    if url.startswith("/"):
        return LocalFolder(Path(url))
    folder = HadoopFolder(spark, url)
    require_put_if_absent(spark, url)
    return folder


def require_put_if_absent(spark: SparkSession, url: str) -> None:
    """Raise JobConfigError if the store behind an s3a URL replaces what it must not.

    It writes an object that io.odradek.s3.PutIfAbsent asks the store never to replace, twice.
    """
    if not url.startswith("s3a://"):
        return
    jvm: Any = spark._jvm
    # Delta's readers ignore names with an underscore, and VACUUM deletes them.
    probe = jvm.org.apache.hadoop.fs.Path(f"{url}/_put_if_absent/{time.time_ns()}")
    try:
        files = probe.getFileSystem(spark._jsc.hadoopConfiguration())
        files.create(probe, True).close()
        try:
            if _replaces(files, probe):
                raise JobConfigError(
                    f"{url}: the store ignores If-None-Match, so one driver could replace what "
                    "another has committed; use another store, or a volume"
                )
        finally:
            files.delete(probe, False)
    except Py4JJavaError as error:
        raise StorageError(f"{url}: {_reason(error)}") from error


def _replaces(files: Any, path: Any) -> bool:
    try:
        files.create(path, True).close()
    except Py4JJavaError as error:
        if "Status Code: 412" in _reason(error):
            return False
        raise
    return True


def _is_missing(error: Py4JJavaError) -> bool:
    return str(error.java_exception.getClass().getSimpleName()) == "FileNotFoundException"


def _reason(error: Py4JJavaError) -> str:
    return str(error.java_exception.toString()).splitlines()[0]
