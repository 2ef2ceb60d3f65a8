"""Spark's errors in one line: without class names, plans and SQLSTATE."""

import re

from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException

from odradek_spark.sources import first_line

_CONDITION = re.compile(r"^\[[A-Z_.0-9]+\]\s*")
_STATE = re.compile(r"\s*SQLSTATE: \w+")
_JAVA = re.compile(r"^: (?:[\w.$]+: )?(.+)$", re.M)
_CAUSE = re.compile(r"^Caused by: (?:[\w.$]+: )?(.+)$", re.M)


def one_line(error: Exception) -> str:
    """Return what the user needs of an error that a statement raised."""
    if isinstance(error, Py4JNetworkError | ConnectionError):
        return "Spark's JVM ended; start the shell again"
    if isinstance(error, Py4JJavaError) and (found := _JAVA.search(str(error))):
        line = _cleaned(found[1])
    elif isinstance(error, PySparkException):
        line = _cleaned(first_line(error))
    else:
        return f"{type(error).__name__}: {first_line(error)}"
    causes = _CAUSE.findall(str(error))
    return f"{line} ({causes[-1].strip()})" if causes else line


def _cleaned(line: str) -> str:
    return _STATE.sub("", _CONDITION.sub("", line)).strip()
