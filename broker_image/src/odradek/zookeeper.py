"""A ZooKeeper server for laptops and tests, from the jars that pyspark installs.

`write_config` writes the zoo.cfg, `command` returns the command line. `odradek zookeeper` replaces
its process by the server; tests start it as a child. In Kubernetes the chart runs ZooKeeper's own
image.
"""

from __future__ import annotations

import importlib.util
import shutil
import socket
from pathlib import Path

SERVER_CLASS = "org.apache.zookeeper.server.ZooKeeperServerMain"
LOG_SETTINGS = """\
status = error
appender.console.type = Console
appender.console.name = stderr
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %p %c{1} %m%n
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
"""


class MissingError(Exception):
    """Java or the jars are not installed; the text says what to install."""


def write_config(
    data_dir: Path, port: int, tick_time_ms: int = 1000, host: str = "127.0.0.1"
) -> Path:
    """Create `data_dir` and write zoo.cfg and the log settings to it; return the zoo.cfg.

    Session timeouts may be 2 to 60 ticks, so brokers get those that they request.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    (data_dir / "log4j2.properties").write_text(LOG_SETTINGS, encoding="utf-8")
    path = data_dir / "zoo.cfg"
    settings = {
        "tickTime": tick_time_ms,
        "dataDir": data_dir,
        "clientPort": port,
        "clientPortAddress": host,
        "maxClientCnxns": 0,
        "minSessionTimeout": 2 * tick_time_ms,
        "maxSessionTimeout": 60 * tick_time_ms,
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "ruok,srvr,mntr,stat,cons,wchp",
        "autopurge.purgeInterval": 1,
    }
    path.write_text(
        "".join(f"{key}={_escaped(str(value))}\n" for key, value in settings.items()),
        encoding="ascii",
    )
    return path


def _escaped(text: str) -> str:
    r"""Return a value as ZooKeeper reads it: it takes the file for Latin-1, and \ for an escape."""
    encoded = text.encode("utf-16-be")
    units = [chr(int.from_bytes(encoded[at : at + 2], "big")) for at in range(0, len(encoded), 2)]
    return "".join(
        one if " " <= one <= "~" and one != "\\" else f"\\u{ord(one):04x}" for one in units
    )


def check_address(host: str, port: int) -> None:
    """Raise OSError or UnicodeError for an address where no server can listen now.

    ZooKeeper itself would answer with a stack trace.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)


def command(config: Path, java: Path | None = None) -> list[str]:
    """Return the command line of a server with this zoo.cfg, by `java` or the one on the PATH.

    Raises MissingError.
    """
    program = shutil.which("java") if java is None else str(java)
    if program is None:
        raise MissingError("java is not on the PATH: install a Java 17 runtime")
    # The path of the package is enough: importing pyspark would take a second.
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise MissingError(
            "pyspark, whose jars hold ZooKeeper, is not installed: pip install 'odradek[spark]'"
        )
    jars = Path(spec.submodule_search_locations[0]) / "jars"
    classpath = ":".join(str(jar) for jar in _server_jars(jars))
    return [
        program,
        "-Xmx256m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        f"-Dlog4j.configurationFile={config.parent / 'log4j2.properties'}",
        "-cp",
        classpath,
        SERVER_CLASS,
        str(config),
    ]


def _server_jars(jars: Path) -> list[Path]:
    """Return the jars of pyspark that the server needs: a short class path starts faster."""
    wanted = (
        "zookeeper-",
        "log4j-",
        "slf4j-api-",
        "netty-",
        "metrics-core-",
        "snappy-java-",
        "commons-cli-",
    )
    found = sorted(jar for jar in jars.glob("*.jar") if jar.name.startswith(wanted))
    if not any(jar.name.startswith("zookeeper-") for jar in found):
        raise MissingError(f"no ZooKeeper jar in {jars}: reinstall pyspark")
    return found
