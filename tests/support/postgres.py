"""A PostgreSQL server for tests, from Debian's package, as a user without rights.

It keeps nothing safe from a failing machine: a killed server loses nothing that it wrote.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

from tests.support.missing import skip_unless_ci
from tests.support.ports import free_port

PROGRAMS = Path("/usr/lib/postgresql")
START_SECONDS = 120
_END = "-- end of the answer --"
SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "shared_buffers": "16MB",
    "max_connections": "40",
}


class Session:
    """One connection by a psql that stays: a statement takes no process of its own."""

    def __init__(self, psql: Path, address: str) -> None:
        self._process = subprocess.Popen(
            [
                *(psql, "--no-psqlrc", "--quiet", "--tuples-only", "--no-align"),
                *("--field-separator=|", address),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def sql(self, text: str) -> list[list[str]]:
        """Run one statement, and return the rows as text."""
        asking, answering = self._process.stdin, self._process.stdout
        assert asking is not None
        assert answering is not None
        asking.write(f"{text};\n\\echo {_END}\n")
        asking.flush()
        rows: list[list[str]] = []
        while (line := answering.readline().rstrip("\n")) != _END:
            # psql says nothing more when its connection is gone.
            assert self._process.poll() is None, rows
            rows.append(line.split("|"))
        assert not [one for one in rows if one[0].startswith("ERROR:")], rows
        return rows

    def close(self) -> None:
        """End the connection."""
        self._process.communicate("\\q\n", timeout=60)


class Postgres:
    """One server in a temporary folder; a context manager."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        """Take an address of this machine; anybody who reaches it may do everything."""
        found = sorted(PROGRAMS.glob("*/bin"), key=lambda path: int(path.parent.name))
        if not found:
            skip_unless_ci("no PostgreSQL: install the package postgresql")
        self._programs = found[-1]
        self._folder = Path(tempfile.mkdtemp(prefix="odradek-postgres-"))
        self._host = host
        self._port = free_port()
        # initdb refuses to run as root; the package has made this user.
        self._user = "postgres" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The JDBC URL of the one database."""
        return f"jdbc:postgresql://{self._host}:{self._port}/postgres?user=odradek"

    @property
    def _address(self) -> str:
        return f"postgresql://odradek@{self._host}:{self._port}/postgres"

    def session(self) -> Session:
        """Return a connection of its own, to be closed by the caller."""
        return Session(self._programs / "psql", self._address)

    def sql(self, text: str) -> list[list[str]]:
        """Run statements with psql, and return the rows as text."""
        found = subprocess.run(
            [
                self._programs / "psql",
                *("--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--field-separator=|"),
                *("--set=ON_ERROR_STOP=1", f"--command={text}"),
                self._address,
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert found.returncode == 0, found.stderr
        return [line.split("|") for line in found.stdout.splitlines()]

    def __enter__(self) -> Postgres:
        if os.getuid() == 0:
            shutil.chown(self._folder, self._user)
        data = self._folder / "data"
        self._run("initdb", f"--pgdata={data}", "--username=odradek", "--auth=trust", "--no-sync")
        with (data / "pg_hba.conf").open("a", encoding="utf-8") as rules:
            rules.write("host all all all trust\n")
        settings = {**SETTINGS, "listen_addresses": self._host}
        options = [f"--{name}={value}" for name, value in settings.items()]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    self._programs / "postgres",
                    *("-D", data, "-p", str(self._port), "-k", self._folder),
                    *options,
                ],
                stdout=log,
                stderr=log,
                user=self._user,
                cwd=self._folder,
                start_new_session=True,
            )
        until = time.monotonic() + START_SECONDS
        ready = [str(self._programs / "pg_isready"), "-q", "-h", self._host, "-p", str(self._port)]
        while subprocess.run(ready, check=False).returncode != 0:
            if self._process.poll() is not None or time.monotonic() > until:
                text = (self._folder / "log").read_text()
                self.close()
                raise RuntimeError(f"PostgreSQL did not start: {text[-2000:]}")
            time.sleep(0.1)
        return self

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._programs / program, *arguments],
            user=self._user,
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def close(self) -> None:
        """End the server and delete its folder."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
