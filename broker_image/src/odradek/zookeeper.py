"""A real ZooKeeper server for laptops and tests: the one inside the jars that pyspark installs.

`write_config` makes the zoo.cfg, `command` the argument list; `odradek zookeeper` replaces itself
by that process, tests start it as a child. In Kubernetes the chart runs ZooKeeper's own image.
"""

from __future__ import annotations

import importlib.util
import shutil
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
    """Write zoo.cfg and the log settings under `data_dir`, creating it; returns the zoo.cfg.

    Sessions may last 2 to 60 ticks, so brokers get the time-outs that they ask for.
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
        "".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8"
    )
    return path


def command(config: Path) -> list[str]:
    """The command line of a server with this zoo.cfg. Raises MissingError."""
    java = shutil.which("java")
    if java is None:
        raise MissingError("java is not on the PATH: install a Java 17 runtime")
    # Where the package lies is enough: importing pyspark would cost a second and start nothing.
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise MissingError(
            "pyspark, whose jars hold ZooKeeper, is not installed: pip install 'odradek[spark]'"
        )
    jars = Path(spec.submodule_search_locations[0]) / "jars"
    classpath = ":".join(str(jar) for jar in _server_jars(jars))
    return [
        java,
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
    """The few of pyspark's jars that the server needs: a short class path starts faster."""
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
