"""Command line of the Spark image: run the job, or show its result.

python3 -m odradek_spark             run the job in the file that ODRADEK_JOB names
python3 -m odradek_spark show PATH   print a Parquet result as a table

Exit codes of a job: 0 all records are read (availableNow), or an endless job was stopped by a
signal; 143 (128 + SIGTERM) an availableNow job was stopped by a signal; 1 the job failed, and may
be tried again; 2 the job cannot run as it is written, so that the operator waits for another spec.
The last line on stderr says why, after 2 as `Reason: text` if the reason has a name; the kubelet
reads it from /dev/termination-log.
"""

import contextlib
import logging
import os
import signal
import sys
from pathlib import Path

import click

from odradek.terminal_text import plain

_TERMINATION_LOG = Path("/dev/termination-log")
_DEFAULT_JOB = "/etc/odradek/job.json"
_STOPPED = 128 + signal.SIGTERM
_FAILED = 1
_STALLED = 2


def _exit(reason: str, code: int) -> None:
    line = plain(f"odradek-spark: {reason}")
    print(line, file=sys.stderr, flush=True)
    with contextlib.suppress(OSError):
        if _TERMINATION_LOG.exists():
            _TERMINATION_LOG.write_text(line, encoding="utf-8")
    raise SystemExit(code)


@click.group(invoke_without_command=True)
@click.pass_context
def main(context: click.Context) -> None:
    """Run a consumer group's Spark job, or show its result."""
    if context.invoked_subcommand is None:
        _run()


def _run() -> None:
    # Imported here, so that `show` does not load Spark.
    from odradek_spark import config, driver, sources
    from odradek_spark.errors import JobError, JobStalledError
    from odradek_spark.sinks.parquet_store import StoreError

    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger("kazoo").setLevel(logging.WARNING)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    try:
        environment = driver.environment()
        job = driver.load(os.environ.get("ODRADEK_JOB", _DEFAULT_JOB), environment)
        done = driver.Driver(job, environment).run()
    except (config.JobConfigError, JobStalledError) as error:
        _exit(sources.first_line(error), _STALLED)
    except (JobError, StoreError) as error:
        _exit(str(error), _FAILED)
    except Exception as error:
        logging.exception("the job failed")
        _exit(f"{type(error).__name__}: {sources.first_line(error)}", _FAILED)
    else:
        if not done:
            _exit("stopped by a signal before all records were read", _STOPPED)


@main.command()
@click.argument("path", type=click.Path(path_type=Path))
def show(path: Path) -> None:
    """Print the Parquet result at PATH as a table."""
    from odradek_spark import show as table

    try:
        names, rows = table.read(path)
    except (table.NothingToShowError, OSError) as error:
        _exit(str(error), 1)
        return
    print(table.render(names, rows))


if __name__ == "__main__":
    main(prog_name="odradek-spark")
