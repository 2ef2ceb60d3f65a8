"""The composition root: builds and owns the broker's parts, and starts and stops them in order.

Start: metrics and probes, ZooKeeper session, cluster id, log directories (locked, checked and
loaded), listeners, registration under `/brokers/ids`, controller candidate. A registered broker can
serve requests.
Stop, on a signal (`stop_signals`): leaderships move away (controlled shutdown), requests in
progress are answered, background work ends, logs are flushed and marked clean, and the session ends
last, so that no other broker takes this one for dead while it still writes.
Before the registration the broker has nothing to hand over: the start breaks off at once. Recovery
stops after the present batch, and marks and checkpoints say what they said before of logs that were
not opened.

Background tasks quarantine what an unexpected exception was about (see `quarantine`). One that ends
all the same ends the process with a traceback: a broker that runs without it would be worse.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from kazoo.exceptions import KazooException

from odradek import stop_signals
from odradek.config import BrokerConfig
from odradek.controlled_shutdown import move_leaderships
from odradek.health import Health
from odradek.log.directory import LogDirError
from odradek.log.manager import LogManager
from odradek.metrics import endpoint
from odradek.metrics.broker_metrics import BrokerMetrics
from odradek.net.broker_addresses import BrokerAddresses
from odradek.net.listener import Listener
from odradek.quarantine import Quarantines, Work
from odradek.replica.metadata import MetadataCache
from odradek.security import zookeeper
from odradek.security.credentials import ScramCredentials
from odradek.security.listeners import BrokerSecurity
from odradek.server import parts, preparation
from odradek.server.dynamic_settings import DynamicSettings
from odradek.server.errors import StartError, StoppedEarlyError
from odradek.server.failed_directories import FailedDirectories
from odradek.server.peers import Peers
from odradek.zk import registration, znodes
from odradek.zk.failures import describe
from odradek.zk.session import Session

# A share of what `stop_limits` allows after the controlled shutdown.
LAST_ANSWERS_LIMIT_MS = 1500
# A start does not wait longer for name servers: the addresses are looked up again later.
BROKER_ADDRESSES_LIMIT_S = 2.0

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Server:
    """One broker process. Raises ConfigError for key stores that cannot be used."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._stop = asyncio.Event()
        self._failed = False
        self._is_replaced = False
        self._serving = False
        self._quarantines = Quarantines()
        self._metrics = BrokerMetrics(self._quarantines)
        self._health = Health(self._why_not_ready)
        self._metadata = MetadataCache()
        self._listeners: dict[str, Listener] = {}
        self._session = Session(
            config.zookeeper_connect,
            config.zookeeper_session_timeout_ms,
            config.zookeeper_connection_timeout_ms,
            access=zookeeper.access(config.zookeeper_security),
        )
        self._credentials = ScramCredentials(self._session)
        self._security = BrokerSecurity(config, self._credentials.find)
        self._peers = Peers(config, self._metadata, self._session, self._security)
        self._broker_addresses = BrokerAddresses(self._peers.hosts)
        self._failed_directories = FailedDirectories(
            config.broker_id, self._session, self._quarantines
        )
        self._has_session = self._has_logs = False

    async def run(self) -> int:
        """Start, serve and stop; return the exit status.

        Raises StartError, or an exception group if a task failed.
        """
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._note_unexpected)
        for number in stop_signals.numbers():
            loop.add_signal_handler(number, self._stop.set)
        async with contextlib.AsyncExitStack() as cleanup:
            self._serve_metrics(cleanup)
            try:
                await self._start(cleanup)
            except StoppedEarlyError:
                await self._break_off()
                what = "was registered" if self._has_session else "had a session in ZooKeeper"
                logger.info("broker %d was stopped before it %s", self._config.broker_id, what)
                return 0
            except StartError:
                await self._break_off()
                raise
            await self._serve_until_stopped()
            await self._parts.replicas.checkpoint_high_watermarks()
            await asyncio.to_thread(self._logs.close)
        logger.info("broker %d stopped", self._config.broker_id)
        return int(self._failed)

    def _note_unexpected(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Count what no task could handle: an exception of a callback, or of a forgotten task."""
        error = context.get("exception")
        if error is None:
            loop.default_exception_handler(context)
        else:
            self._quarantines.note(Work.CALLBACK, "event loop", error, context["message"])

    # --- start --------------------------------------------------------------------------------

    async def _start(self, cleanup: contextlib.AsyncExitStack) -> None:
        """Start everything but the background work. Raises StartError and StoppedEarlyError."""
        try:
            await self._unless_stopped(self._prepare(cleanup))
            await self._start_serving(cleanup)
        except KazooException as failure:
            raise StartError(f"failed to start: ZooKeeper: {describe(failure)}") from failure
        except znodes.ZnodeError as error:
            raise StartError(f"failed to start: {error}") from error

    def _serve_metrics(self, cleanup: contextlib.AsyncExitStack) -> None:
        """Serve metrics and probes from the beginning: loading the logs may take minutes."""
        host, port = self._config.metrics_host, self._config.metrics_port
        if not port:
            return
        try:
            cleanup.callback(endpoint.serve(self._metrics, port, self._health, host))
        except OSError as error:
            raise StartError(f"cannot serve metrics on {host}:{port}: {error}") from error
        heartbeat = asyncio.create_task(self._health.run(), name="heartbeat")
        cleanup.callback(heartbeat.cancel)

    def _why_not_ready(self) -> str:
        if not self._serving:
            return "the broker starts or stops"
        if self._parts.registration.epoch == -1:
            return "the broker is not registered in ZooKeeper"
        return ""

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` returns. Raises StoppedEarlyError if the broker is told to stop first;
        then `work` was cancelled, and has ended.
        """
        if self._stop.is_set():
            work.close()
            raise StoppedEarlyError
        working = asyncio.create_task(work, name="start")
        stopping = asyncio.create_task(self._stop.wait(), name="stop during the start")
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if working.done():
            return working.result()
        working.cancel()
        # Also an error of the last moment is nobody's concern any more.
        await asyncio.gather(working, return_exceptions=True)
        raise StoppedEarlyError

    async def _prepare(self, cleanup: contextlib.AsyncExitStack) -> None:
        """Make everything that the broker needs before others may know of it."""
        config = self._config
        preparation.warn_of_readable_secrets(config)
        await self._open_session(cleanup)
        cluster_id = await preparation.cluster_id(self._session, config.log_dirs)
        settings = DynamicSettings(config, self._session, self._quarantines)
        await settings.start()
        await self._load_logs(cluster_id, settings)
        quotas = await preparation.connection_quotas(settings)
        authorizer = await preparation.authorizer(config, self._session, self._quarantines)
        preparation.warn_of_lockout(config.inter_broker_listener_name, self._security, authorizer)
        self._settings, self._authorizer = settings, authorizer
        self._parts = parts.build(
            parts.Foundation(
                config=config,
                cluster_id=cluster_id,
                session=self._session,
                quarantines=self._quarantines,
                metrics=self._metrics,
                metadata=self._metadata,
                settings=settings,
                logs=self._logs,
                failed_directories=self._failed_directories,
                security=self._security,
                credentials=self._credentials,
                authorizer=authorizer,
                quotas=quotas,
                peers=self._peers,
                broker_addresses=self._broker_addresses,
            )
        )
        self._listeners = self._parts.listeners
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BROKER_ADDRESSES_LIMIT_S):
                await self._broker_addresses.refresh()

    async def _break_off(self) -> None:
        """End what the start began, before anybody was told of this broker."""
        for listener in self._listeners.values():
            await listener.close(0)
        if self._has_logs:
            await asyncio.to_thread(self._logs.close)

    async def _open_session(self, cleanup: contextlib.AsyncExitStack) -> None:
        try:
            await self._session.start()
        except ConnectionError as error:
            raise StartError(str(error)) from error
        self._has_session = True
        cleanup.push_async_callback(self._session.close)

    async def _load_logs(self, cluster_id: str, settings: DynamicSettings) -> None:
        loop = asyncio.get_running_loop()
        loading = True

        def tell_loop(path: str, error: OSError) -> None:
            # Nothing uses logs while they are loaded; `load` fails if no directory is left.
            if not loading:
                loop.call_soon_threadsafe(self._directory_failed, path)

        self._logs = LogManager(
            settings.effective,
            cluster_id,
            settings.configs,
            on_dir_failure=tell_loop,
            quarantines=self._quarantines,
        )
        self._has_logs = True
        await preparation.load_logs(self._logs)
        loading = False

    async def _start_serving(self, cleanup: contextlib.AsyncExitStack) -> None:
        """Listen, register and look for a controller. Raises StoppedEarlyError."""
        for where in self._config.listeners:
            listener = self._listeners[where.name]
            try:
                await listener.start()
            except OSError as error:
                raise StartError(f"cannot listen on {where}: {error}") from error
            cleanup.push_async_callback(listener.close, 0)
        await self._register()
        await self._parts.controller.start()

    async def _register(self) -> None:
        while True:
            try:
                await self._unless_stopped(self._parts.registration.start())
                return await asyncio.to_thread(self._logs.record_owner)
            except LogDirError as error:
                raise StartError(str(error)) from error
            except registration.DuplicateBrokerError as error:
                if not await self._unless_stopped(
                    registration.registration_disappears(self._session, self._config.broker_id)
                ):
                    raise StartError(str(error)) from error

    async def _serve_until_stopped(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            background = [
                tasks.create_task(self._parts.replicas.run(), name="replicas"),
                tasks.create_task(self._logs.run(), name="logs"),
                tasks.create_task(self._parts.groups.run(), name="groups"),
                tasks.create_task(self._parts.transactions.run(), name="transactions"),
                tasks.create_task(self._settings.configs.run(), name="topic settings"),
                tasks.create_task(self._stay_registered(), name="registration"),
                tasks.create_task(
                    self._quarantines.keep_running(
                        Work.ADDRESSES, "brokers", self._broker_addresses.run
                    ),
                    name="broker addresses",
                ),
                tasks.create_task(self._failed_directories.run(), name="failed directories"),
                tasks.create_task(self._security.run(), name="security"),
            ]
            if self._authorizer is not None:
                watching = self._authorizer.watcher.run()
                background.append(tasks.create_task(watching, name="ACLs"))
            # Ends once the listener is closed; an earlier end is a failure to accept.
            for listener in self._listeners.values():
                tasks.create_task(listener.wait_closed(), name="listener")
            self._serving = True
            logger.info("broker %d is up", self._config.broker_id)
            await self._stop.wait()
            self._serving = False
            await self._stop_serving()
            for task in background:
                task.cancel()

    async def _stay_registered(self) -> None:
        """Register after each lost session; stop if another broker has taken this one's id."""
        try:
            await self._parts.registration.run()
        except registration.DuplicateBrokerError as error:
            logger.critical("%s; stopping", error)
            self._failed = True
            self._is_replaced = True
            self._stop.set()

    # --- stop ---------------------------------------------------------------------------------

    def _directory_failed(self, path: str) -> None:
        """Continue without a failed log directory, or stop if it was the last."""
        self._parts.replicas.directory_failed(path)
        self._failed_directories.announce()
        if not self._logs.online_directories:
            logger.critical("no log directory is left; stopping")
            self._failed = True
            self._stop.set()

    async def _stop_serving(self) -> None:
        logger.info("broker %d is stopping", self._config.broker_id)
        # The leaderships of a broker that is replaced are those of the other one.
        if self._config.controlled_shutdown_enable and not self._is_replaced:
            await move_leaderships(
                self._config,
                self._parts.controller,
                self._peers.connect_to_controller,
                lambda: self._parts.registration.epoch,
            )
        self._parts.groups.close()
        await self._parts.verifier.close()
        await self._parts.transactions.close()
        self._parts.replicas.close()
        self._metadata.close()
        async with asyncio.TaskGroup() as closing:
            for listener in self._listeners.values():
                closing.create_task(listener.close(LAST_ANSWERS_LIMIT_MS))
        await self._parts.controller.stop()
